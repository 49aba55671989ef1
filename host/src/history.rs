//! Writes the history while this process leads: each OpsJob as it is stored, at most a second later.
//!
//! The jobs come from lists and watches. A slow history never delays a round; the rows only fall behind. A job that has
//! ended stays in the cluster until its row holds its last state.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use oarlock_core::object::memory::text_len;
use oarlock_core::ops_job::gone::GoneBy;
use oarlock_core::ops_job::plan::RowState;
use oarlock_core::ops_job::row_meter::RowMeter;
use oarlock_core::ops_job::spec::Defaults;
use oarlock_core::ops_job::stored::StoredOps;
use oarlock_core::ops_job::view::OpsJobView;
use oarlock_history::{History, HistoryFailed, JobSnapshot};
use oarlock_kube::kinds::KindObserver;
use oarlock_kube::ops::Ops;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout_at};

/// The largest number of rows in one write, and the largest number of their bytes.
const BATCH: usize = 200;
const BATCH_BYTES: usize = 4 * 1024 * 1024;
/// The memory for waiting jobs, in bytes. A job without room is read again before its row is written.
const ROOM: usize = 32 * 1024 * 1024;
/// The shortest time between two writes. Changes within this time are written together.
const PAUSE: Duration = Duration::from_millis(200);
/// The wait before the next attempt after a failed write.
const AGAIN: Duration = Duration::from_secs(1);
/// The bytes of a row without its spec and its status.
const OF_ROW: u64 = 4 * 1024;
/// The time between two removals of old rows.
const PURGE: Duration = Duration::from_secs(3600);

/// How long the history keeps jobs and requests.
#[derive(Clone, Copy, Debug)]
pub struct Keeping {
    /// The time to keep jobs after their end; `None` keeps them forever.
    pub jobs: Option<Duration>,
    /// The time to keep requests; `None` keeps them forever.
    pub requests: Option<Duration>,
    /// True to replace the scripts and variables of ended jobs by their digests.
    pub redacts: bool,
}

impl Default for Keeping {
    fn default() -> Self {
        const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);
        Self { jobs: Some(YEAR), requests: Some(YEAR), redacts: false }
    }
}

/// Writes the history while this process leads. Clones share one state.
#[derive(Clone)]
pub struct Recorder(Arc<Parts>);

struct Parts {
    history: History,
    keeping: Keeping,
    defaults: Defaults,
    state: Mutex<HistoryState>,
    changed: Notify,
    terms: AtomicU64,
    began: Instant,
    meter: Mutex<RowMeter>,
}

/// The state of this term's jobs.
#[derive(Default)]
struct HistoryState {
    /// The number of the term, if this process leads.
    term: Option<u64>,
    /// The UIDs of all existing jobs.
    alive: HashSet<String>,
    /// The jobs that wait for their rows, by UID.
    waiting: BTreeMap<String, JobSnapshot>,
    bytes: usize,
    /// The names of waiting jobs without room in memory, by UID.
    unread: BTreeMap<String, String>,
    /// The contents of each row: the revision of the job, and whether it was deleted.
    rows: HashMap<String, (i64, bool)>,
    /// The counted bytes of each job, by UID. `None` if the row holds only the digest of the spec.
    counted: HashMap<String, Option<u64>>,
    /// The number of rows in the next write. The recorder halves the number after a failure, so that a refused row is
    /// alone in the end.
    at_once: usize,
    /// The UIDs of jobs that the host deletes because their time to live is over.
    expiring: HashSet<String>,
    /// True if jobs may have been deleted without an event.
    may_have_lost: bool,
}

/// The next work of the recorder.
enum Work {
    Rows(Vec<JobSnapshot>),
    Read { uid: String, name: String },
    Lost,
}

/// Returns the approximate memory of a job.
fn size(job: &JobSnapshot) -> usize {
    use oarlock_core::object::memory::memory_of;
    memory_of(&job.spec).saturating_add(memory_of(&job.status)).saturating_add(512)
}

impl HistoryState {
    fn seen(&mut self, mut job: JobSnapshot) {
        self.alive.insert(job.row.uid.clone());
        // The deletion was the host's, even if the API server's clock says that the time to live is not over.
        if job.row.gone_by.is_some() && self.expiring.contains(&job.row.uid) {
            job.row.gone_by = Some(GoneBy::Expiry);
        }
        self.wait(job);
    }

