//! The Cluster port: everything the host reads from and writes to a Kubernetes API goes through a [`Cluster`].

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use oarlock_core::cluster::live_reads::LiveRead;
use oarlock_core::cluster::memory::Room;
use oarlock_core::cluster::object::Kind;
use oarlock_core::cluster::scripts::Scripts;
use oarlock_core::cluster::store::Store;
use oarlock_core::cluster::writes::{EventNote, Write};
use oarlock_core::job::dry_run::is_dry_run;
use oarlock_core::job::key::{JobKey, JobRef};
use oarlock_core::job::spec::{MOST_TARGETS, asked_kind};
use oarlock_core::plugin::manifest::TargetKind;
use oarlock_core::round::context::owner;
use oarlock_core::round::task_settings::TaskSettings;
use oarlock_core::shared::orphans::SeenObjects;
use oarlock_core::shared::quota_key::QuotaKey;
use parking_lot::{Mutex, RwLock};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use crate::events::{EventCounts, Events};
use crate::hold_proof::HoldProof;
use crate::host_tasks::HostTaskPort;
use crate::transport::call::Transport;
use crate::transport::clock::{Clock, ServerClock};
use crate::transport::discovery::Discovery;
use crate::transport::limiter::WriteLimiter;
use crate::transport::requests::Requests;
use crate::watch::health::KindHealth;
use crate::watch::jobs::Jobs;
use crate::watch::operation_jobs::Parents;
use crate::watch::watches::{Objects, WatchEvent, WatchedKinds, Watches};

/// After this the outcome of a request is unknown (docs/operationjob.md 10).
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// The parts of a [`Cluster`].
pub struct Setup {
    /// The client; [`crate::transport::client::connect`] makes one that never repeats a request.
    pub client: Client,
    /// The host's own clock.
    pub clock: Clock,
    /// The name of this process, which is its pod's. Events carry it.
    pub identity: String,
}

/// The Cluster port. Cheap to clone; must be made within a tokio runtime.
#[derive(Clone)]
pub struct Cluster {
    pub(crate) link: Link,
    watches: Arc<Watches>,
    events: Arc<Events>,
}

/// The state that the parts of the port share.
#[derive(Clone)]
pub(crate) struct Link {
    pub(crate) transport: Transport,
    pub(crate) discovery: Arc<Discovery>,
    pub(crate) objects: Objects,
    pub(crate) jobs: Arc<Jobs>,
    pub(crate) parents: Arc<Parents>,
    pub(crate) limiter: Arc<WriteLimiter>,
    /// Records and statuses have places of their own, so that no hanging write of a pod holds them up.
    pub(crate) record_limiter: Arc<WriteLimiter>,
    /// Where the pods of tasks are made.
    pub(crate) tasks: Arc<RwLock<Arc<TaskSettings>>>,
    /// The memory for what is held of objects.
    pub(crate) room: Room,
    /// The same for lists that are being read.
    pub(crate) listing: Room,
    /// The scripts that this term knows to be there.
    pub(crate) scripts: Arc<Mutex<Scripts>>,
    /// The tasks that the host itself does.
    pub(crate) host_tasks: Arc<HostTaskPort>,
    /// The keys of holds as far as they are known.
    pub(crate) hold_proof: Arc<HoldProof>,
}

impl Cluster {
    /// A port that watches nothing yet, and the events of its watches.
    pub fn open(setup: Setup) -> (Self, UnboundedReceiver<WatchEvent>) {
        let Setup { client, clock, identity } = setup;
        let (events, received) = unbounded_channel();
        let transport =
            Transport { client, clock: ServerClock::new(clock), requests: Arc::default(), timeout: REQUEST_TIMEOUT };
        let room = Room::default();
        let link = Link {
            transport,
            discovery: Arc::default(),
            objects: Objects::new(events.clone(), room.clone()),
            jobs: Arc::new(Jobs::new(events, &room)),
            parents: Arc::default(),
            limiter: Arc::default(),
            record_limiter: Arc::default(),
            tasks: Arc::default(),
            room,
            listing: Room::default(),
            scripts: Arc::default(),
            host_tasks: Arc::default(),
            hold_proof: Arc::default(),
        };
        let events = Arc::new(Events::start(&link, identity));
        (Self { link, watches: Arc::default(), events }, received)
    }

    /// Has what is held of objects take no more than its part of this memory limit of the process, in bytes.
    pub fn bound_memory(&self, limit: u64) {
        [&self.link.room, &self.link.listing].into_iter().for_each(|room| room.bound(limit));
    }

    /// Watches the jobs and exactly these kinds from now on. A kind that was declared alike before goes on undisturbed;
    /// until another one was listed, the [`Store`] shows its objects and fields incompletely.
    pub async fn declare(&self, declared: WatchedKinds) {
        self.watches.declare(&self.link, declared).await;
    }

