//! A JobFlow or DaemonJob on a stage: plans are carried out as the driver does, on a cluster that is a few maps.
//!
//! Takes an object; yields rounds under a clock that a test moves. May not decide anything.

mod cluster;
pub(crate) mod make;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;
use oarlock_core::child::header::Header;
use oarlock_core::child::node::NodeView;
use oarlock_core::child::parent::{Parent, ParentKind};
use oarlock_core::child::plan::{Memory, Observation, ParentPlan, TemplateView};
use oarlock_core::child::pods::PodReport;
use oarlock_core::child::status::{SHARD, StatusInput, lines_of, next_first_record, report};
use oarlock_core::child::told::told;
use oarlock_core::child::unit::{Unit, UnitState};
use oarlock_core::child::view::ChildView;
use oarlock_core::job::time::after_seconds;
use oarlock_core::{daemon, flow};
use serde_json::{Value, json};

/// When a stage begins.
pub(crate) const START: &str = "2026-01-01T00:00:00Z";
/// Most rounds until nothing is asked for any more.
const ROUNDS: usize = 60;

/// Where a driver dies while it carries out a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Death {
    /// Before it does anything.
    AtOnce,
    /// After the creates and changes.
    AfterCreates,
    /// After it wrote this many JobRecords, before the status that counts them.
    AmongRecords(usize),
    /// After it wrote the status.
    AfterStatus,
}

/// An object, its cluster and its driver.
pub(crate) struct Stage {
    /// The time.
    pub(crate) now: Timestamp,
    /// The object.
    pub(crate) parent: Parent,
    /// What the driver remembers.
    pub(crate) memory: Memory,
    /// The children as the driver sees them.
    pub(crate) children: Vec<Arc<ChildView>>,
    /// The JobTemplates.
    pub(crate) templates: HashMap<String, Arc<TemplateView>>,
    /// The nodes.
    pub(crate) nodes: BTreeMap<String, Arc<NodeView>>,
    /// The children that exist, by name.
    pub(crate) objects: BTreeMap<String, Value>,
    /// Unit and name of every child that was ever created, in order.
    pub(crate) created: Vec<(String, String)>,
    /// Every attempt that ever had a child.
    pub(crate) attempts: BTreeSet<(String, u32)>,
    /// What the pods of a Job tell, by the Job's name.
    pub(crate) pods: HashMap<String, PodReport>,
    /// How often pods were listed.
    pub(crate) listed: usize,
    /// All events: reason and message.
    pub(crate) told: Vec<(String, String)>,
    /// All changes: their word and the child's name.
    pub(crate) changed: Vec<(&'static str, String)>,
    /// The object was deleted by its own cleanup.
    pub(crate) is_gone: bool,
    /// The JobRecords, by number: none is ever deleted.
    records: BTreeMap<usize, Vec<String>>,
    told_names: BTreeSet<String>,
}

impl Stage {
    /// A stage with this object.
    pub(crate) fn of(kind: ParentKind, object: Value) -> Self {
        let parent = Parent::read(kind, object).unwrap();
        Self {
            now: START.parse().unwrap(),
            memory: Memory::recalled(&parent, &[]),
            parent,
            children: Vec::new(),
            templates: HashMap::new(),
            nodes: BTreeMap::new(),
            objects: BTreeMap::new(),
            created: Vec::new(),
            attempts: BTreeSet::new(),
            pods: HashMap::new(),
            listed: 0,
            told: Vec::new(),
            changed: Vec::new(),
            is_gone: false,
            records: BTreeMap::new(),
            told_names: BTreeSet::new(),
        }
    }

    /// A new JobFlow `f` of this spec.
    pub(crate) fn flow(spec: Value) -> Self {
        Self::of(ParentKind::Flow, make::object("JobFlow", "f", spec))
    }

    /// A new DaemonJob `d` of this spec on these nodes.
    pub(crate) fn daemon<'a>(spec: Value, nodes: impl IntoIterator<Item = &'a str>) -> Self {
        let mut stage = Self::of(ParentKind::Daemon, make::object("DaemonJob", "d", spec));
        nodes.into_iter().for_each(|name| stage.add_node(name));
        stage
    }

