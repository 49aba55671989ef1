//! Collects the logs of pods for OpsJobs: the task `collect-logs` of each target, and one merged file for each job.
//!
//! The host stores one part for each run of a container, and never changes it. So a restarted host only collects the
//! missing parts. The host reports the state of each task to the rounds. The host never holds a whole log in memory.
//! Source: docs/opsjob.md 11.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Weak};

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use oarlock_artefacts::line_time::{LENGTH, LineTime};
use oarlock_artefacts::part::{LogRoom, OwnerLogs, PartFailed, PartOf, write_part};
use oarlock_artefacts::{Artefacts, ArtefactsFailed, FileName, FileOwner, PartName};
use oarlock_core::object::quota_key::QuotaKey;
use oarlock_core::ops_job::outcomes::StoredFile;
use oarlock_core::requests::backoff::Backoff;
use oarlock_core::requests::scripts::sha256;
use oarlock_kube::Cluster;
use oarlock_kube::read::logs::{ContainerRun, LogFailed};
use oarlock_kube::read::target_pod::TargetPod;
use oarlock_kube::tasks::runner::{HostTask, HostTaskState};
use parking_lot::Mutex;
use serde_json::json;
use tokio::task::AbortHandle;
use tokio::time::{Duration, sleep};

use crate::concurrency_limit::ConcurrencyLimit;

/// The divisor for the share of one owner: one namespace gets at most a third of the concurrent log reads. So a dead
/// kubelet delays only its own namespace.
const OF_OWNER: usize = 3;
/// The message of a pod that waits for a slot.
const TURN: &str = "for a free slot: the host reads few logs at once, at most a third of them of one owner";
/// The number of files that are merged at once, each for another owner.
const FILES_AT_ONCE: usize = 2;
/// The largest number of bytes that are collected for one job, including timestamps and labels.
const MOST_BYTES: u64 = 10 * 1024 * 1024 * 1024;
/// The number of attempts to read the logs of a pod, and the wait before the second attempt, which doubles.
const TRIES: u32 = 5;
const RETRIES: Backoff = Backoff::from_secs(1, 60);
/// The wait before the free space of a full volume is checked again.
const ROOM_AGAIN: Duration = Duration::from_secs(10);
/// The number of times that a pod is read again because its containers restarted meanwhile.
const LOOKS: u32 = 10;
/// The delay of a log's first line after its container started that suggests rotated lines. The container may also have
/// been silent.
const LATE: SignedDuration = SignedDuration::from_secs(60);
/// The largest number of names in the output of a task.
const NAMED: usize = 4;

/// The collector of logs. Clones share the running tasks.
#[derive(Clone)]
pub(crate) struct Logs {
    cluster: Cluster,
    artefacts: Artefacts,
    places: ConcurrencyLimit,
    making: ConcurrencyLimit,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    /// The running tasks, by name.
    tasks: HashMap<String, AbortHandle>,
    /// The room left for each job, by the UID of its OperationJob.
    rooms: HashMap<String, Arc<LogRoom>>,
    /// The room left for all jobs of an owner, while the owner has jobs.
    owners: HashMap<QuotaKey, Weak<OwnerLogs>>,
    /// The OperationJobs for which an earlier host collected logs.
    before: HashSet<String>,
    /// The files in work or finished, by the UID of the OperationJob.
    files: HashMap<String, Making>,
}

/// The merge of a file.
enum Making {
    Underway(AbortHandle, String),
    Over(Result<StoredFile, FileFailed>),
}

/// The reason why a file was not made.
#[derive(Clone, Debug)]
pub(crate) enum FileFailed {
    /// A later attempt may succeed.
    ForNow(String),
    /// The volume or the owner's share has no room. Keeping the collected parts would take room from others.
    NoRoom(String),
}

impl From<ArtefactsFailed> for FileFailed {
    fn from(failed: ArtefactsFailed) -> Self {
        match failed.is_full() {
            true => Self::NoRoom(failed.to_string()),
            false => Self::ForNow(failed.to_string()),
        }
    }
}

/// The file to make for a job.
pub(crate) struct LogFileOf<'a> {
    /// The UID of the job's OperationJob.
    pub(crate) child: &'a str,
    /// The owner whose slots the merge takes.
    pub(crate) owner: QuotaKey,
    /// The name of the job.
    pub(crate) job: &'a str,
    /// The name of the file.
    pub(crate) file: &'a str,
}

/// The progress of a job's file.
pub(crate) enum MadeFile {
    Underway(String),
    Over(Result<StoredFile, FileFailed>),
}

