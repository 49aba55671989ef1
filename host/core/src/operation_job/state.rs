//! A job as it is durably stored, read from an OperationJob and its records.
//!
//! The stored status is the truth, but another client may have written it. The host reads unknown words as absent and
//! recomputes counts.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::jiff::Timestamp;
use oarlock_api::{
    Condition, OperationJob, OperationJobStatus, OperationRecord, PluginBinding, Selection, TargetDetail, TargetError,
    TargetRef,
};
pub use oarlock_contract::extras;
use oarlock_contract::manifest::TargetKind;
use oarlock_contract::object_key::ObjectKey;

use crate::object::bound::shown_cause;
use crate::object::ranges;
use crate::object::time::{read_time, write_time};
use crate::operation_job::dry_run::began_as_dry_run;
use crate::operation_job::selected::{nameless, selected};
use crate::operation_job::spec::{MOST_TARGETS, asked_kind, frozen_kind};
use crate::operation_job::tasks::stored::StoredTask;

/// Most targets whose details the job's own status keeps, and the size of a record. A write of a status with 1,000
/// details costs the API server 303 ms; a status with 250 details costs 62 ms.
pub const SHARD: usize = 250;

/// Progress of a job or a target, ordered by how advanced it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Progress {
    /// The job or target has not started.
    #[default]
    Pending,
    /// The job or target has started and has not ended.
    Processing,
    /// The job or target has succeeded.
    Succeeded,
    /// The job or target has failed.
    Failed,
}

impl Progress {
    /// Returns true once the job or target has ended.
    pub fn terminal(self) -> bool {
        self >= Self::Succeeded
    }

    /// Returns the word of the API.
    pub fn word(self) -> &'static str {
        match self {
            Self::Pending => "Pending",
            Self::Processing => "Processing",
            Self::Succeeded => "Succeeded",
            Self::Failed => "Failed",
        }
    }

    fn read(word: Option<&str>) -> Self {
        match word {
            Some("Processing") => Self::Processing,
            Some("Succeeded") => Self::Succeeded,
            Some("Failed") => Self::Failed,
            _ => Self::Pending,
        }
    }
}

/// One target, as it is durably stored or will be stored.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct TargetState {
    /// Progress of the target.
    pub progress: Progress,
    /// UID of the selected object.
    pub uid: Option<String>,
    /// Time at which the target started.
    pub start: Option<Timestamp>,
    /// Time at which the target ended.
    pub end: Option<Timestamp>,
    /// Number of the attempt, from 1.
    pub attempt: u32,
    /// Earliest time of the next attempt, if the attempt has failed.
    pub next_attempt: Option<Timestamp>,
    /// Extras of the plugin and of the host.
    pub extra: BTreeMap<String, String>,
    /// The reason why the target failed or waits.
    pub error: Option<TargetError>,
    /// True if the job is a dry run, which never changes the target. Not stored with the target.
    pub dry_run: bool,
}

impl TargetState {
    /// Returns true if the target has started. An ended target counts as started, whatever ended it.
    pub fn started(&self) -> bool {
        self.progress != Progress::Pending
    }

    /// Returns true if the target's release is durable.
    pub fn released(&self) -> bool {
        self.extra.get(extras::RELEASED).is_some_and(|value| value == "true")
    }

    /// Returns true if an attempt has failed and the next attempt has not begun.
    pub fn between_attempts(&self) -> bool {
        self.progress == Progress::Processing && self.next_attempt.is_some()
    }

    /// Returns true if the target's attempt is over.
    pub fn attempt_over(&self) -> bool {
        self.progress.terminal() || self.between_attempts()
    }

    /// Returns true if the target or its attempt failed after the host may have changed the object, and the release is
    /// not durable. The host never changed a target without a UID, nor a target of a dry run.
    pub fn owes_release(&self) -> bool {
        let failed = self.progress == Progress::Failed || self.between_attempts();
        failed && self.uid.is_some() && !self.released() && !self.dry_run
    }

    /// Returns the reason why the target waits: a word, and a sentence.
    pub fn waits_for(&self) -> Option<(String, String)> {
        waits_of(&self.extra)
    }

    /// Returns the value of the extra `key`.
    pub fn extra(&self, key: &str) -> Option<&str> {
        self.extra.get(key).map(String::as_str)
    }

