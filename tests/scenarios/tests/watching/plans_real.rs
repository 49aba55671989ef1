//! `oarlock plan` on a real API server, whose audit log shows the requests.

use std::collections::BTreeSet;
use std::process::Command;

use anyhow::{Context as _, ensure};
use oarlock_scenarios::components::{GRANTS, component};
use oarlock_scenarios::host_process::host_binary;
use oarlock_scenarios::mode::Mode;
use oarlock_scenarios::test_cluster::{TestCluster, real_plane};
use oarlock_support::accounts::Account;
use oarlock_support::audit::{Audit, Request};
use oarlock_support::control_plane::{self, ControlPlane};
use serde_json::{Value, json};

/// Number of targets: many more than the kinds that a plan lists.
const PODS: usize = 30;

/// Runs `oarlock plan` as the visitor, in a folder with the plugin, its grants and a job.
fn plan(plane: &ControlPlane, more: &[&str]) -> anyhow::Result<std::process::Output> {
    let folder = plane.folder().join("plan");
    let mut command = Command::new(host_binary()?);
    command.current_dir(&folder).env("HOME", &folder).env("XDG_CACHE_HOME", folder.join("cache"));
    command.env("KUBECONFIG", plane.kubeconfig(Account::Visitor)?);
    command.args(["plan", "job.json", "--plugins", "plugins", "-o", "json"]).args(more);
    command.output().context("oarlock does not run")
}

fn prepare(plane: &ControlPlane, namespace: &str) -> anyhow::Result<()> {
    let folder = plane.folder().join("plan");
    std::fs::create_dir_all(folder.join("plugins"))?;
    std::fs::write(folder.join("plugins/replace.wasm"), component("replace")?)?;
    std::fs::write(folder.join("grants.yaml"), GRANTS)?;
    let job = json!({"apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "OperationJob",
        "metadata": {"name": "planned", "namespace": namespace},
        "spec": {"action": "Replace", "partition": 5, "selector": {"labelSelector": {"matchLabels": {"app": "web"}}}}});
    std::fs::write(folder.join("job.json"), job.to_string())?;
    Ok(())
}

/// Runs kubectl as an admin.
fn kubectl(plane: &ControlPlane, words: &[&str]) -> anyhow::Result<String> {
    let output = plane.kubectl(Account::Admin)?.args(words).output()?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "kubectl {words:?}: {errors}");
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Returns the requests of the visitor since the last call.
fn requests(tail: &mut oarlock_support::audit::Tail) -> anyhow::Result<Vec<Request>> {
    Ok(tail.more()?.into_iter().filter(|request| request.user == Account::Visitor.user()).collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_audit_log_shows_lists_and_dry_runs_and_nothing_else() -> anyhow::Result<()> {
    let audit = Audit::RequestsOf(vec![Account::Visitor]);
    let plane = real_plane(control_plane::Options { audit, ..Default::default() }).await?;
    let cluster = TestCluster::real(plane.clone(), "web").await?;
    let set = Mode::Evict.plant(&cluster, PODS).await?;
    cluster.world.settled(&set, std::time::Duration::from_secs(180)).await?;
    prepare(&plane, "web")?;
    let mut tail = plane.audit_tail()?;

    // A user who may list nothing is told which rights to ask for. These rights suffice.
    let refused = plan(&plane, &[])?;
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    ensure!(refused.status.code() == Some(1) && said.contains("you may not list pods"), "{said}");
    let commands = said.lines().filter_map(|line| line.trim().strip_prefix("kubectl "));
    for command in commands {
        let command = command.replace("YOU", Account::Visitor.user());
        kubectl(&plane, &command.split(' ').collect::<Vec<_>>())?;
    }
    let mut planned = plan(&plane, &[])?;
    for _ in 0..50 {
        // The API server takes a moment to learn of a role.
        if planned.status.success() {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        planned = plan(&plane, &[])?;
    }
    let errors = String::from_utf8_lossy(&planned.stderr);
    let document: Value = serde_json::from_slice(&planned.stdout).with_context(|| errors.into_owned())?;
    let counts = &document["counts"];
    ensure!(counts["total"] == PODS && counts["changed"] == 5 && counts["waiting"] == PODS - 5, "{document:#}");
    let warnings = document["warnings"].to_string();
    ensure!(
        warnings.contains("other jobs were not read") && warnings.contains("disruption budgets were not read"),
        "{warnings}"
    );

    // Now the visitor may do everything that a plan asks for.
    kubectl(&plane, &["create", "clusterrolebinding", "planner", "--clusterrole=cluster-admin", "--user=visitor"])?;
    let before = kubectl(&plane, &["get", "pods,opj,events", "-n", "web", "-o", "json"])?;
    let _earlier = requests(&mut tail)?;
    let planned = plan(&plane, &[])?;
    ensure!(planned.status.code() == Some(0), "{planned:?}");
    let made = requests(&mut tail)?;
    let verbs: BTreeSet<&str> = made.iter().map(|request| request.verb.as_str()).collect();
    ensure!(verbs.is_subset(&BTreeSet::from(["get", "list"])) && !verbs.is_empty(), "{made:#?}");
    ensure!(made.len() <= 15, "not one for each target: {made:#?}");

    let tried = plan(&plane, &["--server"])?;
    let document: Value = serde_json::from_slice(&tried.stdout)?;
    ensure!(tried.status.code() == Some(0) && document["counts"]["accepted"] == PODS, "{document:#}");
    let made = requests(&mut tail)?;
    let writes: Vec<&Request> = made.iter().filter(|one| !["get", "list"].contains(&one.verb.as_str())).collect();
    ensure!(writes.len() == PODS + 1 && writes.iter().all(|write| write.dry_run), "{writes:#?}");
    let after = kubectl(&plane, &["get", "pods,opj,events", "-n", "web", "-o", "json"])?;
    ensure!(before == after, "something has changed");
    cluster.finish().await
}
