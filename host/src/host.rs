//! The host: constructs the adapters and runs them until it is stopped.
//!
//! This is the only place where adapters are constructed for use.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use oarlock_core::child::parent::API_VERSION;
use oarlock_core::cluster::object::Kind;
use oarlock_core::ops_job::spec::Defaults;
use oarlock_core::round::task_settings::TaskSettings;
use oarlock_kube::flows::Flows;
use oarlock_kube::lease::{LeaderElector, LeaseConfig};
use oarlock_kube::ops::Ops;
use oarlock_kube::transport::server_version::ServerProblem;
use oarlock_kube::watch::health::KindHealth;
use oarlock_kube::{Cluster, HOLD_SECRET, Setup};
use oarlock_rest::Rest;
use oarlock_wasm::{CAPS, CompileWith, FirstScan, GrantsState, Plugins, PluginsError};
use tokio::sync::watch;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::controller::{Controller, HostHome};
use crate::health::{Health, Probe};
use crate::images::ExportRegistry;
use crate::metrics::Metrics;
pub use crate::ops_job::HostPlace;
use crate::ports::Ports;
use crate::published::of_this_process;
use crate::rest::{RestArgs, RestParts};
use crate::served_actions::ServedActions;

/// Name of the lease: one host leads in a cluster.
pub(crate) const LEASE: &str = "oarlock";
/// A lease that is not renewed for this long is free.
const LEASE_DURATION: Duration = Duration::from_secs(15);
/// Wait before the API server is asked again for its version.
const ASK_SERVER_AGAIN: Duration = Duration::from_secs(5);
/// Longest time for sending queued events at the end of the process. They are best effort.
const LAST_EVENTS: Duration = Duration::from_secs(5);

/// Time limit of a call that waits; one that computes is stopped by its own limit, at most 5 s.
const WALL_TIMEOUT: Duration = Duration::from_secs(10);

/// The settings of a host.
pub struct HostOptions {
    /// A client that never repeats a request by itself.
    pub client: Client,
    /// Directory of the plugin files.
    pub plugins: PathBuf,
    /// File of their grants.
    pub grants: PathBuf,
    /// The digest of the only grants that count; `None` lets any of that file count.
    pub grants_digest: Option<String>,
    /// Every plugin is granted all that it asks for.
    pub grant_all: bool,
    /// Name of this process in the lease.
    pub identity: String,
    /// Namespace of the lease.
    pub namespace: String,
    /// Interval between two complete reads.
    pub resync: Duration,
    /// Where the pods of tasks are made, and of which image.
    pub tasks: TaskSettings,
    /// Where it runs.
    pub place: HostPlace,
    /// Bytes of memory that the host, its plugins and the compile helper share; `None` is no limit.
    pub memory_limit: Option<u64>,
}

/// A host that is ready to run.
pub struct Host {
    ports: Arc<Ports>,
    client: Client,
    ops: Ops,
    place: HostPlace,
    namespace: String,
    controller: Controller,
    election: LeaderElector,
    health: Arc<Health>,
}

impl Host {
    /// Constructs a host, and waits for nothing. It loads plugins, reads from the cluster and takes part in the election
    /// from now on, and acts once it is run.
    ///
    /// # Errors
    ///
    /// Fails if there is no plugin directory. A cluster that cannot be reached is waited for.
    pub async fn start(options: HostOptions) -> anyhow::Result<Self> {
        let HostOptions {
            client,
            plugins,
            grants,
            grants_digest,
            grant_all,
            identity,
            namespace,
            resync,
            tasks,
            place,
            memory_limit,
        } = options;
        let options = plugin_options(Some(plugins), Some(grants))?;
        let plugins =
            start_plugins(oarlock_wasm::Options { grants_digest, grant_all, memory_limit, ..options }).await?;
        let (cluster, events) = Cluster::open(Setup {
            client: client.clone(),
            clock: Arc::new(Timestamp::now),
            identity: identity.clone(),
        });
        let exports = place.exports.as_ref().map(ExportRegistry::of_commits);
        cluster.make_tasks(TaskSettings { exports, ..tasks });
        memory_limit.into_iter().for_each(|limit| cluster.bound_memory(limit));
        cluster.prove_holds_in(&namespace);
        let candidacy =
            LeaseConfig { namespace: namespace.clone(), name: LEASE.to_owned(), identity, duration: LEASE_DURATION };
        let election = LeaderElector::stand(&cluster, candidacy);
        let ready = vec![
            ("cache", cache_probe(cluster.clone())),
            ("grants", grants_probe(plugins.clone())),
            ("holds", holds_probe(cluster.clone())),
            ("lease", lease_probe(election.unheld())),
            ("plugins", plugins_probe(plugins.clone())),
        ];
        let metrics = Arc::new(Metrics::new(cluster.requests()));
        place.recorder.iter().for_each(|recorder| metrics.shows_history(recorder));
        let old_policy = old_policy_probe(cluster.clone());
        let ports = Arc::new(Ports::new(cluster, plugins, metrics));
        let flows = Flows::watch(ports.cluster.clone());
        let ops = Ops::watch(ports.cluster.clone(), Defaults::default(), place.tap());
        let ready = ready.into_iter().chain([("opsjobs", ops_probe(ops.clone()))]).collect();
        let health = Health::of(ready, ports.heart.clone());
        let optional = vec![
            ("flows", flows_probe(flows.clone())),
            ("rights on opsjobs", ops_rights_probe(ops.clone())),
            ("policies", old_policy),
        ];
        let health = Arc::new(health.with_optional(optional));
        let controller = Controller::new(ports.clone(), events).resync_every(resync).with_flows(flows);
        let home = HostHome { client: client.clone(), namespace: namespace.clone() };
        let controller = controller.with_ops(ops.clone(), place.clone()).publishing_in(home);
        Ok(Self { ports, client, ops, place, namespace, controller, election, health })
    }