    /// The plan of this moment.
    pub(crate) fn plan(&self) -> ParentPlan {
        self.plan_with(&self.memory)
    }

    /// The plan of this moment with another memory.
    pub(crate) fn plan_with(&self, memory: &Memory) -> ParentPlan {
        let Self { parent, children, templates, nodes, .. } = self;
        let observed = Observation { parent, memory, children, templates, nodes };
        match parent.kind {
            ParentKind::Flow => flow::plan::plan(observed, self.now),
            ParentKind::Daemon => daemon::plan::plan(observed, self.now),
        }
    }

    /// One round: a plan, carried out.
    pub(crate) fn round(&mut self) -> ParentPlan {
        let plan = self.plan();
        self.carry_out(&plan, None);
        plan
    }

    /// Carries out a plan in the order of the driver, up to its death.
    pub(crate) fn carry_out(&mut self, plan: &ParentPlan, death: Option<Death>) {
        if death == Some(Death::AtOnce) {
            return;
        }
        let records = if let Some(Death::AmongRecords(records)) = death { Some(records) } else { None };
        if plan.durable_first {
            self.write_status(plan, records);
            if records.is_some() {
                return;
            }
        }
        plan.creates.iter().for_each(|create| self.create(create));
        plan.changes.iter().for_each(|change| self.change(change));
        if death == Some(Death::AfterCreates) {
            return;
        }
        self.write_status(plan, records);
        if death == Some(Death::AfterStatus) || records.is_some() {
            return;
        }
        for child in plan.reads.iter().chain(&plan.early_reads) {
            self.listed += 1;
            let answer = self.pods.get(&child.name).cloned().unwrap_or_default();
            self.memory.pods.insert(child.uid.clone(), answer);
        }
        plan.settled.iter().for_each(|change| self.change(change));
        // A child that is gone was judged.
        let judged: BTreeSet<&str> = plan.units.iter().map(|unit| unit.job_uid.as_str()).collect();
        self.children.retain(|child| !child.gone || !judged.contains(child.uid.as_str()));
    }

    fn write_status(&mut self, plan: &ParentPlan, dies_after: Option<usize>) {
        let Self { parent, children, .. } = &*self;
        let ParentPlan { units, header, verdict, .. } = plan;
        let header =
            &Header { first_record: next_first_record(units, parent, Some(&self.memory.units)), ..header.clone() };
        let reported = report(StatusInput { parent, units, header, verdict, children });
        let records = units.chunks(SHARD).map(lines_of).enumerate().filter(|_| reported.is_cut);
        let records = records.map(|(place, lines)| (header.first_record + place, lines));
        self.records.extend(records.take(dies_after.unwrap_or(usize::MAX)));
        if dies_after.is_some() {
            return;
        }
        let notes = told(&self.parent, &self.memory, plan);
        // A second one of a name is there already.
        let new = notes.into_iter().filter(|note| self.told_names.insert(note.name.clone()));
        self.told.extend(new.map(|note| (note.reason, note.message)));
        self.memory = self.remembered(plan);
        self.memory.header.first_record = header.first_record;
        self.parent.status = reported.status;
    }

    /// A JobRecord is deleted by hand: of those that the status counts, the one at this place.
    pub(crate) fn lose_record(&mut self, place: usize) {
        self.records.remove(&(self.memory.header.first_record + place));
    }

    /// The numbers of entries of the JobRecords that the status counts.
    pub(crate) fn records(&self) -> Vec<usize> {
        let counted = self.memory.units.len().div_ceil(SHARD);
        self.records.range(self.memory.header.first_record..).take(counted).map(|(_, lines)| lines.len()).collect()
    }

    /// What the driver remembers once a plan is durable.
    pub(crate) fn remembered(&self, plan: &ParentPlan) -> Memory {
        let header = Header {
            state: plan.verdict.state.clone(),
            conditions: plan.verdict.conditions.clone(),
            observed_generation: Some(self.parent.generation),
            ..plan.header.clone()
        };
        Memory { units: plan.units.clone(), header, ..self.memory.clone() }
    }