    /// Queues a job for writing, unless its row or the queued version is as new.
    fn wait(&mut self, job: JobSnapshot) {
        let uid = job.row.uid.clone();
        let is_stored =
            self.rows.get(&uid).is_some_and(|(revision, deleted)| !job.is_newer_than_row(*revision, *deleted));
        let waits = self
            .waiting
            .get(&uid)
            .is_some_and(|other| !job.is_newer_than_row(other.revision, other.row.deleted.is_some()));
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
        let was_alive = self.alive.remove(uid);
        self.expiring.remove(uid);
        if !self.waiting.contains_key(uid) {
            self.counted.remove(uid);
        }
        // A list, a read and a watch event may each say it.
        if !was_alive {
            return;
        }
        let was_deleted = self.rows.remove(uid).is_some_and(|(_, deleted)| deleted);
        let is_told = self.waiting.get(uid).is_some_and(|job| job.row.deleted.is_some());
        self.may_have_lost |= !was_deleted && !is_told;
    }

    fn next(&mut self) -> Option<Work> {
        let mut rows = Vec::new();
        let mut bytes = 0_usize;
        while let Some((uid, job)) = self.waiting.first_key_value().filter(|_| rows.len() < self.at_once.max(1)) {
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
        std::mem::take(&mut self.may_have_lost).then_some(Work::Lost)
    }
}

impl Recorder {
    /// Makes a recorder for a history.
    pub fn new(history: History, keeping: Keeping, defaults: Defaults) -> Self {
        Self(Arc::new(Parts {
            history,
            keeping,
            defaults,
            state: Mutex::default(),
            changed: Notify::new(),
            terms: AtomicU64::new(0),
            began: Instant::now(),
            meter: Mutex::new(RowMeter::of_bytes()),
        }))
    }

    /// Returns the history.
    pub fn history(&self) -> &History {
        &self.0.history
    }

    /// Returns whether the row of a job is up to date.
    pub(crate) fn row_state(&self, job: &OpsJobView) -> RowState {
        let state = self.0.state.lock();
        match state.rows.get(&job.uid) {
            Some((revision, deleted)) if *revision >= job.status.revision && (*deleted || !job.deleting) => {
                RowState::Whole
            }
            _ => RowState::InPart,
        }
    }

    /// Remembers that the host deletes a job because its time to live is over.
    pub(crate) fn expires(&self, uid: &str) {
        let mut state = self.0.state.lock();
        if state.alive.contains(uid) {
            state.expiring.insert(uid.to_owned());
        }
    }

    /// Returns the number of jobs that wait for their rows.
    pub(crate) fn waiting(&self) -> usize {
        let state = self.0.state.lock();
        state.waiting.len().saturating_add(state.unread.len())
    }

    /// Begins a term, in which the recorder writes each observed job. Dropping the returned guard ends the term.
    pub(crate) fn lead(&self, ops: Ops) -> Leading {
        let term = self.0.terms.fetch_add(1, Ordering::Relaxed);
        *self.0.state.lock() = HistoryState { term: Some(term), at_once: BATCH, ..HistoryState::default() };
        let this = self.clone();
        Leading { recorder: self.clone(), term, task: tokio::spawn(async move { this.run(&ops).await }) }
    }

    /// Tells the recorder that all existing jobs have been observed. The recorder then closes the rows of jobs that no
    /// longer exist.
    pub(crate) fn has_seen_all(&self) {
        self.0.state.lock().may_have_lost = true;
        self.0.changed.notify_one();
    }

    async fn run(&self, ops: &Ops) {
        let (mut purge_at, mut is_down) = (Instant::now(), false);
        loop {
            // Waits for a change or the next purge, whichever comes first.
            let _ = timeout_at(purge_at, self.0.changed.notified()).await;
            if purge_at <= Instant::now() {
                purge_at = Instant::now() + PURGE;
                if let Err(failed) = self.purge().await {
                    tracing::warn!(error = %failed, "failed to delete old rows of the history; the next sweep retries");
                }
            }
            loop {
                let work = self.0.state.lock().next();
                let Some(work) = work else { break };
                let failed = self.write(work, ops).await.err();
                if let Some(error) = &failed {
                    tracing::warn!(error, "failed to write the history; ended jobs wait until a write succeeds");
                    sleep(AGAIN).await;
                } else if is_down {
                    tracing::info!("writes to the history succeed again");
                    self.begin_anew(ops).await;
                }
                is_down = failed.is_some();
            }
            sleep(PAUSE).await;
        }
    }

