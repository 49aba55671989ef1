//! The memory that a term keeps of one target, and the due time that follows from it.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use oarlock_api::TargetError;

use crate::cache::store::Store;
use crate::object::api_object::{Kind, Object, ObjectKey};
use crate::object::key::JobKey;
use crate::object::task_pod::TASK;
use crate::object::time::{after, earliest};
use crate::operation_job::lifecycle::Awaited;
use crate::operation_job::round::change_row::{ChangeRow, RESTLESS};
use crate::operation_job::round::drain_memory::DrainMemory;
use crate::operation_job::state::{TargetState, extras};
use crate::operation_job::tasks::result::output_kind;
use crate::plugin::proposal::Proposal;
use crate::requests::live_reads::LiveRead;
use crate::requests::writes::{BatchResult, Stopped, Write};

/// Number of visits in a row without a foreign change after which waits grow.
const QUIET_VISITS: u32 = 3;
/// Shortest wait of a plugin that the host leaves unchanged.
const KEPT_AS_ASKED: SignedDuration = SignedDuration::from_secs(10);

/// The memory of one target.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct TargetMemory {
    /// Number of retryable failures of the current call in a row.
    pub call_tries: u32,
    /// Number of writes in a row that were refused or have an unknown outcome.
    pub write_tries: u32,
    /// Number of traps in a row.
    pub traps: u32,
    /// Number of failed tries to release the target.
    pub release_tries: u32,
    /// Number of evictions in a row that a disruption budget refused.
    pub blocked: u32,
    /// Earliest time of the next visit, by a backoff.
    pub retry_at: Option<Timestamp>,
    /// Earliest time of the next visit while the plugin is over budget. The target's end does not wait for it.
    pub over_budget_until: Option<Timestamp>,
    /// Time of the next visit that the plugin or the host asked for.
    pub check_at: Option<Timestamp>,
    /// The time of the last visit.
    pub visited_at: Option<Timestamp>,
    /// Number of visits in a row without a foreign change. Visits after a long wait that the plugin asked for do not
    /// count.
    pub quiet_visits: u32,
    /// True if the next visit follows a long wait that the plugin asked for.
    pub after_long_wait: bool,
    /// True if another client has changed something since the last visit, or the host found an object free for the
    /// target.
    pub changed_by_others: bool,
    /// Time to repeat a failed live read that the target needs.
    pub read_at: Option<Timestamp>,
    /// Time since which live reads of the target have failed.
    pub unread_since: Option<Timestamp>,
    /// Live reads that the last visit lacked.
    pub live_reads: BTreeSet<LiveRead>,
    /// The changes that were made for the target in a row.
    pub changes: ChangeRow,
    /// The host's own writes that the cache may not show yet.
    pub expects: Expectations,
    /// The evictions of the node's pods, if the target is a node that is drained.
    pub drain: Option<DrainMemory>,
    /// The pods of the target's tasks.
    pub tasks: TaskMemory,
    /// An end other than Succeeded that is not recorded yet.
    pub failure: Option<PendingFailure>,
    /// The reason why the target waits, and the number of rounds with a reason.
    pub trouble: Option<(TargetError, u32)>,
    /// True if the plugin refused `release` or is unavailable, so that the host releases without it.
    pub releases_without_plugin: bool,
    /// UID of the target's object, if a hold, task pods or task outputs are left although the target owes no release.
    pub unreleased_uid: Option<String>,
    /// The marks of this job that the target's object had when the host last saw it. They count even if the hold no
    /// longer lists them, because a client that may write the object may also remove the hold.
    pub marks: BTreeSet<String>,
    /// True if the writes that follow the target's end have no result yet.
    pub writes_its_end: bool,
    /// True if the plugin proposed a mutation for the target in this term.
    pub operated: bool,
    /// True if the target's record was lost before this term, so that its changes are unknown.
    pub record_lost: bool,
    /// Time from which on the target shows the wait for the lifecycle of its pod.
    pub lifecycle_at: Option<Timestamp>,
    /// The reason why the lifecycle of its pod has held the target back for long.
    pub lifecycle: Option<LifecycleWait>,
    /// True if the target stays pending until its object changes.
    pub waits_for_object: bool,
    /// The job that has the target's object, if the target waits for that job.
    pub waits_for_job: Option<JobKey>,
    /// The operation under way on the target's pod, in a sentence, if the target waits for it.
    pub busy: Option<String>,
    /// The requests that a dry run tries for the target.
    pub dry_run_trial: Option<DryRunTrial>,
}

/// The memory of the tasks of one target.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct TaskMemory {
    /// Names of the tasks whose pod was made in this term.
    pub(crate) begun: BTreeSet<String>,
    /// True if the API server refuses to store outputs.
    pub(crate) outputs_refused: bool,
}