    /// The REST API of its OpsJobs, of a process that is host and server at once.
    pub fn rest(&self, args: &RestArgs) -> Rest {
        let HostPlace { cluster, artefacts, recorder, .. } = self.place.clone();
        let parts = RestParts {
            client: self.client.clone(),
            ops: self.ops.clone(),
            host: of_this_process(self.ports.plugins.clone(), self.place.clone()),
            cluster,
            artefacts,
            history: recorder.map(|recorder| recorder.history().clone()),
            namespace: self.namespace.clone(),
        };
        parts.rest(args)
    }

    /// Its health.
    pub fn health(&self) -> Arc<Health> {
        self.health.clone()
    }

    /// Its metrics.
    pub fn metrics(&self) -> Arc<Metrics> {
        self.ports.metrics.clone()
    }

    /// Its plugins.
    pub fn plugins(&self) -> Plugins {
        self.ports.plugins.clone()
    }

    /// Runs until `stop`: then it finishes the running rounds, releases the lease and sends events, each within a time
    /// limit.
    ///
    /// # Errors
    ///
    /// Fails if the controller fails, which `/livez` then reports too, or if another process has the same identity.
    pub async fn run(self, stop: CancellationToken) -> anyhow::Result<()> {
        let Self { ports, controller, election, health, .. } = self;
        let counting = tokio::spawn(count_plugins(ports.clone()));
        let announcing = tokio::spawn(announce_plugins(ports.clone(), election.note()));
        let asking = tokio::spawn(tell_server_version(ports.cluster.clone()));
        let ended = tokio::spawn(controller.run(election, stop.clone())).await;
        counting.abort();
        announcing.abort();
        asking.abort();
        ports.cluster.stop(LAST_EVENTS).await;
        if ended.is_err() || !stop.is_cancelled() {
            health.dead("the controller failed");
        }
        ended.context("the controller failed")?.context("this process can no longer lead")?;
        anyhow::ensure!(stop.is_cancelled(), "the controller ended without being asked to stop");
        Ok(())
    }
}

/// The settings of the plugins: read from a directory if there is one, compiled by a helper process, cached if there is room.
pub(crate) fn plugin_options(dir: Option<PathBuf>, grants: Option<PathBuf>) -> anyhow::Result<oarlock_wasm::Options> {
    Ok(oarlock_wasm::Options {
        dir,
        grants,
        grants_digest: None,
        grant_all: false,
        cache_dir: oarlock_wasm::default_cache_dir(),
        compile_with: CompileWith::this_binary()
            .context("cannot find the path of this executable, which compiles plugins")?,
        caps: CAPS,
        wall_timeout: Some(WALL_TIMEOUT),
        memory_limit: None,
    })
}

/// Starts the plugins, without a cache if there is no room for one: that costs a moment at each start, and no more.
pub(crate) async fn start_plugins(options: oarlock_wasm::Options) -> anyhow::Result<Plugins> {
    match Plugins::start(options.clone()).await {
        Err(error @ PluginsError::Cache { .. }) => {
            tracing::warn!(
                error = format!("{:#}", anyhow::Error::new(error)),
                "plugins are compiled at each start: set XDG_CACHE_HOME"
            );
            Ok(Plugins::start(oarlock_wasm::Options { cache_dir: None, ..options }).await?)
        }
        started => Ok(started?),
    }
}

/// Ready once jobs and pods were listed.
fn cache_probe(cluster: Cluster) -> Probe {
    Box::new(move || {
        // Kinds that plugins declare do not count here: one that may not be listed costs only its plugin.
        let watches = cluster.health();
        for kind in [Kind::job(), Kind::pod()] {
            let mut own = watches.iter().filter(|health| health.kind == kind);
            let Some(late) = own.clone().next_back() else { return Err("nothing is watched yet".to_owned()) };
            if !own.any(|health| health.synced) {
                let why = late.error.as_deref().unwrap_or("the API server has not answered yet");
                return Err(format!("{} {} not listed: {why}", kind.api_version, kind.kind));
            }
        }
        Ok(())
    })
}

