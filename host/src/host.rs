//! The parts of a host, put together.
//!
//! Takes a client and where the plugins are; yields a running host that ends when it is told to. The only place where
//! adapters are constructed for use. May not decide anything.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use oarlock_core::cluster::object::Kind;
use oarlock_kube::lease::{LeaseConfig, LeaderElector};
use oarlock_kube::{Cluster, Setup};
use oarlock_wasm::{CAPS, CompileWith, Plugins, PluginsError};
use tokio_util::sync::CancellationToken;

use crate::controller::Controller;
use crate::health::{Health, Probe};
use crate::ports::Ports;
use crate::metrics::Metrics;

/// Name of the lease: one host leads in a cluster.
const LEASE: &str = "oarlock";
/// A lease that is not renewed for this long is free.
const LEASE_DURATION: Duration = Duration::from_secs(15);
/// How long queued events may take to go out once the process is to stop. They are best effort.
const LAST_EVENTS: Duration = Duration::from_secs(5);

/// A call that waits is given up after this long; one that computes is stopped by its own limit, at most 5 s.
const WALL_TIMEOUT: Duration = Duration::from_secs(10);

/// What a host is made of.
pub struct HostOptions {
    /// A client that never repeats a request by itself.
    pub client: Client,
    /// Directory of the plugin files.
    pub plugins: PathBuf,
    /// What they may do.
    pub grants: PathBuf,
    /// Name of this process in the lease.
    pub identity: String,
    /// Namespace of the lease.
    pub namespace: String,
}

/// A host that is put together and waits to be run.
pub struct Host {
    ports: Arc<Ports>,
    controller: Controller,
    election: LeaderElector,
    health: Arc<Health>,
}

impl Host {
    /// Puts a host together. It reads from the cluster and stands for election from now on, and acts once it is run.
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

    /// How it is.
    pub fn health(&self) -> Arc<Health> {
        self.health.clone()
    }

    /// Its figures.
    pub fn metrics(&self) -> Arc<Metrics> {
        self.ports.metrics.clone()
    }

    /// Its plugins.
    pub fn plugins(&self) -> Plugins {
        self.ports.plugins.clone()
    }

    /// Runs until `stop`: then the rounds under way are finished, the lease is given back and events go out, each
    /// within a bound.
    ///
    /// # Errors
    ///
    /// Fails if the controller breaks off, which `/livez` then says too.
    pub async fn run(self, stop: CancellationToken) -> anyhow::Result<()> {
        let Self { ports, controller, election, health } = self;
        let counting = tokio::spawn(count_plugins(ports.clone()));
        let ended = tokio::spawn(controller.run(election, stop.clone())).await;
        counting.abort();
        ports.cluster.stop(LAST_EVENTS).await;
        if ended.is_err() || !stop.is_cancelled() {
            health.dead("the controller broke off");
        }
        ended.context("the controller broke off")?;
        anyhow::ensure!(stop.is_cancelled(), "the controller ended though nobody asked it to");
        Ok(())
    }
}

/// How the plugins of a host are run: from a directory, compiled by a helper process, with a cache where there is room.
fn plugin_options(dir: PathBuf, grants: PathBuf) -> anyhow::Result<oarlock_wasm::Options> {
    Ok(oarlock_wasm::Options {
        dir: Some(dir),
        grants: Some(grants),
        cache_dir: oarlock_wasm::default_cache_dir(),
        compile_with: CompileWith::this_binary()
            .context("cannot tell where this program is, to compile plugins with it")?,
        caps: CAPS,
        wall_timeout: Some(WALL_TIMEOUT),
    })
}

/// Starts the plugins, without a cache where there is no room for one: that costs a moment at each start, and no more.
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
        // What plugins declare beside these is their own affair: a kind that may not be listed costs its plugin.
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

/// Shows the states of the plugins as figures, whenever they change.
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
