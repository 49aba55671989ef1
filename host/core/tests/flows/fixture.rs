//! The fixture of these tests: a JobFlow or DaemonJob. The fixture carries out plans as the driver does, on a cluster that is a few maps.
//!
//! A test moves the clock of the fixture. The fixture itself decides nothing.

mod cluster;
pub(crate) mod make;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;
use oarlock_core::attempts::header::Header;
use oarlock_core::attempts::node::NodeView;
use oarlock_core::attempts::parent::{Parent, ParentKind};
use oarlock_core::attempts::plan::{Observation, ParentPlan, PlanMemory, TemplateView};
use oarlock_core::attempts::pods::PodReport;
use oarlock_core::attempts::status::{SHARD, StatusInput, lines_of, next_first_record, report};
use oarlock_core::attempts::transition_events::transition_events;
use oarlock_core::attempts::unit::{Unit, UnitState};
use oarlock_core::attempts::view::ChildView;
use oarlock_core::object::time::after_seconds;
use oarlock_core::{daemon_job, job_flow};
use serde_json::{Value, json};

/// The time at which a fixture begins.
pub(crate) const START: &str = "2026-01-01T00:00:00Z";
/// The most rounds until a plan asks for nothing more.
const ROUNDS: usize = 60;

/// The moment at which a driver dies while it carries out a plan.
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
pub(crate) struct Fixture {
    /// The current time of the fixture.
    pub(crate) now: Timestamp,
    /// The JobFlow or DaemonJob.
    pub(crate) parent: Parent,
    /// The memory of the driver.
    pub(crate) memory: PlanMemory,
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
    /// The report about the pods of a Job, by the Job's name.
    pub(crate) pods: HashMap<String, PodReport>,
    /// How often the driver listed pods.
    pub(crate) listed: usize,
    /// All events: reason and message.
    pub(crate) event_notes: Vec<(String, String)>,
    /// All changes: a word for the change and the child's name.
    pub(crate) changed: Vec<(&'static str, String)>,
    /// Whether the object was deleted by its own cleanup.
    pub(crate) is_gone: bool,
    /// The JobRecords by number. None is ever deleted.
    records: BTreeMap<usize, Vec<String>>,
    told_names: BTreeSet<String>,
}

impl Fixture {
    /// Returns a fixture with this object.
    pub(crate) fn of(kind: ParentKind, object: Value) -> Self {
        let parent = Parent::read(kind, object).unwrap();
        Self {
            now: START.parse().unwrap(),
            memory: PlanMemory::recalled(&parent, &[]),
            parent,
            children: Vec::new(),
            templates: HashMap::new(),
            nodes: BTreeMap::new(),
            objects: BTreeMap::new(),
            created: Vec::new(),
            attempts: BTreeSet::new(),
            pods: HashMap::new(),
            listed: 0,
            event_notes: Vec::new(),
            changed: Vec::new(),
            is_gone: false,
            records: BTreeMap::new(),
            told_names: BTreeSet::new(),
        }
    }

    /// Returns a fixture with a new JobFlow `f` of this spec.
    pub(crate) fn flow(spec: Value) -> Self {
        Self::of(ParentKind::Flow, make::object("JobFlow", "f", spec))
    }

    /// Returns a fixture with a new DaemonJob `d` of this spec on these nodes.
    pub(crate) fn daemon<'a>(spec: Value, nodes: impl IntoIterator<Item = &'a str>) -> Self {
        let mut fixture = Self::of(ParentKind::Daemon, make::object("DaemonJob", "d", spec));
        nodes.into_iter().for_each(|name| fixture.add_node(name));
        fixture
    }

    /// Returns the plan at this moment.
    pub(crate) fn plan(&self) -> ParentPlan {
        self.plan_with(&self.memory)
    }

    /// Returns the plan at this moment with another memory.
    pub(crate) fn plan_with(&self, memory: &PlanMemory) -> ParentPlan {
        let Self { parent, children, templates, nodes, .. } = self;
        let observed = Observation { parent, memory, children, templates, nodes };
        match parent.kind {
            ParentKind::Flow => job_flow::plan::plan(observed, self.now),
            ParentKind::Daemon => daemon_job::plan::plan(observed, self.now),
        }
    }

    /// Runs one round: makes a plan and carries it out.
    pub(crate) fn round(&mut self) -> ParentPlan {
        let plan = self.plan();
        self.carry_out(&plan, None);
        plan
    }

