//! Starts and ends the hosts of a test cluster, cleanly or with a kill.
//!
//! Takes a test cluster; yields hosts that run the real components, each behind its own interceptor. A kill cuts the interceptor of
//! the host, so that no request of the killed host can still reach the server. May not know what a scenario is about.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::Client;
use oarlock::controller::{CannotLead, Controller};
use oarlock::history::{Keeping, Recorder};
use oarlock::host_place::HostLocation;
use oarlock::images::ExportRegistry;
use oarlock::kinds::ServedKind;
use oarlock::metrics::Metrics;
use oarlock::ports::Ports;
use oarlock_artefacts::{Artefacts, VolumeSpace};
use oarlock_core::object::time::after;
use oarlock_core::operation_job::tasks::settings::TaskSettings;
use oarlock_core::ops_job::spec::Defaults;
use oarlock_history::History;
use oarlock_kube::flows::Flows;
use oarlock_kube::lease::config::LeaseConfig;
use oarlock_kube::lease::elector::LeaderElector;
use oarlock_kube::lease::fence::Leadership;
use oarlock_kube::ops::Ops;
use oarlock_kube::{Cluster, Setup};
use oarlock_support::accounts::Account;
use oarlock_support::interception::Interceptor;
use oarlock_wasm::Plugins;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::components::{self, GRANTS, component};
use crate::host_client::{self, Visible};
use crate::test_cluster::{Backend, TestCluster, lease_name, tasks_namespace};
use crate::variant::Variant;

/// Watches a kind that a host serves in addition.
pub type WatchKind = Arc<dyn Fn(&Cluster) -> Arc<dyn ServedKind> + Send + Sync>;

/// The settings of a host that a scenario starts.
pub struct Begin {
    /// The name of the host in the lease.
    pub identity: String,
    /// The interceptor that carries the host's requests.
    pub interceptor: Interceptor,
    /// The time by which the host's clock is ahead of the API server's clock.
    pub ahead: SignedDuration,
    /// The names of the components that are published in the host.
    pub plugins: Vec<&'static str>,
    /// The grants of the plugins.
    pub grants: String,
    /// The duration of the host's lease.
    pub lease: Duration,
    /// The name of the lease. Hosts with one lease elect one leader.
    pub lease_name: String,
    /// The bug of a known-bad host. `None` for a correct host.
    pub variant: Option<Arc<dyn Variant>>,
}

/// A running host.
pub struct Running {
    identity: String,
    stop: CancellationToken,
    task: JoinHandle<Result<(), CannotLead>>,
    cluster: Cluster,
    leadership: watch::Receiver<Leadership>,
    /// The ports of the host.
    pub host: Arc<Ports>,
    /// The interceptor that carries the host's requests.
    pub interceptor: Interceptor,
}

impl Running {
    /// Returns the name of the host in the lease.
    pub fn identity(&self) -> &str {
        &self.identity
    }

    /// Returns true if the host believes that it leads.
    pub fn leads(&self) -> bool {
        self.leadership.borrow().leading
    }
}

impl TestCluster {
    /// Returns the settings of the usual host: the Replace plugin and a correct clock.
    pub fn host_named(&self, identity: &str) -> Begin {
        Begin {
            identity: identity.to_owned(),
            interceptor: host_client::interceptor(),
            ahead: self.clock_ahead,
            plugins: vec!["replace"],
            grants: GRANTS.to_owned(),
            lease: Duration::from_secs(15),
            lease_name: lease_name(&self.namespace),
            variant: None,
        }
    }

    /// Starts the usual host.
    ///
    /// # Errors
    /// If the component is missing, or if the host refuses it.
    pub async fn start_host(&mut self) -> anyhow::Result<()> {
        self.start(self.host_named("host")).await
    }