    /// Writes all jobs again, because the database may have been restored from an older copy.
    async fn begin_anew(&self, ops: &Ops) {
        self.0.state.lock().rows.clear();
        match ops.port().read_all().await {
            Ok(()) => self.has_seen_all(),
            Err(failed) => tracing::warn!(
                error = failed.message,
                "failed to read the OpsJobs to write them into the history again"
            ),
        }
    }

    async fn write(&self, work: Work, ops: &Ops) -> Result<(), String> {
        let Parts { history, keeping, .. } = &*self.0;
        match work {
            Work::Rows(jobs) => self.write_rows(jobs, ops).await,
            Work::Read { uid, name } => ops.read_again(&name).await.map_err(|failed| {
                self.0.state.lock().unread.insert(uid, name.clone());
                failed.message
            }),
            Work::Lost => {
                let listed = ops.cluster().clock().now();
                // A live list is needed: the watch may have reached an API server that did not serve this kind for a
                // moment.
                let stored = ops.stored_uids().await.map_err(|failed| failed.message);
                let closed = match stored {
                    Ok(mut uids) => {
                        uids.extend(self.0.state.lock().alive.iter().cloned());
                        let uids: Vec<&str> = uids.iter().map(String::as_str).collect();
                        history.close_lost(&uids, listed, keeping.redacts).await.map_err(|failed| failed.to_string())
                    }
                    Err(failed) => Err(failed),
                };
                closed.map(drop).inspect_err(|_| self.0.state.lock().may_have_lost = true)
            }
        }
    }

    /// Returns true if the row may hold only the digest of the spec, because the daily quota of the job's key is used
    /// up.
    fn is_digested(&self, job: &JobSnapshot) -> bool {
        let Some(key) = &job.counts_for else { return false };
        let mut state = self.0.state.lock();
        let counted = state.counted.entry(job.row.uid.clone()).or_insert(Some(0));
        *counted = counted.and_then(|before| {
            // A status grows until its job ends, so only the additional bytes count.
            let written = text_len(&job.spec).saturating_add(text_len(&job.status));
            let bytes = before.max((written as u64).saturating_add(OF_ROW));
            let more = bytes.saturating_sub(before);
            (more == 0 || self.0.meter.lock().takes(key, more, self.0.began.elapsed())).then_some(bytes)
        });
        counted.is_none()
    }

    async fn write_rows(&self, jobs: Vec<JobSnapshot>, ops: &Ops) -> Result<(), String> {
        let Parts { history, keeping, .. } = &*self.0;
        let shown = |job: &JobSnapshot| match keeping.redacts && job.has_ended() {
            _ if self.is_digested(job) => job.clone().digested(),
            true => job.clone().redacted(),
            false => job.clone(),
        };
        let stored = history.store(&jobs.iter().map(shown).collect::<Vec<_>>()).await;
        let mut state = self.0.state.lock();
        match (&stored, jobs.as_slice()) {
            (Err(HistoryFailed::Refused(why)), [job]) => {
                let job = &job.row.job_id;
                tracing::error!(
                    job,
                    error = why,
                    "the history refuses the row of an OpsJob; the job is missing from the history"
                );
            }
            (Err(failed), _) => {
                state.at_once = (jobs.len() / 2).max(1);
                jobs.into_iter().for_each(|job| state.wait(job));
                return Err(failed.to_string());
            }
            (Ok(()), _) => state.at_once = state.at_once.saturating_mul(2).clamp(1, BATCH),
        }
        for job in &jobs {
            if state.alive.contains(&job.row.uid) {
                state.rows.insert(job.row.uid.clone(), (job.revision, job.row.deleted.is_some()));
            } else {
                state.counted.remove(&job.row.uid);
            }
        }
        drop(state);
        // Rounds wait for these rows before they let the job go.
        let waits = |job: &&JobSnapshot| job.row.deleted.is_some() || job.has_ended();
        jobs.iter().filter(waits).for_each(|job| ops.port().cache().mark_dirty(&job.row.uid));
        Ok(())
    }

