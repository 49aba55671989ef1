//! Collects the logs of pods for OpsJobs: the task `collect-logs` of each target, and one file of what these have collected.
//!
//! Takes tasks and jobs; tells the rounds what becomes of them. What was collected is a part of its own for each run of a container, and
//! stays as it is: a host that is killed goes on with the parts that are missing. May not hold a log in memory. Source: docs/opsjob.md 11.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Weak};

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use oarlock_artefacts::line_time::{LENGTH, LineTime};
use oarlock_artefacts::part::{LogRoom, OwnerLogs, PartFailed, PartOf, write_part};
use oarlock_artefacts::{Artefacts, ArtefactsFailed, FileOwner};
use oarlock_core::cluster::scripts::sha256;
use oarlock_core::ops_job::outcomes::StoredFile;
use oarlock_core::shared::quota_key::QuotaKey;
use oarlock_kube::Cluster;
use oarlock_kube::host_tasks::{HostTask, HostTaskState};
use oarlock_kube::logs::{ContainerRun, LogFailed};
use parking_lot::Mutex;
use serde_json::json;
use tokio::task::AbortHandle;
use tokio::time::{Duration, sleep};

use crate::places::WorkPlaces;

/// The part of all concurrent log reads that one owner gets at most: one of so many. So kubelets that do not answer delay only their own
/// owner.
const OF_OWNER: usize = 3;
/// The message of a pod that waits for its turn.
const TURN: &str = "for its turn: few logs are read at once, and of one owner a third of them";
/// Files that are put together at once, each of another owner: the next one waits.
const FILES_AT_ONCE: usize = 2;
/// Most bytes that are collected for one job, times and labels among them.
const MOST_BYTES: u64 = 10 * 1024 * 1024 * 1024;
/// How often a pod is tried whose logs cannot be read, and the wait before the second time, which doubles.
const TRIES: u32 = 4;
const FIRST_WAIT: Duration = Duration::from_secs(1);
/// The time after which a volume without room is looked at again.
const ROOM_AGAIN: Duration = Duration::from_secs(10);
/// How often a pod is looked at again whose containers were restarted meanwhile.
const LOOKS: u32 = 10;
/// A log whose first line came so long after its container began has had other lines before, or its container said nothing.
const LATE: SignedDuration = SignedDuration::from_secs(60);
/// Most names in the output of a task.
const NAMED: usize = 4;

/// Collects logs. Clones share what goes on.
#[derive(Clone)]
pub(crate) struct Logs {
    cluster: Cluster,
    artefacts: Artefacts,
    places: WorkPlaces,
    making: WorkPlaces,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    /// The tasks that go on, by name.
    tasks: HashMap<String, AbortHandle>,
    /// What is left for each job, by the UID of its OperationJob.
    rooms: HashMap<String, Arc<LogRoom>>,
    /// The room that is left for all jobs of an owner, as long as there are some.
    owners: HashMap<QuotaKey, Weak<OwnerLogs>>,
    /// The OperationJobs for which a host before has collected something.
    before: HashSet<String>,
    /// The files that are put together, by the UID of the OperationJob.
    files: HashMap<String, Making>,
}

/// A file that is put together.
enum Making {
    Underway(AbortHandle, String),
    Over(Result<StoredFile, FileFailed>),
}

/// Why a file was not made.
#[derive(Clone, Debug)]
pub(crate) enum FileFailed {
    /// It may be, later.
    ForNow(String),
    /// The volume, or the share of its owner, has no room for it: what was collected would keep that of others.
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

/// The file that a job is to have.
pub(crate) struct LogFileOf<'a> {
    /// The UID of its OperationJob.
    pub(crate) child: &'a str,
    /// The owner whose slots it takes.
    pub(crate) owner: QuotaKey,
    /// Its name.
    pub(crate) job: &'a str,
    /// The name of the file.
    pub(crate) file: &'a str,
}

/// How far the file of a job is made.
pub(crate) enum MadeFile {
    Underway(String),
    Over(Result<StoredFile, FileFailed>),
}

