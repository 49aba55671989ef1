//! The simulated cluster: everything in a cluster except the API server. It has a scheduler, kubelets, workload controllers,
//! and the parts of KusionStack and OpenKruise that take part in operations on pods. All of them use an ordinary client, so the
//! simulation runs on the in-memory API and on a real server. Its event log lists the physical effects. The simulation waits only
//! on tokio's time, draws every random value from one seed, and does not know the host under test.
//!
//! ```text
//! watches -> store, ledger
//!     \-> queue -> round: look (store) -> decide (deciders) -> act (writer) -> API
//! ```

/// Pure functions that decide the next step of a pod or a workload.
pub(crate) mod deciders {
    pub(crate) mod collaset;
    pub(crate) mod deployment;
    pub(crate) mod ending;
    pub(crate) mod job;
    pub(crate) mod job_status;
    pub(crate) mod job_tally;
    #[cfg(test)]
    mod job_tests;
    pub(crate) mod kubelet;
    pub(crate) mod lifecycle;
    pub(crate) mod recreate;
    pub(crate) mod replicas;
    pub(crate) mod scheduler;
    pub(crate) mod script;
}
mod action;
mod cluster_setup;
mod collaset_crd;
mod commands;
mod history;
mod job_rounds;
mod jobs;
mod kruise_crd;
pub mod labels;
mod ledger;
mod ledger_book;
mod ledger_check;
mod lifecycle_rounds;
mod new_objects;
mod node_rounds;
mod node_tasks;
mod nodes;
mod operation_timings;
mod pauses;
mod pod_facts;
mod queue;
mod random;
mod reboots;
mod recreate_requests;
mod recreate_rounds;
mod rounds;
#[cfg(test)]
mod samples;
mod scheduling;
mod sets;
mod since;
mod store;
mod wait_until;
mod watch_stream;
mod watches;
mod workload_setup;
mod writer;

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::DynamicObject;
use kube::{Api, Client};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::task::JoinSet;

pub use cluster_setup::PrepareFailed;
pub use collaset_crd::collaset_crd;
pub use commands::CommandFailed;
pub use deciders::kubelet::Timings;
pub use history::{Breach, Gap, History, Snapshot, Version};
pub use kruise_crd::recreate_request_crd;
pub use ledger::{Cause, Effect, Entry, Ledger};
pub use ledger_check::{LedgerCheck, TargetOutcome};
pub use operation_timings::OperationTimings;
pub use pauses::{Pause, Scope};
pub use random::Span;
pub use reboots::Return;
pub use sets::{SetKey, SetKind};
pub use wait_until::Overdue;
pub use workload_setup::{SeedFailed, Seedbed};

use crate::clock::Clock;
use jobs::JobWatch;
use nodes::{NodeWatch, Nodes};
use queue::Queue;
use random::SeededRandom;
use rounds::{Rounds, RoundsParts, WorkKey};
use store::WorldStore;
use watches::{PodWatch, SetWatch, Watches};
use writer::{IN_FLIGHT, Writer, WriterParts};

/// Settings of a simulated cluster.
#[derive(Clone, Debug)]
pub struct WorldOptions {
    /// Seed of every random value: names, nodes and delays.
    pub seed: u64,
    /// Durations of the stages of a pod's lifecycle.
    pub timings: Timings,
    /// Durations of the steps that the simulated cluster takes in operations.
    pub operations: OperationTimings,
    /// Namespaces that the simulated cluster handles. Empty means all.
    pub namespaces: Vec<String>,
    /// Number of nodes, named `node-0` and so on.
    pub nodes: usize,
    /// Whether the simulated cluster creates the pods of Jobs. Must be false if a real Job controller runs.
    pub runs_jobs: bool,
    /// Factor of the sleeps in the commands of pods that do not always restart: with 0.1, `sleep 10` takes a second.
    pub sleep_factor: f64,
    /// Source of the timestamps in conditions. Must be the server's clock, or conditions show wrong times.
    pub clock: Arc<dyn Clock>,
}

impl WorldOptions {
    /// Returns the settings of a simulated cluster with three nodes and default timings, in all namespaces.
    pub fn new(seed: u64, clock: Arc<dyn Clock>) -> Self {
        let (timings, operations) = (Timings::default(), OperationTimings::default());
        Self { seed, timings, operations, namespaces: Vec::new(), nodes: 3, runs_jobs: true, sleep_factor: 1.0, clock }
    }
}

