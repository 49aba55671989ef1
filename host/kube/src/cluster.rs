//! The Cluster port: the host reads from and writes to a Kubernetes API only through a [`Cluster`].

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use oarlock_core::cache::store::Store;
use oarlock_core::object::api_object::Kind;
use oarlock_core::object::key::{JobKey, JobRef};
use oarlock_core::object::quota_key::QuotaKey;
use oarlock_core::operation_job::cleanup::SeenObjects;
use oarlock_core::operation_job::round::context::owner;
use oarlock_core::operation_job::spec::{MOST_TARGETS, asked_kind, is_dry_run};
use oarlock_core::operation_job::tasks::settings::TaskSettings;
use oarlock_core::plugin::manifest::TargetKind;
use oarlock_core::requests::live_reads::LiveRead;
use oarlock_core::requests::writes::{EventNote, Write};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use crate::link::Link;
use crate::send::events::{EventCounts, Events};
use crate::send::plugin_accounts::{PluginAccountSettings, PluginAccounts};
use crate::transport::call::{REQUEST_TIMEOUT, Transport};
use crate::transport::clock::{Clock, ServerClock};
use crate::transport::requests::Requests;
use crate::watch::health::KindHealth;
use crate::watch::objects::{WatchEvent, WatchedKinds};
use crate::watch::watches::Watches;

/// The parts of a [`Cluster`].
pub struct Setup {
    /// The client. [`crate::transport::client::connect`] makes a client that never repeats a request.
    pub client: Client,
    /// The clock of the host.
    pub clock: Clock,
    /// The name of this process, which is the name of its pod. Events carry this name.
    pub identity: String,
}

/// The Cluster port. It is cheap to clone. Create it within a tokio runtime.
#[derive(Clone)]
pub struct Cluster {
    pub(crate) link: Link,
    watches: Arc<Watches>,
    events: Arc<Events>,
}

impl Cluster {
    /// Opens a port that does not watch anything yet. Returns the port and the events of its watches.
    pub fn open(setup: Setup) -> (Self, UnboundedReceiver<WatchEvent>) {
        let Setup { client, clock, identity } = setup;
        let (events, received) = unbounded_channel();
        let transport =
            Transport { client, clock: ServerClock::new(clock), requests: Arc::default(), timeout: REQUEST_TIMEOUT };
        let link = Link::new(transport, events);
        let events = Arc::new(Events::start(&link, identity));
        (Self { link, watches: Arc::default(), events }, received)
    }

    /// Limits the cached objects to their part of this memory limit of the process, in bytes.
    pub fn bound_memory(&self, limit: u64) {
        [&self.link.room, &self.link.listing].into_iter().for_each(|room| room.bound(limit));
    }

    /// Watches the jobs and exactly these kinds from now on. A kind with an unchanged declaration keeps its watch. The [`Store`] shows the
    /// objects and fields of any other kind incompletely until that kind is listed.
    pub async fn declare(&self, declared: WatchedKinds) {
        self.watches.declare(&self.link, declared).await;
    }

    /// Waits until the jobs and these kinds are listed with the fields that are declared now.
    pub async fn synced(&self, kinds: &[Kind]) {
        self.watches.synced(kinds).await;
    }

    /// Returns a counter that rises when the state of a watch changes: listed, not served, or failing.
    pub fn watch_changes(&self) -> tokio::sync::watch::Receiver<u64> {
        self.watches.changes()
    }

    /// Reads from the API server, past the cache, which jobs exist.
    ///
    /// # Errors
    /// If the API server does not answer the list, with its message.
    pub async fn list_jobs(&self) -> Result<Vec<JobRef>, String> {
        self.link.list_jobs().await
    }

    /// Makes these live reads and puts the results into the cache. Returns the objects, also those of kinds that are not watched.
    pub async fn read_anew(&self, reads: &[LiveRead]) -> SeenObjects {
        self.link.read_live(reads).await.objects
    }

    /// Sets the namespace and the image for the pods of tasks from now on.
    pub fn make_tasks(&self, settings: TaskSettings) {
        *self.link.tasks.write() = Arc::new(settings);
    }

