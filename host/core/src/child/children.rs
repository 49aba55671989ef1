//! The children of one JobFlow or DaemonJob, found by what its units know of them.

use std::collections::HashMap;
use std::sync::Arc;

use crate::child::imported::UNSEEN;
use crate::child::lost::RECORD_LOST;
use crate::child::name::AttemptOf;
use crate::child::parent::Parent;
use crate::child::plan::ChildChange;
use crate::child::unit::{Unit, UnitState};
use crate::child::view::ChildView;

/// The children of one object, by unit.
///
/// Labels and annotations say only where to look: a child counts for an attempt where its name, which nobody can change, is the
/// one that the host gives that attempt.
pub struct Children<'a> {
    by_uid: HashMap<&'a str, &'a Arc<ChildView>>,
    by_unit: HashMap<&'a str, Vec<&'a Arc<ChildView>>>,
    unnamed: HashMap<&'a str, &'a Arc<ChildView>>,
    disowned: HashMap<&'a str, &'a Arc<ChildView>>,
}

impl<'a> Children<'a> {
    /// Those of `parent` among these, in its namespace.
    pub fn of(parent: &Parent, children: &'a [Arc<ChildView>]) -> Self {
        let (by_uid, by_unit) = (HashMap::new(), HashMap::new());
        let mut own = Self { by_uid, by_unit, unnamed: HashMap::new(), disowned: HashMap::new() };
        for child in children.iter().filter(|child| parent.owns(child)) {
            if child.disowned {
                own.disowned.insert(&child.uid, child);
                continue;
            }
            own.by_uid.insert(&child.uid, child);
            match &child.unit {
                Some(unit) if is_named_so(parent, unit, child) => own.by_unit.entry(unit).or_default().push(child),
                None if child.attempt == 0 => drop(own.unnamed.insert(&child.name, child)),
                _ => {}
            }
        }
        own
    }

    /// The child with this UID.
    pub fn of_uid(&self, uid: &str) -> Option<&'a Arc<ChildView>> {
        self.by_uid.get(uid).copied()
    }

    /// The object with this UID, if it is there without its owner reference: whoever took that off took the child away.
    pub fn disowned(&self, uid: &str) -> Option<&'a Arc<ChildView>> {
        self.disowned.get(uid).copied().filter(|child| !child.gone)
    }

    /// Those that lack a controller, as the original's do.
    pub fn uncontrolled(&self) -> impl Iterator<Item = ChildChange> {
        let all = self.by_unit.values().flatten().chain(self.unnamed.values());
        let uncontrolled = all.filter(|child| !child.is_controlled && !child.gone && !child.terminating);
        uncontrolled.map(|child| ChildChange::Adopt((*child).clone()))
    }

    /// The newest child of a unit whose attempt is at least `least`; of several, the one that is there. An attempt follows on
    /// the one before, so a child of a number that cannot be reached yet is none of the unit's.
    pub fn newest(&self, parent: &Parent, unit: &Unit, least: u32) -> Option<&'a Arc<ChildView>> {
        let mut known: Vec<u32> = self.of_unit(parent, &unit.name).map(|child| child.attempt).collect();
        known.sort_unstable();
        let next = unit.attempt.saturating_add(unit.has_child().into());
        let reached = known.into_iter().fold(next, |next, attempt| next.saturating_add((attempt == next).into()));
        self.newest_of_any(parent, &unit.name, |attempt| attempt >= least && attempt <= reached)
    }

    /// The newest child of a unit of which no entry tells how far it was.
    pub fn newest_of_lost(&self, parent: &Parent, unit: &str) -> Option<&'a Arc<ChildView>> {
        self.newest_of_any(parent, unit, |_| true)
    }

    fn newest_of_any(&self, parent: &Parent, unit: &str, counts: impl Fn(u32) -> bool) -> Option<&'a Arc<ChildView>> {
        let all = self.of_unit(parent, unit).filter(|child| counts(child.attempt));
        all.max_by_key(|child| (child.attempt, !child.gone, child.version))
    }

    /// The units that have a child which is there.
    pub fn units(&self) -> impl Iterator<Item = &'a str> {
        let there = |children: &[&'a Arc<ChildView>]| children.iter().any(|child| !child.gone);
        self.by_unit.iter().filter(move |(_, children)| there(children)).map(|(unit, _)| *unit)
    }

    /// The children of attempts before the one that a unit is at.
    pub fn earlier(&self, parent: &Parent, unit: &Unit) -> impl Iterator<Item = &'a Arc<ChildView>> {
        self.of_unit(parent, &unit.name).filter(|child| child.attempt < unit.attempt && child.uid != unit.job_uid)
    }

    /// Children of the attempt that a unit has ended: of a create that came late, after its own child was gone again, or after
    /// the unit was given up without one.
    pub fn strays(&self, parent: &Parent, unit: &Unit) -> impl Iterator<Item = &'a Arc<ChildView>> {
        let has_ended = unit.state.is_terminal() || unit.state == UnitState::Retrying;
        let is_known = if unit.has_child() { unit.job_uid != UNSEEN } else { unit.state == UnitState::Failed };
        let may_stray = has_ended && is_known && unit.reason != RECORD_LOST;
        let is_stray = move |child: &&Arc<ChildView>| {
            let is_named_so = unit.job.is_empty() || child.name == unit.job;
            may_stray && child.attempt == unit.attempt && child.uid != unit.job_uid && is_named_so
        };
        self.of_unit(parent, &unit.name).filter(is_stray)
    }

    /// The child that a new attempt follows on.
    pub fn previous(&self, parent: &Parent, unit: &Unit) -> Option<&'a Arc<ChildView>> {
        self.of_uid(&unit.job_uid).or_else(|| self.earlier(parent, unit).max_by_key(|child| child.attempt))
    }

    fn of_unit(&self, parent: &Parent, unit: &str) -> impl Iterator<Item = &'a Arc<ChildView>> {
        // The original's Jobs carry no annotation: their name places them.
        let unnamed = if self.unnamed.is_empty() {
            None
        } else {
            self.unnamed.get(format!("{}-{unit}", parent.name).as_str()).copied()
        };
        self.by_unit.get(unit).into_iter().flatten().copied().chain(unnamed)
    }
}

/// Far more than any unit has: after the largest number there would be none.
const MOST_ATTEMPTS: u32 = 1_000_000;

fn is_named_so(parent: &Parent, unit: &str, child: &ChildView) -> bool {
    let of = AttemptOf { kind: parent.kind.name(), parent: &parent.name, unit, attempt: child.attempt };
    child.attempt <= MOST_ATTEMPTS && of.may_have(&child.name)
}