/// The reason why the logs of a pod were not collected.
enum CollectFailed {
    /// A retry cannot succeed.
    ForGood(String),
    /// A retry may succeed.
    ForNow(String),
    /// An answer was no log. Other logs may be readable now, and this one later.
    NoLog(String),
}

impl From<ArtefactsFailed> for CollectFailed {
    fn from(failed: ArtefactsFailed) -> Self {
        if failed.is_full() {
            return Self::ForGood(failed.to_string());
        }
        Self::ForNow(format!("what was read cannot be stored: {failed}"))
    }
}

impl Logs {
    pub(crate) fn begin(&self, task: HostTask) {
        let (logs, name) = (self.clone(), task.name.clone());
        let going = tokio::spawn(async move { logs.run(task).await });
        if let Some(before) = self.state.lock().tasks.insert(name, going.abort_handle()) {
            before.abort();
        }
    }

    pub(crate) fn end(&self, name: &str) {
        if let Some(task) = self.state.lock().tasks.remove(name) {
            task.abort();
        }
    }
}

impl Logs {
    pub(crate) fn new(cluster: Cluster, artefacts: Artefacts) -> Self {
        let places = ConcurrencyLimit::new(artefacts.streams(), artefacts.streams().div_ceil(OF_OWNER));
        let making = ConcurrencyLimit::new(FILES_AT_ONCE, 1);
        Self { cluster, artefacts, places, making, state: Arc::default() }
    }

    async fn run(&self, task: HostTask) {
        let state = self.collect_in_turn(&task).await;
        if let HostTaskState::Failed(why) = &state {
            let TargetPod { namespace, name: pod, .. } = &task.target;
            tracing::warn!(namespace, pod, why, "failed to collect the logs of a pod");
        }
        self.cluster.show_task(&task.name, state);
    }

    async fn collect_in_turn(&self, task: &HostTask) -> HostTaskState {
        for failures in 0..TRIES {
            self.volume_has_room(task).await;
            // The slot is held only while the log is read, not during a wait.
            let tell = |state| self.cluster.show_task(&task.name, state);
            let place = self.places.take_or_report(&task.owner, || tell(HostTaskState::Waiting(TURN.to_owned()))).await;
            tell(HostTaskState::Running("reading the logs".to_owned()));
            let collected = self.collect(task).await;
            drop(place);
            match collected {
                Ok(output) => return HostTaskState::Done(output),
                Err(CollectFailed::ForNow(why) | CollectFailed::NoLog(why)) if failures.saturating_add(1) < TRIES => {
                    let wait = RETRIES.wait(failures);
                    let message = format!("tried again after {} s: {why}", wait.as_secs());
                    tell(HostTaskState::Waiting(message));
                    sleep(wait).await;
                }
                Err(CollectFailed::ForNow(why) | CollectFailed::NoLog(why) | CollectFailed::ForGood(why)) => {
                    return HostTaskState::Failed(why);
                }
            }
        }
        HostTaskState::Failed("it was tried too often".to_owned())
    }

    /// Collects the logs of all runs that the API shows, until each of them is collected.
    async fn collect(&self, task: &HostTask) -> Result<String, CollectFailed> {
        let room = self.room_of(&task.job_uid, &task.owner).await?;
        let mut runs = self.runs(task).await?;
        for _ in 0..LOOKS {
            let (mut is_whole, mut unread) = (true, None);
            for run in &runs {
                match self.collect_run(task, run, &room).await {
                    Err(CollectFailed::NoLog(why)) => unread = unread.or(Some(why)),
                    read => is_whole &= read?,
                }
            }
            if let Some(why) = unread {
                return Err(CollectFailed::NoLog(why));
            }
            let now = self.runs(task).await?;
            if is_whole && now == runs {
                return self.said_of(task, &runs, &room).await;
            }
            runs = now;
        }
        Err(CollectFailed::ForNow("its containers are restarted faster than their logs can be read".to_owned()))
    }

    async fn runs(&self, task: &HostTask) -> Result<Vec<ContainerRun>, CollectFailed> {
        match self.cluster.container_runs(&task.target).await {
            Ok(Some(runs)) => Ok(runs),
            Ok(None) => Err(CollectFailed::ForGood(format!("pod {} is gone", task.target.name))),
            Err(failed) => Err(CollectFailed::ForNow(failed.message)),
        }
    }

