//! The host: constructs the adapters and runs them until it is stopped.
//!
//! Adapters for real use are constructed only here.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use oarlock_core::action_plugin::facts::GrantsFrom;
use oarlock_core::attempts::parent::API_VERSION;
use oarlock_core::object::api_object::Kind;
use oarlock_core::operation_job::tasks::settings::TaskSettings;
use oarlock_core::ops_job::spec::Defaults;
use oarlock_core::plugin::visit_recorder::RecorderBounds;
use oarlock_kube::flows::Flows;
use oarlock_kube::lease::config::LeaseConfig;
use oarlock_kube::lease::elector::LeaderElector;
use oarlock_kube::ops::Ops;
use oarlock_kube::send::plugin_accounts::PluginAccountSettings;
use oarlock_kube::transport::server_version::ServerProblem;
use oarlock_kube::watch::health::KindHealth;
use oarlock_kube::watch::mirror::Mirror;
use oarlock_kube::{Cluster, HOLD_SECRET, Setup};
use oarlock_rest::{Beside, Listening, Rest};
use oarlock_wasm::{CAPS, CompileWith, FirstScan, GrantsState, Plugins, PluginsError};
use oarlock_web::{PageAdmission, WebOptions};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::account_check::AccountCheck;
use crate::action_plugin::PluginsKind;
use crate::controller::Controller;
use crate::health::{Health, HealthPart, Probe};
use crate::host_place::{HostHome, HostLocation};
use crate::images::ExportRegistry;
use crate::kinds::{ServedKind, plural};
use crate::metrics::Metrics;
use crate::policies::PolicyCheck;
use crate::ports::Ports;
use crate::published::of_this_process;
use crate::rest::{self, RestArgs, RestParts, readiness};
use crate::served_actions::ServedActions;
use crate::visit_store::store_visits;

/// The name of the lease. One host of a cluster leads.
pub(crate) const LEASE: &str = "oarlock";
/// The time without a renewal after which the lease is free.
const LEASE_DURATION: Duration = Duration::from_secs(15);
/// The wait before the API server is asked again for its version.
const ASK_SERVER_AGAIN: Duration = Duration::from_secs(5);
/// The longest time for sending queued events at the end of the process. Events are best effort.
const LAST_EVENTS: Duration = Duration::from_secs(5);

/// The time limit of a plugin call that waits. A computing call has its own limit of at most 5 s.
const WALL_TIMEOUT: Duration = Duration::from_secs(10);

/// The settings of a host.
pub struct HostOptions {
    /// A client of the API server that never retries by itself.
    pub client: Client,
    /// The directory of the plugin files.
    pub plugins: PathBuf,
    /// The source of the plugins' grants.
    pub grants: GrantsSource,
    /// True to grant each plugin everything that it asks for.
    pub grant_all: bool,
    /// The name of this process in the lease.
    pub identity: String,
    /// The namespace of the lease.
    pub namespace: String,
    /// The interval between two complete lists.
    pub resync: Duration,
    /// The namespace and the image of the pods of tasks.
    pub tasks: TaskSettings,
    /// The accounts as which the host makes the changes of plugins.
    pub accounts: PluginAccountSettings,
    /// The place of this host: its cluster, its node and its stores.
    pub place: HostLocation,
    /// The bytes of memory that the host, its plugins and the compile helper share; `None` is no limit.
    pub memory_limit: Option<u64>,
    /// The last visits of each plugin to record. With 0, the host records only the jobs whose annotation asks for it.
    pub record_visits: usize,
}

/// The source of the grants of a host.
#[derive(Clone, Debug)]
pub enum GrantsSource {
    /// A file.
    File {
        /// The path of the file.
        path: PathBuf,
        /// The digest of the only accepted grants; `None` accepts any grants in that file.
        digest: Option<String>,
    },
    /// The ActionPlugins of the cluster.
    Cluster,
}

impl GrantsSource {
    fn word(&self) -> GrantsFrom {
        match self {
            Self::File { .. } => GrantsFrom::File,
            Self::Cluster => GrantsFrom::Cluster,
        }
    }

    fn path(&self) -> Option<PathBuf> {
        match self {
            Self::File { path, .. } => Some(path.clone()),
            Self::Cluster => None,
        }
    }

    fn digest(&self) -> Option<String> {
        match self {
            Self::File { digest, .. } => digest.clone(),
            Self::Cluster => None,
        }
    }
}

impl std::fmt::Display for GrantsSource {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::File { path, .. } => path.display().fmt(formatter),
            Self::Cluster => formatter.write_str("the ActionPlugins of the cluster"),
        }
    }
}

