//! `oarlock plugin try`: builds a plugin, serves it on an in-memory cluster, applies a job and follows it.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use clap::Args;
use oarlock_core::operation_job::tasks::settings::TaskSettings;
use oarlock_kube::send::plugin_accounts::PluginAccountSettings;
use oarlock_wasm::{PluginState, Plugins};
use serde_json::{Value, json};
use tokio::time::timeout;

use super::build::build;
use crate::commands::host::{made_up_identity, stop_on_signal};
use crate::commands::in_memory::{InMemory, NAMESPACE, create};
use crate::commands::jobs::JobClient;
use crate::commands::jobs::watch::follow;
use crate::commands::output::print;
use crate::commands::scratch::Scratch;
use crate::controller::RESYNC;
use crate::host::{GrantsSource, Host, HostOptions};
use crate::host_place::HostLocation;
use crate::manifests::HOST_NAMESPACE;

pub(super) const EXAMPLES: &str = "\
Examples:
  oarlock plugin try                       build the plugin in this folder, and run try.yaml with it
  oarlock plugin try --job other.yaml      run the jobs of another file
  oarlock plugin try --file mark-it.wasm   build nothing

The file has objects such as pods, and the job. The command follows the last job in it. Exit code: that of `oarlock watch`.";

/// The longest wait until the plugin serves. A Python plugin compiles for 10 to 15 seconds on an idle machine.
const SERVES_WITHIN: Duration = Duration::from_secs(180);
/// Kinds of objects without a namespace that a trial may need.
const WITHOUT_NAMESPACE: [&str; 2] = ["Node", "Namespace"];

/// Arguments of `oarlock plugin try`.
#[derive(Debug, Args)]
pub(crate) struct TryArgs {
    /// Folder of the plugin
    #[arg(default_value = ".")]
    folder: PathBuf,
    /// Objects and the job [default: try.yaml in the folder]
    #[arg(long, value_name = "FILE")]
    job: Option<PathBuf>,
    /// A built plugin, instead of the one in the folder
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Grants of the plugin [default: grants.yaml in the folder, or else everything that the plugin asks for]
    #[arg(long, value_name = "FILE")]
    grants: Option<PathBuf>,
}

/// Runs the trial.
pub(super) async fn run(args: TryArgs) -> anyhow::Result<ExitCode> {
    let job = args.job.unwrap_or_else(|| args.folder.join("try.yaml"));
    let text = std::fs::read_to_string(&job).with_context(|| format!("cannot read {}", job.display()))?;
    let documents: Vec<Value> =
        serde_saphyr::from_multiple(&text).with_context(|| format!("{} is not YAML", job.display()))?;
    let name = last_job(&documents).with_context(|| format!("{} has no OperationJob with a name", job.display()))?;
    let begun = Instant::now();
    let plugin = match args.file {
        Some(file) => file,
        None => build(&args.folder)?,
    };
    let bytes = super::read(&plugin)?;
    print(&format!("built    {} ({} KiB) in {}\n", plugin.display(), bytes.len() >> 10, seconds(begun)))?;
    let grants = args.grants.or_else(|| Some(args.folder.join("grants.yaml")).filter(|file| file.is_file()));
    let scratch = Scratch::new()?;
    let furnished = InMemory::start().await?;
    let process = Host::start(options(&furnished, &scratch, grants)).await?;
    let (plugins, stop) = (process.plugins(), stop_on_signal()?);
    let running = tokio::spawn(process.run(stop.clone()));
    let dropped = Instant::now();
    drop_file(&plugin, &scratch, &bytes)?;
    serves(&plugins).await?;
    print(&format!("serving  after {}\n", seconds(dropped)))?;
    for document in documents {
        create(&furnished.client, &placed(document)).await?;
    }
    print(&format!("applied  {}\n", job.display()))?;
    let client = JobClient::of(furnished.client.clone(), "the in-memory cluster", NAMESPACE);
    let ended = follow(client, &name, None).await;
    stop.cancel();
    running.await.context("the host panicked")??;
    furnished.world.stop().await;
    ended
}

