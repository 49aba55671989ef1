//! The state that a term keeps of one JobFlow or DaemonJob between two rounds.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

use oarlock_core::attempts::parent::Parent;
use oarlock_core::attempts::plan::{Create, ParentPlan, PlanMemory};
use oarlock_core::attempts::status::SHARD;
use oarlock_core::attempts::unit::Unit;
use oarlock_core::attempts::writes::RecordUnits;
use oarlock_core::object::canonical::{canonical, digest};
use serde_json::Value;
use tokio::time::Instant;

use crate::metrics::flows::FlowFigures;
use crate::status_rate_limit::StatusRateLimit;

/// The number of sent statuses without a good answer that are remembered. A late write is one of the last.
const SENT: usize = 8;

/// Returns a digest of a status.
pub(crate) fn digest_of(status: &Value) -> String {
    digest(canonical(status).as_bytes(), 32)
}

/// The state that a term keeps of one JobFlow or DaemonJob. The state starts empty, and the first round restores it
/// from the stored status.
#[derive(Debug, Default)]
pub(crate) struct FlowMemory {
    /// The UID of the object.
    pub(crate) uid: String,
    /// The digest of the status that this state was restored from, until this term writes a status. A status with
    /// another digest is restored again.
    pub(crate) read_from: Option<String>,
    /// The digest of the last status known to be stored, if that status counts JobRecords.
    pub(crate) last: Option<String>,
    /// Digests of the statuses that this term sent without a good answer, until its first successful write.
    pub(crate) sent: VecDeque<String>,
    /// The version of the object at which a status write had no good answer, until it is known which status is stored. A write without an answer, and the
    /// first copy of a write that a proxy repeated, may have succeeded.
    pub(crate) unsure_at: Option<String>,
    /// The result of the last plan.
    pub(crate) plan: PlanMemory,
    /// The contents of the stored status.
    pub(crate) reported: PlanMemory,
    /// True if this term has seen that the JobRecords hold the entries that the stored status counts.
    pub(crate) records_hold: bool,
    /// The known resourceVersions of the JobRecords, by number. With a version, a late write cannot overwrite a newer
    /// record.
    pub(crate) records: BTreeMap<usize, String>,
    pub(crate) pace: StatusRateLimit,
    /// True if the next status must be written before anything is created, because the set of units changed.
    pub(crate) durable_first: bool,
    /// The parts of the object without effect, until an event reports them.
    pub(crate) ignored: Vec<String>,
    /// The time of the first change that led to this round.
    pub(crate) since: Option<Instant>,
    /// The units that start after others, with the time since which each start is due.
    pub(crate) starts: HashMap<String, Instant>,
    /// The figures of the last round.
    pub(crate) figures: Option<FlowFigures>,
}

impl FlowMemory {
    /// Remembers a status whose write had no good answer, before the first successful write of this term.
    pub(crate) fn note_sent(&mut self, status: &Value) {
        if self.read_from.is_some() {
            self.sent.push_back(digest_of(status));
            self.sent.drain(..self.sent.len().saturating_sub(SENT));
        }
    }

    /// Returns the JobRecords of these units, from number `first` on, whose stored contents differ or may differ.
    pub(crate) fn changed_records<'a>(&self, units: &'a [Unit], first: usize) -> Vec<RecordUnits<'a>> {
        let hold = self.records_hold && self.reported.header.first_record == first;
        let mut stored = hold.then(|| self.reported.units.chunks(SHARD)).into_iter().flatten();
        let all = units.chunks(SHARD).map(|shard| (stored.next() != Some(shard), shard)).enumerate();
        let changed = all.filter(|(_, (differs, _))| *differs);
        changed.map(|(index, (_, units))| RecordUnits { number: first + index, units }).collect()
    }

    /// Decides whether the stored status is known again. `parent` is no older than the last write of its status. A write that was not made
    /// before the version changed cannot succeed any more.
    pub(crate) fn judge_unsure_write(&mut self, parent: &Parent) {
        let Some(version) = &self.unsure_at else { return };
        self.records_hold = false;
        let is_over = *version != parent.version;
        if is_over && self.last.as_ref().is_some_and(|last| *last == digest_of(&parent.status)) {
            self.unsure_at = None;
        }
    }

    /// Keeps the plan as the start of the next one. Returns true if the plan still lists refused changes that are over.
    pub(crate) fn take_over(&mut self, plan: &mut ParentPlan, parent: &Parent) -> bool {
        // A part without effect is found once. The next status reports it, whenever that status is written.
        plan.ignored.retain(|ignored| !self.ignored.contains(ignored));
        self.ignored.append(&mut plan.ignored);
        plan.ignored.clone_from(&self.ignored);
        let mut header = plan.header.clone();
        header.state.clone_from(&plan.summary.state);
        header.conditions.clone_from(&plan.summary.conditions);
        header.observed_generation = Some(parent.generation);
        self.plan.units.clone_from(&plan.units);
        self.plan.header = header;
        self.forget_what_is_over(plan, parent)
    }

    /// Forgets entries that the plan no longer needs: reasons of Jobs that wait no more, pods of children that no unit
    /// has, and refused creates that no unit waits for.
    ///
    /// Forgets refused changes that the plan does not request again, too. Returns true if there were any.
    fn forget_what_is_over(&mut self, plan: &ParentPlan, parent: &Parent) -> bool {
        let PlanMemory { units, pods, unread, wait_checks, refused, refused_changes, .. } = &mut self.plan;
        wait_checks.retain(|uid, _| plan.waiting.contains(uid));
        if pods.len() + unread.len() > 0 {
            let had: HashSet<&str> = units.iter().map(|unit| unit.job_uid.as_str()).collect();
            pods.retain(|uid, _| had.contains(uid.as_str()));
            unread.retain(|uid, _| had.contains(uid.as_str()));
        }
        if !refused.is_empty() {
            let waiting = units.iter().filter(|unit| !unit.has_child() && !unit.state.is_terminal());
            let waiting: HashSet<&str> = waiting.map(|unit| unit.name.as_str()).collect();
            refused.retain(|unit, _| waiting.contains(unit.as_str()));
        }
        let before = refused_changes.len();
        if before > 0 {
            let called_for = plan.changes.iter().chain(&plan.changes_after_record).map(|change| change.key(parent));
            let called_for: HashSet<_> = called_for.collect();
            refused_changes.retain(|key, _| called_for.contains(key));
        }
        refused_changes.len() < before
    }

    /// Remembers the creates that are due now. A create that was due before keeps its time, because only its request
    /// failed.
    pub(crate) fn note_due(&mut self, creates: &[Create]) {
        let since = self.since.unwrap_or_else(Instant::now);
        let mut before = std::mem::take(&mut self.starts);
        let follow = creates.iter().filter(|create| create.follows);
        self.starts =
            follow.map(|create| (create.unit.clone(), before.remove(&create.unit).unwrap_or(since))).collect();
    }
}

