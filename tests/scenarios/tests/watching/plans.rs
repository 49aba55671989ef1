//! `oarlock plan` shows what a job would do before it is created, and changes nothing.

use std::collections::BTreeMap;
use std::time::Instant;

use anyhow::{Context as _, ensure};
use oarlock_scenarios::components::{GRANTS, RESTART_GRANTS, component};
use oarlock_scenarios::dev::{Dev, READY_WITHIN};
use serde_json::{Value, json};

use crate::{oarlock, pods, printed};

/// Writes a Replace job for the pods with this label and these spec fields. Returns the file.
fn job_file(dev: &Dev, app: &str, more: &Value) -> anyhow::Result<String> {
    let mut spec = json!({"action": "Replace", "selector": {"labelSelector": {"matchLabels": {"app": app}}}});
    spec.as_object_mut().context("a spec")?.extend(more.as_object().cloned().unwrap_or_default());
    let job = json!({"apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "OperationJob",
        "metadata": {"name": "planned"}, "spec": spec});
    let file = dev.folder.join("job.json");
    std::fs::write(&file, job.to_string())?;
    Ok(file.display().to_string())
}

fn plugins(dev: &Dev) -> String {
    dev.folder.join("plugins").display().to_string()
}

/// Returns the resourceVersion of each object that a plan could change, by kind and name.
fn versions(dev: &Dev) -> anyhow::Result<BTreeMap<String, String>> {
    let kinds = "pods,deployments,replicasets,collasets,operationjobs,operationrecords,events.events.k8s.io,poddisruptionbudgets";
    let list: Value = serde_json::from_str(&dev.kubectl(&["get", kinds, "-A", "-o", "json"])?)?;
    let version = |item: &Value| {
        let text = |pointer: &str| item.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
        (format!("{} {}", text("/kind"), text("/metadata/name")), text("/metadata/resourceVersion"))
    };
    Ok(list.get("items").and_then(Value::as_array).context("a list")?.iter().map(version).collect())
}

/// Returns the plan as a document, and the exit code.
async fn plan(dev: &Dev, arguments: &[&str]) -> anyhow::Result<(Value, Option<i32>)> {
    let all: Vec<&str> = ["plan"].iter().chain(arguments).chain(&["-o", "json"]).copied().collect();
    let output = oarlock(dev, &all).await?;
    let errors = String::from_utf8_lossy(&output.stderr);
    let document = serde_json::from_slice(&output.stdout).with_context(|| format!("{arguments:?}: {errors}"))?;
    Ok((document, output.status.code()))
}

