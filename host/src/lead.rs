//! One term of leadership at work: starts rounds, a few jobs at once, and stores their results.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use oarlock_core::cluster::object::{Kind, Object};
use oarlock_core::cluster::store::Change;
use oarlock_core::cluster::task_pod::JOB_UID;
use oarlock_core::cluster::writes::{EntryResult, Priority};
use oarlock_core::job::key::{JobKey, JobRef};
use oarlock_core::plugin::manifest::TargetKind;
use oarlock_core::round::fit::NODE_OPERATIONS;
use oarlock_core::round::left_behind::left_behind;
use oarlock_core::round::memory::JobMemory;
use oarlock_core::shared::cleanup::cleanup;
use oarlock_core::shared::tables::lock;
use oarlock_core::shared::wake_index::TargetId;
use oarlock_kube::lease::Fence;
use oarlock_kube::record::RecordError;
use oarlock_kube::watch::watches::{Author, WatchEvent};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::task::{Id, JoinError, JoinSet};
use tokio::time::{Duration, Instant, timeout};
use tracing::Instrument;

use crate::logs::Logs;
use crate::ports::{Ports, error_chain};
use crate::queue::{Inbox, Queue};
use crate::round::{Next, RoundError, round};
use crate::running::{Places, RoundBounds, RunningRounds};
use crate::term::Term;
use crate::vanished::{Vanished, sweep, sweep_outputs, take_back, take_off};

/// Longest time that rounds may take to finish after the term.
const LAST_ROUNDS: Duration = Duration::from_millis(1_500);

/// A job that cannot be written for so long no longer keeps the others of its namespace waiting: its claims are known.
const NEIGHBOURS_WAIT: Duration = Duration::from_secs(1);
/// The same, for a job that cannot be read: longer than an outage, for another job might claim what it has claimed.
const NEIGHBOURS_WAIT_UNREAD: Duration = Duration::from_secs(60);

/// The result of a round.
struct Finished {
    key: JobKey,
    memory: Box<JobMemory>,
    outcome: Result<Next, RoundError>,
}

/// One term of leadership at work.
pub(crate) struct Lead {
    ports: Arc<Ports>,
    term: Arc<Term>,
    queue: Queue,
    rounds: JoinSet<Finished>,
    /// Those rounds' jobs, also for when one panics.
    running: RunningRounds<JobKey>,
    cleaning: JoinSet<()>,
}

impl Lead {
    /// A term that has read nothing yet, and the results of its writes.
    pub(crate) fn begin(ports: Arc<Ports>, fence: Fence) -> (Self, UnboundedReceiver<EntryResult>) {
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

    /// Notes the existing jobs: each is read before claims are granted in its namespace. Until then its status says how
    /// many targets it has in flight.
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

    /// The due time of the next round that may begin, or the time at which a round that runs gives up its place.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        let places = self.running.places(Instant::now(), |job| self.ports.calling.includes(job));
        let next = || self.queue.next(|key| self.has_place(&places, key));
        let due = if places.is_full { None } else { next() };
        due.into_iter().chain(places.next).min()
    }

    fn has_place(&self, places: &Places, key: &JobKey) -> bool {
        places.has_room(key) && self.ports.has_place(key, &places.full_actions)
    }

    /// Removes what jobs that are gone have left, in the background. Outputs of tasks are looked for only where a plugin may have
    /// tasks: elsewhere there is no right to.
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

    /// Removes what the views show of jobs that are gone, in the background.
    pub(crate) fn sweep_views(&mut self) {
        self.cleaning.spawn(sweep(self.ports.clone(), self.term.clone()));
    }

    /// Handles one event. One that breaks the host's own rules is lost, and nothing else.
    pub(crate) fn hear(&mut self, event: WatchEvent) {
        let heard = catch_unwind(AssertUnwindSafe(|| match event {
            WatchEvent::Job(key) => self.queue.enqueue(&key, |_| {}),
            WatchEvent::JobGone(job) => {
                self.queue.enqueue(&job.key, |_| {});
                // Before its claims are forgotten.
                let writes = cleanup(&job, self.ports.cluster.store(), &lock(&self.term.tables));
                self.ports.logs.get().into_iter().for_each(|logs| logs.job_is_gone(&job.uid));
                self.take_off(Vanished { job_uid: job.uid, writes, reads: Vec::new() });
            }
            WatchEvent::Object { change, by } => self.hear_object(&change, by.as_ref()),
        }));
        if heard.is_err() {
            tracing::error!("handling a watch event panicked; the event is skipped until the next resync");
        }
    }