#[cfg(test)]
mod tests {
    use oarlock_core::attempts::parent::ParentKind;
    use oarlock_core::attempts::view::ChildKind;
    use serde_json::json;
    use tokio::time::Duration;

    use super::*;

    fn parent(version: &str, status: &Value) -> Parent {
        let metadata = json!({"namespace": "n", "name": "p", "uid": "12345678-1", "resourceVersion": version});
        Parent::read(ParentKind::Daemon, json!({"metadata": metadata, "status": status})).unwrap()
    }

    #[test]
    fn a_status_is_known_again_once_the_version_that_a_lost_write_named_is_over_and_nothing_came_of_it() {
        let (stored, other) = (json!({"a": 1}), json!({"a": 2}));
        for (version, status, is_known) in [("4", &stored, false), ("5", &stored, true), ("5", &other, false)] {
            let mut memory = FlowMemory {
                unsure_at: Some("4".to_owned()),
                last: Some(digest_of(&stored)),
                records_hold: true,
                ..FlowMemory::default()
            };
            memory.judge_unsure_write(&parent(version, status));
            assert_eq!((memory.unsure_at.is_none(), memory.records_hold), (is_known, false), "{version} {status}");
        }
    }

    #[test]
    fn only_shards_with_another_unit_are_written_once_the_records_are_known() {
        let units: Vec<Unit> = (0..600).map(|index| Unit::new(&format!("n{index}"))).collect();
        let mut memory = FlowMemory::default();
        memory.reported.units = units.clone().into();
        let changed = |memory: &FlowMemory, units: &[Unit]| -> Vec<(usize, usize)> {
            memory.changed_records(units, 0).into_iter().map(|shard| (shard.number, shard.units.len())).collect()
        };
        assert_eq!(changed(&memory, &units), [(0, 250), (1, 250), (2, 100)]);
        memory.records_hold = true;
        assert_eq!(changed(&memory, &units), []);
        let mut other = units.clone();
        other[300].attempt = 1;
        assert_eq!(changed(&memory, &other), [(1, 250)]);
        let moved = memory.changed_records(&units, 3);
        assert_eq!(moved.iter().map(|shard| shard.number).collect::<Vec<_>>(), [3, 4, 5], "none of these is stored");
    }

    #[tokio::test(start_paused = true)]
    async fn a_create_is_due_since_the_first_news_until_it_is_made() {
        let mut memory = FlowMemory::default();
        let create = |unit: &str, follows| Create {
            unit: unit.to_owned(),
            kind: ChildKind::Job,
            name: String::new(),
            attempt: 0,
            revision: String::new(),
            follows,
            object: Value::Null,
        };
        let begun = Instant::now();
        memory.since = Some(begun);
        tokio::time::advance(Duration::from_secs(1)).await;
        memory.note_due(&[create("root", false), create("a", true)]);
        assert_eq!(memory.starts, HashMap::from([("a".to_owned(), begun)]));
        memory.since = Some(Instant::now());
        memory.note_due(&[create("a", true), create("b", true)]);
        let since: Vec<Duration> = ["a", "b"].iter().map(|unit| memory.starts[*unit] - begun).collect();
        assert_eq!(since, [Duration::ZERO, Duration::from_secs(1)], "a request for the first one failed");
        memory.note_due(&[]);
        assert!(memory.starts.is_empty());
    }
}