    /// The driver dies, and another one begins with what is stored.
    pub(crate) fn restart(&mut self) {
        let record = |(shard, lines): (&usize, &Vec<String>)| json!({"shard": shard, "units": lines});
        let records: Vec<Value> = self.records.iter().map(record).collect();
        self.memory = Memory::recalled(&self.parent, &records);
        self.children.retain(|child| !child.gone);
    }

    /// Rounds until a plan asks for nothing and changes nothing. Yields that plan.
    pub(crate) fn settle(&mut self) -> ParentPlan {
        for _ in 0..ROUNDS {
            let before = self.memory.units.clone();
            let plan = self.round();
            let asks = plan.creates.len() + plan.changes.len() + plan.reads.len() + plan.settled.len();
            if asks == 0 && before == plan.units || self.is_gone {
                return plan;
            }
        }
        panic!("it never comes to rest: {:?}", self.states());
    }

    /// Time passes, and rounds follow.
    pub(crate) fn pass(&mut self, seconds: i64) -> ParentPlan {
        self.now = after_seconds(self.now, seconds);
        self.settle()
    }

    /// Goes on to the time at which the driver wakes by itself.
    pub(crate) fn wake(&mut self) -> ParentPlan {
        let due = self.plan().due.expect("nothing is due");
        self.now = self.now.max(due);
        self.settle()
    }

    /// Replaces a field of the spec, `null` takes it out.
    pub(crate) fn edit(&mut self, pointer: &str, value: Value) {
        let (holder, field) = pointer.rsplit_once('/').unwrap();
        let holder = self.parent.spec.pointer_mut(holder).unwrap();
        match holder {
            Value::Array(items) => items[field.parse::<usize>().unwrap()] = value,
            holder => holder[field] = value,
        }
        self.parent.generation += 1;
    }

    /// Somebody writes the annotation for a retry.
    pub(crate) fn retry(&mut self, value: &str) -> ParentPlan {
        self.parent.retry = Some(value.to_owned());
        self.settle()
    }

    /// The entry of a unit.
    pub(crate) fn unit(&self, name: &str) -> &Unit {
        self.memory.units.iter().find(|unit| unit.name == name).unwrap_or_else(|| panic!("no unit {name}"))
    }

    /// The state of a unit.
    pub(crate) fn state_of(&self, name: &str) -> UnitState {
        self.unit(name).state
    }

    /// State and reason of a unit, `State/Reason`.
    pub(crate) fn end_of(&self, name: &str) -> String {
        let unit = self.unit(name);
        format!("{:?}/{}", unit.state, unit.reason).trim_end_matches('/').to_owned()
    }

    /// Names and ends of all units.
    pub(crate) fn states(&self) -> Vec<String> {
        self.memory.units.iter().map(|unit| format!("{} {}", unit.name, self.end_of(&unit.name))).collect()
    }

    /// `status.state`.
    pub(crate) fn state(&self) -> &str {
        self.parent.status["state"].as_str().unwrap()
    }

    /// A condition: `True/Reason`.
    pub(crate) fn condition(&self, kind: &str) -> String {
        let found = self.memory.header.conditions.iter().find(|one| one.kind == kind);
        found.map(|one| format!("{}/{}", one.status, one.reason)).unwrap_or_default()
    }

    /// The message of a condition.
    pub(crate) fn message(&self, kind: &str) -> String {
        let found = self.memory.header.conditions.iter().find(|one| one.kind == kind);
        found.map(|one| one.message.clone()).unwrap_or_default()
    }

    /// The units that children were created for, in order.
    pub(crate) fn started(&self) -> Vec<&str> {
        self.created.iter().map(|(unit, _)| unit.as_str()).collect()
    }

    /// The names of the children that were created, in order.
    pub(crate) fn names(&self) -> Vec<&str> {
        self.created.iter().map(|(_, name)| name.as_str()).collect()
    }

    /// How many events had this reason.
    pub(crate) fn events(&self, reason: &str) -> usize {
        self.told.iter().filter(|(told, _)| told == reason).count()
    }
}
