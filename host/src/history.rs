//! What the leader writes into the history: each OpsJob as it is stored, at most a second later.
//!
//! Takes OpsJobs as lists and watches show them; leaves rows. It only ever falls behind: a history that does not answer costs no round
//! its time, and a job that has ended stays in the cluster until its last state is in its row.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use oarlock_core::ops_job::plan::RowState;
use oarlock_core::ops_job::spec::Defaults;
use oarlock_core::ops_job::view::OpsJobView;
use oarlock_history::{History, HistoryFailed, JobSnapshot};
use oarlock_kube::ops::{Ops, OpsTap};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout_at};

/// Most rows that are written at once, and their bytes.
const BATCH: usize = 200;
const BATCH_BYTES: usize = 4 * 1024 * 1024;
/// Most bytes of jobs that wait. Those of others are read again when it is their turn.
const ROOM: usize = 32 * 1024 * 1024;
/// The least time between two writes: what changes meanwhile is written together.
const PAUSE: Duration = Duration::from_millis(200);
/// The time after which a history that did not answer is tried again.
const AGAIN: Duration = Duration::from_secs(1);
/// How often old rows are removed.
const PURGE: Duration = Duration::from_secs(3600);

/// For how long the history keeps what.
#[derive(Clone, Copy, Debug)]
pub struct Keeping {
    /// Jobs, from their end; `None` for ever.
    pub jobs: Option<Duration>,
    /// Requests; `None` for ever.
    pub requests: Option<Duration>,
    /// Of jobs that have ended, the digests of scripts and variables take their place.
    pub redacts: bool,
}

impl Default for Keeping {
    fn default() -> Self {
        const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);
        Self { jobs: Some(YEAR), requests: Some(YEAR), redacts: false }
    }
}

/// Writes the history while this process leads. Clones share it.
#[derive(Clone)]
pub struct Recorder(Arc<Parts>);

struct Parts {
    history: History,
    keeping: Keeping,
    defaults: Defaults,
    held: Mutex<Held>,
    changed: Notify,
}

/// What is known of the jobs of this term.
#[derive(Default)]
struct Held {
    leads: bool,
    /// The UIDs of all jobs that are there.
    alive: HashSet<String>,
    /// Jobs that wait, by UID.
    waiting: BTreeMap<String, JobSnapshot>,
    bytes: usize,
    /// The names of those that wait and have no room, by UID.
    unread: BTreeMap<String, String>,
    /// What each row has: the revision of the job, and whether it was deleted.
    rows: HashMap<String, (i64, bool)>,
    /// Jobs may have gone that nobody saw go.
    may_have_lost: bool,
}

/// What is written next.
enum Work {
    Rows(Vec<JobSnapshot>),
    Read { uid: String, name: String },
    Lost(Vec<String>),
}

/// About the memory of a job.
fn size(job: &JobSnapshot) -> usize {
    use oarlock_core::cluster::memory::memory_of;
    memory_of(&job.spec).saturating_add(memory_of(&job.status)).saturating_add(512)
}

impl Held {
    fn seen(&mut self, job: JobSnapshot) {
        let uid = job.row.uid.clone();
        self.alive.insert(uid.clone());
        let is_stored = self.rows.get(&uid).is_some_and(|(revision, deleted)| !job.is_news_to(*revision, *deleted));
        let waits =
            self.waiting.get(&uid).is_some_and(|other| !job.is_news_to(other.revision, other.row.deleted.is_some()));
        if is_stored || waits {
            return;
        }
        self.forget(&uid);
        if self.bytes.saturating_add(size(&job)) > ROOM {
            self.unread.insert(uid, job.row.job_id);
            return;
        }
        self.bytes = self.bytes.saturating_add(size(&job));
        self.waiting.insert(uid, job);
    }

    fn forget(&mut self, uid: &str) -> Option<JobSnapshot> {
        self.unread.remove(uid);
        let job = self.waiting.remove(uid)?;
        self.bytes = self.bytes.saturating_sub(size(&job));
        Some(job)
    }

    fn gone(&mut self, uid: &str) {
        self.alive.remove(uid);
        let was_deleted = self.rows.remove(uid).is_some_and(|(_, deleted)| deleted);
        let is_told = self.waiting.get(uid).is_some_and(|job| job.row.deleted.is_some());
        self.may_have_lost |= !was_deleted && !is_told;
    }