/// Waits until the host publishes its plugins in its lease, which it does after it has loaded them. Returns the comparison with the plan's plugins.
async fn until_served(dev: &Dev, file: &str, plugins: &str) -> anyhow::Result<Value> {
    let deadline = Instant::now() + READY_WITHIN;
    loop {
        let (document, _) = plan(dev, &[file, "--plugins", plugins]).await?;
        let comparison = document.pointer("/cluster/comparison").filter(|comparison| *comparison != "Unknown");
        if let Some(comparison) = comparison {
            return Ok(comparison.clone());
        }
        ensure!(Instant::now() < deadline, "{document:#}");
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
}

/// Returns the error message of a plan that fails.
async fn refused(dev: &Dev, arguments: &[&str]) -> anyhow::Result<String> {
    let all: Vec<&str> = ["plan"].iter().chain(arguments).copied().collect();
    let output = oarlock(dev, &all).await?;
    ensure!(output.status.code() == Some(1) && output.stdout.is_empty(), "{arguments:?}: {output:?}");
    Ok(String::from_utf8_lossy(&output.stderr).into_owned())
}

#[tokio::test]
async fn a_plan_says_what_would_be_done_now_and_later_and_changes_nothing() -> anyhow::Result<()> {
    let mut dev = Dev::start("plan")?;
    dev.until_ready().await?;
    let (file, plugins) = (job_file(&dev, "web", &json!({"partition": 1}))?, plugins(&dev));
    let comparison = until_served(&dev, &file, &plugins).await?;
    ensure!(comparison == "Same", "{comparison}");
    let before = versions(&dev)?;
    ensure!(before.len() > 8, "{before:?}");
    let text = printed(&oarlock(&dev, &["plan", &file, "--plugins", &plugins]).await?)?;
    for words in [
        "Job:          default/planned, not created\n",
        "Cluster:      serves Replace with the same plugin\n",
        "Targets:      3: 1 changed at once, 2 waiting\n",
        "Waits:        2 for Partition\n",
        "Later:        possible: evict pods, ",
        "   now               evict pod web-",
        "   after Partition   evict pod\n",
    ] {
        ensure!(text.contains(words), "{words:?} is missing in\n{text}");
    }
    let (tried, code) = plan(&dev, &[&file, "--plugins", &plugins, "--server"]).await?;
    ensure!(code == Some(0) && tried["server"]["accepted"] == true && tried["counts"]["accepted"] == 3, "{tried:#}");
    let marked = job_file(&dev, "foo", &json!({"paused": true, "dryRun": true}))?;
    let (marked, code) = plan(&dev, &[&marked, "--plugins", &plugins]).await?;
    let first = &marked["targets"][0];
    ensure!(code == Some(0) && first["waitsFor"] == "Paused" && first["first"][0]["verb"] == "patch", "{marked:#}");
    ensure!(marked["warnings"].to_string().contains("spec.dryRun is true"), "{marked:#}");
    ensure!(versions(&dev)? == before, "something was changed:\n{before:?}\n{:?}", versions(&dev)?);
    Ok(())
}

#[tokio::test]
async fn what_would_go_wrong_is_in_the_plan_and_in_its_exit_code() -> anyhow::Result<()> {
    let mut dev = Dev::start("plan-trouble")?;
    dev.until_ready().await?;
    let plugins = plugins(&dev);
    dev.kubectl(&["create", "pdb", "web", "--selector=app=web", "--min-available=3"])?;
    dev.kubectl(&["wait", "pdb/web", "--for=jsonpath={.status.currentHealthy}=3", "--timeout=30s"])?;
    let file = job_file(&dev, "web", &json!({}))?;
    until_served(&dev, &file, &plugins).await?;
    let (blocked, code) = plan(&dev, &[&file, "--plugins", &plugins]).await?;
    let warning = blocked["warnings"][0].as_str().unwrap_or_default();
    ensure!(
        code == Some(0) && warning.starts_with("disruption budget web allows no eviction now, and covers 3"),
        "{blocked:#}"
    );
    let (tried, code) = plan(&dev, &[&file, "--plugins", &plugins, "--server"]).await?;
    let message = tried["targets"][0]["server"]["message"].as_str().unwrap_or_default();
    ensure!(
        code == Some(4) && tried["counts"]["refused"] == 3 && message.contains("disruption budget web"),
        "{tried:#}"
    );
    let one = pods(&dev)?;
    let both =
        json!({"selector": null, "targets": [{"name": "never-there"}, {"name": one[0]}, {"name": one[1], "uid": "u"}]});
    let (missing, code) = plan(&dev, &[&job_file(&dev, "", &both)?, "--plugins", &plugins]).await?;
    ensure!(code == Some(4) && missing["targets"][0]["reason"] == "PodNotFound", "{missing:#}");
    ensure!(missing["targets"][1]["outcome"] == "Changed" && missing["counts"]["failed"] == 2, "{missing:#}");
    let other = &missing["targets"][2];
    let words = other["message"].as_str().unwrap_or_default();
    ensure!(
        other["reason"] == "PodNotFound" && words.contains("the job names UID u, and the pod of that name has UID "),
        "{missing:#}"
    );
    // A plugin that proposes an ungranted mutation, or traps, does not prevent a plan.
    let hostile = dev.folder.join("hostile");
    std::fs::create_dir_all(&hostile)?;
    std::fs::write(hostile.join("overreach.wasm"), component("overreach")?)?;
    let grant = oarlock(&dev, &["plugin", "grant", &hostile.join("overreach.wasm").display().to_string()]).await?;
    std::fs::write(dev.folder.join("hostile.yaml"), printed(&grant)?)?;
    let grants = dev.folder.join("hostile.yaml").display().to_string();
    let overreach = json!({"action": "Overreach", "selector": null, "targets": [{"name": one[0]}]});
    let file = job_file(&dev, "", &overreach)?;
    let (denied, code) = plan(&dev, &[&file, "--plugins", &hostile.display().to_string(), "--grants", &grants]).await?;
    ensure!(code == Some(4) && denied["targets"][0]["reason"] == "MutationDenied", "{denied:#}");
    ensure!(denied["cluster"]["comparison"] == "NotServed", "{denied:#}");
    Ok(())
}

#[tokio::test]
async fn a_pod_of_the_lifecycle_is_shown_with_what_comes_before_its_change() -> anyhow::Result<()> {
    let mut dev = Dev::start("plan-lifecycle")?;
    dev.until_ready().await?;
    dev.kubectl(&["label", "pods", "-l", "app=web", "kusionstack.io/control=true"])?;
    let (file, grants) = (dev.folder.join("restart.wasm"), dev.folder.join("restart.yaml"));
    std::fs::write(&file, component("restart")?)?;
    std::fs::write(&grants, RESTART_GRANTS)?;
    let (file, grants) = (file.display().to_string(), grants.display().to_string());
    let job = job_file(&dev, "web", &json!({"action": "Restart", "parallelism": 2}))?;
    let (planned, code) = plan(&dev, &[&job, "--plugins", &file, "--grants", &grants, "--server"]).await?;
    ensure!(code == Some(0) && planned["counts"]["changed"] == 2 && planned["counts"]["accepted"] == 3, "{planned:#}");
    for (index, waits_for) in [(0, json!(null)), (1, json!(null)), (2, json!("Parallelism"))] {
        let target = &planned["targets"][index];
        ensure!(target["waitsFor"] == waits_for && target["first"][0]["verb"] == "evict", "{planned:#}");
        ensure!(target["before"][0] == "begin the PodOpsLifecycle and wait for its permission", "{planned:#}");
    }
    ensure!(
        planned["warnings"].to_string().contains("3 targets whose pods take part in the PodOpsLifecycle"),
        "{planned:#}"
    );
    // The host begins the PodOpsLifecycle before the plugin can report that it will fail the target.
    dev.kubectl(&["label", "pods", "-l", "app=foo", "kusionstack.io/control=true"])?;
    let job = job_file(&dev, "foo", &json!({"action": "Restart"}))?;
    let arguments = ["plan", &job, "--plugins", &file, "--grants", &grants, "--server"];
    let output = oarlock(&dev, &arguments).await?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let row = "begin the PodOpsLifecycle and wait for its permission, then fails: NotReplaceable: ";
    ensure!(output.status.code() == Some(4) && text.contains(row) && text.contains("   accepts\n"), "{text}");
    Ok(())
}

#[tokio::test]
async fn another_version_than_the_clusters_is_named() -> anyhow::Result<()> {
    let mut dev = Dev::start("plan-version")?;
    dev.until_ready().await?;
    let other = dev.folder.join("other.wasm");
    std::fs::write(&other, component("replace+2")?)?;
    let grants = dev.folder.join("other.yaml");
    std::fs::write(&grants, GRANTS)?;
    let (other, grants) = (other.display().to_string(), grants.display().to_string());
    let file = job_file(&dev, "web", &json!({}))?;
    let digest = |name: &str| -> anyhow::Result<String> { Ok(oarlock_wasm::digest(&component(name)?)) };
    until_served(&dev, &file, &plugins(&dev)).await?;
    let (differs, code) = plan(&dev, &[&file, "--plugins", &other, "--grants", &grants]).await?;
    ensure!(code == Some(0) && differs["cluster"]["comparison"] == "Differs", "{differs:#}");
    let (own, clusters) = (&differs["plugin"]["digest"], &differs["cluster"]["plugin"]["digest"]);
    ensure!((own, clusters) == (&json!(digest("replace+2")?), &json!(digest("replace")?)), "{differs:#}");
    let unnamed = refused(&dev, &[&file]).await?;
    ensure!(unnamed.contains("--plugins") && unnamed.contains("The cluster serves Replace with replace "), "{unnamed}");
    Ok(())
}

#[tokio::test]
async fn what_cannot_be_planned_says_why_and_what_to_do() -> anyhow::Result<()> {
    let mut dev = Dev::start("plan-refused")?;
    dev.until_ready().await?;
    let plugins = plugins(&dev);
    let cases = [
        (json!({"selector": {"labelSelector": {"matchLabels": {"app": "nobody"}}}}), "no pod that matches app=nobody"),
        (json!({"parameters": {"minReadySeconds": "soon"}}), "minReadySeconds"),
        (json!({"partition": -1}), "spec.partition"),
        (json!({"action": "Nope"}), "replace.wasm (Replace)"),
        (json!({"paralelism": 1}), "spec.paralelism"),
    ];
    for (more, words) in cases {
        let said = refused(&dev, &[&job_file(&dev, "web", &more)?, "--plugins", &plugins]).await?;
        ensure!(said.contains(words), "{words:?} is missing in\n{said}");
    }
    let file = job_file(&dev, "web", &json!({}))?;
    let narrow = dev.folder.join("narrow.yaml").display().to_string();
    std::fs::write(&narrow, GRANTS.replace("\"*\"", "elsewhere"))?;
    let said = refused(&dev, &[&file, "--plugins", &plugins, "--grants", &narrow]).await?;
    ensure!(said.contains("is not granted namespace default"), "{said}");
    std::fs::write(&narrow, "")?;
    let said = refused(&dev, &[&file, "--plugins", &plugins, "--grants", &narrow]).await?;
    ensure!(said.contains("does not grant\n") && said.contains("`oarlock plugin grant "), "{said}");
    let said = refused(&dev, &[&file, "--plugins", &plugins, "-n", "nowhere"]).await?;
    ensure!(said.contains("there is no namespace nowhere"), "{said}");
    let empty = dev.folder.join("empty");
    std::fs::create_dir_all(&empty)?;
    let said = refused(&dev, &[&file, "--plugins", &empty.display().to_string()]).await?;
    ensure!(said.contains("there is no .wasm file"), "{said}");
    let begun = Instant::now();
    dev.child.kill();
    let said = refused(&dev, &[&file, "--plugins", &plugins]).await?;
    ensure!(said.contains("cannot list ") && begun.elapsed().as_secs() < 60, "{said}");
    Ok(())
}