    /// Collects the log of a run, unless it is stored already. Returns false if the container restarted meanwhile, so
    /// that another run was read.
    async fn collect_run(&self, task: &HostTask, run: &ContainerRun, room: &LogRoom) -> Result<bool, CollectFailed> {
        let TargetPod { namespace, name: pod, .. } = &task.target;
        let name = part_name(run);
        let part = PartName { job: &task.job_uid, folder: pod, name: &name };
        if self.artefacts.find_part(part, 0).await?.is_some() {
            return Ok(true);
        }
        let log = match self.cluster.open_log(&task.target, run).await {
            Ok(log) => log,
            // The run has no log, or the container restarted meanwhile. The next check shows which.
            Err(LogFailed::NoSuchRun(_)) => return Ok(true),
            Err(LogFailed::Unavailable(why)) => return Err(CollectFailed::ForNow(why)),
        };
        let label = format!("{namespace}/{pod}/{}{}", run.container, if run.is_previous { " previous" } else { "" });
        let line_time = |time: Option<Timestamp>| time.map_or(LineTime::LEAST, LineTime::of);
        let until = task.until.parse().ok().map_or(LineTime::MOST, LineTime::end_of);
        let room = room.of_part();
        let of = PartOf { label: &label, began: line_time(run.began), until, room: &room };
        let mut upload = self.artefacts.write_part(part).await?;
        write_part(log, &of, &mut upload).await.map_err(|failed| match failed {
            PartFailed::Store(failed) => failed.into(),
            failed @ (PartFailed::NoLog(_) | PartFailed::BrokeOff(_)) => {
                let previous = if run.is_previous { "the run before of " } else { "" };
                CollectFailed::NoLog(format!("{previous}container {}: {failed}", run.container))
            }
            failed => CollectFailed::ForNow(failed.to_string()),
        })?;
        if !self.runs(task).await?.contains(run) {
            return Ok(false);
        }
        upload.finish().await?;
        room.keep();
        Ok(true)
    }

    /// Returns the output of a task. The output names the containers whose older lines are probably lost.
    async fn said_of(&self, task: &HostTask, runs: &[ContainerRun], room: &LogRoom) -> Result<String, CollectFailed> {
        let pod = &task.target.name;
        let (mut bytes, mut rotated) = (0_u64, Vec::new());
        for run in runs {
            let name = part_name(run);
            let part = PartName { job: &task.job_uid, folder: pod, name: &name };
            let found = self.artefacts.find_part(part, LENGTH as u64).await?;
            let Some((part, beginning)) = found else { continue };
            bytes = bytes.saturating_add(part.size);
            let first = LineTime::of_line(&beginning).and_then(|time| time.time());
            let is_late = first.zip(run.began).is_some_and(|(first, began)| first.duration_since(began) > LATE);
            if is_late && rotated.len() < NAMED && !rotated.contains(&run.container) {
                rotated.push(run.container.clone());
            }
        }
        Ok(json!({"bytes": bytes, "maybeRotated": rotated, "truncated": room.was_short()}).to_string())
    }

    /// Returns the room left for a job, within the room of its owner. The parts of an earlier host count too.
    async fn room_of(&self, job: &str, owner: &QuotaKey) -> Result<Arc<LogRoom>, CollectFailed> {
        if let Some(room) = self.state.lock().rooms.get(job) {
            return Ok(room.clone());
        }
        let stored: u64 = self.artefacts.parts(job).await?.iter().map(|part| part.size).sum();
        let of_owner = self.artefacts.room_of(&digest_of(owner)).await?;
        if let Some(why) = of_owner.refusal(&owner.to_string(), 0) {
            return Err(CollectFailed::ForGood(why));
        }
        let mut state = self.state.lock();
        state.owners.retain(|_, logs| logs.strong_count() > 0);
        let logs = state.owners.get(owner).and_then(Weak::upgrade).unwrap_or_default();
        state.owners.insert(owner.clone(), Arc::downgrade(&logs));
        let room = match state.rooms.get(job) {
            Some(room) => room.clone(),
            None => {
                let room = Arc::new(LogRoom::within(MOST_BYTES, stored, logs.clone()));
                logs.allow(of_owner.left_for_logs());
                if logs.is_used_up() {
                    return Err(CollectFailed::ForGood(of_owner.describe(&owner.to_string())));
                }
                state.rooms.insert(job.to_owned(), room.clone());
                room
            }
        };
        Ok(room)
    }

    /// Waits until the volume has room for a file, and reports the wait.
    async fn volume_has_room(&self, task: &HostTask) {
        while let Some(why) = self.artefacts.scarce().await {
            self.cluster.show_task(&task.name, HostTaskState::Waiting(why));
            sleep(ROOM_AGAIN).await;
        }
    }