    /// Starts a host.
    ///
    /// # Errors
    /// If a component is missing, or if the host refuses it.
    pub async fn start(&mut self, begin: Begin) -> anyhow::Result<()> {
        let Begin { identity, interceptor, ahead, plugins: names, grants, lease, lease_name: name, variant } = begin;
        // In memory each scenario has its own cluster.
        let shares = matches!(self.backend, Backend::Real(_)) && !self.with_ops && self.kinds.is_empty();
        let visible = shares.then(|| self.visible(&grants)).transpose()?;
        let client = host_client::client(self.host_client().await?, interceptor.clone(), visible, variant);
        let clock: oarlock_kube::transport::clock::Clock = match &self.backend {
            Backend::Sim(cluster) => {
                let cluster = cluster.clone();
                Arc::new(move || after(cluster.now(), ahead))
            }
            Backend::Real(_) => Arc::new(move || after(Timestamp::now(), ahead)),
        };
        let (cluster, news) = Cluster::open(Setup { client, clock, identity: identity.clone() });
        cluster.prove_holds_in("oarlock-system");
        let namespace = tasks_namespace(&self.namespace);
        let exports = self.exports.as_ref().map(ExportRegistry::of_commits);
        cluster.make_tasks(TaskSettings { namespace, exports, ..TaskSettings::default() });
        let plugins = by_name(&names, &grants).await?;
        let host = Arc::new(Ports::new(cluster.clone(), plugins, Arc::new(Metrics::new(cluster.requests()))));
        let candidacy =
            LeaseConfig { namespace: "oarlock-system".into(), name, identity: identity.clone(), duration: lease };
        let election = LeaderElector::stand(&cluster, candidacy);
        let (leadership, stop) = (election.leadership(), CancellationToken::new());
        let mut controller = Controller::new(host.clone(), news);
        if self.with_flows {
            controller = controller.with_flows(Flows::watch(cluster.clone()));
        }
        controller = self.kinds.iter().fold(controller, |controller, watch| controller.with_kind(watch(&cluster)));
        if self.with_ops {
            let artefacts = self.files.as_deref().map(Artefacts::in_folder).transpose().map_err(anyhow::Error::msg)?;
            // A fixed size, so that the free space on the disk of this machine changes no test result.
            let space = VolumeSpace { total: 1 << 40, free: 1 << 40, ..VolumeSpace::default() };
            let artefacts = artefacts.map(|files| files.on_volume(move || Ok(space)));
            let place = HostLocation { artefacts, exports: self.exports.clone(), ..HostLocation::default() };
            let rows = self.rows.clone().map(|place_of| History::at(place_of, &place.cluster)).transpose()?;
            let recorder = rows.map(|rows| Recorder::new(rows, Keeping::default(), Defaults::default()));
            let place = HostLocation { recorder, ..place };
            let ops = Ops::watch(cluster.clone(), Defaults::default(), place.observer());
            controller = controller.with_ops(ops, place);
        }
        let task = tokio::spawn(controller.run(election, stop.clone()));
        self.interceptors.push(interceptor.clone());
        self.running.push(Running { identity, stop, task, cluster, leadership, host, interceptor });
        Ok(())
    }

    /// Returns a metric without labels that the host exports at `/metrics`, by its name without the prefix `oarlock_`.
    pub fn figure(&self, name: &str) -> Option<i64> {
        let text = self.running.last()?.host.metrics.text();
        let rest = text.lines().find_map(|line| line.strip_prefix(&format!("oarlock_{name} ")))?;
        rest.trim().parse().ok()
    }

    /// Stops the host that was started last, as SIGTERM does.
    ///
    /// # Errors
    /// If the host panicked.
    pub async fn stop_host(&mut self) -> anyhow::Result<()> {
        let Some(Running { stop, task, cluster, .. }) = self.running.pop() else { return Ok(()) };
        stop.cancel();
        task.await.context("the host panicked")??;
        cluster.stop(Duration::from_secs(5)).await;
        Ok(())
    }

    /// Kills the host of this name, as SIGKILL does: requests that it has not sent are never sent.
    ///
    /// # Errors
    /// If no such host runs, or if the host had panicked before.
    pub async fn kill_host(&mut self, identity: &str) -> anyhow::Result<()> {
        let at = self.running.iter().position(|running| running.identity == identity).context("no such host runs")?;
        let Running { task, cluster, interceptor, .. } = self.running.remove(at);
        interceptor.cut(true);
        task.abort();
        let panicked = task.await.err().is_some_and(|error| error.is_panic());
        anyhow::ensure!(!panicked, "the host panicked");
        cluster.stop(Duration::ZERO).await;
        Ok(())
    }

    /// Kills the usual host and starts it again, with empty memory.
    ///
    /// # Errors
    /// If the host did not run, or if it does not start.
    pub async fn restart_host(&mut self) -> anyhow::Result<()> {
        self.kill_host("host").await?;
        self.start_host().await
    }

    /// Returns the running hosts.
    pub fn hosts(&self) -> &[Running] {
        &self.running
    }

    /// Returns the host that was started last.
    ///
    /// # Errors
    /// If no host runs.
    pub fn running(&self) -> anyhow::Result<&Running> {
        self.running.last().context("no host runs")
    }

    /// Returns the part of a shared control plane that hosts with these grants see.
    fn visible(&self, grants: &str) -> anyhow::Result<Visible> {
        let has_tasks = oarlock_wasm::parse_grants(grants)?.iter().any(|grant| !grant.tasks.is_empty());
        let tasks = has_tasks.then(|| tasks_namespace(&self.namespace));
        Ok(Visible { own: self.namespace.clone(), tasks })
    }

    /// Returns a client for a host. On a real control plane it has exactly the host's rights; the in-memory API checks no rights.
    async fn host_client(&self) -> anyhow::Result<Client> {
        match &self.backend {
            Backend::Sim(cluster) => Ok(Client::new(cluster.service(), "default")),
            Backend::Real(plane) => plane.client(Account::Host).await,
        }
    }
}

/// Publishes components in new plugins. A cache beside the built components keeps the compiled code for all rigs.
async fn by_name(names: &[&'static str], grants: &str) -> anyhow::Result<Plugins> {
    let cache = components::folder().join("compiled-for-scenarios");
    let options = oarlock_wasm::Options { cache_dir: Some(cache), ..oarlock_wasm::Options::in_memory() };
    let plugins = Plugins::start(options).await?;
    plugins.set_grants(oarlock_wasm::parse_grants(grants)?).await;
    for name in names {
        plugins.publish(name, component(name)?).await;
    }
    Ok(plugins)
}
