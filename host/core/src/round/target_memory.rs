//! The memory that a term keeps of one target, and the due time that follows from it.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use oarlock_api::TargetError;

use crate::cluster::lifecycle::Awaited;
use crate::cluster::live_reads::LiveRead;
use crate::cluster::object::{Object, ObjectKey};
use crate::cluster::store::Store;
use crate::job::key::JobKey;
use crate::job::state::{TargetState, extras};
use crate::job::time::{after, earliest};
use crate::plugin::proposal::Proposal;
use crate::round::change_row::ChangeRow;
use crate::round::drain::DrainMemory;
use crate::round::tasks::TaskMemory;

/// Visits in a row without a foreign change after which waits grow.
const QUIET_VISITS: u32 = 3;
/// The first grown wait; doubles.
const FIRST_GROWN_MS: i64 = 250;
/// The longest grown wait.
const LONGEST_GROWN_MS: i64 = 60_000;
/// A plugin's wait of this length or more is not changed.
const KEPT_AS_ASKED: SignedDuration = SignedDuration::from_secs(10);

/// The memory of one target.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct TargetMemory {
    /// Retryable failures of the current call in a row.
    pub call_tries: u32,
    /// Writes in a row that were refused or have an unknown outcome.
    pub write_tries: u32,
    /// Traps in a row.
    pub traps: u32,
    /// Failed attempts to release it.
    pub release_tries: u32,
    /// Evictions in a row that a disruption budget refused.
    pub blocked: u32,
    /// Back-off: no visit before this time.
    pub retry_at: Option<Timestamp>,
    /// Its plugin is in debt: no visit before this time, but at its end.
    pub debt_until: Option<Timestamp>,
    /// The time that the plugin or the host asked for.
    pub check_at: Option<Timestamp>,
    /// The time of the last visit.
    pub visited_at: Option<Timestamp>,
    /// Visits in a row without a foreign change, but for those after a long wait that the plugin asked for.
    pub quiet_visits: u32,
    /// The next visit is one after such a wait.
    pub rests: bool,
    /// Something other than this host has changed since the last visit, or an object was found to be free for the target.
    pub news: bool,
    /// A live read that it needs failed, and is made again then.
    pub read_at: Option<Timestamp>,
    /// Since when live reads of it have failed.
    pub unread_since: Option<Timestamp>,
    /// Live reads that the last visit lacked.
    pub live_reads: BTreeSet<LiveRead>,
    /// The changes that were made for it one after the other.
    pub changes: ChangeRow,
    /// Own writes that the cache may not show yet.
    pub expects: Expectations,
    /// The evictions of its pods, where it is a node that is drained.
    pub drain: Option<DrainMemory>,
    /// The pods of its tasks.
    pub tasks: TaskMemory,
    /// An end other than Succeeded that is not recorded yet.
    pub failure: Option<PendingFailure>,
    /// The reason why it waits, and the number of rounds with that reason.
    pub trouble: Option<(TargetError, u32)>,
    /// `release` was refused or is unavailable: the host releases without it.
    pub release_alone: bool,
    /// UID of the object that still has a hold of this job though the target owes no release.
    pub held: Option<String>,
    /// The marks of this job that its object had when it was last seen, whether or not the hold there still lists them: whoever may
    /// write the object may take the hold off.
    pub marks: BTreeSet<String>,
    /// The writes that follow its end have no result yet.
    pub writes_its_end: bool,
    /// A mutation was proposed for it in this term.
    pub operated: bool,
    /// Its record was lost before this term: what was done to it is not known.
    pub record_lost: bool,
    /// Time from which on the wait for the lifecycle of its pod is shown.
    pub lifecycle_at: Option<Timestamp>,
    /// What the lifecycle of its pod has kept it from for long.
    pub lifecycle: Option<LifecycleWait>,
    /// It is pending until its object changes.
    pub waits_for_object: bool,
    /// The job that has its object, where it waits for that.
    pub waits_for_job: Option<JobKey>,
    /// What is under way on its pod, in a sentence, where it waits for that.
    pub busy: Option<String>,
    /// In a dry run, the requests that are tried for it.
    pub trial: Option<Trial>,
}

/// The requests that a dry run tries for a target.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Trial {
    /// What they are, and what may follow them, in a line.
    pub plan: String,
    /// What became of them, once it is known.
    pub outcome: Option<Result<(), TargetError>>,
}

/// What the lifecycle of a pod keeps a target from.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LifecycleWait {
    /// What is awaited.
    pub awaited: Awaited,
    /// The same in words.
    pub message: String,
}