    fn hear_object(&mut self, change: &Change, by: Option<&Author>) {
        let store = self.ports.cluster.store();
        let woken = {
            let mut tables = lock(&self.term.tables);
            tables.heard(change);
            tables.concerned(change, store)
        };
        for (job, index) in woken {
            if by.is_some_and(|by| by.index == index && by.job_uid == job.uid) {
                // The echo of an own write: its result reports the same.
                self.queue.note(&job.key, |inbox| departed(inbox, index, change));
            } else {
                self.wake(&job, index, |inbox| changed(inbox, index, change));
            }
        }
        self.hear_namespace(change);
    }

    /// Notes what makes a target due. While a request for it is on the wire, its result brings the round.
    fn wake(&mut self, job: &JobRef, index: u32, note: impl FnOnce(&mut Inbox)) {
        if self.term.outbox.is_busy(&job.uid, index) {
            self.queue.note(&job.key, note);
        } else {
            self.queue.enqueue(&job.key, note);
        }
    }

    /// Wakes targets for which something was found to be free.
    fn wake_waiting(&mut self, targets: BTreeSet<TargetId>) {
        for (job, index) in targets {
            self.wake(&job, index, |inbox| inbox.changed.extend([index]));
        }
    }

    /// Wakes the jobs of a namespace that is being deleted, since they are deleted with it, or has got or lost the label for
    /// jobs on nodes.
    fn hear_namespace(&mut self, change: &Change) {
        let label = |object: &Arc<Object>| object.labels.get(NODE_OPERATIONS).map(str::to_owned);
        let labelled = change.new.as_ref().and_then(label) != change.old.as_ref().and_then(label);
        let counts = |new: &&Arc<Object>| new.key.kind == Kind::namespace() && (new.terminating() || labelled);
        let Some(new) = change.new.as_ref().filter(counts) else { return };
        for key in self.queue.keys().into_iter().filter(|key| key.namespace == new.key.name) {
            self.queue.enqueue(&key, |inbox| inbox.revisit = true);
        }
    }

    /// Handles the result of a write.
    pub(crate) fn take(&mut self, result: EntryResult) {
        // First writes wait for their turn by design, and would say how large a job is.
        let follows = result.entry.priority != Priority::First;
        if let Some((since, sent)) = result.entry.since.zip(result.sent).filter(|_| follows) {
            let took = sent.duration_since(since);
            self.ports.metrics.acted_after(Duration::try_from(took).unwrap_or_default());
        }
        let job = result.entry.job.clone();
        let there = self.ports.cluster.job_uid(&job.key).as_deref() == Some(&job.uid);
        if !there && !result.entry.dry_run {
            self.cleaning.spawn(take_back(self.ports.clone(), self.term.clone(), result.clone()));
        }
        self.queue.enqueue(&job.key, |inbox| inbox.results.push(result));
    }

    /// Takes off what a job that is gone had put on, in the background.
    fn take_off(&mut self, vanished: Vanished) {
        self.cleaning.spawn(take_off(self.ports.clone(), self.term.clone(), vanished));
    }

    pub(crate) fn wake_all(&mut self, with: impl Fn(&mut Inbox)) {
        for key in self.queue.keys() {
            self.queue.enqueue(&key, &with);
        }
    }

    /// Starts the rounds that are due.
    pub(crate) fn start_due(&mut self) {
        loop {
            let places = self.running.places(Instant::now(), |job| self.ports.calling.includes(job));
            if places.is_full {
                break;
            }
            let next = self
                .queue
                .take(Instant::now(), |key| places.has_room(key) && self.ports.has_place(key, &places.full_actions));
            let Some((key, memory, inbox)) = next else { break };
            // Here, so that a change that is heard from now on makes the job due, and does not wait for a result.
            inbox.results.iter().for_each(|result| self.term.outbox.taken(result));
            let (ports, term) = (self.ports.clone(), self.term.clone());
            let span = tracing::info_span!("round", job = %key);
            let (of, action) = (key.clone(), self.ports.cluster.action(&key));
            let started = self.rounds.spawn(run_round(ports, term, key, memory, inbox).instrument(span));
            self.running.begin(started.id(), of, action);
        }
        let writes = self.term.outbox.queue(|queue| queue.all_waiting());
        self.ports.metrics.queues_are(self.running.len(), self.queue.due(Instant::now()), writes);
    }

    /// Resolves once a round has ended and its result is stored; never while none runs.
    pub(crate) async fn round_ended(&mut self) {
        while self.cleaning.try_join_next().is_some() {}
        match self.rounds.join_next_with_id().await {
            Some(ended) => self.finish(ended),
            None => std::future::pending().await,
        }
    }