fn options(furnished: &InMemory, scratch: &Scratch, grants: Option<PathBuf>) -> HostOptions {
    HostOptions {
        client: furnished.client.clone(),
        plugins: scratch.path().to_owned(),
        grant_all: grants.is_none(),
        grants: GrantsSource::File { path: grants.unwrap_or_else(|| scratch.path().join("grants.yaml")), digest: None },
        identity: made_up_identity(),
        namespace: HOST_NAMESPACE.to_owned(),
        resync: RESYNC,
        tasks: TaskSettings::default(),
        accounts: PluginAccountSettings::default(),
        place: HostLocation::default(),
        memory_limit: None,
        record_visits: 0,
    }
}

/// Puts the plugin into the plugin directory by a rename, which the host takes for a complete file.
fn drop_file(plugin: &Path, scratch: &Scratch, bytes: &[u8]) -> anyhow::Result<()> {
    let name = plugin.file_name().context("the plugin has no file name")?.to_string_lossy().into_owned();
    ensure!(super::is_seen(plugin), "{} is no name of a plugin: rename it to <name>.wasm", plugin.display());
    let (hidden, seen) = (scratch.path().join(format!(".{name}")), scratch.path().join(name));
    std::fs::write(&hidden, bytes).and_then(|()| std::fs::rename(&hidden, &seen)).context("cannot copy the plugin")
}

/// Waits until the plugin serves its action.
async fn serves(plugins: &Plugins) -> anyhow::Result<()> {
    let mut changes = plugins.changes();
    let settled = async {
        loop {
            if let Some(status) = plugins.list().pop() {
                let shown = || format!("{:?}/{}: {}", status.state, status.reason, status.message);
                match status.state {
                    PluginState::Serving => return Ok(()),
                    PluginState::Rejected | PluginState::Quarantined => {
                        bail!("the host does not serve the plugin: {}", shown())
                    }
                    PluginState::AwaitingGrant => {
                        bail!("the host does not serve the plugin: {}\n  {}", shown(), status.missing.join("\n  "))
                    }
                    PluginState::Discovered | PluginState::Draining => {}
                }
            }
            changes.changed().await.context("the host has stopped")?;
        }
    };
    timeout(SERVES_WITHIN, settled).await.context("the plugin does not serve yet: its compilation takes too long")?
}

/// Returns the name of the last OperationJob.
fn last_job(documents: &[Value]) -> Option<String> {
    let is_job = |document: &&Value| document.get("kind").is_some_and(|kind| kind == "OperationJob");
    documents.iter().rfind(is_job)?.pointer("/metadata/name")?.as_str().map(str::to_owned)
}

/// Puts an object without a namespace into the namespace of the trial.
fn placed(mut document: Value) -> Value {
    let is_namespaced =
        document.get("kind").and_then(Value::as_str).is_none_or(|kind| !WITHOUT_NAMESPACE.contains(&kind));
    if let Some(metadata) = document.get_mut("metadata").and_then(Value::as_object_mut).filter(|_| is_namespaced) {
        metadata.entry("namespace").or_insert(json!(NAMESPACE));
    }
    document
}

fn seconds(since: Instant) -> String {
    format!("{:.1} s", since.elapsed().as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_job_is_followed_and_objects_get_the_namespace_of_the_trial() {
        let job = |name: &str| json!({"kind": "OperationJob", "metadata": {"name": name}});
        let (pod, node) = (json!({"kind": "Pod", "metadata": {}}), json!({"kind": "Node", "metadata": {}}));
        assert_eq!(last_job(&[job("a"), pod.clone(), job("b")]).as_deref(), Some("b"));
        assert_eq!(last_job(std::slice::from_ref(&pod)), None);
        assert_eq!(placed(pod)["metadata"]["namespace"], NAMESPACE);
        assert_eq!(placed(node.clone()), node);
    }
}