/// A host that is ready to run.
pub struct Host {
    ports: Arc<Ports>,
    client: Client,
    ops: Ops,
    action_plugins: PluginsKind,
    place: HostLocation,
    namespace: String,
    controller: Controller,
    election: LeaderElector,
    health: Arc<Health>,
    policies: PolicyCheck,
    accounts: AccountCheck,
}

impl Host {
    /// Constructs a host, without waiting. The host then loads plugins, reads from the cluster and takes part in the
    /// election. The host acts only after [`Host::run`].
    ///
    /// # Errors
    ///
    /// If there is no plugin directory. The host waits for a cluster that is not reachable.
    pub async fn start(options: HostOptions) -> anyhow::Result<Self> {
        let HostOptions {
            client,
            plugins,
            grants,
            grant_all,
            identity,
            namespace,
            resync,
            tasks,
            accounts,
            place,
            memory_limit,
            record_visits,
        } = options;
        let grants_from = grants.word();
        let plugins = start_plugins(oarlock_wasm::Options {
            grants_from_caller: grants_from == GrantsFrom::Cluster,
            grants_digest: grants.digest(),
            grant_all,
            memory_limit,
            ..plugin_options(Some(plugins), grants.path())?
        });
        let plugins = plugins.await?;
        let (cluster, events) = Cluster::open(Setup {
            client: client.clone(),
            clock: Arc::new(Timestamp::now),
            identity: identity.clone(),
        });
        let exports = place.exports.as_ref().map(ExportRegistry::of_commits);
        cluster.make_tasks(TaskSettings { exports, ..tasks });
        cluster.act_as(accounts);
        memory_limit.into_iter().for_each(|limit| cluster.bound_memory(limit));
        cluster.prove_holds_in(&namespace);
        let candidacy =
            LeaseConfig { namespace: namespace.clone(), name: LEASE.to_owned(), identity, duration: LEASE_DURATION };
        let election = LeaderElector::stand(&cluster, candidacy);
        let ready = vec![
            HealthPart { name: "cache".into(), probe: cache_probe(cluster.clone()) },
            HealthPart { name: "grants".into(), probe: grants_probe(plugins.clone(), grants_from) },
            HealthPart { name: "holds".into(), probe: holds_probe(cluster.clone()) },
            HealthPart { name: "lease".into(), probe: lease_probe(election.unheld()) },
            HealthPart { name: "plugins".into(), probe: plugins_probe(plugins.clone()) },
        ];
        let metrics = Arc::new(Metrics::new(cluster.requests()));
        place.recorder.iter().for_each(|recorder| metrics.shows_history(recorder));
        place.artefacts.iter().for_each(|artefacts| metrics.shows_artefacts(artefacts));
        memory_limit.into_iter().for_each(|limit| metrics.shows_memory_limit(limit));
        let old_policy = old_policy_probe(cluster.clone());
        let ports = Arc::new(Ports::new(cluster, plugins, metrics).with_recorder(RecorderBounds {
            visits: record_visits,
            stores: place.artefacts.is_some(),
            ..RecorderBounds::default()
        }));
        let flows = Flows::watch(ports.cluster.clone());
        let ops = Ops::watch(ports.cluster.clone(), Defaults::default(), place.observer());
        let (checked, accounts) = (PolicyCheck::default(), AccountCheck::default());
        let optional = vec![
            HealthPart { name: "flows".into(), probe: flows_probe(flows.clone()) },
            HealthPart { name: "admission".into(), probe: checked.probe() },
            HealthPart { name: "accounts".into(), probe: accounts.probe() },
        ];
        let controller = Controller::new(ports.clone(), events).resync_every(resync).with_flows(flows);
        let home = HostHome { client: client.clone(), namespace: namespace.clone() };
        let controller = controller.with_ops(ops.clone(), place.clone()).publishing_in(home);
        let action_plugins = PluginsKind::watch(ports.cluster.clone(), grants_from, client.clone());
        let controller = controller.with_kind(Arc::new(action_plugins.clone()));
        let (listed, rights): (Vec<_>, Vec<_>) = controller.kinds().iter().map(kind_parts).unzip();
        let policies = HealthPart { name: "policies".into(), probe: old_policy };
        let health = Health::of(ready.into_iter().chain(listed).collect(), ports.heart.clone());
        let health = Arc::new(health.with_optional(optional.into_iter().chain(rights).chain([policies]).collect()));
        ports.metrics.shows_health(&health);
        let policies = checked;
        Ok(Self {
            ports,
            client,
            ops,
            action_plugins,
            place,
            namespace,
            controller,
            election,
            health,
            policies,
            accounts,
        })
    }

