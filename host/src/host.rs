//! The host: constructs the adapters and runs them until it is stopped.
//!
//! This is the only place where adapters are constructed for use.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use oarlock_core::cluster::object::Kind;
use oarlock_kube::lease::{LeaderElector, LeaseConfig};
use oarlock_kube::{Cluster, Setup};
use oarlock_wasm::{CAPS, CompileWith, Plugins, PluginsError};
use tokio_util::sync::CancellationToken;

use crate::controller::Controller;
use crate::health::{Health, Probe};
use crate::metrics::Metrics;
use crate::ports::Ports;

/// Name of the lease: one host leads in a cluster.
const LEASE: &str = "oarlock";
/// A lease that is not renewed for this long is free.
const LEASE_DURATION: Duration = Duration::from_secs(15);
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
    /// Name of this process in the lease.
    pub identity: String,
    /// Namespace of the lease.
    pub namespace: String,
}

/// A host that is ready to run.
pub struct Host {
    ports: Arc<Ports>,
    controller: Controller,
    election: LeaderElector,
    health: Arc<Health>,
}

impl Host {
    /// Constructs a host. It reads from the cluster and takes part in the election from now on, and acts once it is
    /// run.
    ///
    /// # Errors
    ///
    /// Fails if the plugins cannot be read. A cluster that cannot be reached is waited for.
    pub async fn start(options: HostOptions) -> anyhow::Result<Self> {
        let HostOptions { client, plugins, grants, identity, namespace } = options;
        let plugins = start_plugins(plugin_options(plugins, grants)?).await?;
        let (cluster, events) =
            Cluster::open(Setup { client, clock: Arc::new(Timestamp::now), identity: identity.clone() });
        let candidacy = LeaseConfig { namespace, name: LEASE.to_owned(), identity, duration: LEASE_DURATION };
        let election = LeaderElector::stand(&cluster, candidacy);
        let health = Arc::new(Health::of(vec![("cache", cache_probe(cluster.clone()))]));
        let metrics = Arc::new(Metrics::new(cluster.requests()));
        let ports = Arc::new(Ports::new(cluster, plugins, metrics));
        let controller = Controller::new(ports.clone(), events);
        Ok(Self { ports, controller, election, health })
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
    /// Fails if the controller fails, which `/livez` then reports too.
    pub async fn run(self, stop: CancellationToken) -> anyhow::Result<()> {
        let Self { ports, controller, election, health } = self;
        let counting = tokio::spawn(count_plugins(ports.clone()));
        let ended = tokio::spawn(controller.run(election, stop.clone())).await;
        counting.abort();
        ports.cluster.stop(LAST_EVENTS).await;
        if ended.is_err() || !stop.is_cancelled() {
            health.dead("the controller failed");
        }
        ended.context("the controller failed")?;
        anyhow::ensure!(stop.is_cancelled(), "the controller ended without being asked to stop");
        Ok(())
    }
}

/// The settings of the plugins: read from a directory, compiled by a helper process, cached if there is room.
fn plugin_options(dir: PathBuf, grants: PathBuf) -> anyhow::Result<oarlock_wasm::Options> {
    Ok(oarlock_wasm::Options {
        dir: Some(dir),
        grants: Some(grants),
        cache_dir: oarlock_wasm::default_cache_dir(),
        compile_with: CompileWith::this_binary()
            .context("cannot find the path of this executable, which compiles plugins")?,
        caps: CAPS,
        wall_timeout: Some(WALL_TIMEOUT),
    })
}

/// Starts the plugins, without a cache if there is no room for one: that costs a moment at each start, and no more.
async fn start_plugins(options: oarlock_wasm::Options) -> anyhow::Result<Plugins> {
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
        let mut watched = cluster.health();
        watched.retain(|health| [Kind::job(), Kind::pod()].contains(&health.kind));
        if watched.is_empty() {
            return Err("nothing is watched yet".to_owned());
        }
        match watched.iter().find(|kind| !kind.synced) {
            None => Ok(()),
            Some(late) => {
                let why = late.error.as_deref().unwrap_or("the API server has not answered yet");
                Err(format!("{} {} not listed: {why}", late.kind.api_version, late.kind.kind))
            }
        }
    })
}

/// Updates the plugin metrics whenever the states of the plugins change.
async fn count_plugins(ports: Arc<Ports>) {
    let mut changes = ports.plugins.changes();
    loop {
        let list = ports.plugins.list();
        let states = list.iter().map(|status| (status.name.as_deref().unwrap_or(&status.source), status.state));
        ports.metrics.plugins_are(states.map(|(name, state)| (name.to_owned(), format!("{state:?}"))));
        if changes.changed().await.is_err() {
            return;
        }
    }
}
