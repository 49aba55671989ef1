//! Finds the children of one JobFlow or DaemonJob for its units.

use std::collections::HashMap;
use std::sync::Arc;

use crate::attempts::name::AttemptOf;
use crate::attempts::parent::Parent;
use crate::attempts::plan::ChildChange;
use crate::attempts::unit::{RECORD_LOST, UNSEEN, Unit, UnitState};
use crate::attempts::view::ChildView;

/// The children of one object, by unit.
///
/// Labels and annotations only say where to look. A child counts for an attempt only if it has the name that the host gives that attempt: nobody can
/// change a name.
pub struct Children<'a> {
    by_uid: HashMap<&'a str, &'a Arc<ChildView>>,
    by_unit: HashMap<&'a str, Vec<&'a Arc<ChildView>>>,
    unnamed: HashMap<&'a str, &'a Arc<ChildView>>,
    orphaned: HashMap<&'a str, &'a Arc<ChildView>>,
}

impl<'a> Children<'a> {
    /// Returns the children of `parent` in its namespace.
    pub fn of(parent: &Parent, children: &'a [Arc<ChildView>]) -> Self {
        let (by_uid, by_unit) = (HashMap::new(), HashMap::new());
        let mut own = Self { by_uid, by_unit, unnamed: HashMap::new(), orphaned: HashMap::new() };
        for child in children.iter().filter(|child| parent.owns(child)) {
            if child.orphaned {
                own.orphaned.insert(&child.uid, child);
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

    /// Returns the child with this UID.
    pub fn of_uid(&self, uid: &str) -> Option<&'a Arc<ChildView>> {
        self.by_uid.get(uid).copied()
    }

    /// Returns the object with this UID if it exists without its owner reference. A user who removes the owner reference takes the child away from
    /// its owner.
    pub fn orphaned(&self, uid: &str) -> Option<&'a Arc<ChildView>> {
        self.orphaned.get(uid).copied().filter(|child| !child.gone)
    }

    /// Returns adoptions for the children that have no controller. The children of the original operator have none.
    pub fn uncontrolled(&self) -> impl Iterator<Item = ChildChange> {
        let all = self.by_unit.values().flatten().chain(self.unnamed.values());
        let uncontrolled = all.filter(|child| !child.is_controlled && !child.gone && !child.terminating);
        uncontrolled.map(|child| ChildChange::Adopt((*child).clone()))
    }

    /// Returns the newest child of a unit whose attempt is at least `least`. If several children have the same attempt, returns the existing one.
    /// Attempts follow each other, so a child whose attempt cannot be reached yet does not belong to the unit.
    pub fn newest(&self, parent: &Parent, unit: &Unit, least: u32) -> Option<&'a Arc<ChildView>> {
        let mut known: Vec<u32> = self.of_unit(parent, &unit.name).map(|child| child.attempt).collect();
        known.sort_unstable();
        let next = unit.attempt.saturating_add(unit.has_child().into());
        let reached = known.into_iter().fold(next, |next, attempt| next.saturating_add((attempt == next).into()));
        self.newest_of_any(parent, &unit.name, |attempt| attempt >= least && attempt <= reached)
    }

    /// Returns the newest child of a unit whose entry is lost, so that the unit's last attempt is unknown.
    pub fn newest_of_lost(&self, parent: &Parent, unit: &str) -> Option<&'a Arc<ChildView>> {
        self.newest_of_any(parent, unit, |_| true)
    }

    fn newest_of_any(&self, parent: &Parent, unit: &str, counts: impl Fn(u32) -> bool) -> Option<&'a Arc<ChildView>> {
        let all = self.of_unit(parent, unit).filter(|child| counts(child.attempt));
        all.max_by_key(|child| (child.attempt, !child.gone, child.version))
    }

    /// Returns the units that have an existing child.
    pub fn units(&self) -> impl Iterator<Item = &'a str> {
        let there = |children: &[&'a Arc<ChildView>]| children.iter().any(|child| !child.gone);
        self.by_unit.iter().filter(move |(_, children)| there(children)).map(|(unit, _)| *unit)
    }

    /// Returns the children of a unit's earlier attempts.
    pub fn earlier(&self, parent: &Parent, unit: &Unit) -> impl Iterator<Item = &'a Arc<ChildView>> {
        self.of_unit(parent, &unit.name).filter(|child| child.attempt < unit.attempt && child.uid != unit.job_uid)
    }

    /// Returns leftover children of the attempt that a unit has ended. A late create made such a child, after the attempt's own child was deleted or
    /// the unit was given up without a child.
    pub fn leftovers(&self, parent: &Parent, unit: &Unit) -> impl Iterator<Item = &'a Arc<ChildView>> {
        let has_ended = unit.state.is_terminal() || unit.state == UnitState::Retrying;
        let is_known = if unit.has_child() { unit.job_uid != UNSEEN } else { unit.state == UnitState::Failed };
        let may_stray = has_ended && is_known && unit.reason != RECORD_LOST;
        let is_stray = move |child: &&Arc<ChildView>| {
            let is_named_so = unit.job.is_empty() || child.name == unit.job;
            may_stray && child.attempt == unit.attempt && child.uid != unit.job_uid && is_named_so
        };
        self.of_unit(parent, &unit.name).filter(is_stray)
    }

    /// Returns the child that precedes a new attempt.
    pub fn previous(&self, parent: &Parent, unit: &Unit) -> Option<&'a Arc<ChildView>> {
        self.of_uid(&unit.job_uid).or_else(|| self.earlier(parent, unit).max_by_key(|child| child.attempt))
    }

    fn of_unit(&self, parent: &Parent, unit: &str) -> impl Iterator<Item = &'a Arc<ChildView>> {
        // Jobs of the original operator carry no annotation. Their name tells their unit.
        let unnamed = if self.unnamed.is_empty() {
            None
        } else {
            self.unnamed.get(format!("{}-{unit}", parent.name).as_str()).copied()
        };
        self.by_unit.get(unit).into_iter().flatten().copied().chain(unnamed)
    }
}

/// The highest attempt number of a child that counts. It is far higher than any unit reaches. A child with the highest possible number would leave no
/// number for the next attempt.
const MOST_ATTEMPTS: u32 = 1_000_000;

fn is_named_so(parent: &Parent, unit: &str, child: &ChildView) -> bool {
    let of = AttemptOf { kind: parent.kind.name(), parent: &parent.name, unit, attempt: child.attempt };
    child.attempt <= MOST_ATTEMPTS && of.may_have(&child.name)
}