    /// Returns the REST API of this host's OpsJobs, for a process that is host and server at once.
    pub fn rest(&self, args: &RestArgs) -> Rest {
        let HostLocation { cluster, artefacts, recorder, .. } = self.place.clone();
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

    /// Serves the REST API and the pages until `stop`. On an address of this machine, the pages need no login.
    pub fn answer(&self, listener: Listening, args: &RestArgs, stop: CancellationToken) -> JoinHandle<()> {
        let rest = self.rest(args);
        self.metrics().shows_rest(&rest);
        let admission =
            if listener.address().ip().is_loopback() { PageAdmission::Loopback } else { PageAdmission::Login };
        let pages = oarlock_web::pages(WebOptions {
            rest: rest.clone(),
            mirror: Mirror::watch(&self.ports.cluster, &oarlock_web::KINDS),
            logs: None,
            host: of_this_process(self.ports.plugins.clone(), self.place.clone()),
            admission,
            stop: stop.clone(),
        });
        let beside = Beside { ready: readiness(self.health()), pages: Some(pages) };
        rest::serve(listener, rest, beside, stop)
    }

    /// Returns the plugins of the host.
    pub fn plugins(&self) -> Plugins {
        self.ports.plugins.clone()
    }

    /// Returns the health of the host.
    pub fn health(&self) -> Arc<Health> {
        self.health.clone()
    }

    /// Returns the metrics of the host.
    pub fn metrics(&self) -> Arc<Metrics> {
        self.ports.metrics.clone()
    }

    /// Runs until `stop`. Then finishes the running rounds, releases the lease and sends events, each within a time
    /// limit.
    ///
    /// # Errors
    ///
    /// If the controller fails, which `/livez` then reports too. If another process has the same identity.
    pub async fn run(self, stop: CancellationToken) -> anyhow::Result<()> {
        let Self { ports, ops, place, action_plugins, controller, election, health, policies, accounts, .. } = self;
        let storing = place.artefacts.map(|artefacts| tokio::spawn(store_visits(ports.clone(), artefacts)));
        let granting = tokio::spawn(action_plugins.follow_grants(ports.plugins.clone()));
        let checking = [tokio::spawn(policies.run(ops)), tokio::spawn(accounts.run(ports.clone()))];
        let counting = tokio::spawn(count_plugins(ports.clone()));
        let announcing = tokio::spawn(announce_plugins(ports.clone(), election.note()));
        let asking = tokio::spawn(tell_server_version(ports.cluster.clone()));
        let ended = tokio::spawn(controller.run(election, stop.clone())).await;
        granting.abort();
        counting.abort();
        announcing.abort();
        asking.abort();
        checking.iter().for_each(JoinHandle::abort);
        storing.iter().for_each(JoinHandle::abort);
        ports.cluster.stop(LAST_EVENTS).await;
        if ended.is_err() || !stop.is_cancelled() {
            health.dead("the controller failed");
        }
        ended.context("the controller failed")?.context("this process can no longer lead")?;
        anyhow::ensure!(stop.is_cancelled(), "the controller ended without being asked to stop");
        Ok(())
    }
}

/// Returns the settings of the plugins. A helper process compiles them, and a directory caches the results if there is
/// one.
pub(crate) fn plugin_options(dir: Option<PathBuf>, grants: Option<PathBuf>) -> anyhow::Result<oarlock_wasm::Options> {
    Ok(oarlock_wasm::Options {
        dir,
        grants,
        grants_digest: None,
        grants_from_caller: false,
        grant_all: false,
        cache_dir: oarlock_wasm::default_cache_dir(),
        compile_with: CompileWith::this_binary()
            .context("cannot find the path of this executable, which compiles plugins")?,
        caps: CAPS,
        wall_timeout: Some(WALL_TIMEOUT),
        memory_limit: None,
    })
}

/// Starts the plugins. Without a usable cache directory, they are compiled at each start, which only costs some time.
pub(crate) async fn start_plugins(options: oarlock_wasm::Options) -> anyhow::Result<Plugins> {
    match Plugins::start(options.clone()).await {
        Err(error @ PluginsError::Cache { .. }) => {
            tracing::warn!(
                error = format!("{:#}", anyhow::Error::new(error)),
                "no compile cache, so the host compiles plugins at each start; set XDG_CACHE_HOME"
            );
            Ok(Plugins::start(oarlock_wasm::Options { cache_dir: None, ..options }).await?)
        }
        started => Ok(started?),
    }
}

/// Returns a probe that is ready after jobs and pods were listed.
fn cache_probe(cluster: Cluster) -> Probe {
    Box::new(move || {
        // Kinds that plugins declare do not count here. If one cannot be listed, only its plugin is affected.
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

/// Returns a probe that is ready after the hold keys were read.
fn holds_probe(cluster: Cluster) -> Probe {
    let message = || format!("the keys in the Secret {HOLD_SECRET} are not read yet: the log says why");
    Box::new(move || if cluster.lacks_hold_keys() { Err(message()) } else { Ok(()) })
}

/// Returns a probe that reports a policy of an earlier version, which now only costs the API server time.
fn old_policy_probe(cluster: Cluster) -> Probe {
    Box::new(move || cluster.old_hold_policy().map_or(Ok(()), Err))
}

/// Returns a probe that is ready while each served kind of flows has been listed.
///
/// A kind that is not installed needs no list. A kind may be installed without rights for this host, beside the
/// operator that brought it. Then only flows wait.
fn flows_probe(flows: Flows) -> Probe {
    Box::new(move || {
        not_listed(flows.health(), |health| health.unread || health.kind.api_version == API_VERSION && !health.synced)
    })
}

/// Returns the two parts of a kind.
///
/// The first part is ready after the API server answered the list of its objects. The answer may be the objects, or that
/// the kind is not served, or that this account may not list it. REST serves OpsJobs from that list and reserves nodes
/// with it. A host without the kind or the rights does everything else.
///
/// The second part reports an installed kind that this account may not list.
fn kind_parts(kind: &Arc<dyn ServedKind>) -> (HealthPart, HealthPart) {
    let plural = plural(&**kind);
    let (listed, rights) = (kind.clone(), kind.clone());
    let listed: Probe =
        Box::new(move || not_listed(listed.health(), |health| (!health.synced || health.unread) && !health.refused));
    let rights: Probe = Box::new(move || not_listed(rights.health(), |health| health.refused));
    let about_rights = format!("rights on {plural}");
    (HealthPart { name: plural.into(), probe: listed }, HealthPart { name: about_rights.into(), probe: rights })
}

/// Returns an error that names the first late kind.
fn not_listed(watches: Vec<KindHealth>, is_late: impl Fn(&KindHealth) -> bool) -> Result<(), String> {
    let Some(KindHealth { kind, error, .. }) = watches.into_iter().find(is_late) else { return Ok(()) };
    let why = error.unwrap_or_else(|| "the API server has not answered yet".to_owned());
    Err(format!("{} {} not listed: {why}", kind.api_version, kind.kind))
}

/// Returns a probe that is ready while this process or another holds the lease. A host that cannot write a free lease
/// will never lead.
fn lease_probe(unheld: watch::Receiver<Option<String>>) -> Probe {
    Box::new(move || unheld.borrow().clone().map_or(Ok(()), Err))
}

/// Returns a probe that is ready unless the grants were refused from the start. A file that is refused later does not
/// change the grants in force, so the host stays ready.
fn grants_probe(plugins: Plugins, grants_from: GrantsFrom) -> Probe {
    let is_of_cluster = grants_from == GrantsFrom::Cluster;
    Box::new(move || match plugins.grants_state() {
        GrantsState::Unusable(why) => Err(format!("nothing is granted: {why}")),
        GrantsState::Unread if is_of_cluster => {
            let kind = "the ActionPlugins of the cluster are not listed yet";
            Err(format!("{kind}: install `oarlock manifests`, or take the grants from a file"))
        }
        GrantsState::Unread | GrantsState::InForce | GrantsState::Refused(_) => Ok(()),
    })
}

/// Returns a probe that is ready after each file of the plugin directory was loaded or rejected.
fn plugins_probe(plugins: Plugins) -> Probe {
    Box::new(move || match *plugins.first_scan().borrow() {
        FirstScan::Pending => Err("the plugin directory was not read yet".to_owned()),
        FirstScan::Cached => Err("plugins are being compiled".to_owned()),
        FirstScan::Done => Ok(()),
    })
}

/// Logs the version of the API server, or once why it is unknown. Retries until the API server answers.
async fn tell_server_version(cluster: Cluster) {
    let mut said = false;
    loop {
        match cluster.server_version().await {
            Ok(version) => return tracing::info!(version, "the API server answers"),
            Err(problem @ ServerProblem::Unreachable(_)) => {
                if !said {
                    tracing::warn!("{problem}; waiting for the API server");
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

/// Writes the serving plugins into the lease, so that a user who plans a job knows what the cluster would run.
async fn announce_plugins(ports: Arc<Ports>, note: watch::Sender<Option<String>>) {
    let (mut changes, mut first_scan) = (ports.plugins.changes(), ports.plugins.first_scan());
    // Before the first scan ends, an existing plugin would seem to be missing.
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
