//! The inputs and the result of a plan, for JobFlow and DaemonJob.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;
use oarlock_api::counted_units;
use serde_json::Value;

use crate::attempts::header::{Header, stored_units};
use crate::attempts::node::NodeView;
use crate::attempts::owner_summary::ParentSummary;
use crate::attempts::parent::Parent;
use crate::attempts::pods::PodReport;
use crate::attempts::refused::Refused;
use crate::attempts::status::units_of_records;
use crate::attempts::unit::Unit;
use crate::attempts::view::{ChildKind, ChildView};
use crate::attempts::waiting::{WaitCheck, WaitCheckWindow};

/// A create that got no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LateCreate {
    /// Attempt of the child.
    pub attempt: u32,
    /// Time until which the API server may still make the child.
    pub until: Timestamp,
}

/// A stored JobTemplate.
#[derive(Clone, Debug, PartialEq)]
pub struct TemplateView {
    /// UID and generation, which identify the version that a Job is from.
    pub version: String,
    /// Why the host did not read the template.
    pub unread: Option<String>,
    /// `spec.jobTemplate`, raw.
    pub job: Value,
}

/// The inputs of a plan, as of one time.
#[derive(Clone, Copy)]
pub struct Observation<'a> {
    /// The JobFlow or DaemonJob.
    pub parent: &'a Parent,
    /// The stored state and the results of earlier requests.
    pub memory: &'a PlanMemory,
    /// Objects that carry the UID of `parent` as their owner.
    pub children: &'a [Arc<ChildView>],
    /// The JobTemplates in its namespace that the object names.
    pub templates: &'a HashMap<String, Arc<TemplateView>>,
    /// All nodes, by name.
    pub nodes: &'a BTreeMap<String, Arc<NodeView>>,
}

/// State between two plans. It follows from the stored status, except for the answers of the API server.
#[derive(Clone, Debug, Default)]
pub struct PlanMemory {
    /// The entries of the units, shared with the plan.
    pub units: Arc<Vec<Unit>>,
    /// The other fields of the status.
    pub header: Header,
    /// The number of entries that came from JobRecords.
    pub units_from_records: usize,
    /// The creates that made no child, by unit.
    pub refused: BTreeMap<String, Refused>,
    /// The changes that the API server refused and that are still needed. The key is the UID of the changed object and the verb.
    pub refused_changes: BTreeMap<(String, &'static str), Refused>,
    /// The pods of failed Jobs, by the Job's UID.
    pub pods: BTreeMap<String, PodReport>,
    /// The creates that got no answer and may still take effect, by unit.
    pub late_creates: BTreeMap<String, LateCreate>,
    /// The lists of failed Jobs' pods that got no answer, by the Job's UID.
    pub unread: BTreeMap<String, Refused>,
    /// The last check of each waiting Job without a running pod, by the Job's UID.
    pub wait_checks: BTreeMap<String, WaitCheck>,
    /// The number of checks in the last seconds.
    pub wait_check_window: WaitCheckWindow,
}

impl PlanMemory {
    /// Restores the state from the stored status. If the table of the status is cut, also uses `records`.
    pub fn recalled(parent: &Parent, records: &[Value]) -> Self {
        let mut header = Header::read(&parent.status);
        if !header.is_truncated {
            return Self { units: stored_units(parent).into(), header, ..Self::default() };
        }
        let mut units = units_of_records(&parent.status, records);
        let units_from_records = units.len();
        let total = counted_units(&parent.status).unwrap_or(0);
        let missing = |units: &[Unit]| total.saturating_sub(units.len());
        if missing(&units) > 0 {
            // The sample in the status has some of the missing units.
            let known: HashSet<String> = units.iter().map(|unit| unit.name.clone()).collect();
            units.extend(stored_units(parent).into_iter().filter(|unit| !known.contains(&unit.name)));
        }
        let missing = i64::try_from(missing(&units)).unwrap_or(i64::MAX);
        header.lost_units = header.lost_units.saturating_add(missing);
        Self { units: units.into(), header, units_from_records, ..Self::default() }
    }
}

/// A child to create.
#[derive(Clone, Debug, PartialEq)]
pub struct Create {
    /// Name of the unit.
    pub unit: String,
    /// Kind of the child.
    pub kind: ChildKind,
    /// Name of the child.
    pub name: String,
    /// Number of the attempt.
    pub attempt: u32,
    /// The digest of the child's inputs.
    pub revision: String,
    /// True if the unit waited for other units until now, and this is its first child.
    pub follows: bool,
    /// The object to create.
    pub object: Value,
}

/// A change of an existing child.
#[derive(Clone, Debug, PartialEq)]
pub enum ChildChange {
    /// Makes the owner the controller of the child.
    Adopt(Arc<ChildView>),
    /// Ends a Job with its pods. The Job stays as evidence.
    Stop(Arc<ChildView>),
    /// Deletes the child with its pods.
    Delete(Arc<ChildView>),
    /// Starts the withheld time to live, in seconds.
    SetTtl(Arc<ChildView>, i64),
    /// Deletes the owner itself, because its time to live is over.
    DeleteSelf,
}

impl ChildChange {
    /// Returns the verb of the change.
    pub fn verb(&self) -> &'static str {
        match self {
            Self::Adopt(_) => "adopt",
            Self::Stop(_) => "stop",
            Self::Delete(_) | Self::DeleteSelf => "delete",
            Self::SetTtl(..) => "set the time to live of",
        }
    }