impl TaskMemory {
    /// Takes the results of writes.
    pub(crate) fn take(&mut self, result: &BatchResult) {
        let made = result.entry.writes.iter().take(result.done);
        let task = |write: &Write| match write {
            Write::Create { object, body, .. } if object.kind == Kind::pod() => {
                let label = body.pointer("/metadata/labels")?.get(TASK)?;
                label.as_str().map(str::to_owned)
            }
            _ => None,
        };
        self.begun.extend(made.filter_map(task));
        let stopped = result.entry.writes.get(result.done);
        let keeps_output = stopped.is_some_and(|write| {
            matches!(write, Write::Create { object, body, .. }
                if object.kind == output_kind() && body.pointer("/metadata/labels").is_some_and(|labels| labels.get(TASK).is_some()))
        });
        self.outputs_refused |= keeps_output && matches!(result.stopped, Some(Stopped::Refused { .. }));
    }
}

/// The requests that a dry run tries for a target.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DryRunTrial {
    /// The requests and the changes that may follow them, in one line.
    pub plan: String,
    /// The outcome of the requests, once it is known.
    pub outcome: Option<Result<(), TargetError>>,
}

/// The reason why the lifecycle of its pod holds a target back.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LifecycleWait {
    /// The step that the target waits for.
    pub awaited: Awaited,
    /// The step that the target waits for, in words.
    pub message: String,
}

/// The times of a job that bound those of a target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TargetTimeBounds {
    /// The end of the target's delay, if the target was not operated yet.
    pub begin: Option<Timestamp>,
    /// The deadline of the target.
    pub deadline: Option<Timestamp>,
    /// True if a plugin serves, so that the target may be visited.
    pub visits: bool,
}

/// The host's own writes that the cache may not show yet, and facts about the target's object that the cache lacks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Expectations {
    /// True if this term recorded the start of the target.
    pub start_recorded_here: bool,
    /// True if the API server confirmed the cached view of the object in this term.
    pub confirmed: bool,
    /// True if an invalidation was accepted in this term, or the object is gone. No write of an earlier term can then take
    /// effect.
    pub invalidated: bool,
    /// The resourceVersion that a write of unknown outcome names. Once the object has another version, that write
    /// fails.
    pub unknown: Option<String>,
    /// Writes of unknown outcome that no invalidation stops, because they go to another object or name no version. Each has the
    /// time after which it is too late.
    pub waited_for: BTreeMap<UnknownWrite, Timestamp>,
    /// The object's resourceVersion when a write found the view out of date. The host decides nothing until the version
    /// has changed.
    pub stale: Option<String>,
    /// True if a write without a version found the view out of date or has an unknown outcome. The host decides nothing
    /// before a live read.
    pub view_is_uncertain: bool,
    /// True if an eviction or deletion was accepted, and the cache does not show it yet.
    pub leaving: bool,
    /// Time at which the host reads the object live, if the cache still does not show the host's own write.
    pub live_read_at: Option<Timestamp>,
    /// Time at which the target was asked to terminate, as a view of its object showed.
    pub asked_to_go: Option<Timestamp>,
    /// Time at which the host sent an accepted eviction or deletion, less a margin.
    pub departure_sent: Option<Timestamp>,
}

/// A write that may still take effect.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UnknownWrite {
    /// Key of the object that the write changes.
    pub object: ObjectKey,
    /// The UID that the write names; a creation names none.
    pub uid: Option<String>,
    /// The resourceVersion that the write names.
    pub version: Option<String>,
}

impl UnknownWrite {
    /// Returns true once the write must fail: its object is gone, is another object, or has another version than the
    /// write names.
    fn fails_from_now_on(&self, store: &Store) -> bool {
        let differs = |named: &Option<String>, seen: &String| named.as_ref().is_some_and(|named| named != seen);
        match store.get(&self.object) {
            Some(seen) => differs(&self.uid, &seen.uid) || differs(&self.version, &seen.resource_version),
            None => self.uid.is_some() && store.keeps(&self.object.kind),
        }
    }
}

/// An end other than Succeeded that waits for its final check.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PendingFailure {
    /// The error to record.
    pub error: TargetError,
    /// True if the job is being deleted, so that there is no final check.
    pub skip_final_check: bool,
    /// True if only the attempt has failed: another attempt may follow.
    pub of_attempt: bool,
    /// Time after which no earlier request can take effect any more. Set once an invalidation or its live read had no good
    /// answer.
    pub give_up_at: Option<Timestamp>,
    /// The mutations and events that were proposed with the failure. They follow its record.
    pub follows: Proposal,
    /// The extras of the target with those that were set with the failure, which may not be recorded yet.
    pub extra: Option<BTreeMap<String, String>>,
}