    /// Merges the file of a job once, in the background. Calls `tell` at the end.
    pub(crate) fn file(&self, of: &LogFileOf<'_>, now: Timestamp, tell: impl FnOnce() + Send + 'static) -> MadeFile {
        let mut state = self.state.lock();
        let made = match state.files.get(of.child) {
            Some(Making::Underway(_, how)) => return MadeFile::Underway(how.clone()),
            Some(Making::Over(made)) => Some(made.clone()),
            None => None,
        };
        if let Some(made) = made {
            // The next call after a failure starts the merge again.
            if made.is_err() {
                state.files.remove(of.child);
            }
            return MadeFile::Over(made);
        }
        let (logs, child) = (self.clone(), of.child.to_owned());
        let (job, file, owner) = (of.job.to_owned(), of.file.to_owned(), of.owner.clone());
        let making = tokio::spawn(async move {
            let _place = logs.making.take(&owner).await;
            let named = FileName { job: &job, file: &file };
            let made = match logs.make_file(&child, named, &owner, now).await {
                Ok(made) => logs.note_owner(&owner, &job, made).await,
                Err(failed) => Err(failed.into()),
            };
            logs.state.lock().files.insert(child, Making::Over(made));
            tell();
        });
        let how = "putting the logs together".to_owned();
        state.files.insert(of.child.to_owned(), Making::Underway(making.abort_handle(), how.clone()));
        MadeFile::Underway(how)
    }

    /// Records the owner of a file. Without the record, the file would count for no owner.
    async fn note_owner(&self, owner: &QuotaKey, job: &str, made: StoredFile) -> Result<StoredFile, FileFailed> {
        let noted = self.artefacts.note_owner(&digest_of(owner), job, made.size).await;
        noted.map(|()| made).map_err(|failed| FileFailed::ForNow(failed.to_string()))
    }

    /// Merges the parts of a job into its file, unless the owner has no room for another one. A job whose pods were all
    /// refused has no parts, and leaves no empty file.
    async fn make_file(
        &self,
        child: &str,
        file: FileName<'_>,
        owner: &QuotaKey,
        now: Timestamp,
    ) -> Result<StoredFile, ArtefactsFailed> {
        self.artefacts.has_room(FileOwner { digest: &digest_of(owner), name: &owner.to_string() }).await?;
        let upload = self.artefacts.write(file, now).await?;
        let told = |bytes: u64| {
            if let Some(Making::Underway(_, how)) = self.state.lock().files.get_mut(child) {
                *how = format!("putting the logs together: {} MiB", bytes / (1024 * 1024));
            }
        };
        let merged = self.artefacts.merge_parts(child, upload, told).await?;
        Ok(StoredFile { reference: Artefacts::reference(file), size: merged.bytes, lines: merged.lines })
    }

    /// Removes the collected parts of a deleted OperationJob.
    pub(crate) fn job_is_gone(&self, job: &str) {
        let (was_read, file) = {
            let mut state = self.state.lock();
            let was_read = state.rooms.remove(job).is_some() | state.before.remove(job);
            (was_read, state.files.remove(job))
        };
        if let Some(Making::Underway(making, _)) = &file {
            making.abort();
        }
        if was_read || file.is_some() {
            self.drop_parts(job);
        }
    }

    fn drop_parts(&self, job: &str) {
        let (logs, job) = (self.clone(), job.to_owned());
        tokio::spawn(async move {
            if let Err(failed) = logs.artefacts.drop_parts(&job).await {
                tracing::warn!(error = %failed, job, "failed to remove collected logs; the next sweep tries again");
            }
        });
    }

    /// Removes the collected parts of deleted jobs.
    pub(crate) async fn sweep(&self) {
        let found = self.artefacts.jobs_with_parts().await.unwrap_or_default();
        // The order matters: first the parts, then this note, then the jobs. So a job that just began is not taken for
        // deleted, and a job that is deleted meanwhile leaves no parts.
        self.state.lock().before.extend(found.iter().cloned());
        let Ok(jobs) = self.cluster.list_jobs().await else { return };
        for uid in found.into_iter().filter(|uid| !jobs.iter().any(|job| job.uid == *uid)) {
            self.job_is_gone(&uid);
        }
    }

    /// Aborts the running merges at the end of the term.
    pub(crate) fn end_files(&self) {
        for (_, making) in self.state.lock().files.drain() {
            if let Making::Underway(making, _) = making {
                making.abort();
            }
        }
    }
}

/// Returns the digest that names an owner's records. An owner's name may be longer than a file name.
pub(crate) fn digest_of(owner: &QuotaKey) -> String {
    sha256(&owner.text())
}

/// Returns the name of a part. Parts sort by container, and then by run.
fn part_name(run: &ContainerRun) -> String {
    format!("{:03}-{}-{:010}", run.place, run.container, run.number)
}
