//! A host in this process that can be killed at any write and begun again, as another process of the same name.
//!
//! Takes a client, a clock and plugins that are compiled already; yields a host that ends where it stands. May not finish
//! anything that a killed host had begun.

use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use oarlock::controller::Controller;
use oarlock::metrics::Metrics;
use oarlock::ports::Ports;
use oarlock_kube::lease::{LeaderElector, LeaseConfig, LeaseError};
use oarlock_kube::transport::clock::Clock;
use oarlock_kube::{Cluster, Setup};
use oarlock_wasm::Plugins;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// A running host.
pub struct Mortal {
    task: JoinHandle<Result<(), LeaseError>>,
    cluster: Cluster,
}

impl Mortal {
    /// Starts a host of this name that speaks through `client`.
    #[must_use]
    pub fn start(identity: &str, client: Client, clock: Clock, plugins: Plugins) -> Self {
        let identity = identity.to_owned();
        let (cluster, news) = Cluster::open(Setup { client, clock, identity: identity.clone() });
        let metrics = Arc::new(Metrics::new(cluster.requests()));
        let host = Arc::new(Ports::new(cluster.clone(), plugins, metrics));
        let candidacy = LeaseConfig {
            namespace: "oarlock-system".to_owned(),
            name: "oarlock".to_owned(),
            identity,
            duration: Duration::from_secs(15),
        };
        let election = LeaderElector::stand(&cluster, candidacy);
        let task = tokio::spawn(Controller::new(host, news).run(election, CancellationToken::new()));
        Self { task, cluster }
    }

    /// Ends it where it stands. Its line must be cut before, for its last breath is to give the lease back.
    ///
    /// # Errors
    /// If it had panicked.
    pub async fn kill(self) -> anyhow::Result<()> {
        self.task.abort();
        let panicked = self.task.await.err().is_some_and(|error| error.is_panic());
        self.cluster.stop(Duration::ZERO).await;
        anyhow::ensure!(!panicked, "the host panicked");
        Ok(())
    }
}