/// The times of a job that bound those of a target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bounds {
    /// The end of its delay, if it was not operated yet.
    pub begin: Option<Timestamp>,
    /// The deadline.
    pub deadline: Option<Timestamp>,
    /// A plugin serves: it may be visited.
    pub visits: bool,
}

/// Own writes that the cache may not show yet, and knowledge of the target's object beyond the cache.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Expectations {
    /// This term recorded its intent.
    pub own_intent: bool,
    /// The API server confirmed the cached view of its object in this term.
    pub confirmed: bool,
    /// A bump was accepted in this term, or its object is gone: no write of an earlier term can still take effect.
    pub bumped: bool,
    /// The resourceVersion that a write of unknown outcome names: once its object has another, that write fails.
    pub unknown: Option<String>,
    /// Writes of unknown outcome that no bump stops, because they are to another object or name no version, and the time
    /// after which each of them is too late.
    pub waited_for: BTreeMap<UnknownWrite, Timestamp>,
    /// Its resourceVersion when a write found the view out of date: nothing is decided until it has changed.
    pub stale: Option<String>,
    /// A write that names no version found the view out of date, or has an unknown outcome: nothing is decided before a
    /// live read.
    pub unsure: bool,
    /// An eviction or deletion was accepted, and the cache does not show it yet.
    pub departing: bool,
    /// Time at which the host reads an own write live that the cache does not show.
    pub patience: Option<Timestamp>,
    /// Time at which the target was asked to terminate, as a view of it showed.
    pub asked_to_go: Option<Timestamp>,
    /// Time at which an accepted eviction or deletion was sent, less a margin.
    pub departure_sent: Option<Timestamp>,
}

/// A write that may still take effect.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UnknownWrite {
    /// Its object.
    pub object: ObjectKey,
    /// The UID that it names; a creation names none.
    pub uid: Option<String>,
    /// The version that it names.
    pub version: Option<String>,
}

impl UnknownWrite {
    /// True once its object is gone, is another one or has another version than it names.
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
    /// The job is being deleted: there is no final check.
    pub skip_final_check: bool,
    /// Only the attempt has failed: another one may follow.
    pub of_attempt: bool,
    /// A bump or its live read had no good answer: after this time no earlier request can take effect any more.
    pub give_up_at: Option<Timestamp>,
    /// The mutations and events that were proposed with it: they follow its record.
    pub follows: Proposal,
    /// The extras of the target with those that were stored with it, which may not be recorded yet.
    pub extra: Option<BTreeMap<String, String>>,
}

impl PendingFailure {
    /// A failure with nothing to follow it.
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

    /// The state that the target ends with: it keeps what was stored with the failure.
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
    /// The due time, from all reasons that stand: the deadline, the requested wait, the wait for the cache, and
    /// back-off.
    pub fn due(&self, bounds: Bounds) -> Option<Timestamp> {
        if self.read_at.is_some() {
            // It may be past any other time: without the read nothing goes on.
            return self.read_at;
        }
        if let Some(failure) = &self.failure {
            // Its deadline has passed: it waits only for a live read, a result, a back-off or what may still take effect.
            return earliest([self.retry_at, failure.give_up_at, self.expects.waited_for.values().max().copied()]);
        }
        let floor = bounds.begin.max(self.not_before());
        let wish = self.expects.patience.or(self.check_at).max(floor);
        let shown = self.lifecycle_at.map(|time| self.not_before().map_or(time, |floor| floor.max(time)));
        earliest([wish, shown].map(|time| time.filter(|_| bounds.visits)).into_iter().chain([bounds.deadline]))
    }

    /// The time before which it is not visited, whatever changes: a back-off, a debt of its plugin, or the rest after many
    /// changes in a row.
    pub fn not_before(&self) -> Option<Timestamp> {
        self.retry_at.max(self.debt_until).max(self.changes.rests_until(self.visited_at))
    }

    /// Notes a visit.
    pub fn visited(&mut self, now: Timestamp) {
        let rested = std::mem::take(&mut self.rests);
        self.quiet_visits = match std::mem::take(&mut self.news) {
            true => 0,
            false => self.quiet_visits.saturating_add((!rested).into()),
        };
        self.visited_at = Some(now);
        self.check_at = None;
        self.retry_at = None;
        self.expects.patience = None;
    }

