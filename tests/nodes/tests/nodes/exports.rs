//! Images and containers that are exported to a registry with TLS and a password, which goes down meanwhile.

use std::collections::BTreeSet;
use std::io::Read as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};

use anyhow::{Context as _, bail, ensure};
use flate2::read::GzDecoder;
use oarlock_nodes::layout::{EXPORTS, IMAGES, PASSWORD};
use serde_json::{Value, json};

use crate::bed::pull_secret;
use crate::documents::{outputs_of, text_at};
use crate::scene::Scene;

/// What the container has written after its start.
const WRITTEN: &str = "by hand";

fn make(scene: &Scene, name: &str, mode: &str) -> anyhow::Result<()> {
    let workload = format!("{}/pod/app", scene.namespace);
    let inputs = json!([{"name": "workload", "value": workload}, {"name": "mode", "value": mode}]);
    let secrets = json!([{"namespace": scene.namespace, "name": "pull"}]);
    let spec = json!({"type": "exportimage", "inputs": inputs, "pullSecrets": secrets});
    scene.apply(
        &json!({"apiVersion": "oarlock.dev/v1alpha1", "kind": "OpsJob", "metadata": {"name": name}, "spec": spec}),
    )
}

/// Where the image of an ended job is, and its digest.
fn exported(scene: &Scene, name: &str) -> anyhow::Result<(String, String)> {
    let job = scene.until_is("opsjobs", name, "/status/phase", &["Succeeded", "Failed"])?;
    ensure!(text_at(&job, "/status/phase") == "Succeeded", "{job:#}");
    let mut outputs = outputs_of(&job);
    let mut output = |name: &str| outputs.remove(name).with_context(|| format!("no {name}: {job:#}"));
    Ok((output("target")?, output("digest")?))
}

/// A blob of the registry, as it keeps it.
fn blob(scene: &Scene, digest: &str) -> anyhow::Result<Vec<u8>> {
    let hex = digest.strip_prefix("sha256:").context("another digest")?;
    let folder = scene.bed.root().join("exports/docker/registry/v2/blobs/sha256");
    let path = folder.join(hex.get(..2).unwrap_or_default()).join(hex).join("data");
    std::fs::read(&path).with_context(|| format!("cannot read {}", path.display()))
}

/// The text of a file in the last layer of an image that has it.
fn file_in(scene: &Scene, digest: &str, name: &str) -> anyhow::Result<String> {
    let manifest: Value = serde_json::from_slice(&blob(scene, digest)?).context("no JSON")?;
    let layers = manifest.pointer("/layers").and_then(Value::as_array).cloned().unwrap_or_default();
    let Some(last) = layers.last() else { bail!("it has no layers: {manifest}") };
    let layer = blob(scene, text_at(last, "/digest"))?;
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

/// The processes of this machine with the password among their words or variables.
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

/// The image of a pod is copied although the registry is down at first. Then its container is committed, twice on one day, with what it
/// has written since its start. Nobody is shown the password.
pub(crate) fn what_runs_is_exported_to_a_registry_that_goes_down_and_nobody_sees_its_password(
    scene: &Scene,
) -> anyhow::Result<()> {
    scene.apply(&pull_secret("pull", IMAGES, None))?;
    let image = format!("{IMAGES}/library/busybox:latest");
    let container = json!({"name": "app", "image": image, "command": ["sleep", "3600"]});
    let spec = json!({"containers": [container], "imagePullSecrets": [{"name": "pull"}]});
    scene.apply(&json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "app"}, "spec": spec}))?;
    let pod = scene.until_is("pods", "app", "/status/phase", &["Running"])?;
    let (_, digest) = text_at(&pod, "/status/containerStatuses/0/imageID").split_once('@').context("no digest")?;
    scene.kubectl(&["exec", "app", "--", "sh", "-c", &format!("echo {WRITTEN} > /written")])?;

    let (done, seen) = (Arc::new(AtomicBool::new(false)), mpsc::channel());
    let (told, watched) = (done.clone(), seen.0);
    let watching = std::thread::spawn(move || {
        while !told.load(Ordering::Relaxed) {
            betrayers().into_iter().for_each(|name| drop(watched.send(name)));
        }
    });
    let played = play(scene, digest);
    done.store(true, Ordering::Relaxed);
    ensure!(watching.join().is_ok(), "the watch broke off");
    let betrayed: BTreeSet<String> = seen.1.into_iter().collect();
    ensure!(betrayed.is_empty(), "{betrayed:?} had the password");
    played?;

    let kinds = "pods,events,configmaps,opsjobs,operationjobs,operationrecords";
    let all = scene.bed.kubectl(&["get", kinds, "-A", "-o", "yaml"])?;
    let of_all = ["-n", "oarlock-system", "logs", "-l", "app.kubernetes.io/name=oarlock", "--tail=-1"];
    let logs = scene.bed.kubectl(&[&of_all[..], &["--all-containers"]].concat())?;
    ensure!(!all.contains(PASSWORD) && !logs.contains(PASSWORD), "an object or a log has the password");
    Ok(())
}

fn play(scene: &Scene, digest: &str) -> anyhow::Result<()> {
    let names = ["copy", "commit", "again", "holes"].map(|name| format!("{name}-{}", scene.namespace));
    let [copy, commit, again, holes] = &names;
    scene.bed.order("stop exports")?;
    make(scene, copy, "copy")?;
    scene.until_is("opsjobs", copy, "/status/phase", &["Running"])?;
    scene.bed.order("restart exports")?;
    let (copied, same) = exported(scene, copy)?;
    let place = format!("{EXPORTS}/custom/{}/library/busybox:", IMAGES.replace(':', "-"));
    ensure!(same == digest && copied.starts_with(&place), "{same} of {copied} is not {digest}");

    make(scene, commit, "commit")?;
    let (target, committed) = exported(scene, commit)?;
    let folder = format!("{EXPORTS}/custom/commits/{}/{}/library/busybox:", scene.namespace, IMAGES.replace(':', "-"));
    ensure!(target.starts_with(&folder), "{target} is not below {folder}");
    ensure!(file_in(scene, &committed, "written")?.trim() == WRITTEN, "{committed}");
    scene.kubectl(&["exec", "app", "--", "sh", "-c", "echo more >> /written"])?;
    make(scene, again, "commit")?;
    let (elsewhere, other) = exported(scene, again)?;
    ensure!(elsewhere != target && other != committed, "{elsewhere} and {target}");
    ensure!(file_in(scene, &other, "written")? == format!("{WRITTEN}\nmore\n"), "{other}");
    // Files with holes take no room until they are in an image.
    let sparse = ["if=/dev/zero", "of=/holes", "bs=1M", "seek=10M", "count=1"];
    scene.kubectl(&[["exec", "app", "--", "dd"].as_slice(), &sparse].concat())?;
    make(scene, holes, "commit")?;
    let job = scene.until_is("opsjobs", holes, "/status/phase", &["Succeeded", "Failed"])?;
    ensure!(job.to_string().contains("more room than the disk of its node has to spare"), "{job:#}");
    names.iter().try_for_each(|name| scene.kubectl(&["delete", "opsjobs", name, "--timeout=60s"]).map(drop))
}