    /// Removes rows that are older than their retention.
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

impl KindObserver<StoredOps> for Recorder {
    fn seen(&self, document: &Value) {
        if self.0.state.lock().term.is_none() {
            return;
        }
        if let Some(job) = JobSnapshot::of(document, self.0.defaults) {
            self.0.state.lock().seen(job);
            self.0.changed.notify_one();
        }
    }

    fn gone(&self, uid: &str) {
        self.0.state.lock().gone(uid);
        self.0.changed.notify_one();
    }

    fn listed(&self, uids: Vec<String>) {
        let mut state = self.0.state.lock();
        let listed: HashSet<String> = uids.into_iter().collect();
        let gone: Vec<String> = state.alive.difference(&listed).cloned().collect();
        gone.iter().for_each(|uid| state.gone(uid));
        drop(state);
        self.0.changed.notify_one();
    }
}

/// A term in which the history is written.
pub(crate) struct Leading {
    recorder: Recorder,
    term: u64,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Leading {
    fn drop(&mut self) {
        self.task.abort();
        let mut state = self.recorder.0.state.lock();
        // Another term may have begun already.
        if state.term == Some(self.term) {
            *state = HistoryState::default();
        }
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

    /// Returns the next rows to write: their UIDs and revisions.
    fn rows(state: &mut HistoryState) -> Vec<(String, i64)> {
        match state.next() {
            Some(Work::Rows(rows)) => rows.into_iter().map(|job| (job.row.uid, job.revision)).collect(),
            _ => Vec::new(),
        }
    }

    #[test]
    fn what_is_older_than_what_waits_or_is_written_is_left_out() {
        let mut state = HistoryState { at_once: BATCH, ..HistoryState::default() };
        [1, 3, 2].into_iter().for_each(|revision| state.seen(job("a", revision, false)));
        assert_eq!(rows(&mut state), [("a".to_owned(), 3)]);
        state.rows.insert("a".to_owned(), (3, false));
        state.seen(job("a", 3, false));
        assert!(rows(&mut state).is_empty());
        state.seen(job("a", 3, true));
        assert_eq!(rows(&mut state), [("a".to_owned(), 3)], "it was deleted");
        assert_eq!(state.bytes, 0);
    }

    #[test]
    fn a_job_that_the_host_removes_has_expired_whatever_the_clock_of_the_api_server_says() {
        let mut state = HistoryState { at_once: BATCH, ..HistoryState::default() };
        state.expiring.insert("a".to_owned());
        ["a", "b"].into_iter().for_each(|uid| state.seen(job(uid, 1, true)));
        let Some(Work::Rows(rows)) = state.next() else { panic!("two rows wait") };
        let why: Vec<_> = rows.iter().map(|job| job.row.gone_by).collect();
        assert_eq!(why, [Some(GoneBy::Expiry), Some(GoneBy::Deletion)]);
    }

    #[test]
    fn jobs_without_room_are_read_again_when_it_is_their_turn() {
        let mut state = HistoryState { bytes: ROOM, ..HistoryState::default() };
        state.seen(job("a", 1, false));
        assert!(matches!(state.next(), Some(Work::Read { name, .. }) if name == "job-a"));
        assert!(state.next().is_none());
    }

    #[test]
    fn a_job_that_goes_without_having_been_seen_to_be_deleted_is_closed() {
        let mut state = HistoryState { at_once: BATCH, ..HistoryState::default() };
        ["a", "b", "c"].into_iter().for_each(|uid| state.seen(job(uid, 1, false)));
        assert_eq!(rows(&mut state).len(), 3);
        state.rows.extend([("a".to_owned(), (1, true)), ("b".to_owned(), (1, false))]);
        state.gone("a");
        assert!(state.next().is_none(), "its row says so");
        state.gone("b");
        assert!(matches!(state.next(), Some(Work::Lost)), "nobody looks for it");
        assert!(state.next().is_none());
    }
}