    fn read(detail: &TargetDetail) -> Self {
        let progress = Progress::read(detail.progress.as_deref());
        Self {
            progress,
            uid: detail.uid.clone(),
            start: read_time(detail.start_time.as_deref()),
            end: read_time(detail.end_time.as_deref()),
            attempt: detail.attempt.and_then(|n| u32::try_from(n).ok()).unwrap_or(1).max(1),
            next_attempt: read_time(detail.next_attempt_time.as_deref()),
            extra: detail.extra_info.clone().unwrap_or_default(),
            error: detail.error.clone(),
            dry_run: false,
        }
    }

    /// Returns the detail in the form of the API.
    pub fn detail(&self, name: &str) -> TargetDetail {
        TargetDetail {
            name: name.to_owned(),
            progress: Some(self.progress.word().to_owned()),
            start_time: self.start.map(write_time),
            end_time: self.end.map(write_time),
            extra_info: (!self.extra.is_empty()).then(|| self.extra.clone()),
            error: self.error.clone(),
            uid: self.uid.clone(),
            attempt: (self.attempt > 1).then(|| i32::try_from(self.attempt).unwrap_or(i32::MAX)),
            next_attempt_time: self.next_attempt.map(write_time),
        }
    }
}

/// A job as it is durably stored.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct JobState {
    /// Time of the host's first write to the status.
    pub start: Option<Timestamp>,
    /// Time of the job's end.
    pub end: Option<Timestamp>,
    /// The plugin to which the job is bound.
    pub plugin: Option<PluginBinding>,
    /// The frozen list of targets.
    pub selection: Option<Selection>,
    /// The kind of the targets, frozen with the list. Before that, the kind that the spec asks for.
    pub kind: TargetKind,
    /// The epoch that the status stores.
    pub epoch: i64,
    /// Conditions of the job.
    pub conditions: Vec<Condition>,
    /// Names and containers of the targets, frozen. They come from the stored details if there are any, otherwise from
    /// the spec.
    pub names: Vec<TargetRef>,
    /// The targets, in the order of the spec.
    pub targets: Vec<TargetState>,
    /// Indexes of the targets whose record was lost and whose outcome is stored nowhere else.
    pub lost: BTreeSet<u32>,
    /// True if the job began as a dry run, or has not begun and asks for a dry run.
    pub dry_run: bool,
}

impl JobState {
    /// Reads the state from `job` and its `records`. A `startTime` that was lost between a record and the job's ranges
    /// becomes `now`. `known` is the memory of this term: it replaces missing records.
    pub fn read(job: &OperationJob, records: &[OperationRecord], now: Timestamp, known: Option<&Self>) -> Self {
        let status = job.status.clone().unwrap_or_default();
        let listed = job.spec.as_ref().and_then(|spec| spec.targets.clone()).unwrap_or_default();
        let details = details(&status, records);
        let selected = selected(job, &details, known);
        let names = frozen(&listed, &details, known, selected);
        let missing = missing(&status, &details, names.len(), selected.is_some());
        let mut targets = vec![TargetState::default(); names.len()];
        for (index, detail) in details {
            if let Some(target) = targets.get_mut(index) {
                *target = TargetState::read(&detail);
            }
        }
        for index in &missing {
            let remembered = known.and_then(|known| known.targets.get(*index));
            if let Some((slot, target)) = targets.get_mut(*index).zip(remembered) {
                slot.clone_from(target);
            }
        }
        advance(&mut targets, &status, now);
        name_objects(&mut targets, &names);
        let lost = match (selected, known) {
            (Some(_), _) => nameless(&missing, &names, &targets),
            (None, Some(_)) => BTreeSet::new(),
            (None, None) => lost(&missing, &status, &targets),
        };
        for index in &lost {
            if let Some(target) = targets.get_mut(*index as usize) {
                target.progress = Progress::Processing;
                target.start = target.start.or(Some(now));
            }
        }
        // Without a start time the target would have no deadline.
        for (index, target) in targets.iter_mut().enumerate() {
            if target.progress == Progress::Processing {
                let remembered = known.and_then(|known| known.targets.get(index)?.start);
                target.start = target.start.or(remembered).or(Some(now));
            }
        }
        let remembered = known.filter(|known| known.targets.iter().any(TargetState::started));
        let dry_run = remembered.map_or_else(|| began_as_dry_run(job, &targets), |known| known.dry_run);
        targets.iter_mut().for_each(|target| target.dry_run = dry_run);
        let mut state = Self { names, targets, lost, dry_run, ..Self::default() };
        state.take_job(&status);
        state.kind = state.selection.as_ref().map_or_else(|| asked_kind(job.spec.as_ref()), frozen_kind);
        if selected.is_some() {
            // A list that this term froze stays frozen, even if another client clears the status.
            state.selection = state.selection.or_else(|| known?.selection.clone());
        }
        state
    }

