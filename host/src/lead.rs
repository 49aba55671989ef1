//! One term of leadership: starts rounds of a few jobs at once, and keeps their results.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use oarlock_core::cache::store::Change;
use oarlock_core::object::api_object::{Kind, Object};
use oarlock_core::object::key::{JobKey, JobRef};
use oarlock_core::object::task_pod::JOB_UID;
use oarlock_core::operation_job::cleanup::{cleanup, live_reads_of_leftovers};
use oarlock_core::operation_job::round::fit::NODE_OPERATIONS;
use oarlock_core::operation_job::round::memory::JobMemory;
use oarlock_core::operation_job::shared::tables::lock;
use oarlock_core::operation_job::shared::wake_index::TargetId;
use oarlock_core::plugin::manifest::TargetKind;
use oarlock_core::requests::writes::{BatchResult, Priority};
use oarlock_kube::error_chain::error_chain;
use oarlock_kube::lease::fence::Fence;
use oarlock_kube::persist::record::RecordError;
use oarlock_kube::watch::objects::{Author, WatchEvent};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Duration, Instant, timeout};
use tracing::field::Empty;
use tracing::{Instrument, Span};

use crate::leftovers::{JobLeftovers, remove_leftovers, sweep, sweep_outputs, undo_late_write};
use crate::logs::Logs;
use crate::ports::Ports;
use crate::queue::{DueRound, JobChanges, Queue};
use crate::round::{Next, RoundError, round};
use crate::round_limits::{CountsFor, RoundBounds, RunningRounds};
use crate::term::Term;
use crate::traces::SPANS;

/// The longest time for running rounds to finish after the term.
const LAST_ROUNDS: Duration = Duration::from_millis(1_500);

/// The time after which a job that cannot be written no longer blocks the other jobs of its namespace. Its claims are
/// known.
const NEIGHBOURS_WAIT: Duration = Duration::from_secs(1);
/// The time after which a job that cannot be read no longer blocks the others. The time is longer than an outage,
/// because another job might claim an object that this job has claimed.
const NEIGHBOURS_WAIT_UNREAD: Duration = Duration::from_secs(60);

/// The kind of the jobs in metrics and spans.
const JOB_KIND: &str = "OperationJob";

/// The result of a round.
struct FinishedRound {
    key: JobKey,
    memory: Box<JobMemory>,
    outcome: Result<Next, RoundError>,
}

/// One term of leadership.
pub(crate) struct TermController {
    ports: Arc<Ports>,
    term: Arc<Term>,
    queue: Queue,
    rounds: JoinSet<FinishedRound>,
    /// The jobs of the running rounds. The set also tells which job's round panicked.
    running: RunningRounds<JobKey>,
    cleaning: JoinSet<()>,
}

impl TermController {
    /// Begins a term that has read nothing yet. Also returns the results of its writes.
    pub(crate) fn begin(ports: Arc<Ports>, fence: Fence) -> (Self, UnboundedReceiver<BatchResult>) {
        let (results, returned) = unbounded_channel();
        let term = Arc::new(Term::begin(&ports.cluster, fence, results));
        let lead = Self {
            ports,
            term,
            queue: Queue::default(),
            rounds: JoinSet::new(),
            running: RunningRounds::within(RoundBounds::JOBS),
            cleaning: JoinSet::new(),
        };
        (lead, returned)
    }

    /// Registers the existing jobs. Claims in a namespace wait until each of its jobs is read. Until then, a job's
    /// status gives the number of its targets in flight.
    pub(crate) fn expect(&mut self, jobs: Vec<JobRef>) {
        for key in jobs.into_iter().map(|job| job.key).chain(self.ports.cluster.jobs()) {
            let in_flight = self.ports.cluster.in_flight(&key);
            let owner = self.ports.cluster.job_owner(&key);
            let on_pods = self.ports.cluster.target_kind(&key) == Some(TargetKind::Pod);
            let mut tables = lock(&self.term.tables);
            tables.claims.expect(&key);
            if !on_pods {
                tables.claims.expect_nodes(&key);
            }
            tables.note_owner(&key, owner);
            if let Some((plugin, count)) = in_flight {
                tables.note_in_flight(&plugin, &key, count);
            }
            drop(tables);
            self.queue.enqueue(&key, |_| {});
        }
    }