/// Ready once the keys are known by which holds are proved.
fn holds_probe(cluster: Cluster) -> Probe {
    let words = || format!("the keys in the Secret {HOLD_SECRET} are not read yet: the log says why");
    Box::new(move || if cluster.lacks_hold_keys() { Err(words()) } else { Ok(()) })
}

/// Tells of a policy of an earlier version that only costs the API server time.
fn old_policy_probe(cluster: Cluster) -> Probe {
    Box::new(move || cluster.old_hold_policy().map_or(Ok(()), Err))
}

/// Ready while every kind of flows that is served has been listed. Where none is installed there is nothing to list; where they
/// are and the rights are not, as beside the operator that brought these kinds, only flows have to wait.
fn flows_probe(flows: Flows) -> Probe {
    Box::new(move || {
        not_listed(flows.health(), |health| health.unread || health.kind.api_version == API_VERSION && !health.synced)
    })
}

/// Ready once the API server has answered the list of OpsJobs: with the jobs, that it does not serve the kind, or that this account may not
/// list it. REST serves from that list and reserves nodes by it. A host without the kind or the rights does everything else.
fn ops_probe(ops: Ops) -> Probe {
    Box::new(move || not_listed(ops.health(), |health| (!health.synced || health.unread) && !health.refused))
}

/// Says that OpsJobs are installed and this account may not list them.
fn ops_rights_probe(ops: Ops) -> Probe {
    Box::new(move || not_listed(ops.health(), |health| health.refused))
}

/// Fails with the first of these kinds that is late.
fn not_listed(watches: Vec<KindHealth>, is_late: impl Fn(&KindHealth) -> bool) -> Result<(), String> {
    let Some(KindHealth { kind, error, .. }) = watches.into_iter().find(is_late) else { return Ok(()) };
    let why = error.unwrap_or_else(|| "the API server has not answered yet".to_owned());
    Err(format!("{} {} not listed: {why}", kind.api_version, kind.kind))
}

/// Ready while this process or another one is known to hold the lease: a host that cannot write a free one will never lead.
fn lease_probe(unheld: watch::Receiver<Option<String>>) -> Probe {
    Box::new(move || unheld.borrow().clone().map_or(Ok(()), Err))
}

/// Ready unless the file of grants was refused from the start. One that is refused later takes nothing away, and a host
/// that is not ready would.
fn grants_probe(plugins: Plugins) -> Probe {
    Box::new(move || match plugins.grants_state() {
        GrantsState::Unusable(why) => Err(format!("nothing is granted: {why}")),
        GrantsState::Unread | GrantsState::InForce | GrantsState::Refused(_) => Ok(()),
    })
}

/// Ready once each file of the plugin directory was loaded or rejected.
fn plugins_probe(plugins: Plugins) -> Probe {
    Box::new(move || match *plugins.first_scan().borrow() {
        FirstScan::Pending => Err("the plugin directory was not read yet".to_owned()),
        FirstScan::Cached => Err("plugins are being compiled".to_owned()),
        FirstScan::Done => Ok(()),
    })
}

/// Says once what is wrong with the API server, or which version it has. One that cannot be reached is asked again.
async fn tell_server_version(cluster: Cluster) {
    let mut said = false;
    loop {
        match cluster.server_version().await {
            Ok(version) => return tracing::info!(version, "the API server answers"),
            Err(problem @ ServerProblem::Unreachable(_)) => {
                if !said {
                    tracing::warn!("{problem}; waiting for it");
                }
            }
            Err(problem) => {
                if !said {
                    tracing::error!("{problem}");
                }
            }
        }
        said = true;
        sleep(ASK_SERVER_AGAIN).await;
    }
}

/// Keeps the lease saying which plugins serve, so that those who plan a job know what the cluster would run.
async fn announce_plugins(ports: Arc<Ports>, note: watch::Sender<Option<String>>) {
    let (mut changes, mut first_scan) = (ports.plugins.changes(), ports.plugins.first_scan());
    // Before that, a plugin that is there would seem not to be.
    if first_scan.wait_for(|reached| *reached == FirstScan::Done).await.is_err() {
        return;
    }
    loop {
        let text = ServedActions::of(&ports.plugins.list()).text();
        note.send_if_modified(|known| known.replace(text.clone()) != Some(text));
        if changes.changed().await.is_err() {
            return;
        }
    }
}

/// Updates the plugin metrics whenever the states of the plugins change.
async fn count_plugins(ports: Arc<Ports>) {
    let mut changes = ports.plugins.changes();
    loop {
        let list = ports.plugins.list();
        let states = list.iter().map(|status| (status.name.as_deref().unwrap_or(&status.source), status.state));
        ports.metrics.plugins_are(states.map(|(name, state)| (name.to_owned(), format!("{state:?}"))));
        let refused = matches!(ports.plugins.grants_state(), GrantsState::Unusable(_) | GrantsState::Refused(_));
        ports.metrics.grants_refused(refused);
        if changes.changed().await.is_err() {
            return;
        }
    }
}
