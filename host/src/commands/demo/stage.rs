//! The stage of the demo: a cluster in memory, a world, a host, and a plugin directory that is empty at first.
//!
//! The host is the one of `oarlock host`, in this process. The stage removes everything at its end.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail};
use k8s_openapi::api::coordination::v1::Lease;
use kube::Client;
use kube::api::Api;
use oarlock_artefacts::Artefacts;
use oarlock_core::round::task_settings::TaskSettings;
use oarlock_kube::lease::NOTE;
use oarlock_sim::world::{Ledger, Span, Timings, World};
use oarlock_wasm::{PluginState, PluginStatus, Plugins};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_util::sync::CancellationToken;

use crate::commands::dev::write_token;
use crate::commands::host::made_up_identity;
use crate::commands::in_memory::{Furnishing, InMemory};
use crate::commands::scratch::Scratch;
use crate::controller::RESYNC;
use crate::host::{Host, HostOptions, HostPlace, LEASE};
use crate::manifests::{HOST_NAMESPACE, SHIPPED_GRANTS};
use crate::rest::{self, RestArgs};
use crate::served_actions::ServedActions;

/// How long a story watches that nothing happens: longer than anything in this world takes to begin, also when hurried.
const HOLDS: Duration = Duration::from_secs(3);
const HOLDS_HURRIED: Duration = Duration::from_secs(1);

/// What commands of Jobs sleep of what they say, when hurried.
const SLEEP_HURRIED: f64 = 0.1;

/// What a story needs on its stage.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scenery {
    /// The plugin files that it adds.
    pub(super) plugins: &'static [&'static str],
    /// Grants beside those of the shipped plugins.
    pub(super) grants: &'static str,
    /// Pods of the CollaSet `foo`.
    pub(super) collaset: usize,
    /// Pods of the Deployment `web`.
    pub(super) deployment: usize,
    /// Nodes of the world.
    pub(super) nodes: usize,
    /// OpenKruise is installed.
    pub(super) kruise: bool,
    /// OpsJobs are served by REST.
    pub(super) rest: bool,
}

/// Where OpsJobs are served by REST, and the token of somebody who may do everything.
pub(super) struct RestPlace {
    /// The address.
    pub(super) url: String,
    /// The file of the token.
    pub(super) token: PathBuf,
    /// The same as the header of a request.
    pub(super) header: PathBuf,
}

/// Compiling a plugin takes well under a second; a machine that compiles Rust beside it is slower.
const SERVED_WITHIN: Duration = Duration::from_secs(60);
/// How often the lease is read meanwhile.
const ASK_EVERY: Duration = Duration::from_millis(50);

/// The stage of the demo.
pub(super) struct Stage {
    plugins_from: PathBuf,
    furnished: InMemory,
    /// How long a story watches that nothing happens.
    hold: Duration,
    stop: CancellationToken,
    host: JoinHandle<anyhow::Result<()>>,
    plugins: Plugins,
    rest: Option<RestPlace>,
    /// Dropped last: the plugins watch a folder in it.
    scratch: Scratch,
}

/// Serves OpsJobs by REST on a port of this machine, until `stop`.
async fn serve(
    process: &Host,
    client: &Client,
    scratch: &Scratch,
    stop: CancellationToken,
) -> anyhow::Result<RestPlace> {
    let args = RestArgs::usual();
    let listener = args.listen((Ipv4Addr::LOCALHOST, 0).into()).await?;
    let (url, token) = (listener.url(), scratch.path().join("token"));
    write_token(client, &args.audience, &token).await?;
    let text = std::fs::read_to_string(&token).context("cannot read the token")?;
    let header = scratch.write("header", &format!("Authorization: Bearer {text}"))?;
    rest::serve(listener, process.rest(&args), process.health(), stop);
    Ok(RestPlace { url, token, header })
}

impl Stage {
    /// Sets everything up: the host runs and serves nothing.
    pub(super) async fn set(scenery: Scenery, plugins_from: PathBuf, hurried: bool) -> anyhow::Result<Self> {
        let Scenery { plugins, grants, collaset, deployment, nodes, kruise, rest } = scenery;
        check_plugins(&plugins_from, plugins)?;
        let scratch = Scratch::new()?;
        let directory = scratch.path().join("plugins");
        let artefacts = Artefacts::in_folder(scratch.path()).map_err(anyhow::Error::msg)?;
        std::fs::create_dir(&directory).with_context(|| format!("cannot make {}", directory.display()))?;
        let grants = scratch.write("grants.yaml", &format!("{SHIPPED_GRANTS}---\n{grants}"))?;
        let sleep_factor = if hurried { SLEEP_HURRIED } else { 1.0 };
        let furnishing = Furnishing { timings: timings(hurried), foo: collaset, web: deployment, nodes, sleep_factor };
        let furnished = InMemory::start(furnishing).await?;
        if kruise {
            furnished.world.install_kruise().await.context("OpenKruise cannot be installed")?;
        }
        let exports = furnished.serve_images(CancellationToken::new()).await?;
        let process = Host::start(HostOptions {
            client: furnished.client.clone(),
            plugins: directory,
            grants,
            grants_digest: None,
            grant_all: false,
            identity: made_up_identity(),
            namespace: HOST_NAMESPACE.to_owned(),
            resync: RESYNC,
            tasks: TaskSettings::default(),
            place: HostPlace { artefacts: Some(artefacts), exports: Some(exports), ..HostPlace::default() },
            memory_limit: None,
        })
        .await?;
        let plugins = process.plugins();
        let stop = CancellationToken::new();
        let rest = match rest {
            true => Some(serve(&process, &furnished.client, &scratch, stop.clone()).await?),
            false => None,
        };
        let host = tokio::spawn(process.run(stop.clone()));
        let hold = if hurried { HOLDS_HURRIED } else { HOLDS };
        Ok(Self { scratch, plugins_from, furnished, hold, stop, host, plugins, rest })
    }