    /// Returns the due time of the next round that may start, or the time at which a running round gives up its slot.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        let free_slots = self.running.free_slots(Instant::now(), |job| self.ports.calling.includes(job));
        let may = |share: &str, key: &JobKey| {
            free_slots.has_room(share) && self.ports.has_free_slot(key, &free_slots.full_actions)
        };
        let next = || self.queue.next(may);
        let due = if free_slots.is_full { None } else { next() };
        due.into_iter().chain(free_slots.next).min()
    }

    /// Removes the leftovers of deleted jobs, in the background. Looks for outputs of tasks only if a plugin may have
    /// tasks, because otherwise the host has no right to list them.
    pub(crate) fn sweep(&mut self) {
        self.sweep_views();
        let pods = self.ports.plugins.declared().remove(&Kind::pod());
        if pods.is_some_and(|pods| pods.indexed.labels.contains(JOB_UID)) {
            self.cleaning.spawn(sweep_outputs(self.ports.clone(), self.term.clone()));
        }
        if let Some(logs) = self.ports.logs.get().cloned() {
            self.cleaning.spawn(async move { logs.sweep().await });
        }
    }

    /// Removes the leftovers of deleted jobs in cached objects, in the background.
    pub(crate) fn sweep_views(&mut self) {
        self.cleaning.spawn(sweep(self.ports.clone(), self.term.clone()));
    }

    /// Handles one event. If the handling panics, only this event is lost.
    pub(crate) fn handle_event(&mut self, event: WatchEvent) {
        let handled = catch_unwind(AssertUnwindSafe(|| match event {
            WatchEvent::Job(key) => self.queue.enqueue(&key, |_| {}),
            WatchEvent::JobGone(job) => {
                self.queue.enqueue(&job.key, |_| {});
                // The cleanup needs the job's claims, which are forgotten later.
                let writes = cleanup(&job, self.ports.cluster.store(), &lock(&self.term.tables));
                self.ports.logs.get().into_iter().for_each(|logs| logs.job_is_gone(&job.uid));
                self.remove_leftovers(JobLeftovers { job_uid: job.uid, writes, reads: Vec::new() });
            }
            WatchEvent::Object { change, by } => self.handle_object(&change, by.as_ref()),
        }));
        if handled.is_err() {
            tracing::error!("a panic in the handling of a watch event; the host skips the event until the next resync");
        }
    }

    fn handle_object(&mut self, change: &Change, by: Option<&Author>) {
        let store = self.ports.cluster.store();
        let woken = {
            let mut tables = lock(&self.term.tables);
            tables.note_gone(change);
            tables.concerned(change, store)
        };
        for (job, index) in woken {
            if by.is_some_and(|by| by.index == index && by.job_uid == job.uid) {
                // The event is the echo of the host's write, whose result brings the same change.
                self.queue.note(&job.key, |changes| departed(changes, index, change));
            } else {
                self.wake(&job, index, |changes| changed(changes, index, change));
            }
        }
        self.handle_namespace(change);
    }

    /// Marks a target as due. If a request for it is in flight, the result of the request starts the round.
    fn wake(&mut self, job: &JobRef, index: u32, note: impl FnOnce(&mut JobChanges)) {
        if self.term.write_sender.is_in_flight(&job.uid, index) {
            self.queue.note(&job.key, note);
        } else {
            self.queue.enqueue(&job.key, note);
        }
    }

    /// Requeues targets that waited for a freed object or limit.
    fn wake_waiting(&mut self, targets: BTreeSet<TargetId>) {
        for (job, index) in targets {
            self.wake(&job, index, |changes| changes.changed.extend([index]));
        }
    }

    /// Requeues the jobs of a namespace that is being deleted, because they are deleted with it. Also requeues them
    /// when the namespace gets or loses the label for jobs on nodes.
    fn handle_namespace(&mut self, change: &Change) {
        let label = |object: &Arc<Object>| object.labels.get(NODE_OPERATIONS).map(str::to_owned);
        let labelled = change.new.as_ref().and_then(label) != change.old.as_ref().and_then(label);
        let counts = |new: &&Arc<Object>| new.key.kind == Kind::namespace() && (new.terminating() || labelled);
        let Some(new) = change.new.as_ref().filter(counts) else { return };
        for key in self.queue.keys().into_iter().filter(|key| key.namespace == new.key.name) {
            self.queue.enqueue(&key, |changes| changes.revisit = true);
        }
    }

    /// Handles the result of a write.
    pub(crate) fn take(&mut self, result: BatchResult) {
        // First writes wait by design. Their delay would only show how large a job is.
        let follows = result.entry.priority != Priority::First;
        if let Some((since, sent)) = result.entry.since.zip(result.sent).filter(|_| follows) {
            let took = sent.duration_since(since);
            self.ports.metrics.acted_after(Duration::try_from(took).unwrap_or_default());
        }
        let job = result.entry.job.clone();
        let there = self.ports.cluster.job_uid(&job.key).as_deref() == Some(&job.uid);
        if !there && !result.entry.dry_run {
            self.cleaning.spawn(undo_late_write(self.ports.clone(), self.term.clone(), result.clone()));
        }
        self.queue.enqueue(&job.key, |changes| changes.results.push(result));
    }

    /// Removes the holds of a deleted job, in the background.
    fn remove_leftovers(&mut self, leftovers: JobLeftovers) {
        self.cleaning.spawn(remove_leftovers(self.ports.clone(), self.term.clone(), leftovers));
    }

    pub(crate) fn wake_all(&mut self, with: impl Fn(&mut JobChanges)) {
        for key in self.queue.keys() {
            self.queue.enqueue(&key, &with);
        }
    }

    /// Starts the rounds that are due.
    pub(crate) fn start_due(&mut self) {
        loop {
            let free_slots = self.running.free_slots(Instant::now(), |job| self.ports.calling.includes(job));
            if free_slots.is_full {
                break;
            }
            let next = self.queue.take(Instant::now(), |share, key| {
                free_slots.has_room(share) && self.ports.has_free_slot(key, &free_slots.full_actions)
            });
            let Some(DueRound { key, share, memory, changes }) = next else { break };
            // Acknowledged before the round starts: from now on, a change makes the job due at once instead of waiting
            // for a result.
            changes.results.iter().for_each(|result| self.term.write_sender.acknowledge(result));
            let (ports, term) = (self.ports.clone(), self.term.clone());
            let span =
                tracing::info_span!(target: SPANS, "round", kind = JOB_KIND, job = %key, otel.status_code = Empty);
            let (of, action) = (key.clone(), self.ports.cluster.action(&key));
            let started = self.rounds.spawn(run_round(ports, term, key, memory, changes).instrument(span));
            self.running.begin(started.id(), of, CountsFor { share, action });
        }
        let writes = self.term.write_sender.queue(|queue| queue.all_waiting());
        self.ports.metrics.queues_are(self.running.len(), self.queue.due(Instant::now()), writes);
    }

    /// Resolves when a round has ended and its result is stored. Never resolves while no round runs.
    pub(crate) async fn round_ended(&mut self) {
        while self.cleaning.try_join_next().is_some() {}
        match self.rounds.join_next_with_id().await {
            Some(Ok((id, finished))) => {
                self.running.end(id);
                self.finish(finished);
            }
            Some(Err(error)) => self.panicked(&error),
            None => std::future::pending().await,
        }
    }

    fn finish(&mut self, finished: FinishedRound) {
        let FinishedRound { key, mut memory, outcome } = finished;
        self.wake_waiting(std::mem::take(&mut memory.targets.woken));
        if outcome.is_ok() {
            self.ports.metrics.failing.succeeded(JOB_KIND, || key.to_string());
        }
        match outcome {
            Ok(Next::Gone) => {
                self.remove_uncached_leftovers(&key, &memory);
                let woken = lock(&self.term.tables).forget(&key, self.ports.cluster.store());
                self.ports.metrics.job_is(&key, None);
                self.ports.bound.note(&key, None);
                self.queue.gone(&key);
                self.wake_waiting(woken);
            }
            Ok(Next::At(time)) => {
                let now = self.ports.clock();
                let wait = time.map(|time| Duration::try_from(time.duration_since(now)).unwrap_or_default());
                self.queue.done(&key, memory, wait);
            }
            Ok(Next::WithRecords) => self.queue.requeue_now(&key, memory),
            Err(error) => {
                memory.drop_decisions();
                let (at_least, patience) = match &error {
                    RoundError::Observe(_) => (None, NEIGHBOURS_WAIT_UNREAD),
                    RoundError::Record(error) if error.is_refused() => (None, Duration::ZERO),
                    RoundError::Record(error) => (error.retry_after(), NEIGHBOURS_WAIT),
                };
                let at_least = at_least.map(|seconds| Duration::from_secs(u64::from(seconds)));
                let wait = self.queue.failed(&key, memory, at_least);
                self.unblock_namespace(&key, wait, patience);
                // The job was changed by another client meanwhile.
                let ordinary = matches!(&error, RoundError::Record(RecordError::Conflict { .. }));
                let (error, retry_ms) = (error_chain(&error), wait.as_millis());
                if !ordinary {
                    self.ports.metrics.failing.failed(JOB_KIND, key.to_string());
                }
                if ordinary {
                    tracing::debug!(job = %key, error, retry_ms, "another client changed the job during the round; the host repeats the round");
                } else {
                    tracing::warn!(job = %key, error, retry_ms, "the round failed; the host repeats the round");
                }
            }
        }
    }

    /// Removes the holds of a deleted job that its memory knows and no cached object shows.
    fn remove_uncached_leftovers(&mut self, key: &JobKey, memory: &JobMemory) {
        let (store, tasks) = (self.ports.cluster.store(), self.ports.cluster.tasks());
        let reads = live_reads_of_leftovers(memory, key, store, &tasks.namespace);
        if let Some(version) = memory.stored.version.as_ref().filter(|_| !reads.is_empty()) {
            self.remove_leftovers(JobLeftovers { job_uid: version.uid.clone(), writes: Vec::new(), reads });
        }
    }

    /// Unblocks the other jobs of a namespace, so that they may start targets and claim objects. The job's rounds must
    /// have failed for `patience`, including the wait for the next one.
    fn unblock_namespace(&self, key: &JobKey, wait: Duration, patience: Duration) {
        if self.queue.fails_for(key).saturating_add(wait) >= patience {
            lock(&self.term.tables).claims.read(key);
        }
    }

    /// Handles a panic of a round. Its job continues with an empty memory, and other jobs are not affected.
    fn panicked(&mut self, error: &JoinError) {
        self.ports.metrics.panicked();
        let Some(key) = self.running.end(error.id()) else { return };
        self.ports.metrics.failing.failed(JOB_KIND, key.to_string());
        let wait = self.queue.failed(&key, Box::default(), None);
        // The claims of the job may be unknown.
        self.unblock_namespace(&key, wait, NEIGHBOURS_WAIT_UNREAD);
        tracing::error!(job = %key, %error, retry_ms = wait.as_millis(), "a round panicked; the host repeats the round");
    }

    /// Waits for the running rounds and the requests in flight.
    pub(crate) async fn end(mut self) {
        let all = async { while self.rounds.join_next().await.is_some() {} };
        if timeout(LAST_ROUNDS, all).await.is_err() {
            tracing::warn!("the term ended with rounds still running");
        }
        self.rounds.shutdown().await;
        self.cleaning.shutdown().await;
        self.ports.cluster.end_tasks();
        self.ports.logs.get().into_iter().for_each(Logs::end_files);
        self.ports.metrics.no_jobs();
        self.ports.bound.clear();
        self.ports.metrics.failing.forget_all();
        self.ports.metrics.queues_are(0, 0, 0);
        match Arc::try_unwrap(self.term) {
            Ok(term) => term.write_sender.close().await,
            Err(_) => tracing::error!("the write queue of an ended term is still in use"),
        }
    }
}