    /// Sets the accounts as which the host makes the mutations of plugins from now on.
    pub fn act_as(&self, settings: PluginAccountSettings) {
        *self.link.accounts.write() = Arc::new(PluginAccounts::new(settings));
    }

    /// Returns the namespace and the image for the pods of tasks.
    pub fn tasks(&self) -> Arc<TaskSettings> {
        self.link.tasks.read().clone()
    }

    /// Returns the writes that delete the outputs of tasks whose job no longer exists.
    ///
    /// # Errors
    /// If the API server does not answer the list, with its message.
    pub async fn orphaned_outputs(&self) -> Result<Vec<Write>, String> {
        self.link.orphaned_outputs(&self.tasks().namespace).await
    }

    /// Returns the UID of the job with this key, if it exists.
    pub fn job_uid(&self, key: &JobKey) -> Option<String> {
        self.link.jobs.uid(key)
    }

    /// Returns `spec.action` of the job with this key, if it exists.
    pub fn action(&self, key: &JobKey) -> Option<String> {
        self.link.jobs.peek(key)?.job.spec.as_ref()?.action.clone()
    }

    /// Returns the kind of the targets of the job with this key, if it exists.
    pub fn target_kind(&self, key: &JobKey) -> Option<TargetKind> {
        Some(asked_kind(self.link.jobs.peek(key)?.job.spec.as_ref()))
    }

    /// Returns the state of each watch.
    pub fn health(&self) -> Vec<KindHealth> {
        self.watches.health()
    }

    /// Returns the watched objects.
    pub fn store(&self) -> &Arc<Store> {
        &self.link.objects.store
    }

    /// Returns the keys of all known jobs.
    pub fn jobs(&self) -> Vec<JobKey> {
        self.link.jobs.keys()
    }

    /// Returns the plugin of a job and its number of targets in flight, from the job's status. The number is never higher than the number
    /// of targets. Targets of a dry run do not count.
    pub fn in_flight(&self, key: &JobKey) -> Option<(String, usize)> {
        let cached = self.link.jobs.peek(key)?;
        let status = cached.job.status.as_ref().filter(|_| !cached.job.spec.as_ref().is_some_and(is_dry_run))?;
        let count = usize::try_from(status.processing_pod_count?).ok()?;
        // Only the status names targets that a selector found, and any user with access to the status may have written it.
        let named = cached.job.spec.as_ref().and_then(|spec| spec.targets.as_ref()).map(Vec::len);
        let targets = named.filter(|count| *count > 0).unwrap_or(MOST_TARGETS);
        Some((status.plugin.as_ref()?.name.clone(), count.min(targets)))
    }

    /// Returns the key whose quota a job uses, if it is not the key of the job's namespace.
    pub fn job_owner(&self, key: &JobKey) -> Option<QuotaKey> {
        self.link.jobs.peek(key).and_then(|cached| owner(&cached.job))
    }

    /// Returns the UIDs of all known jobs.
    pub fn job_uids(&self) -> BTreeSet<String> {
        self.link.jobs.uids()
    }

    /// Returns true if the API server served this kind at the last check. The host checks declared kinds every minute.
    pub fn serves(&self, kind: &Kind) -> bool {
        self.link.discovery.serves(kind)
    }

    /// Returns the clock whose time is comparable with timestamps of the API server.
    pub fn clock(&self) -> &ServerClock {
        &self.link.transport.clock
    }

    /// Returns the counts of the requests so far.
    pub fn requests(&self) -> &Arc<Requests> {
        &self.link.transport.requests
    }

    /// Returns the number of writes that may be in flight now. It is lower than 32 while the API server is busy.
    pub fn writes_allowed(&self) -> usize {
        self.link.limiter.limit()
    }

    /// Emits events in the background. Events are best effort.
    pub fn emit(&self, notes: Vec<EventNote>) {
        self.events.emit(notes);
    }

    /// Returns the counts of the events so far.
    pub fn events(&self) -> EventCounts {
        self.events.counts()
    }

    /// Stops the watches and waits at most `bound` for events that are still queued.
    pub async fn stop(&self, bound: Duration) {
        self.watches.stop();
        self.events.drain(bound).await;
    }
}