    fn next(&mut self) -> Option<Work> {
        let mut rows = Vec::new();
        let mut bytes = 0_usize;
        while let Some((uid, job)) = self.waiting.first_key_value().filter(|_| rows.len() < BATCH) {
            bytes = bytes.saturating_add(size(job));
            if bytes > BATCH_BYTES && !rows.is_empty() {
                break;
            }
            let uid = uid.clone();
            rows.extend(self.forget(&uid));
        }
        if !rows.is_empty() {
            return Some(Work::Rows(rows));
        }
        if let Some((uid, name)) = self.unread.pop_first() {
            return Some(Work::Read { uid, name });
        }
        std::mem::take(&mut self.may_have_lost).then(|| Work::Lost(self.alive.iter().cloned().collect()))
    }
}

impl Recorder {
    /// What writes this history.
    pub fn new(history: History, keeping: Keeping, defaults: Defaults) -> Self {
        Self(Arc::new(Parts { history, keeping, defaults, held: Mutex::default(), changed: Notify::new() }))
    }

    /// The history.
    pub fn history(&self) -> &History {
        &self.0.history
    }

    /// What the history has of a job.
    pub(crate) fn recorded(&self, job: &OpsJobView) -> RowState {
        let held = self.0.held.lock();
        match held.rows.get(&job.uid) {
            Some((revision, deleted)) if *revision >= job.status.revision && (*deleted || !job.deleting) => {
                RowState::Whole
            }
            _ => RowState::InPart,
        }
    }

    /// How many jobs wait for their rows.
    pub(crate) fn waiting(&self) -> usize {
        let held = self.0.held.lock();
        held.waiting.len().saturating_add(held.unread.len())
    }

    /// Begins a term: from now on, what is seen is written. It ends with what this yields.
    pub(crate) fn lead(&self, ops: Ops) -> Leading {
        *self.0.held.lock() = Held { leads: true, ..Held::default() };
        let this = self.clone();
        Leading { recorder: self.clone(), task: tokio::spawn(async move { this.run(&ops).await }) }
    }

    /// All jobs that are there have been seen.
    pub(crate) fn has_seen_all(&self) {
        self.0.held.lock().may_have_lost = true;
        self.0.changed.notify_one();
    }

    async fn run(&self, ops: &Ops) {
        let (mut purge_at, mut is_down) = (Instant::now(), false);
        loop {
            // Whichever is first.
            let _ = timeout_at(purge_at, self.0.changed.notified()).await;
            if purge_at <= Instant::now() {
                purge_at = Instant::now() + PURGE;
                if let Err(failed) = self.purge().await {
                    tracing::warn!(error = %failed, "old rows of the history stay for now");
                }
            }
            loop {
                let work = self.0.held.lock().next();
                let Some(work) = work else { break };
                match self.write(work, ops).await {
                    Ok(()) if is_down => {
                        is_down = false;
                        tracing::info!("the history is written again");
                    }
                    Ok(()) => {}
                    Err(failed) => {
                        if !is_down {
                            tracing::warn!(
                                error = failed,
                                "the history is not written; jobs that have ended wait for it"
                            );
                        }
                        is_down = true;
                        sleep(AGAIN).await;
                    }
                }
            }
            sleep(PAUSE).await;
        }
    }

    async fn write(&self, work: Work, ops: &Ops) -> Result<(), String> {
        let Parts { history, keeping, .. } = &*self.0;
        match work {
            Work::Rows(jobs) => {
                let redacts = |job: &JobSnapshot| keeping.redacts && job.has_ended();
                let rows: Vec<JobSnapshot> =
                    jobs.iter().map(|job| if redacts(job) { job.clone().redacted() } else { job.clone() }).collect();
                let stored = history.store(&rows).await;
                let mut held = self.0.held.lock();
                if let Err(failed) = stored {
                    jobs.into_iter().for_each(|job| {
                        let (uid, is_alive) = (job.row.uid.clone(), held.alive.contains(&job.row.uid));
                        held.seen(job);
                        if !is_alive {
                            held.alive.remove(&uid);
                        }
                    });
                    return Err(failed.to_string());
                }
                for job in &jobs {
                    if held.alive.contains(&job.row.uid) {
                        held.rows.insert(job.row.uid.clone(), (job.revision, job.row.deleted.is_some()));
                    }
                }
                drop(held);
                // Some wait for that.
                jobs.iter().filter(|job| job.row.deleted.is_some()).for_each(|job| ops.cache().soil(&job.row.uid));
                Ok(())
            }
            Work::Read { uid, name } => ops.read_again(&name).await.map_err(|failed| {
                self.0.held.lock().unread.insert(uid, name.clone());
                failed.message
            }),
            Work::Lost(alive) => {
                let alive: Vec<&str> = alive.iter().map(String::as_str).collect();
                let closed = history.close_lost(&alive, ops.cluster().clock().now()).await;
                closed.map(drop).map_err(|failed| {
                    self.0.held.lock().may_have_lost = true;
                    failed.to_string()
                })
            }
        }
    }

