//! Exports of images and containers to a registry with TLS and a password, which goes down meanwhile.

use std::collections::BTreeSet;
use std::io::Read as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};

use anyhow::{Context as _, bail, ensure};
use flate2::read::GzDecoder;
use oarlock_nodes::layout::{EXPORTS, IMAGES, PASSWORD};
use serde_json::{Value, json};

use crate::documents::{outputs_of, text_at};
use crate::scenario::Scenario;
use crate::shared_cluster::pull_secret;

/// Text that the container writes after its start.
const WRITTEN: &str = "by hand";

fn make(scenario: &Scenario, name: &str, mode: &str) -> anyhow::Result<()> {
    let workload = format!("{}/pod/app", scenario.namespace);
    let inputs = json!([{"name": "workload", "value": workload}, {"name": "mode", "value": mode}]);
    let secrets = json!([{"namespace": scenario.namespace, "name": "pull"}]);
    let spec = json!({"type": "exportimage", "inputs": inputs, "pullSecrets": secrets});
    scenario.apply(
        &json!({"apiVersion": "oarlock.dev/v1alpha1", "kind": "OpsJob", "metadata": {"name": name}, "spec": spec}),
    )
}

/// Returns the reference and the digest of the image of an ended job.
fn exported(scenario: &Scenario, name: &str) -> anyhow::Result<(String, String)> {
    let job = scenario.until_is("opsjobs", name, "/status/phase", &["Succeeded", "Failed"])?;
    ensure!(text_at(&job, "/status/phase") == "Succeeded", "{job:#}");
    let mut outputs = outputs_of(&job);
    let mut output = |name: &str| outputs.remove(name).with_context(|| format!("no {name}: {job:#}"));
    Ok((output("target")?, output("digest")?))
}

/// Returns a blob from the registry's storage.
fn blob(scenario: &Scenario, digest: &str) -> anyhow::Result<Vec<u8>> {
    let hex = digest.strip_prefix("sha256:").context("another digest")?;
    let folder = scenario.cluster.root().join("exports/docker/registry/v2/blobs/sha256");
    let path = folder.join(hex.get(..2).unwrap_or_default()).join(hex).join("data");
    std::fs::read(&path).with_context(|| format!("cannot read {}", path.display()))
}

/// Returns the text of a file in the last layer of an image.
fn file_in(scenario: &Scenario, digest: &str, name: &str) -> anyhow::Result<String> {
    let manifest: Value = serde_json::from_slice(&blob(scenario, digest)?).context("no JSON")?;
    let layers = manifest.pointer("/layers").and_then(Value::as_array).cloned().unwrap_or_default();
    let Some(last) = layers.last() else { bail!("it has no layers: {manifest}") };
    let layer = blob(scenario, text_at(last, "/digest"))?;
    let mut archive = tar::Archive::new(GzDecoder::new(layer.as_slice()));
    for entry in archive.entries().context("no archive")? {
        let mut entry = entry.context("no archive")?;
        if entry.path().is_ok_and(|path| *path == *Path::new(name)) {
            let mut text = String::new();
            entry.read_to_string(&mut text).context("no text")?;
            return Ok(text);
        }
    }
    bail!("{name} is not in the last layer of {digest}")
}

/// Returns the processes of this machine that have the password in their arguments or environment.
fn betrayers() -> Vec<String> {
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let betrays = |path: &Path| {
        ["cmdline", "environ"].iter().any(|file| {
            let content = std::fs::read(path.join(file)).unwrap_or_default();
            content.windows(PASSWORD.len()).any(|window| window == PASSWORD.as_bytes())
        })
    };
    let found = processes.filter(|process| betrays(&process.path()));
    found.map(|process| std::fs::read_to_string(process.path().join("comm")).unwrap_or_default()).collect()
}