impl PendingFailure {
    /// Returns a failure that no mutation or event follows.
    pub fn new(error: TargetError) -> Self {
        Self {
            error,
            skip_final_check: false,
            of_attempt: false,
            give_up_at: None,
            follows: Proposal::default(),
            extra: None,
        }
    }

    /// Returns the state with which the target ends. The state keeps the extras that were set with the failure.
    pub fn ended(&self, mut state: TargetState) -> TargetState {
        if let Some(extra) = &self.extra {
            state.extra.retain(|key, _| extra.contains_key(key) || extras::is_host(key));
            let stored = extra.iter().filter(|(key, _)| !key.starts_with(extras::TASK));
            state.extra.extend(stored.map(|(key, value)| (key.clone(), value.clone())));
        }
        state
    }
}

impl TargetMemory {
    /// Returns the due time, from all reasons that apply: the deadline, the requested wait, the wait for the cache, and
    /// backoff.
    pub fn due(&self, bounds: TargetTimeBounds) -> Option<Timestamp> {
        if self.read_at.is_some() {
            // The read may be due later than all else, but the target cannot go on without it.
            return self.read_at;
        }
        if let Some(failure) = &self.failure {
            // The attempt is about to end, so the deadline no longer counts. The target waits only for a live read, a
            // result, a backoff, or a write that may still take effect.
            return earliest([self.retry_at, failure.give_up_at, self.expects.waited_for.values().max().copied()]);
        }
        let floor = bounds.begin.max(self.not_before());
        let wish = self.expects.live_read_at.or(self.check_at).max(floor);
        let shown = self.lifecycle_at.map(|time| self.not_before().map_or(time, |floor| floor.max(time)));
        earliest([wish, shown].map(|time| time.filter(|_| bounds.visits)).into_iter().chain([bounds.deadline]))
    }

    /// Returns the time before which the host does not visit the target, whatever changes: after a backoff, over
    /// budget, or after many changes in a row.
    pub fn not_before(&self) -> Option<Timestamp> {
        self.retry_at.max(self.over_budget_until).max(self.changes.backs_off_until(self.visited_at))
    }

    /// Records a visit.
    pub fn visited(&mut self, now: Timestamp) {
        let rested = std::mem::take(&mut self.after_long_wait);
        self.quiet_visits = match std::mem::take(&mut self.changed_by_others) {
            true => 0,
            false => self.quiet_visits.saturating_add((!rested).into()),
        };
        self.visited_at = Some(now);
        self.check_at = None;
        self.retry_at = None;
        self.expects.live_read_at = None;
    }

    /// Records the reason why the target waits. Returns true once there was a reason for two rounds, so that the host
    /// must show it.
    pub fn trouble_lasts(&mut self, trouble: &TargetError) -> bool {
        let rounds = self.trouble.as_ref().map_or(1, |(_, rounds)| rounds.saturating_add(1));
        self.trouble = Some((trouble.clone(), rounds));
        rounds >= 2
    }

    /// Clears the waits before the target's end, so that they do not delay its release.
    pub fn at_its_end(&mut self) {
        self.failure = None;
        self.retry_at = None;
        self.over_budget_until = None;
        self.lifecycle = None;
        self.lifecycle_at = None;
        self.unread_since = None;
        self.write_tries = 0;
        self.changes = ChangeRow::default();
        self.drain = None;
    }

    /// Requests a visit at `time`, or later if visits continue without a foreign change.
    pub fn check(&mut self, time: Timestamp) {
        self.check_at = Some(time.max(self.grown().unwrap_or(time)));
    }

    /// Requests a visit after the wait that a plugin asked for.
    pub fn check_after(&mut self, now: Timestamp, wait: SignedDuration) {
        let time = after(now, wait);
        self.after_long_wait = wait >= KEPT_AS_ASKED;
        if self.after_long_wait {
            self.check_at = Some(time);
        } else {
            self.check(time);
        }
    }

    fn grown(&self) -> Option<Timestamp> {
        let wait = RESTLESS.signed_wait(self.quiet_visits.checked_sub(QUIET_VISITS)?);
        self.visited_at.map(|time| after(time, wait))
    }
}

impl Expectations {
    /// Records the time at which the object was asked to terminate. The earliest time counts, because the last event of
    /// an object may show the time of its end instead.
    pub fn asked_to_go(&mut self, time: Timestamp) {
        self.asked_to_go = Some(self.asked_to_go.map_or(time, |known| known.min(time)));
    }

    /// Drops the expectations that the newest view of the target's object meets.
    pub fn refresh(&mut self, object: Option<&Object>, store: &Store, now: Timestamp) {
        let version = object.map(|object| &object.resource_version);
        if self.unknown.is_some() && version != self.unknown.as_ref() {
            // The object's version has changed: a write against the older version fails from now on.
            self.unknown = None;
        }
        self.waited_for.retain(|write, until| *until > now && !write.fails_from_now_on(store));
        if self.leaving && object.is_none_or(Object::terminating) {
            self.leaving = false;
        }
        if let Some(time) = object.and_then(Object::asked_to_go) {
            self.asked_to_go(time);
        }
    }