    /// Copies the fields of the job itself from a status.
    pub fn take_job(&mut self, status: &OperationJobStatus) {
        self.start = read_time(status.start_time.as_deref());
        self.end = read_time(status.end_time.as_deref());
        self.plugin.clone_from(&status.plugin);
        self.selection.clone_from(&status.selection);
        self.epoch = status.epoch.unwrap_or(0);
        self.conditions = status.conditions.clone().unwrap_or_default();
    }

    /// Returns the name of a target.
    pub fn name(&self, index: u32) -> &str {
        self.names.get(index as usize).and_then(|target| target.name.as_deref()).unwrap_or_default()
    }

    /// Returns the object key of a target, for a job in `namespace`.
    pub fn object(&self, namespace: &str, index: u32) -> ObjectKey {
        self.kind.object(namespace, self.name(index))
    }

    /// Returns the state of one target.
    pub fn target(&self, index: u32) -> Option<&TargetState> {
        self.targets.get(index as usize)
    }

    /// Returns true if records hold the details of the targets.
    pub fn uses_records(&self) -> bool {
        self.names.len() > SHARD
    }
}

/// Returns the stored details by index. A target that was cut from the spec later keeps its detail.
fn details(status: &OperationJobStatus, records: &[OperationRecord]) -> BTreeMap<usize, TargetDetail> {
    let inline = status.target_details.iter().flatten().cloned().enumerate();
    let uses_records = records.iter().flat_map(|record| {
        // The record's name and label have its number too, so `firstIndex` is only for readers.
        let first = usize::try_from(record.record.shard).unwrap_or(usize::MAX).saturating_mul(SHARD);
        let targets = record.record.targets.iter().take(SHARD).enumerate();
        targets.map(move |(offset, detail)| (first.saturating_add(offset), detail.clone()))
    });
    inline.chain(uses_records).filter(|(index, _)| *index < MOST_TARGETS).collect()
}

/// Returns the frozen list. A target keeps the name under which it was recorded. `selected` is the number of targets
/// that a selector found.
fn frozen(
    listed: &[TargetRef],
    details: &BTreeMap<usize, TargetDetail>,
    known: Option<&JobState>,
    selected: Option<usize>,
) -> Vec<TargetRef> {
    let remembered = known.map_or(&[][..], |known| &known.names);
    let recorded = details.keys().next_back().map_or(0, |last| last.saturating_add(1));
    let started = known.map_or(0, |known| known.targets.iter().rposition(TargetState::started).map_or(0, |at| at + 1));
    let name = |index: usize| -> TargetRef {
        let stored = details.get(&index).map(|detail| detail.name.clone()).filter(|name| !name.is_empty());
        let listed = listed.get(index).or_else(|| remembered.get(index)).cloned().unwrap_or_default();
        match stored {
            Some(name) if listed.name.as_deref() != Some(&name) => {
                TargetRef { name: Some(name), ..TargetRef::default() }
            }
            _ => listed,
        }
    };
    (0..selected.unwrap_or_else(|| recorded.max(listed.len()).max(started))).map(name).collect()
}

/// Returns the targets without a detail, if the status counts records or a selector found the targets. Their record is
/// missing, or their line in it is empty. A target that a selector found has at least a UID before it starts.
fn missing(
    status: &OperationJobStatus,
    details: &BTreeMap<usize, TargetDetail>,
    count: usize,
    selected: bool,
) -> Vec<usize> {
    if status.records.is_none() && !selected {
        return Vec::new();
    }
    let unnamed = |detail: &TargetDetail| {
        let waits = Progress::read(detail.progress.as_deref()) == Progress::Pending;
        detail.name.is_empty() || selected && waits && detail.uid.is_none()
    };
    (0..count).filter(|index| details.get(index).is_none_or(unnamed)).collect()
}

/// Gives each target that has not started the UID that the spec names, whatever the status says. From the start on, the
/// stored UID counts.
fn name_objects(targets: &mut [TargetState], names: &[TargetRef]) {
    for (target, named) in targets.iter_mut().zip(names).filter(|(target, _)| !target.started()) {
        target.uid = named.uid.clone().or_else(|| target.uid.take());
    }
}

