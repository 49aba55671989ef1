//! What a term remembers of one JobFlow or DaemonJob between two rounds.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

use oarlock_core::child::canonical::{canonical, digest};
use oarlock_core::child::parent::Parent;
use oarlock_core::child::plan::{Create, Memory, ParentPlan};
use oarlock_core::child::status::SHARD;
use oarlock_core::child::unit::Unit;
use serde_json::Value;
use tokio::time::Instant;

use crate::metrics::flows::FlowFigures;
use crate::status_pace::Pace;

/// Statuses without answer that are recognised. A late one is one of the last.
const SENT: usize = 8;

/// What is known of the stored status.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Stored {
    /// It says what `reported` does.
    #[default]
    Known,
    /// A write of it had no answer.
    InDoubt,
    /// A write of it met a conflict. Where the request was repeated on its way, it may have been made at first.
    InConflict,
    /// It may be of such a write, and was found to be what the watch shows.
    Seen,
}

/// A digest of a status.
pub(crate) fn digest_of(status: &Value) -> String {
    digest(canonical(status).as_bytes(), 32)
}

/// What a term remembers of one JobFlow or DaemonJob. It begins empty, and is read from the stored status.
#[derive(Debug, Default)]
pub(crate) struct FlowMemory {
    /// The object that it is of.
    pub(crate) uid: String,
    /// A digest of the status that this was read from, until this term has written one: another one is read anew.
    pub(crate) read_from: Option<String>,
    /// A digest of the last status that is known to be stored, if that counts JobRecords.
    pub(crate) last: Option<String>,
    /// Digests of the statuses that this term sent until then, and that were not answered well.
    pub(crate) sent: VecDeque<String>,
    pub(crate) stored: Stored,
    /// What the last plan decided.
    pub(crate) plan: Memory,
    /// What the stored status says.
    pub(crate) reported: Memory,
    /// The JobRecords hold what the stored status counts, as this term has seen.
    pub(crate) records_hold: bool,
    /// The versions of its JobRecords, by number, as far as they are known: a write that comes late changes no newer one.
    pub(crate) records: BTreeMap<usize, String>,
    pub(crate) pace: Pace,
    /// Nothing is created before the next status is written: the set of units changed.
    pub(crate) durable_first: bool,
    /// Parts of the object that have no effect, until that was told.
    pub(crate) ignored: Vec<String>,
    /// The time of the first change that its round was made for.
    pub(crate) since: Option<Instant>,
    /// The units that are started after others, and since when that is due.
    pub(crate) starts: HashMap<String, Instant>,
    /// What its last round found.
    pub(crate) figures: Option<FlowFigures>,
}

impl FlowMemory {
    /// Notes a status whose write was not answered well, before this term has written any.
    pub(crate) fn note_sent(&mut self, status: &Value) {
        if self.read_from.is_some() {
            self.sent.push_back(digest_of(status));
            self.sent.drain(..self.sent.len().saturating_sub(SENT));
        }
    }

    /// The JobRecords of these units from number `first` on that are stored otherwise, or may be.
    pub(crate) fn changed_shards<'a>(&self, units: &'a [Unit], first: usize) -> Vec<(usize, &'a [Unit])> {
        let hold = self.records_hold && self.reported.header.first_record == first;
        let mut stored = hold.then(|| self.reported.units.chunks(SHARD)).into_iter().flatten();
        let all = units.chunks(SHARD).map(|shard| (stored.next() != Some(shard), shard)).enumerate();
        all.filter(|(_, (differs, _))| *differs).map(|(index, (_, shard))| (first + index, shard)).collect()
    }

    /// The plan is what the next one begins with. True where it tells of something that is over.
    pub(crate) fn take_over(&mut self, plan: &mut ParentPlan, parent: &Parent) -> bool {
        // What has no effect is found once, and told with the next status, whenever that is written.
        plan.ignored.retain(|ignored| !self.ignored.contains(ignored));
        self.ignored.append(&mut plan.ignored);
        plan.ignored.clone_from(&self.ignored);
        let mut header = plan.header.clone();
        header.state.clone_from(&plan.verdict.state);
        header.conditions.clone_from(&plan.verdict.conditions);
        header.observed_generation = Some(parent.generation);
        self.plan.units.clone_from(&plan.units);
        self.plan.header = header;
        self.forget_what_is_over(plan, parent)
    }

    /// Drops the pods of children that no unit has, what others waited for, refused creates that no unit waits for, and refused changes that are not
    /// called for any more. True where there were such changes.
    fn forget_what_is_over(&mut self, plan: &ParentPlan, parent: &Parent) -> bool {
        let Memory { units, pods, unread, looks, refused, refused_changes, .. } = &mut self.plan;
        looks.retain(|uid, _| plan.waiting.contains(uid));
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
            let called_for = plan.changes.iter().chain(&plan.settled).map(|change| change.key(parent));
            let called_for: HashSet<_> = called_for.collect();
            refused_changes.retain(|key, _| called_for.contains(key));
        }
        refused_changes.len() < before
    }

    /// Notes the creates that are due now: those that were due before, for a request failed, have been since then.
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
    use oarlock_core::child::view::ChildKind;
    use tokio::time::Duration;

    use super::*;

    #[test]
    fn only_shards_with_another_unit_are_written_once_the_records_are_known() {
        let units: Vec<Unit> = (0..600).map(|index| Unit::new(&format!("n{index}"))).collect();
        let mut memory = FlowMemory::default();
        memory.reported.units = units.clone().into();
        let changed = |memory: &FlowMemory, units: &[Unit]| -> Vec<(usize, usize)> {
            memory.changed_shards(units, 0).into_iter().map(|(index, shard)| (index, shard.len())).collect()
        };
        assert_eq!(changed(&memory, &units), [(0, 250), (1, 250), (2, 100)]);
        memory.records_hold = true;
        assert_eq!(changed(&memory, &units), []);
        let mut other = units.clone();
        other[300].attempt = 1;
        assert_eq!(changed(&memory, &other), [(1, 250)]);
        let moved = memory.changed_shards(&units, 3);
        assert_eq!(moved.iter().map(|(index, _)| *index).collect::<Vec<_>>(), [3, 4, 5], "none of these is stored");
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