/// Tests that an image is copied although the registry is down at first. Then two jobs commit the container, each with
/// the files that the container wrote until then. No process, object or log may show the password.
pub(crate) fn what_runs_is_exported_to_a_registry_that_goes_down_and_nobody_sees_its_password(
    scenario: &Scenario,
) -> anyhow::Result<()> {
    scenario.apply(&pull_secret("pull", IMAGES, None))?;
    let image = format!("{IMAGES}/library/busybox:latest");
    let container = json!({"name": "app", "image": image, "command": ["sleep", "3600"]});
    let spec = json!({"containers": [container], "imagePullSecrets": [{"name": "pull"}]});
    scenario.apply(&json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "app"}, "spec": spec}))?;
    let pod = scenario.until_is("pods", "app", "/status/phase", &["Running"])?;
    let (_, digest) = text_at(&pod, "/status/containerStatuses/0/imageID").split_once('@').context("no digest")?;
    scenario.kubectl(&["exec", "app", "--", "sh", "-c", &format!("echo {WRITTEN} > /written")])?;

    let (done, seen) = (Arc::new(AtomicBool::new(false)), mpsc::channel());
    let (told, watched) = (done.clone(), seen.0);
    let watching = std::thread::spawn(move || {
        while !told.load(Ordering::Relaxed) {
            betrayers().into_iter().for_each(|name| drop(watched.send(name)));
        }
    });
    let played = play(scenario, digest);
    done.store(true, Ordering::Relaxed);
    ensure!(watching.join().is_ok(), "the watch broke off");
    let betrayed: BTreeSet<String> = seen.1.into_iter().collect();
    ensure!(betrayed.is_empty(), "{betrayed:?} had the password");
    played?;

    let kinds = "pods,events,configmaps,opsjobs,operationjobs,operationrecords";
    let all = scenario.cluster.kubectl(&["get", kinds, "-A", "-o", "yaml"])?;
    let of_all = ["-n", "oarlock-system", "logs", "-l", "app.kubernetes.io/name=oarlock", "--tail=-1"];
    let logs = scenario.cluster.kubectl(&[&of_all[..], &["--all-containers"]].concat())?;
    ensure!(!all.contains(PASSWORD) && !logs.contains(PASSWORD), "an object or a log has the password");
    Ok(())
}

fn play(scenario: &Scenario, digest: &str) -> anyhow::Result<()> {
    let names = ["copy", "commit", "again", "holes"].map(|name| format!("{name}-{}", scenario.namespace));
    let [copy, commit, again, holes] = &names;
    scenario.cluster.order("stop exports")?;
    make(scenario, copy, "copy")?;
    scenario.until_is("opsjobs", copy, "/status/phase", &["Running"])?;
    scenario.cluster.order("restart exports")?;
    let (copied, same) = exported(scenario, copy)?;
    let place = format!("{EXPORTS}/custom/{}/library/busybox:", IMAGES.replace(':', "-"));
    ensure!(same == digest && copied.starts_with(&place), "{same} of {copied} is not {digest}");

    make(scenario, commit, "commit")?;
    let (target, committed) = exported(scenario, commit)?;
    let folder =
        format!("{EXPORTS}/custom/commits/{}/{}/library/busybox:", scenario.namespace, IMAGES.replace(':', "-"));
    ensure!(target.starts_with(&folder), "{target} is not below {folder}");
    ensure!(file_in(scenario, &committed, "written")?.trim() == WRITTEN, "{committed}");
    scenario.kubectl(&["exec", "app", "--", "sh", "-c", "echo more >> /written"])?;
    make(scenario, again, "commit")?;
    let (elsewhere, other) = exported(scenario, again)?;
    ensure!(elsewhere != target && other != committed, "{elsewhere} and {target}");
    ensure!(file_in(scenario, &other, "written")? == format!("{WRITTEN}\nmore\n"), "{other}");
    // A file with holes takes no disk space until it is in an image.
    let sparse = ["if=/dev/zero", "of=/holes", "bs=1M", "seek=10M", "count=1"];
    scenario.kubectl(&[["exec", "app", "--", "dd"].as_slice(), &sparse].concat())?;
    make(scenario, holes, "commit")?;
    let job = scenario.until_is("opsjobs", holes, "/status/phase", &["Succeeded", "Failed"])?;
    ensure!(job.to_string().contains("more room than the disk of its node has to spare"), "{job:#}");
    names.iter().try_for_each(|name| scenario.kubectl(&["delete", "opsjobs", name, "--timeout=60s"]).map(drop))
}