    /// Removes what is older than it is kept.
    async fn purge(&self) -> Result<(), HistoryFailed> {
        let Parts { history, keeping, .. } = &*self.0;
        let before = |kept: Option<Duration>| {
            kept.and_then(|kept| Timestamp::now().checked_sub(SignedDuration::try_from(kept).ok()?).ok())
        };
        if let Some(before) = before(keeping.jobs) {
            while history.purge(before).await? > 0 {}
        }
        if let Some(before) = before(keeping.requests) {
            while history.purge_audit(before).await? > 0 {}
        }
        Ok(())
    }
}

impl OpsTap for Recorder {
    fn seen(&self, document: &Value) {
        if !self.0.held.lock().leads {
            return;
        }
        if let Some(job) = JobSnapshot::of(document, self.0.defaults) {
            self.0.held.lock().seen(job);
            self.0.changed.notify_one();
        }
    }

    fn gone(&self, uid: &str) {
        self.0.held.lock().gone(uid);
        self.0.changed.notify_one();
    }

    fn listed(&self, uids: Vec<String>) {
        let mut held = self.0.held.lock();
        let listed: HashSet<String> = uids.into_iter().collect();
        let gone: Vec<String> = held.alive.difference(&listed).cloned().collect();
        gone.iter().for_each(|uid| held.gone(uid));
        drop(held);
        self.0.changed.notify_one();
    }
}

/// A term in which the history is written.
pub(crate) struct Leading {
    recorder: Recorder,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Leading {
    fn drop(&mut self) {
        self.task.abort();
        *self.recorder.0.held.lock() = Held::default();
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn job(uid: &str, revision: i64, deleted: bool) -> JobSnapshot {
        let mut metadata = json!({"name": format!("job-{uid}"), "uid": uid});
        if deleted {
            metadata["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        }
        let document = json!({"metadata": metadata, "spec": {}, "status": {"phase": "Running", "revision": revision}});
        JobSnapshot::of(&document, Defaults::default()).unwrap()
    }

    /// What is written next: the revisions of rows, by UID.
    fn rows(held: &mut Held) -> Vec<(String, i64)> {
        match held.next() {
            Some(Work::Rows(rows)) => rows.into_iter().map(|job| (job.row.uid, job.revision)).collect(),
            _ => Vec::new(),
        }
    }

    #[test]
    fn what_is_older_than_what_waits_or_is_written_is_left_out() {
        let mut held = Held::default();
        [1, 3, 2].into_iter().for_each(|revision| held.seen(job("a", revision, false)));
        assert_eq!(rows(&mut held), [("a".to_owned(), 3)]);
        held.rows.insert("a".to_owned(), (3, false));
        held.seen(job("a", 3, false));
        assert!(rows(&mut held).is_empty());
        held.seen(job("a", 3, true));
        assert_eq!(rows(&mut held), [("a".to_owned(), 3)], "it was deleted");
        assert_eq!(held.bytes, 0);
    }

    #[test]
    fn jobs_without_room_are_read_again_when_it_is_their_turn() {
        let mut held = Held { bytes: ROOM, ..Held::default() };
        held.seen(job("a", 1, false));
        assert!(matches!(held.next(), Some(Work::Read { name, .. }) if name == "job-a"));
        assert!(held.next().is_none());
    }

    #[test]
    fn a_job_that_goes_without_having_been_seen_to_be_deleted_is_closed() {
        let mut held = Held::default();
        ["a", "b", "c"].into_iter().for_each(|uid| held.seen(job(uid, 1, false)));
        assert_eq!(rows(&mut held).len(), 3);
        held.rows.extend([("a".to_owned(), (1, true)), ("b".to_owned(), (1, false))]);
        held.gone("a");
        assert!(held.next().is_none(), "its row says so");
        held.gone("b");
        let Some(Work::Lost(alive)) = held.next() else { panic!("nobody looks for it") };
        assert_eq!(alive, ["c"]);
        assert!(held.next().is_none());
    }
}
