//! Hosts of a rig: how they begin, and how they end well or badly.
//!
//! Takes a rig; yields hosts with the real component in them, each on a wire of its own. A host that is killed leaves
//! its wire cut, so that nothing it had begun can still reach the server. May not know what a scenario is about.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::Client;
use oarlock::controller::{CannotLead, Controller};
use oarlock::history::{Keeping, Recorder};
use oarlock::host::HostPlace;
use oarlock::images::ExportRegistry;
use oarlock::metrics::Metrics;
use oarlock::ports::Ports;
use oarlock_artefacts::{Artefacts, VolumeSpace};
use oarlock_bed::accounts::Account;
use oarlock_bed::interception::Interceptor;
use oarlock_core::job::time::after;
use oarlock_core::ops_job::spec::Defaults;
use oarlock_core::round::task_settings::TaskSettings;
use oarlock_history::History;
use oarlock_kube::flows::Flows;
use oarlock_kube::lease::{LeaderElector, Leadership, LeaseConfig};
use oarlock_kube::ops::Ops;
use oarlock_kube::{Cluster, Setup};
use oarlock_wasm::Plugins;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::components::{self, GRANTS, component};
use crate::rig::{Ground, Rig, lease_name, tasks_namespace};
use crate::variants::Variant;
use crate::wire::{self, Visible};

/// How a host is begun.
pub struct Begin {
    /// Its name in the lease.
    pub identity: String,
    /// What it speaks through.
    pub wire: Interceptor,
    /// How far its clock is ahead of the API server's.
    pub ahead: SignedDuration,
    /// The components that are published in it, by name.
    pub plugins: Vec<&'static str>,
    /// What they are granted.
    pub grants: String,
    /// How long its lease counts.
    pub lease: Duration,
    /// The bug that it has, if it is a known-bad one.
    pub variant: Option<Arc<dyn Variant>>,
}

/// A running host.
pub struct Running {
    identity: String,
    stop: CancellationToken,
    task: JoinHandle<Result<(), CannotLead>>,
    cluster: Cluster,
    leadership: watch::Receiver<Leadership>,
    /// Its ports.
    pub host: Arc<Ports>,
    /// What it speaks through.
    pub wire: Interceptor,
}

impl Running {
    /// Whether it leads, by its own account.
    pub fn leads(&self) -> bool {
        self.leadership.borrow().leading
    }
}

impl Rig {
    /// A host as a scenario usually has it: with the Replace plugin, and a right clock.
    pub fn host_named(&self, identity: &str) -> Begin {
        Begin {
            identity: identity.to_owned(),
            wire: wire::interceptor(),
            ahead: self.clock_ahead,
            plugins: vec!["replace"],
            grants: GRANTS.to_owned(),
            lease: Duration::from_secs(15),
            variant: None,
        }
    }

    /// Starts the usual host.
    ///
    /// # Errors
    /// If the component is missing or refused.
    pub async fn start_host(&mut self) -> anyhow::Result<()> {
        self.start(self.host_named("host")).await
    }

