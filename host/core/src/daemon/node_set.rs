//! The nodes of a DaemonJob: which have a run. Source: docs/jobflow.md 4.1.

use std::collections::{BTreeMap, HashMap, HashSet};

use crate::child::fields::at;
use crate::child::node::NodeView;
use crate::child::plan::{Observation, ParentPlan};
use crate::child::unit::{Unit, UnitState};
use crate::daemon::plan::Round;
use crate::daemon::spec::Taints;

impl Round<'_> {
    /// Takes the set of nodes in the first round and after each edit; with `newNodePolicy: Run` each time.
    pub(super) fn take_set(&self, units: &mut Vec<Unit>, plan: &mut ParentPlan) {
        let generation = self.observed.parent.generation;
        let is_new = plan.header.set_generation != Some(generation);
        let is_open = is_new || self.spec.runs_new;
        let lost = usize::try_from(plan.header.lost_units).unwrap_or(usize::MAX);
        if !is_open && lost == 0 || self.observed.parent.terminating {
            return;
        }
        let eligible = self.eligible();
        let before = units.len();
        // A node that is gone counts as it is judged below.
        let is_there = |unit: &Unit| self.observed.nodes.get(&unit.name).is_some_and(|node| node.uid == unit.node_uid);
        units.retain(|unit| {
            !is_open || self.has_started(unit) || !is_there(unit) || eligible.contains_key(unit.name.as_str())
        });
        let mut changed = units.len() != before;
        if lost > 0 {
            self.find_lost(units);
        }
        let known: HashMap<String, usize> =
            units.iter().enumerate().map(|(index, unit)| (unit.name.clone(), index)).collect();
        // A set that is closed has as many others as it has lost: which of those that have no Job, nobody can tell.
        let found = units.len().saturating_sub(before);
        let mut room = if is_open { usize::MAX } else { lost.saturating_sub(found) };
        for (name, node) in eligible {
            match known.get(name).and_then(|index| units.get_mut(*index)) {
                None if room == 0 => {}
                None => {
                    room -= 1;
                    units.push(Unit { node_uid: node.uid.clone(), ..Unit::new(name) });
                    changed = true;
                }
                // A node that was created anew is another one.
                Some(unit) if is_open && unit.node_uid != node.uid => {
                    if !unit.node_uid.is_empty() {
                        unit.start_over();
                    }
                    unit.node_uid.clone_from(&node.uid);
                    changed = true;
                }
                Some(_) => {}
            }
        }
        units.sort_by(|one, other| one.name.cmp(&other.name));
        plan.header.set_generation = Some(generation);
        plan.durable_first = is_new || changed;
    }

    /// Nodes that were lost with their JobRecord, and of which a Job tells.
    fn find_lost(&self, units: &mut Vec<Unit>) {
        let known: HashSet<String> = units.iter().map(|unit| unit.name.clone()).collect();
        let found = self.children.units().filter(|name| !known.contains(*name));
        let uid = |name| self.observed.nodes.get(name).map(|node| node.uid.clone()).unwrap_or_default();
        units.extend(found.map(|name| Unit { node_uid: uid(name), ..Unit::new(name) }));
    }

    /// True for a unit that stays in the set whatever is eligible. Of one whose Job was just made its entry may not tell yet.
    fn has_started(&self, unit: &Unit) -> bool {
        let Observation { parent, memory, .. } = self.observed;
        let has_child = || self.children.newest(parent, unit, unit.attempt).is_some_and(|child| !child.gone);
        let may_have_child = || memory.refused.get(&unit.name).is_some_and(|refused| refused.may_exist);
        let tells = unit.has_child() || unit.state.is_terminal() || unit.state == UnitState::Retrying;
        tells || has_child() || may_have_child()
    }

    /// The nodes that have a run.
    fn eligible(&self) -> BTreeMap<&str, &NodeView> {
        let pod = at(&self.spec.job, "/template/spec").unwrap_or(&serde_json::Value::Null);
        let is_eligible = |node: &NodeView| {
            !self.spec.excluded.contains(&node.name)
                && node.matches(self.spec.selector)
                && (!self.spec.skip_cordoned || !node.cordoned)
                && (self.spec.taints != Taints::Respect || !node.repels(pod))
                && node.admits(pod)
        };
        let nodes = self.observed.nodes.values().filter(|node| is_eligible(node));
        nodes.map(|node| (node.name.as_str(), &**node)).collect()
    }
}