async fn run_round(
    ports: Arc<Ports>,
    term: Arc<Term>,
    key: JobKey,
    mut memory: Box<JobMemory>,
    changes: JobChanges,
) -> FinishedRound {
    let began = Instant::now();
    let since = changes.since;
    changes.move_into(&mut memory);
    memory.reports.since = since.map(|since| ports.ago(since.elapsed()));
    let outcome = round(&ports, &term, &key, &mut memory).await;
    if outcome.is_err() {
        Span::current().record("otel.status_code", "ERROR");
    }
    ports.metrics.round_took(began.elapsed());
    FinishedRound { key, memory, outcome }
}

fn changed(changes: &mut JobChanges, index: u32, change: &Change) {
    let targets = if change.is_of_version_only() { &mut changes.requeue_on_new_version } else { &mut changes.changed };
    targets.insert(index);
    departed(changes, index, change);
}

/// Notes when an object was asked to terminate, as soon as an event shows it. The last view of the object no longer
/// shows it.
fn departed(changes: &mut JobChanges, index: u32, change: &Change) {
    let views = [&change.new, &change.old].into_iter().flatten();
    let asked = views.filter_map(|object| Some((index, object.uid.clone(), object.asked_to_go()?)));
    changes.departed.extend(asked.take(1));
}