    /// Returns the verb and the object's name.
    pub fn describe(&self) -> String {
        let name = self.child().map_or("the object itself", |child| child.name.as_str());
        format!("{} {name}", self.verb())
    }

    /// Returns the UID of the changed object and the verb.
    pub fn key(&self, parent: &Parent) -> (String, &'static str) {
        (self.child().map_or(&parent.uid, |child| &child.uid).clone(), self.verb())
    }

    /// Returns the child. Returns `None` if the change is about the owner itself.
    pub fn child(&self) -> Option<&Arc<ChildView>> {
        match self {
            Self::Adopt(child) | Self::Stop(child) | Self::Delete(child) | Self::SetTtl(child, _) => Some(child),
            Self::DeleteSelf => None,
        }
    }
}

/// The result of a plan.
#[derive(Clone, Debug, Default)]
pub struct ParentPlan {
    /// The new entries of the units.
    pub units: Arc<Vec<Unit>>,
    /// The other new fields of the status.
    pub header: Header,
    /// The state and the conditions of the object as a whole.
    pub summary: ParentSummary,
    /// True if the host must store units or the set of nodes before it creates anything.
    pub durable_first: bool,
    /// Children to create.
    pub creates: Vec<Create>,
    /// The memory of the objects to create, in bytes.
    pub bytes: usize,
    /// Changes to make now.
    pub changes: Vec<ChildChange>,
    /// Changes to make once the status of this plan is durable.
    pub changes_after_record: Vec<ChildChange>,
    /// Failed Jobs whose pods the host must list before it can judge their units.
    pub reads: Vec<Arc<ChildView>>,
    /// Jobs that announced a failure. The host lists their pods at once, because an evicted pod is gone when the Job confirms the failure.
    pub early_reads: Vec<Arc<ChildView>>,
    /// The number of Jobs without a running pod that the host checks.
    pub checked_jobs: usize,
    /// The UIDs of Jobs that the host checks, and of Jobs with an earlier check.
    pub waiting: HashSet<String>,
    /// Jobs that the host has to check now.
    pub wait_checks: Vec<Arc<ChildView>>,
    /// True if the next round has more children to create.
    pub more: bool,
    /// Sentences about parts of the spec that have no effect.
    pub ignored: Vec<String>,
    /// The time at which the host must plan again, even without an event.
    pub due: Option<Timestamp>,
}

/// The most creates of one plan. A large set takes several plans, so that its status is updated meanwhile.
const CREATES: usize = 256;
/// The memory of the objects of one plan at which the plan stops, in bytes.
const BYTES: usize = 4 * 1024 * 1024;

impl ParentPlan {
    /// Returns true if the plan takes no more creates. The next plan goes on.
    pub fn is_full(&self) -> bool {
        self.creates.len() >= CREATES || self.bytes >= BYTES
    }

    /// Removes all requests for reads. Each pass over the units decides again which reads are due.
    pub fn forget_reads(&mut self) {
        self.reads.clear();
        self.early_reads.clear();
        self.wait_checks.clear();
        self.waiting.clear();
        self.checked_jobs = 0;
    }

    /// Asks for a new plan at `time` or earlier.
    pub fn requeue_by(&mut self, time: Timestamp) {
        self.due = Some(self.due.map_or(time, |due| due.min(time)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_is_full_at_four_mebibytes_of_children() {
        let plan = |bytes| ParentPlan { bytes, ..ParentPlan::default() };
        assert!(!plan(BYTES - 1).is_full() && plan(BYTES).is_full());
    }
}
