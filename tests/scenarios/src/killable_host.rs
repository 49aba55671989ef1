//! A host in this process that can be killed at any write and started again, as another process of the same name.
//!
//! Takes a client, a clock and compiled plugins; yields a host that can be killed. May not finish anything that a killed host had begun.

use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use oarlock::controller::{CannotLead, Controller};
use oarlock::metrics::Metrics;
use oarlock::ports::Ports;
use oarlock_kube::flows::Flows;
use oarlock_kube::lease::config::LeaseConfig;
use oarlock_kube::lease::elector::LeaderElector;
use oarlock_kube::transport::clock::Clock;
use oarlock_kube::{Cluster, Setup};
use oarlock_wasm::Plugins;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// The kinds that a host serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Serves {
    /// OperationJobs.
    Jobs,
    /// JobFlows, JobTemplates and DaemonJobs in addition.
    Flows,
}

/// The settings of a host.
pub struct Birth {
    /// The name of the host in the lease.
    pub identity: String,
    /// The client of the host.
    pub client: Client,
    /// The clock of the host.
    pub clock: Clock,
    /// The compiled plugins of the host.
    pub plugins: Plugins,
    /// The kinds that the host serves.
    pub serves: Serves,
}

/// A running host.
pub struct Mortal {
    task: JoinHandle<Result<(), CannotLead>>,
    cluster: Cluster,
}

impl Mortal {
    /// Starts a host.
    #[must_use]
    pub fn start(Birth { identity, client, clock, plugins, serves }: Birth) -> Self {
        let (cluster, news) = Cluster::open(Setup { client, clock, identity: identity.clone() });
        cluster.prove_holds_in("oarlock-system");
        let metrics = Arc::new(Metrics::new(cluster.requests()));
        let host = Arc::new(Ports::new(cluster.clone(), plugins, metrics));
        let candidacy = LeaseConfig {
            namespace: "oarlock-system".to_owned(),
            name: "oarlock".to_owned(),
            identity,
            duration: Duration::from_secs(15),
        };
        let election = LeaderElector::stand(&cluster, candidacy);
        let mut controller = Controller::new(host, news);
        if serves == Serves::Flows {
            controller = controller.with_flows(Flows::watch(cluster.clone()));
        }
        let task = tokio::spawn(controller.run(election, CancellationToken::new()));
        Self { task, cluster }
    }

    /// Kills the host. The caller must end the host's [`Life`](crate::host_requests::Life) first, because a host that stops releases its lease.
    ///
    /// # Errors
    /// If the host had panicked.
    pub async fn kill(self) -> anyhow::Result<()> {
        self.task.abort();
        let panicked = self.task.await.err().is_some_and(|error| error.is_panic());
        self.cluster.stop(Duration::ZERO).await;
        anyhow::ensure!(!panicked, "the host panicked");
        Ok(())
    }
}