    fn finish(&mut self, ended: Result<(Id, Finished), JoinError>) {
        let Finished { key, mut memory, outcome } = match ended {
            Ok((id, finished)) => {
                self.running.end(id);
                finished
            }
            Err(error) => return self.panicked(&error),
        };
        self.wake_waiting(std::mem::take(&mut memory.woken));
        match outcome {
            Ok(Next::Gone) => {
                self.take_off_unseen(&key, &memory);
                let woken = lock(&self.term.tables).forget(&key, self.ports.cluster.store());
                self.ports.metrics.job_is(&key, None);
                self.queue.gone(&key);
                self.wake_waiting(woken);
            }
            Ok(Next::At(time)) => {
                let now = self.ports.clock();
                let wait = time.map(|time| Duration::try_from(time.duration_since(now)).unwrap_or_default());
                self.queue.done(&key, memory, wait);
            }
            Ok(Next::WithRecords) => self.queue.again(&key, memory),
            Err(error) => {
                memory.forget_plan();
                let (at_least, patience) = match &error {
                    RoundError::Observe(_) => (None, NEIGHBOURS_WAIT_UNREAD),
                    RoundError::Record(error) if error.is_refused() => (None, Duration::ZERO),
                    RoundError::Record(error) => (error.retry_after(), NEIGHBOURS_WAIT),
                };
                let at_least = at_least.map(|seconds| Duration::from_secs(u64::from(seconds)));
                let wait = self.queue.failed(&key, memory, at_least);
                self.keep_no_neighbour_waiting(&key, wait, patience);
                // Somebody changed the job meanwhile.
                let ordinary = matches!(&error, RoundError::Record(RecordError::Conflict { .. }));
                let (error, retry_ms) = (error_chain(&error), wait.as_millis());
                if ordinary {
                    tracing::debug!(job = %key, error, retry_ms, "the round was made on an old view and is repeated");
                } else {
                    tracing::warn!(job = %key, error, retry_ms, "the round failed and is repeated");
                }
            }
        }
    }

    /// Takes off what no view shows of a job that is gone, and its memory knows.
    fn take_off_unseen(&mut self, key: &JobKey, memory: &JobMemory) {
        let (store, tasks) = (self.ports.cluster.store(), self.ports.cluster.tasks());
        let reads = left_behind(memory, key, store, &tasks.namespace);
        if let Some(version) = memory.version.as_ref().filter(|_| !reads.is_empty()) {
            self.take_off(Vanished { job_uid: version.uid.clone(), writes: Vec::new(), reads });
        }
    }

    /// Lets the other jobs of its namespace start targets and claim objects, once every round of a job has failed for so
    /// long, the wait for the next one counted.
    fn keep_no_neighbour_waiting(&self, key: &JobKey, wait: Duration, patience: Duration) {
        if self.queue.fails_for(key).saturating_add(wait) >= patience {
            lock(&self.term.tables).claims.read(key);
        }
    }

    /// Handles a panic of a round: its job continues with an empty memory, and no other is affected.
    fn panicked(&mut self, error: &JoinError) {
        self.ports.metrics.panicked();
        let Some(key) = self.running.end(error.id()) else { return };
        let wait = self.queue.failed(&key, Box::default(), None);
        // Its claims may not be known.
        self.keep_no_neighbour_waiting(&key, wait, NEIGHBOURS_WAIT_UNREAD);
        tracing::error!(job = %key, %error, retry_ms = wait.as_millis(), "a round panicked and is repeated");
    }

    /// Waits for the running rounds and the requests on the wire.
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
        self.ports.metrics.queues_are(0, 0, 0);
        match Arc::try_unwrap(self.term) {
            Ok(term) => term.outbox.close().await,
            Err(_) => tracing::error!("the outbox of an ended term is still in use"),
        }
    }
}

async fn run_round(
    ports: Arc<Ports>,
    term: Arc<Term>,
    key: JobKey,
    mut memory: Box<JobMemory>,
    inbox: Inbox,
) -> Finished {
    let began = Instant::now();
    let since = inbox.since;
    inbox.empty_into(&mut memory);
    memory.since = since.map(|since| ports.ago(since.elapsed()));
    ports.sabotage(&key);
    let outcome = round(&ports, &term, &key, &mut memory).await;
    ports.metrics.round_took(began.elapsed());
    Finished { key, memory, outcome }
}

fn changed(inbox: &mut Inbox, index: u32, change: &Change) {
    let targets = if change.is_of_version_only() { &mut inbox.seen_anew } else { &mut inbox.changed };
    targets.insert(index);
    departed(inbox, index, change);
}

/// Notes the time at which an object was asked to terminate as soon as it is seen: the last view of it no longer shows
/// that.
fn departed(inbox: &mut Inbox, index: u32, change: &Change) {
    let views = [&change.new, &change.old].into_iter().flatten();
    let asked = views.filter_map(|object| Some((index, object.uid.clone(), object.asked_to_go()?)));
    inbox.departed.extend(asked.take(1));
}