    /// Resolves once the jobs and these kinds were listed with the fields that are declared now.
    pub async fn synced(&self, kinds: &[Kind]) {
        self.watches.synced(kinds).await;
    }

    /// Rises when the state of a watch changes: listed, not served, or failing.
    pub fn watch_changes(&self) -> tokio::sync::watch::Receiver<u64> {
        self.watches.changes()
    }

    /// Reads which jobs there are from the API server, past the cache.
    ///
    /// # Errors
    /// The API server's sentence.
    pub async fn list_jobs(&self) -> Result<Vec<JobRef>, String> {
        self.link.list_jobs().await
    }

    /// Makes these reads past the cache, and puts what they show there. Yields the objects, also of kinds that are not watched.
    pub async fn read_anew(&self, reads: &[LiveRead]) -> SeenObjects {
        self.link.read_live(reads).await.objects
    }

    /// From now on the pods of tasks are made there, and of that image.
    pub fn make_tasks(&self, settings: TaskSettings) {
        *self.link.tasks.write() = Arc::new(settings);
    }

    /// Where the pods of tasks are made, and of which image.
    pub fn tasks(&self) -> Arc<TaskSettings> {
        self.link.tasks.read().clone()
    }

    /// The deletions of outputs of tasks whose job is gone.
    ///
    /// # Errors
    /// The API server's sentence.
    pub async fn orphaned_outputs(&self) -> Result<Vec<Write>, String> {
        self.link.orphaned_outputs(&self.tasks().namespace).await
    }

    /// The UID of the job, if there is one of that key.
    pub fn job_uid(&self, key: &JobKey) -> Option<String> {
        self.link.jobs.uid(key)
    }

    /// `spec.action` of the job, if there is one of that key.
    pub fn action(&self, key: &JobKey) -> Option<String> {
        self.link.jobs.peek(key)?.job.spec.as_ref()?.action.clone()
    }

    /// The kind of the targets of the job, if there is one of that key.
    pub fn target_kind(&self, key: &JobKey) -> Option<TargetKind> {
        Some(asked_kind(self.link.jobs.peek(key)?.job.spec.as_ref()))
    }

    /// The state of each watch.
    pub fn health(&self) -> Vec<KindHealth> {
        self.watches.health()
    }

    /// The watched objects.
    pub fn store(&self) -> &Arc<Store> {
        &self.link.objects.store
    }

    /// The keys of all jobs that are known.
    pub fn jobs(&self) -> Vec<JobKey> {
        self.link.jobs.keys()
    }

    /// The plugin of a job and its number of targets in flight, as its status says: at most as many as it has. Those of a
    /// dry run do not count.
    pub fn in_flight(&self, key: &JobKey) -> Option<(String, usize)> {
        let held = self.link.jobs.peek(key)?;
        let status = held.job.status.as_ref().filter(|_| !held.job.spec.as_ref().is_some_and(is_dry_run))?;
        let count = usize::try_from(status.processing_pod_count?).ok()?;
        // Those that a selector found are named in the status alone, which anyone may have written.
        let named = held.job.spec.as_ref().and_then(|spec| spec.targets.as_ref()).map(Vec::len);
        let targets = named.filter(|count| *count > 0).unwrap_or(MOST_TARGETS);
        Some((status.plugin.as_ref()?.name.clone(), count.min(targets)))
    }

    /// Returns the key whose shares a job takes, if it is not the key of its namespace.
    pub fn job_owner(&self, key: &JobKey) -> Option<QuotaKey> {
        self.link.jobs.peek(key).and_then(|held| owner(&held.job))
    }

    /// The UIDs of all jobs that are known.
    pub fn job_uids(&self) -> BTreeSet<String> {
        self.link.jobs.uids()
    }

    /// True where the API server served a kind when it was last asked; it is asked for declared kinds every minute.
    pub fn serves(&self, kind: &Kind) -> bool {
        self.link.discovery.serves(kind)
    }

    /// The time that is compared with timestamps of the API server.
    pub fn clock(&self) -> &ServerClock {
        &self.link.transport.clock
    }

    /// The requests so far.
    pub fn requests(&self) -> &Arc<Requests> {
        &self.link.transport.requests
    }

    /// The number of writes that may be in flight now: fewer than 32 while the API server is busy.
    pub fn writes_allowed(&self) -> usize {
        self.link.limiter.limit()
    }

    /// Emits events in the background, best effort.
    pub fn emit(&self, notes: Vec<EventNote>) {
        self.events.emit(notes);
    }

    /// Counts of the events so far.
    pub fn events(&self) -> EventCounts {
        self.events.counts()
    }

    /// Stops watching and waits at most `bound` for events that are still queued.
    pub async fn stop(&self, bound: Duration) {
        self.watches.stop();
        self.events.drain(bound).await;
    }
}
