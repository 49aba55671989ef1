//! What the leader writes into the history: each OpsJob as it is stored, at most a second later.
//!
//! Takes OpsJobs as lists and watches show them; leaves rows. It only ever falls behind: a history that does not answer costs no round
//! its time, and a job that has ended stays in the cluster until its last state is in its row.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use oarlock_core::cluster::memory::text_len;
use oarlock_core::ops_job::gone::GoneBy;
use oarlock_core::ops_job::plan::RowState;
use oarlock_core::ops_job::row_meter::RowMeter;
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
/// The bytes of a row beside its spec and its status.
const OF_ROW: u64 = 4 * 1024;
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
    terms: AtomicU64,
    began: Instant,
    meter: Mutex<RowMeter>,
}

/// What is known of the jobs of this term.
#[derive(Default)]
struct Held {
    /// The number of the term, if this process leads.
    term: Option<u64>,
    /// The UIDs of all jobs that are there.
    alive: HashSet<String>,
    /// Jobs that wait, by UID.
    waiting: BTreeMap<String, JobSnapshot>,
    bytes: usize,
    /// The names of those that wait and have no room, by UID.
    unread: BTreeMap<String, String>,
    /// What each row has: the revision of the job, and whether it was deleted.
    rows: HashMap<String, (i64, bool)>,
    /// The bytes of each job that counts, by UID. `None` if the digest of its spec takes the place of the spec.
    counted: HashMap<String, Option<u64>>,
    /// How many are written at once: fewer after a failure, so that one that is refused stands alone in the end.
    at_once: usize,
    /// The UIDs of jobs that the host removes, since their time is over.
    expiring: HashSet<String>,
    /// Jobs may have gone that nobody saw go.
    may_have_lost: bool,
}

/// What is written next.
enum Work {
    Rows(Vec<JobSnapshot>),
    Read { uid: String, name: String },
    Lost,
}

/// About the memory of a job.
fn size(job: &JobSnapshot) -> usize {
    use oarlock_core::cluster::memory::memory_of;
    memory_of(&job.spec).saturating_add(memory_of(&job.status)).saturating_add(512)
}

impl Held {
    fn seen(&mut self, mut job: JobSnapshot) {
        self.alive.insert(job.row.uid.clone());
        // The clock of the API server may differ from the one by which its time was over.
        if job.row.gone_by.is_some() && self.expiring.contains(&job.row.uid) {
            job.row.gone_by = Some(GoneBy::Expiry);
        }
        self.wait(job);
    }