    /// Returns true if another version of an object would change what the host knows about its own writes.
    pub fn another_version(&self) -> bool {
        self.stale.is_some() || self.unknown.is_some() || self.live_read_at.is_some() || !self.waited_for.is_empty()
    }

    /// Returns true if a write of this job to the target's object can still take effect, and an invalidation would stop it.
    pub fn needs_invalidation(&self) -> bool {
        !(self.start_recorded_here || self.invalidated) || self.unknown.is_some()
    }

    /// Returns true if no write of this job can still take effect.
    pub fn no_late_effect(&self) -> bool {
        !self.needs_invalidation() && self.waited_for.is_empty()
    }

    /// Records that every write to the target's object at an earlier version fails from now on.
    pub fn excluded(&mut self) {
        self.invalidated = true;
        self.unknown = None;
    }

    /// Returns true if the view of the object may be the one on which a write was already decided.
    pub fn outdated(&self) -> bool {
        self.stale.is_some() || self.view_is_uncertain
    }

    /// Records that the host has read the object live.
    pub fn read_live(&mut self) {
        self.stale = None;
        self.view_is_uncertain = false;
    }

    /// Returns the time at which the target was asked to terminate, as far as it is known.
    pub fn departure(&self) -> Option<Timestamp> {
        self.asked_to_go.or(self.departure_sent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(milliseconds: i64) -> Timestamp {
        Timestamp::from_millisecond(milliseconds).unwrap()
    }

    fn bounds(begin: Option<i64>, deadline: Option<i64>) -> TargetTimeBounds {
        TargetTimeBounds { begin: begin.map(at), deadline: deadline.map(at), visits: true }
    }

    #[test]
    fn the_due_time_is_never_later_than_the_deadline() {
        let memory = TargetMemory { check_at: Some(at(9_000)), ..TargetMemory::default() };
        assert_eq!(memory.due(bounds(None, Some(5_000))), Some(at(5_000)));
        assert_eq!(memory.due(bounds(None, Some(10_000))), Some(at(9_000)));
        let unserved = TargetTimeBounds { visits: false, ..bounds(None, Some(10_000)) };
        assert_eq!(memory.due(unserved), Some(at(10_000)), "without a plugin only its time can come");
    }

    #[test]
    fn back_off_and_delay_hold_back_a_check_but_not_the_deadline() {
        let memory = TargetMemory { check_at: Some(at(1)), retry_at: Some(at(4_000)), ..TargetMemory::default() };
        assert_eq!(memory.due(bounds(Some(2_000), Some(5_000))), Some(at(4_000)));
        assert_eq!(memory.due(bounds(Some(6_000), Some(5_000))), Some(at(5_000)));
    }

    #[test]
    fn waits_grow_from_the_fourth_visit_in_a_row_that_nothing_foreign_brought() {
        let mut memory = TargetMemory { changed_by_others: true, ..TargetMemory::default() };
        let mut waits = Vec::new();
        let mut now = at(0);
        for _ in 0..14 {
            memory.visited(now);
            memory.check_after(now, SignedDuration::ZERO);
            let due = memory.due(bounds(None, None)).unwrap();
            waits.push(due.as_millisecond() - now.as_millisecond());
            now = due;
        }
        assert_eq!(waits, [0, 0, 0, 250, 500, 1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000, 60_000]);
        memory.changed_by_others = true;
        memory.visited(now);
        memory.check_after(now, SignedDuration::ZERO);
        assert_eq!(memory.due(bounds(None, None)), Some(now), "a foreign change starts the row anew");
    }

    #[test]
    fn a_wait_of_ten_seconds_or_more_is_kept_as_asked() {
        let mut memory = TargetMemory { quiet_visits: 20, visited_at: Some(at(0)), ..TargetMemory::default() };
        memory.check_after(at(0), SignedDuration::from_secs(10));
        assert_eq!(memory.check_at, Some(at(10_000)));
    }

    #[test]
    fn the_last_short_wait_before_a_limit_of_a_plugin_is_kept_after_many_long_ones() {
        let (mut memory, mut now) = (TargetMemory::default(), at(0));
        for _ in 0..20 {
            memory.visited(now);
            memory.check_after(now, SignedDuration::from_secs(30));
            now = memory.due(bounds(None, None)).unwrap();
        }
        memory.visited(now);
        memory.check_after(now, SignedDuration::from_secs(7));
        assert_eq!(memory.due(bounds(None, None)), Some(after(now, SignedDuration::from_secs(7))));
    }
}