    /// Carries out a plan in the order of the driver, until the driver dies.
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
        plan.changes_after_record.iter().for_each(|change| self.change(change));
        // The plan has judged a child that is gone, so the driver forgets the child.
        let judged: BTreeSet<&str> = plan.units.iter().map(|unit| unit.job_uid.as_str()).collect();
        self.children.retain(|child| !child.gone || !judged.contains(child.uid.as_str()));
    }

    fn write_status(&mut self, plan: &ParentPlan, dies_after: Option<usize>) {
        let Self { parent, children, .. } = &*self;
        let ParentPlan { units, header, summary, .. } = plan;
        let header =
            &Header { first_record: next_first_record(units, parent, Some(&self.memory.units)), ..header.clone() };
        let reported = report(StatusInput { parent, units, header, summary, children });
        let records = units.chunks(SHARD).map(lines_of).enumerate().filter(|_| reported.is_cut);
        let records = records.map(|(place, lines)| (header.first_record + place, lines));
        self.records.extend(records.take(dies_after.unwrap_or(usize::MAX)));
        if dies_after.is_some() {
            return;
        }
        let notes = transition_events(&self.parent, &self.memory, plan);
        // The API server already has an event of this name.
        let new = notes.into_iter().filter(|note| self.told_names.insert(note.name.clone()));
        self.event_notes.extend(new.map(|note| (note.reason, note.message)));
        self.memory = self.remembered(plan);
        self.memory.header.first_record = header.first_record;
        self.parent.status = reported.status;
    }

    /// Deletes a JobRecord by hand: the record at this place among those that the status counts.
    pub(crate) fn lose_record(&mut self, place: usize) {
        self.records.remove(&(self.memory.header.first_record + place));
    }

    /// Returns the number of entries of each JobRecord that the status counts.
    pub(crate) fn records(&self) -> Vec<usize> {
        let counted = self.memory.units.len().div_ceil(SHARD);
        self.records.range(self.memory.header.first_record..).take(counted).map(|(_, lines)| lines.len()).collect()
    }

    /// Returns the memory of the driver after a plan is durable.
    pub(crate) fn remembered(&self, plan: &ParentPlan) -> PlanMemory {
        let header = Header {
            state: plan.summary.state.clone(),
            conditions: plan.summary.conditions.clone(),
            observed_generation: Some(self.parent.generation),
            ..plan.header.clone()
        };
        PlanMemory { units: plan.units.clone(), header, ..self.memory.clone() }
    }

    /// Lets the driver die and another driver begin with the stored state.
    pub(crate) fn restart(&mut self) {
        let record = |(shard, lines): (&usize, &Vec<String>)| json!({"shard": shard, "units": lines});
        let records: Vec<Value> = self.records.iter().map(record).collect();
        self.memory = PlanMemory::recalled(&self.parent, &records);
        self.children.retain(|child| !child.gone);
    }

    /// Runs rounds until a plan asks for nothing and changes nothing. Returns that plan.
    pub(crate) fn settle(&mut self) -> ParentPlan {
        for _ in 0..ROUNDS {
            let before = self.memory.units.clone();
            let plan = self.round();
            let asks = plan.creates.len() + plan.changes.len() + plan.reads.len() + plan.changes_after_record.len();
            if asks == 0 && before == plan.units || self.is_gone {
                return plan;
            }
        }
        panic!("it never comes to rest: {:?}", self.states());
    }

    /// Lets time pass, then runs rounds.
    pub(crate) fn pass(&mut self, seconds: i64) -> ParentPlan {
        self.now = after_seconds(self.now, seconds);
        self.settle()
    }

    /// Advances the time to the next requeue of the driver, then runs rounds.
    pub(crate) fn wake(&mut self) -> ParentPlan {
        let due = self.plan().due.expect("nothing is due");
        self.now = self.now.max(due);
        self.settle()
    }

    /// Replaces a field of the spec. `null` removes it.
    pub(crate) fn edit(&mut self, pointer: &str, value: Value) {
        let (holder, field) = pointer.rsplit_once('/').unwrap();
        let holder = self.parent.spec.pointer_mut(holder).unwrap();
        match holder {
            Value::Array(items) => items[field.parse::<usize>().unwrap()] = value,
            holder => holder[field] = value,
        }
        self.parent.generation += 1;
    }

    /// Writes the annotation for a retry, then runs rounds.
    pub(crate) fn retry(&mut self, value: &str) -> ParentPlan {
        self.parent.retry = Some(value.to_owned());
        self.settle()
    }

    /// Returns the entry of a unit.
    pub(crate) fn unit(&self, name: &str) -> &Unit {
        self.memory.units.iter().find(|unit| unit.name == name).unwrap_or_else(|| panic!("no unit {name}"))
    }

    /// Returns the state of a unit.
    pub(crate) fn state_of(&self, name: &str) -> UnitState {
        self.unit(name).state
    }

    /// Returns state and reason of a unit, as `State/Reason`.
    pub(crate) fn end_of(&self, name: &str) -> String {
        let unit = self.unit(name);
        format!("{:?}/{}", unit.state, unit.reason).trim_end_matches('/').to_owned()
    }

    /// Returns the names and ends of all units.
    pub(crate) fn states(&self) -> Vec<String> {
        self.memory.units.iter().map(|unit| format!("{} {}", unit.name, self.end_of(&unit.name))).collect()
    }

    /// Returns `status.state`.
    pub(crate) fn state(&self) -> &str {
        self.parent.status["state"].as_str().unwrap()
    }

    /// Returns the status and reason of a condition, such as `True/Reason`.
    pub(crate) fn condition(&self, kind: &str) -> String {
        let found = self.memory.header.conditions.iter().find(|one| one.kind == kind);
        found.map(|one| format!("{}/{}", one.status, one.reason)).unwrap_or_default()
    }

    /// Returns the message of a condition.
    pub(crate) fn message(&self, kind: &str) -> String {
        let found = self.memory.header.conditions.iter().find(|one| one.kind == kind);
        found.map(|one| one.message.clone()).unwrap_or_default()
    }

    /// Returns the units for which children were created, in order.
    pub(crate) fn started(&self) -> Vec<&str> {
        self.created.iter().map(|(unit, _)| unit.as_str()).collect()
    }

    /// Returns the names of the children that were created, in order.
    pub(crate) fn names(&self) -> Vec<&str> {
        self.created.iter().map(|(_, name)| name.as_str()).collect()
    }

    /// Returns the number of events with this reason.
    pub(crate) fn events(&self, reason: &str) -> usize {
        self.event_notes.iter().filter(|(told, _)| told == reason).count()
    }
}