    /// Notes the reason why it waits. Returns true once there was one for two rounds, so that it is to be shown.
    pub fn trouble_lasts(&mut self, trouble: &TargetError) -> bool {
        let rounds = self.trouble.as_ref().map_or(1, |(_, rounds)| rounds.saturating_add(1));
        self.trouble = Some((trouble.clone(), rounds));
        rounds >= 2
    }

    /// Clears the waits of the way to its end, so that they do not delay its release.
    pub fn at_its_end(&mut self) {
        self.failure = None;
        self.retry_at = None;
        self.debt_until = None;
        self.lifecycle = None;
        self.lifecycle_at = None;
        self.unread_since = None;
        self.write_tries = 0;
        self.changes = ChangeRow::default();
        self.drain = None;
    }

    /// Requests a visit at `time`; later if visits continue without a foreign change.
    pub fn check(&mut self, time: Timestamp) {
        self.check_at = Some(time.max(self.grown().unwrap_or(time)));
    }

    /// Requests a visit after the wait that a plugin asked for.
    pub fn check_after(&mut self, now: Timestamp, wait: SignedDuration) {
        let time = after(now, wait);
        self.rests = wait >= KEPT_AS_ASKED;
        if self.rests {
            self.check_at = Some(time);
        } else {
            self.check(time);
        }
    }

    fn grown(&self) -> Option<Timestamp> {
        let wait = grown_wait(self.quiet_visits.checked_sub(QUIET_VISITS)?);
        self.visited_at.map(|time| after(time, wait))
    }
}

/// The wait after so many doublings.
pub(super) fn grown_wait(doublings: u32) -> SignedDuration {
    SignedDuration::from_millis(FIRST_GROWN_MS.saturating_mul(1 << doublings.min(16)).min(LONGEST_GROWN_MS))
}

impl Expectations {
    /// Takes the time at which the object was asked to terminate. The earliest time counts: the last event of an object
    /// may show the time of its end instead.
    pub fn asked_to_go(&mut self, time: Timestamp) {
        self.asked_to_go = Some(self.asked_to_go.map_or(time, |known| known.min(time)));
    }

    /// Drops the expectations that the newest view of the target's object meets.
    pub fn refresh(&mut self, object: Option<&Object>, store: &Store, now: Timestamp) {
        let version = object.map(|object| &object.resource_version);
        if self.unknown.is_some() && version != self.unknown.as_ref() {
            // The object's version has changed: a write against the older one fails from now on.
            self.unknown = None;
        }
        self.waited_for.retain(|write, until| *until > now && !write.fails_from_now_on(store));
        if self.departing && object.is_none_or(Object::terminating) {
            self.departing = false;
        }
        if let Some(time) = object.and_then(Object::asked_to_go) {
            self.asked_to_go(time);
        }
    }

    /// True if another version of an object would change what is known of the own writes.
    pub fn another_version(&self) -> bool {
        self.stale.is_some() || self.unknown.is_some() || self.patience.is_some() || !self.waited_for.is_empty()
    }

    /// True if a write of this job to the target's object can still take effect that a bump would stop.
    pub fn needs_bump(&self) -> bool {
        !(self.own_intent || self.bumped) || self.unknown.is_some()
    }

    /// True if no write of this job can still take effect.
    pub fn no_late_effect(&self) -> bool {
        !self.needs_bump() && self.waited_for.is_empty()
    }

    /// Notes that every write to the target's object at an earlier version fails from now on.
    pub fn excluded(&mut self) {
        self.bumped = true;
        self.unknown = None;
    }

    /// True if the view of its object may be the one that a write was decided on already.
    pub fn outdated(&self) -> bool {
        self.stale.is_some() || self.unsure
    }

    /// Notes that its object was read live.
    pub fn looked(&mut self) {
        self.stale = None;
        self.unsure = false;
    }

    /// Time at which the target was asked to terminate, as far as is known.
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

    fn bounds(begin: Option<i64>, deadline: Option<i64>) -> Bounds {
        Bounds { begin: begin.map(at), deadline: deadline.map(at), visits: true }
    }

    #[test]
    fn the_due_time_is_never_later_than_the_deadline() {
        let memory = TargetMemory { check_at: Some(at(9_000)), ..TargetMemory::default() };
        assert_eq!(memory.due(bounds(None, Some(5_000))), Some(at(5_000)));
        assert_eq!(memory.due(bounds(None, Some(10_000))), Some(at(9_000)));
        let unserved = Bounds { visits: false, ..bounds(None, Some(10_000)) };
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
        let mut memory = TargetMemory { news: true, ..TargetMemory::default() };
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
        memory.news = true;
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