/// Returns the missing targets that may have started. These are the targets that the ranges show in flight. If the
/// status cut the ranges of ended targets and more targets look pending than the status counts, these are also all
/// targets of unknown progress. A record that the host never wrote, because none of its targets has started, is missing
/// too.
fn lost(missing: &[usize], status: &OperationJobStatus, targets: &[TargetState]) -> BTreeSet<u32> {
    let counted = usize::try_from(status.pending_pod_count.unwrap_or(0)).unwrap_or(0);
    let look_pending = || targets.iter().filter(|target| target.progress == Progress::Pending).count();
    let cut = status.ranges_truncated == Some(true) && look_pending() > counted;
    let may_have_started = |index: &&usize| {
        targets.get(**index).is_some_and(|target| match target.progress {
            Progress::Processing => true,
            Progress::Pending => cut,
            Progress::Succeeded | Progress::Failed => false,
        })
    };
    missing.iter().filter(may_have_started).filter_map(|index| u32::try_from(*index).ok()).collect()
}

/// Raises each target to the progress of its record or of the job's ranges, whichever is more advanced.
fn advance(targets: &mut [TargetState], status: &OperationJobStatus, now: Timestamp) {
    let Some(stored) = &status.ranges else { return };
    let count = u32::try_from(targets.len()).unwrap_or(u32::MAX);
    let words = [
        (Progress::Processing, &stored.processing),
        (Progress::Succeeded, &stored.succeeded),
        (Progress::Failed, &stored.failed),
    ];
    for (progress, text) in words {
        for index in ranges::parse(text, count) {
            let Some(target) = targets.get_mut(index as usize) else { continue };
            if target.progress < progress && !target.progress.terminal() {
                target.progress = progress;
                target.start = target.start.or(Some(now));
                target.attempt = target.attempt.max(1);
            }
        }
    }
}

/// Returns `state` with its end.
pub fn ended(state: &TargetState, progress: Progress, now: Timestamp, error: Option<TargetError>) -> TargetState {
    let mut next = state.clone();
    next.start = next.start.or(Some(now));
    next.end = Some(now);
    next.progress = progress;
    next.attempt = next.attempt.max(1);
    next.next_attempt = None;
    next.error = error.map(|error| TargetError { message: shown_cause(&error.message, 256), ..error });
    next
}

/// Returns `state` after a failed attempt, in the wait for the next attempt.
pub fn waiting_for_attempt(state: &TargetState, until: Timestamp, error: TargetError) -> TargetState {
    let error = TargetError { message: shown_cause(&error.message, 256), ..error };
    TargetState { next_attempt: Some(until), error: Some(error), attempt: state.attempt.max(1), ..state.clone() }
}

/// Returns `state` at the start of its next attempt. Only the host's notes about the target and its tasks stay. The
/// next attempt finds the tasks again and does not repeat them.
pub fn next_attempt(state: &TargetState) -> TargetState {
    let mut next = TargetState { next_attempt: None, error: None, ..state.clone() };
    next.attempt = next.attempt.saturating_add(1);
    next.extra.retain(|key, _| {
        [extras::OWNER, extras::NODE, extras::EVICTED_AT].contains(&key.as_str()) || key.starts_with(extras::TASK)
    });
    next
}

/// Returns the reason why a target in flight waits, from its stored extras, with the start of the wait. The plugin's
/// reason comes first, then that of a task.
pub fn waits_of(extra: &BTreeMap<String, String>) -> Option<(String, String)> {
    let of_plugin = || {
        let (word, sentence) = extra.get(extras::WAITS_FOR)?.split_once(": ")?;
        let is_word = word.len() <= 32 && !word.is_empty() && word.chars().all(|c| c.is_ascii_alphanumeric());
        let since = extra.get(extras::WAITS_SINCE).map_or_else(String::new, |since| format!(", since {since}"));
        is_word.then(|| (word.to_owned(), format!("{sentence}{since}")))
    };
    let of_task = || {
        let waits = |task: &StoredTask| !task.state.terminal() && !task.waits.is_empty();
        let (name, task) = StoredTask::all(extra).find(|(_, task)| waits(task))?;
        let since = if task.since.is_empty() { String::new() } else { format!("since {}: ", task.since) };
        Some(("Task".to_owned(), format!("task {name} waits {since}{}", task.waits)))
    };
    of_plugin().or_else(of_task)
}

/// Returns the indexes of the targets for which `which` holds.
pub fn indexes(targets: &[TargetState], which: impl Fn(&TargetState) -> bool) -> BTreeSet<u32> {
    (0..).zip(targets).filter(|(_, target)| which(target)).map(|(index, _)| index).collect()
}

#[cfg(test)]
#[path = "state_tests.rs"]
mod tests;