    /// Has a job written, unless what is written or waits says as much.
    fn wait(&mut self, job: JobSnapshot) {
        let uid = job.row.uid.clone();
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
        self.expiring.remove(uid);
        if !self.waiting.contains_key(uid) {
            self.counted.remove(uid);
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
    /// What writes this history.
    pub fn new(history: History, keeping: Keeping, defaults: Defaults) -> Self {
        Self(Arc::new(Parts {
            history,
            keeping,
            defaults,
            held: Mutex::default(),
            changed: Notify::new(),
            terms: AtomicU64::new(0),
            began: Instant::now(),
            meter: Mutex::new(RowMeter::of_bytes()),
        }))
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

    /// Hears that the host removes a job, since its time is over.
    pub(crate) fn expires(&self, uid: &str) {
        let mut held = self.0.held.lock();
        if held.alive.contains(uid) {
            held.expiring.insert(uid.to_owned());
        }
    }

    /// How many jobs wait for their rows.
    pub(crate) fn waiting(&self) -> usize {
        let held = self.0.held.lock();
        held.waiting.len().saturating_add(held.unread.len())
    }

    /// Begins a term: from now on, what is seen is written. It ends with what this yields.
    pub(crate) fn lead(&self, ops: Ops) -> Leading {
        let term = self.0.terms.fetch_add(1, Ordering::Relaxed);
        *self.0.held.lock() = Held { term: Some(term), at_once: BATCH, ..Held::default() };
        let this = self.clone();
        Leading { recorder: self.clone(), term, task: tokio::spawn(async move { this.run(&ops).await }) }
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
                let failed = self.write(work, ops).await.err();
                if let Some(error) = &failed {
                    tracing::warn!(error, "the history is not written; jobs that have ended wait for it");
                    sleep(AGAIN).await;
                } else if is_down {
                    tracing::info!("the history is written again");
                    self.begin_anew(ops).await;
                }
                is_down = failed.is_some();
            }
            sleep(PAUSE).await;
        }
    }

    /// What answers again may be a copy of an hour ago: all jobs are written once more.
    async fn begin_anew(&self, ops: &Ops) {
        self.0.held.lock().rows.clear();
        match ops.read_all().await {
            Ok(()) => self.has_seen_all(),
            Err(failed) => tracing::warn!(error = failed.message, "the jobs are not written once more"),
        }
    }

    async fn write(&self, work: Work, ops: &Ops) -> Result<(), String> {
        let Parts { history, keeping, .. } = &*self.0;
        match work {
            Work::Rows(jobs) => self.write_rows(jobs, ops).await,
            Work::Read { uid, name } => ops.read_again(&name).await.map_err(|failed| {
                self.0.held.lock().unread.insert(uid, name.clone());
                failed.message
            }),
            Work::Lost => {
                let listed = ops.cluster().clock().now();
                // A watch may have seen an API server that did not serve this kind for a moment.
                let stored = ops.stored_uids().await.map_err(|failed| failed.message);
                let closed = match stored {
                    Ok(mut uids) => {
                        uids.extend(self.0.held.lock().alive.iter().cloned());
                        let uids: Vec<&str> = uids.iter().map(String::as_str).collect();
                        history.close_lost(&uids, listed, keeping.redacts).await.map_err(|failed| failed.to_string())
                    }
                    Err(failed) => Err(failed),
                };
                closed.map(drop).inspect_err(|_| self.0.held.lock().may_have_lost = true)
            }
        }
    }

    /// True where the spec of a job has no place in the history any more: its key has used up its day.
    fn is_digested(&self, job: &JobSnapshot) -> bool {
        let Some(key) = &job.counts_for else { return false };
        let mut held = self.0.held.lock();
        let counted = held.counted.entry(job.row.uid.clone()).or_insert(Some(0));
        *counted = counted.and_then(|before| {
            // A status grows until its job has ended.
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
        let mut held = self.0.held.lock();
        match (&stored, jobs.as_slice()) {
            (Err(HistoryFailed::Refused(why)), [job]) => {
                let job = &job.row.job_id;
                tracing::error!(job, error = why, "the history takes no row of an OpsJob, which will be unknown");
            }
            (Err(failed), _) => {
                held.at_once = (jobs.len() / 2).max(1);
                jobs.into_iter().for_each(|job| held.wait(job));
                return Err(failed.to_string());
            }
            (Ok(()), _) => held.at_once = held.at_once.saturating_mul(2).clamp(1, BATCH),
        }
        for job in &jobs {
            if held.alive.contains(&job.row.uid) {
                held.rows.insert(job.row.uid.clone(), (job.revision, job.row.deleted.is_some()));
            } else {
                held.counted.remove(&job.row.uid);
            }
        }
        drop(held);
        // Some wait for that.
        let waits = |job: &&JobSnapshot| job.row.deleted.is_some() || job.has_ended();
        jobs.iter().filter(waits).for_each(|job| ops.cache().soil(&job.row.uid));
        Ok(())
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
        if self.0.held.lock().term.is_none() {
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
    term: u64,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Leading {
    fn drop(&mut self) {
        self.task.abort();
        let mut held = self.recorder.0.held.lock();
        // Another one may have begun.
        if held.term == Some(self.term) {
            *held = Held::default();
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

    /// What is written next: the revisions of rows, by UID.
    fn rows(held: &mut Held) -> Vec<(String, i64)> {
        match held.next() {
            Some(Work::Rows(rows)) => rows.into_iter().map(|job| (job.row.uid, job.revision)).collect(),
            _ => Vec::new(),
        }
    }

    #[test]
    fn what_is_older_than_what_waits_or_is_written_is_left_out() {
        let mut held = Held { at_once: BATCH, ..Held::default() };
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
    fn a_job_that_the_host_removes_has_expired_whatever_the_clock_of_the_api_server_says() {
        let mut held = Held { at_once: BATCH, ..Held::default() };
        held.expiring.insert("a".to_owned());
        ["a", "b"].into_iter().for_each(|uid| held.seen(job(uid, 1, true)));
        let Some(Work::Rows(rows)) = held.next() else { panic!("two rows wait") };
        let why: Vec<_> = rows.iter().map(|job| job.row.gone_by).collect();
        assert_eq!(why, [Some(GoneBy::Expiry), Some(GoneBy::Deletion)]);
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
        let mut held = Held { at_once: BATCH, ..Held::default() };
        ["a", "b", "c"].into_iter().for_each(|uid| held.seen(job(uid, 1, false)));
        assert_eq!(rows(&mut held).len(), 3);
        held.rows.extend([("a".to_owned(), (1, true)), ("b".to_owned(), (1, false))]);
        held.gone("a");
        assert!(held.next().is_none(), "its row says so");
        held.gone("b");
        assert!(matches!(held.next(), Some(Work::Lost)), "nobody looks for it");
        assert!(held.next().is_none());
    }
}