    /// A client of the cluster.
    pub(super) fn client(&self) -> Client {
        self.furnished.client.clone()
    }

    /// Where OpsJobs are served by REST, where they are.
    pub(super) fn rest(&self) -> Option<&RestPlace> {
        self.rest.as_ref()
    }

    /// Its scheduler, kubelets and controllers.
    pub(super) fn world(&self) -> &World {
        &self.furnished.world
    }

    /// The physical effects on pods.
    pub(super) fn ledger(&self) -> &Ledger {
        self.furnished.world.ledger()
    }

    /// How long a story watches that nothing happens.
    pub(super) fn hold(&self) -> Duration {
        self.hold
    }

    /// The directory that the host watches.
    pub(super) fn plugin_directory(&self) -> PathBuf {
        self.scratch.path().join("plugins")
    }

    /// Copies a plugin into the directory that the host watches.
    pub(super) fn drop_plugin(&self, name: &str) -> anyhow::Result<()> {
        let from = file(&self.plugins_from, name).with_context(|| format!("{name}.wasm is gone"))?;
        let to = self.plugin_directory().join(format!("{name}.wasm"));
        std::fs::copy(&from, &to)
            .map(drop)
            .with_context(|| format!("cannot copy {} to {}", from.display(), to.display()))
    }

    /// Waits until some plugin serves `action`; returns the time it took.
    pub(super) async fn wait_until_serving(&self, action: &str) -> anyhow::Result<Duration> {
        let began = Instant::now();
        let serving = |list: &[PluginStatus]| {
            list.iter().any(|plugin| plugin.action.as_deref() == Some(action) && plugin.state == PluginState::Serving)
        };
        self.plugins_until(&format!("action {action} to be served"), serving).await?;
        Ok(began.elapsed())
    }

    /// Waits until the lease says that this action is served: a plan reads it there, and the host says it a moment later.
    pub(super) async fn wait_until_said(&self, action: &str) -> anyhow::Result<()> {
        let leases: Api<Lease> = Api::namespaced(self.client(), HOST_NAMESPACE);
        let said = async {
            loop {
                let lease = leases.get_opt(LEASE).await?;
                let note = lease.and_then(|lease| lease.metadata.annotations?.remove(NOTE));
                if note.as_deref().and_then(ServedActions::read).is_some_and(|all| all.actions.contains_key(action)) {
                    return anyhow::Ok(());
                }
                sleep(ASK_EVERY).await;
            }
        };
        timeout(SERVED_WITHIN, said).await.with_context(|| format!("the lease does not say that {action} is served"))?
    }

    /// The lines that the grant of a plugin lacks.
    pub(super) async fn missing_lines(&self, name: &str) -> anyhow::Result<Vec<String>> {
        let waits =
            |plugin: &PluginStatus| plugin.name.as_deref() == Some(name) && plugin.state == PluginState::AwaitingGrant;
        self.plugins_until(&format!("plugin {name} to await its grant"), |list| list.iter().any(waits)).await?;
        let found = self.plugins.list().into_iter().find(waits);
        Ok(found.map(|plugin| plugin.missing).unwrap_or_default())
    }

    async fn plugins_until(&self, what: &str, condition: impl Fn(&[PluginStatus]) -> bool) -> anyhow::Result<()> {
        let mut changes = self.plugins.changes();
        let deadline = Instant::now() + SERVED_WITHIN;
        loop {
            changes.mark_unchanged();
            let list = self.plugins.list();
            if condition(&list) {
                return Ok(());
            }
            if timeout_at(deadline, changes.changed()).await.is_err() {
                let states =
                    list.iter().map(|plugin| format!("\n  {}: {:?}: {}", plugin.source, plugin.state, plugin.message));
                bail!(
                    "timed out after {SERVED_WITHIN:?} waiting for {what}; the plugins are:{}",
                    states.collect::<String>()
                );
            }
        }
    }

    /// Ends host and world, in this order.
    pub(super) async fn strike(self) -> anyhow::Result<()> {
        self.stop.cancel();
        let ended = self.host.await.context("the host panicked")?;
        self.furnished.world.stop().await;
        ended
    }
}

/// The path of a plugin file: cargo puts some into `examples`.
fn file(folder: &Path, name: &str) -> Option<PathBuf> {
    let name = format!("{name}.wasm");
    [folder.join(&name), folder.join("examples").join(&name)].into_iter().find(|path| path.is_file())
}

fn check_plugins(folder: &Path, plugins: &[&str]) -> anyhow::Result<()> {
    let missing: Vec<&str> = plugins.iter().copied().filter(|name| file(folder, name).is_none()).collect();
    if !missing.is_empty() {
        bail!(
            "{} has no {}.wasm: run `cargo xtask demo`, which builds them, or name their folder with --plugins-from",
            folder.display(),
            missing.join(".wasm, no ")
        );
    }
    Ok(())
}

/// Slow enough to be followed, or as fast as possible.
fn timings(hurried: bool) -> Timings {
    if hurried {
        let soon = Span::millis(5, 20);
        return Timings { react: soon, start: soon, ready: soon, available: soon, terminate: soon };
    }
    Timings { start: Span::millis(300, 800), ready: Span::millis(300, 900), ..Timings::default() }
}