    /// Starts a host.
    ///
    /// # Errors
    /// If a component is missing or refused.
    pub async fn start(&mut self, begin: Begin) -> anyhow::Result<()> {
        let Begin { identity, wire, ahead, plugins: names, grants, lease, variant } = begin;
        // In memory each scenario has a cluster of its own.
        let shares = matches!(self.ground, Ground::Real(_)) && !self.with_ops;
        let visible = shares.then(|| self.visible(&grants)).transpose()?;
        let client = wire::client(self.host_client().await?, wire.clone(), visible, variant);
        let clock: oarlock_kube::transport::clock::Clock = match &self.ground {
            Ground::Sim(cluster) => {
                let cluster = cluster.clone();
                Arc::new(move || after(cluster.now(), ahead))
            }
            Ground::Real(_) => Arc::new(move || after(Timestamp::now(), ahead)),
        };
        let (cluster, news) = Cluster::open(Setup { client, clock, identity: identity.clone() });
        cluster.prove_holds_in("oarlock-system");
        let namespace = tasks_namespace(&self.namespace);
        let exports = self.exports.as_ref().map(ExportRegistry::of_commits);
        cluster.make_tasks(TaskSettings { namespace, exports, ..TaskSettings::default() });
        let plugins = by_name(&names, &grants).await?;
        let host = Arc::new(Ports::new(cluster.clone(), plugins, Arc::new(Metrics::new(cluster.requests()))));
        let name = lease_name(&self.namespace);
        let candidacy =
            LeaseConfig { namespace: "oarlock-system".into(), name, identity: identity.clone(), duration: lease };
        let election = LeaderElector::stand(&cluster, candidacy);
        let (leadership, stop) = (election.leadership(), CancellationToken::new());
        let mut controller = Controller::new(host.clone(), news);
        if self.with_flows {
            controller = controller.with_flows(Flows::watch(cluster.clone()));
        }
        if self.with_ops {
            let artefacts = self.files.as_deref().map(Artefacts::in_folder).transpose().map_err(anyhow::Error::msg)?;
            // The free space on the disk of this machine decides nothing here.
            let space = VolumeSpace { total: 1 << 40, free: 1 << 40, ..VolumeSpace::default() };
            let artefacts = artefacts.map(|files| files.on_volume(move || Ok(space)));
            let place = HostPlace { artefacts, exports: self.exports.clone(), ..HostPlace::default() };
            let rows = self.rows.clone().map(|place_of| History::at(place_of, &place.cluster)).transpose()?;
            let recorder = rows.map(|rows| Recorder::new(rows, Keeping::default(), Defaults::default()));
            let place = HostPlace { recorder, ..place };
            let ops = Ops::watch(cluster.clone(), Defaults::default(), place.tap());
            controller = controller.with_ops(ops, place);
        }
        let task = tokio::spawn(controller.run(election, stop.clone()));
        self.wires.push(wire.clone());
        self.running.push(Running { identity, stop, task, cluster, leadership, host, wire });
        Ok(())
    }

    /// A figure without labels that the host shows at `/metrics`, by its name without the prefix `oarlock_`.
    pub fn figure(&self, name: &str) -> Option<i64> {
        let text = self.running.last()?.host.metrics.text();
        let rest = text.lines().find_map(|line| line.strip_prefix(&format!("oarlock_{name} ")))?;
        rest.trim().parse().ok()
    }

    /// Ends the last host that was started as SIGTERM would.
    ///
    /// # Errors
    /// If it panicked.
    pub async fn stop_host(&mut self) -> anyhow::Result<()> {
        let Some(Running { stop, task, cluster, .. }) = self.running.pop() else { return Ok(()) };
        stop.cancel();
        task.await.context("the host panicked")??;
        cluster.stop(Duration::from_secs(5)).await;
        Ok(())
    }

    /// Ends the host of this name where it stands, as SIGKILL would: what it has not sent is never sent.
    ///
    /// # Errors
    /// If there is none, or if it had panicked before.
    pub async fn kill_host(&mut self, identity: &str) -> anyhow::Result<()> {
        let at = self.running.iter().position(|running| running.identity == identity).context("no such host runs")?;
        let Running { task, cluster, wire, .. } = self.running.remove(at);
        wire.cut(true);
        task.abort();
        let panicked = task.await.err().is_some_and(|error| error.is_panic());
        anyhow::ensure!(!panicked, "the host panicked");
        cluster.stop(Duration::ZERO).await;
        Ok(())
    }

    /// Kills the usual host and starts it anew, with empty memory.
    ///
    /// # Errors
    /// If it did not run, or does not start.
    pub async fn restart_host(&mut self) -> anyhow::Result<()> {
        self.kill_host("host").await?;
        self.start_host().await
    }

    /// The last host that was started.
    ///
    /// # Errors
    /// If none runs.
    pub fn running(&self) -> anyhow::Result<&Running> {
        self.running.last().context("no host runs")
    }

    /// What hosts with these grants see of a control plane that they share.
    fn visible(&self, grants: &str) -> anyhow::Result<Visible> {
        let has_tasks = oarlock_wasm::parse_grants(grants)?.iter().any(|grant| !grant.tasks.is_empty());
        let tasks = has_tasks.then(|| tasks_namespace(&self.namespace));
        Ok(Visible { own: self.namespace.clone(), tasks })
    }

    /// A client for a host: with exactly the host's rights where the cluster knows rights.
    async fn host_client(&self) -> anyhow::Result<Client> {
        match &self.ground {
            Ground::Sim(cluster) => Ok(Client::new(cluster.service(), "default")),
            Ground::Real(plane) => plane.client(Account::Host).await,
        }
    }
}

/// Components are compiled once for all rigs, and kept beside the built ones.
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
