//! The set of nodes on which a DaemonJob runs. Source: docs/jobflow.md 4.1.

use std::collections::{BTreeMap, HashMap, HashSet};

use crate::attempts::node::NodeView;
use crate::attempts::plan::{Observation, ParentPlan};
use crate::attempts::unit::{Unit, UnitState};
use crate::daemon_job::plan::DaemonRound;
use crate::daemon_job::spec::Taints;
use crate::object::fields::at;

impl DaemonRound<'_> {
    /// Takes the set of nodes in the first round and after each edit. With `newNodePolicy: Run`, takes it in each round.
    pub(crate) fn take_set(&self, units: &mut Vec<Unit>, plan: &mut ParentPlan) {
        let generation = self.observed.parent.generation;
        let is_new = plan.header.set_generation != Some(generation);
        let is_open = is_new || self.spec.runs_new;
        let lost = usize::try_from(plan.header.lost_units).unwrap_or(usize::MAX);
        if !is_open && lost == 0 || self.observed.parent.terminating {
            return;
        }
        let eligible = self.eligible();
        let before = units.len();
        // The plan judges nodes that are gone later.
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
        // A closed set takes as many other nodes as it has lost. Without a Job, nobody can tell which nodes were lost.
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
                // A node that was created again under its name is another node.
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

    /// Adds the nodes that were lost with their JobRecord and have a Job.
    fn find_lost(&self, units: &mut Vec<Unit>) {
        let known: HashSet<String> = units.iter().map(|unit| unit.name.clone()).collect();
        let found = self.children.units().filter(|name| !known.contains(*name));
        let uid = |name| self.observed.nodes.get(name).map(|node| node.uid.clone()).unwrap_or_default();
        units.extend(found.map(|name| Unit { node_uid: uid(name), ..Unit::new(name) }));
    }

    /// Returns true if a unit stays in the set even if its node is no longer eligible. The entry of a unit whose Job was just created may not have
    /// the Job yet.
    fn has_started(&self, unit: &Unit) -> bool {
        let Observation { parent, memory, .. } = self.observed;
        let has_child = || self.children.newest(parent, unit, unit.attempt).is_some_and(|child| !child.gone);
        let may_have_child = || memory.refused.get(&unit.name).is_some_and(|refused| refused.may_exist);
        let tells = unit.has_child() || unit.state.is_terminal() || unit.state == UnitState::Retrying;
        tells || has_child() || may_have_child()
    }

    /// Returns the nodes on which the DaemonJob runs.
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