/// Error of [`World::start`].
#[derive(Debug, thiserror::Error)]
pub enum StartFailed {
    /// The simulation failed to prepare the cluster.
    #[error("failed to prepare the cluster for the world")]
    Prepare(#[source] PrepareFailed),
    /// A watch did not deliver its first list in time.
    #[error("failed to watch pods and workloads; the client needs list and watch on all of them")]
    Watch(#[source] Overdue),
}

/// A simulated cluster. It runs until the caller stops or drops it.
pub struct World {
    watches: Watches,
    tasks: Mutex<JoinSet<()>>,
}

impl World {
    /// Prepares the cluster and starts kubelets and controllers. Returns once every watch has delivered its first list.
    ///
    /// # Errors
    /// If the simulation cannot prepare or watch the cluster.
    pub async fn start(client: Client, options: WorldOptions) -> Result<Self, StartFailed> {
        let WorldOptions { seed, timings, operations, namespaces, nodes, runs_jobs, sleep_factor, clock } = options;
        cluster_setup::prepare(&client, nodes, &crate::clock::seconds(clock.now()))
            .await
            .map_err(StartFailed::Prepare)?;
        let (store, ledger, random) = (Arc::new(WorldStore::default()), Ledger::default(), SeededRandom::new(seed));
        let nodes = Arc::<Nodes>::default();
        let writer = Writer::new(WriterParts { client: client.clone(), store, ledger, random, nodes });
        let rounds = Arc::new(Rounds::new(RoundsParts { writer, timings, operations, clock, sleep_factor }));
        let (queue, arrivals) = Queue::new();
        rounds.reboots.wake_through(queue.clone());
        let synced = Arc::new(watch::Sender::new(0));
        let watches = Watches { rounds, queue, namespaces: Arc::new(namespaces.into_iter().collect()), synced };
        let mut world = Self { watches, tasks: Mutex::default() };
        // Workload controllers create pods as soon as they see a workload, and a new pod gets its node at once.
        // So the nodes must be known first.
        world.watch_nodes(&client);
        world.first_lists(1).await.map_err(StartFailed::Watch)?;
        world.watch_everything(&client);
        if runs_jobs {
            world.watch_jobs(&client);
        }
        let rounds = world.watches.rounds.clone();
        world.tasks.get_mut().spawn(queue::run(arrivals, IN_FLIGHT, move |key: WorkKey| rounds.clone().round(key)));
        let lists = SetKind::ALL.len() + 2 + usize::from(runs_jobs);
        world.first_lists(lists).await.map_err(StartFailed::Watch)?;
        Ok(world)
    }

    fn watch_nodes(&mut self, client: &Client) {
        let mut watch = NodeWatch::new(self.watches.clone());
        self.tasks
            .get_mut()
            .spawn(watch_stream::deliver(Api::<Node>::all(client.clone()), move |event| watch.saw(event)));
    }

    fn watch_everything(&mut self, client: &Client) {
        for kind in SetKind::ALL {
            let mut watch = SetWatch::new(self.watches.clone(), kind);
            let api: Api<DynamicObject> = Api::all_with(client.clone(), &kind.resource());
            self.tasks.get_mut().spawn(watch_stream::deliver(api, move |event| watch.saw(event)));
        }
        let mut watch = PodWatch::new(self.watches.clone());
        self.tasks
            .get_mut()
            .spawn(watch_stream::deliver(Api::<Pod>::all(client.clone()), move |event| watch.saw(event)));
    }

    fn watch_jobs(&mut self, client: &Client) {
        let mut watch = JobWatch::new(self.watches.clone());
        self.tasks
            .get_mut()
            .spawn(watch_stream::deliver(Api::<Job>::all(client.clone()), move |event| watch.saw(event)));
    }

    async fn first_lists(&self, of: usize) -> Result<(), Overdue> {
        let synced = self.watches.synced.clone();
        let changes = synced.subscribe();
        wait_until::wait_until("the first lists", Duration::from_secs(30), changes, || *synced.borrow() >= of).await
    }

    /// Returns the log of physical effects.
    #[must_use]
    pub fn ledger(&self) -> &Ledger {
        &self.watches.rounds.writer.ledger
    }

    /// Returns the number of commands that began on a node, counted by their markers.
    #[must_use]
    pub fn commands_begun(&self, node: &str) -> usize {
        self.watches.rounds.markers.count(node)
    }

    /// Returns the last observed version of every pod, by namespace and name.
    #[must_use]
    pub fn pods(&self) -> Vec<Arc<Pod>> {
        self.watches.rounds.store.pods()
    }

    /// Stops all tasks of the simulated cluster and waits until they have ended.
    pub async fn stop(mut self) {
        self.tasks.get_mut().shutdown().await;
    }
}