/// Why the logs of a pod were not collected.
enum CollectFailed {
    /// They will not be.
    ForGood(String),
    /// They may be, later.
    ForNow(String),
    /// In place of one of them came something else. The others may be read, and this one later.
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
        let places = WorkPlaces::new(artefacts.streams(), artefacts.streams().div_ceil(OF_OWNER));
        let making = WorkPlaces::new(FILES_AT_ONCE, 1);
        Self { cluster, artefacts, places, making, state: Arc::default() }
    }

    async fn run(&self, task: HostTask) {
        let state = self.collect_in_turn(&task).await;
        if let HostTaskState::Failed(why) = &state {
            let (namespace, pod, _) = &task.target;
            tracing::warn!(namespace, pod, why, "failed to collect the logs of a pod");
        }
        self.cluster.show_task(&task.name, state);
    }

    async fn collect_in_turn(&self, task: &HostTask) -> HostTaskState {
        let mut wait = FIRST_WAIT;
        for left in (0..TRIES).rev() {
            self.volume_has_room(task).await;
            // Held while it is read alone: another log may be read while this one is waited for.
            let tell = |state| self.cluster.show_task(&task.name, state);
            let place = self.places.take_or_tell(&task.owner, || tell(HostTaskState::Waiting(TURN.to_owned()))).await;
            tell(HostTaskState::Running("reading the logs".to_owned()));
            let collected = self.collect(task).await;
            drop(place);
            match collected {
                Ok(output) => return HostTaskState::Done(output),
                Err(CollectFailed::ForNow(why) | CollectFailed::NoLog(why)) if left > 0 => {
                    let words = format!("tried again after {} s: {why}", wait.as_secs());
                    tell(HostTaskState::Waiting(words));
                    sleep(wait).await;
                    wait = wait.saturating_mul(2);
                }
                Err(CollectFailed::ForNow(why) | CollectFailed::NoLog(why) | CollectFailed::ForGood(why)) => {
                    return HostTaskState::Failed(why);
                }
            }
        }
        HostTaskState::Failed("it was tried too often".to_owned())
    }

    /// Collects the logs of all runs that the API shows, until none is there that was not collected.
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
        let (namespace, pod, uid) = &task.target;
        match self.cluster.container_runs((namespace, pod, uid)).await {
            Ok(Some(runs)) => Ok(runs),
            Ok(None) => Err(CollectFailed::ForGood(format!("pod {pod} is gone"))),
            Err(failed) => Err(CollectFailed::ForNow(failed.message)),
        }
    }

    /// Collects the log of a run, if that was not done. False where it was another run that was read.
    async fn collect_run(&self, task: &HostTask, run: &ContainerRun, room: &LogRoom) -> Result<bool, CollectFailed> {
        let (namespace, pod, _) = &task.target;
        let name = part_name(run);
        let part = (task.job_uid.as_str(), pod.as_str(), name.as_str());
        if self.artefacts.find_part(part, 0).await?.is_some() {
            return Ok(true);
        }
        let log = match self.cluster.open_log((namespace, pod), run).await {
            Ok(log) => log,
            // It has no log, or it was restarted meanwhile, which the next look shows.
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

    /// The output of a task: the containers of whose log older lines are likely.
    async fn said_of(&self, task: &HostTask, runs: &[ContainerRun], room: &LogRoom) -> Result<String, CollectFailed> {
        let (_, pod, _) = &task.target;
        let (mut bytes, mut rotated) = (0_u64, Vec::new());
        for run in runs {
            let name = part_name(run);
            let found = self.artefacts.find_part((&task.job_uid, pod, &name), LENGTH as u64).await?;
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

    /// Returns the room that is left for a job, within the room of its owner. Parts that a host before has collected count too.
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
                    return Err(CollectFailed::ForGood(of_owner.words(&owner.to_string())));
                }
                state.rooms.insert(job.to_owned(), room.clone());
                room
            }
        };
        Ok(room)
    }

    /// Waits until the volume has room for a file, and says so meanwhile.
    async fn volume_has_room(&self, task: &HostTask) {
        while let Some(why) = self.artefacts.scarce().await {
            self.cluster.show_task(&task.name, HostTaskState::Waiting(why));
            sleep(ROOM_AGAIN).await;
        }
    }

    /// Puts the file of a job together, once, in the background. `tell` is called when that is over.
    pub(crate) fn file(&self, of: &LogFileOf<'_>, now: Timestamp, tell: impl FnOnce() + Send + 'static) -> MadeFile {
        let mut state = self.state.lock();
        let made = match state.files.get(of.child) {
            Some(Making::Underway(_, how)) => return MadeFile::Underway(how.clone()),
            Some(Making::Over(made)) => Some(made.clone()),
            None => None,
        };
        if let Some(made) = made {
            // One that failed is made anew by whoever asks next.
            if made.is_err() {
                state.files.remove(of.child);
            }
            return MadeFile::Over(made);
        }
        let (logs, child) = (self.clone(), of.child.to_owned());
        let (job, file, owner) = (of.job.to_owned(), of.file.to_owned(), of.owner.clone());
        let making = tokio::spawn(async move {
            let _place = logs.making.take(&owner).await;
            let made = match logs.make_file(&child, (&job, &file), &owner, now).await {
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

    /// Notes whose a file is. Without that it would count for nobody.
    async fn note_owner(&self, owner: &QuotaKey, job: &str, made: StoredFile) -> Result<StoredFile, FileFailed> {
        let noted = self.artefacts.note_owner(&digest_of(owner), job, made.size).await;
        noted.map(|()| made).map_err(|failed| FileFailed::ForNow(failed.to_string()))
    }

    /// Puts the parts of a job together into its file, unless its owner has no room for one more. A job whose pods were all refused comes
    /// here too, and leaves no empty file.
    async fn make_file(
        &self,
        child: &str,
        (job, file): (&str, &str),
        owner: &QuotaKey,
        now: Timestamp,
    ) -> Result<StoredFile, ArtefactsFailed> {
        self.artefacts.has_room(FileOwner { digest: &digest_of(owner), name: &owner.to_string() }).await?;
        let upload = self.artefacts.write((job, file), now).await?;
        let told = |bytes: u64| {
            if let Some(Making::Underway(_, how)) = self.state.lock().files.get_mut(child) {
                *how = format!("putting the logs together: {} MiB", bytes / (1024 * 1024));
            }
        };
        let merged = self.artefacts.merge_parts(child, upload, told).await?;
        Ok(StoredFile { reference: Artefacts::reference(job, file), size: merged.bytes, lines: merged.lines })
    }

    /// The OperationJob of this UID is gone, and what was collected for it goes too.
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

    /// Removes what was collected for jobs that are gone.
    pub(crate) async fn sweep(&self) {
        let found = self.artefacts.jobs_with_parts().await.unwrap_or_default();
        // Noted before the jobs are listed, which also comes later than the parts: none that has just begun is missing, and of none
        // that goes meanwhile anything stays.
        self.state.lock().before.extend(found.iter().cloned());
        let Ok(jobs) = self.cluster.list_jobs().await else { return };
        for uid in found.into_iter().filter(|uid| !jobs.iter().any(|job| job.uid == *uid)) {
            self.job_is_gone(&uid);
        }
    }

    /// Ends the files that are being put together: the term is over.
    pub(crate) fn end_files(&self) {
        for (_, making) in self.state.lock().files.drain() {
            if let Making::Underway(making, _) = making {
                making.abort();
            }
        }
    }
}

/// By what the notes of an owner are found: a name may be longer than a file's.
pub(crate) fn digest_of(owner: &QuotaKey) -> String {
    sha256(&owner.text())
}

/// The name of a part: it sorts by container, and of one by run.
fn part_name(run: &ContainerRun) -> String {
    format!("{:03}-{}-{:010}", run.place, run.container, run.number)
}
