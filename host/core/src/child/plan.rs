//! What a plan is made from, and what it asks for: shared by JobFlow and DaemonJob.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use oarlock_api::counted_units;
use serde_json::Value;

use crate::child::header::{Header, stored_units};
use crate::child::node::NodeView;
use crate::child::parent::Parent;
use crate::child::pods::PodReport;
use crate::child::refused::Refused;
use crate::child::status::units_of_records;
use crate::child::unit::Unit;
use crate::child::verdict::ParentVerdict;
use crate::child::view::{ChildKind, ChildView};
use crate::child::waiting::{Look, LookWindow};

/// How long after a create without answer the child may still be made: API servers give a request a minute.
pub const LATE: SignedDuration = SignedDuration::from_secs(60);

/// A create that had no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LateCreate {
    /// The attempt that it is of.
    pub attempt: u32,
    /// Until when it may be made.
    pub until: Timestamp,
}

/// A JobTemplate as it is stored.
#[derive(Clone, Debug, PartialEq)]
pub struct TemplateView {
    /// UID and generation: which version of it a Job is from.
    pub version: String,
    /// Why that is not read.
    pub unread: Option<String>,
    /// `spec.jobTemplate`, raw.
    pub job: Value,
}

/// Everything that a plan knows, at one time.
#[derive(Clone, Copy)]
pub struct Observation<'a> {
    /// The object.
    pub parent: &'a Parent,
    /// What is remembered of it.
    pub memory: &'a Memory,
    /// Its children: those that carry its UID.
    pub children: &'a [Arc<ChildView>],
    /// The JobTemplates of its namespace that it names.
    pub templates: &'a HashMap<String, Arc<TemplateView>>,
    /// All nodes, by name.
    pub nodes: &'a BTreeMap<String, Arc<NodeView>>,
}

/// What is remembered between two plans. It follows from the stored status, but for what the server answered.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    /// The entries of its units. A plan has them in common with what is remembered of it.
    pub units: Arc<Vec<Unit>>,
    /// The rest of its status.
    pub header: Header,
    /// How many of the entries were recalled from JobRecords.
    pub recorded: usize,
    /// The creates that brought no child, by unit.
    pub refused: BTreeMap<String, Refused>,
    /// The changes that the API server refused and that are still called for, by the UID of what they change, and how.
    pub refused_changes: BTreeMap<(String, &'static str), Refused>,
    /// The pods of failed Jobs, by the Job's UID.
    pub pods: BTreeMap<String, PodReport>,
    /// The creates that had no answer and may still be made, by unit.
    pub late_creates: BTreeMap<String, LateCreate>,
    /// The lists of such pods that had no answer, by the Job's UID.
    pub unread: BTreeMap<String, Refused>,
    /// What Jobs without a pod at work wait for, by the Job's UID.
    pub looks: BTreeMap<String, Look>,
    /// The looks of the last seconds.
    pub look_window: LookWindow,
}

impl Memory {
    /// What the stored status says, with `records` where its table is cut.
    pub fn recalled(parent: &Parent, records: &[Value]) -> Self {
        let mut header = Header::read(&parent.status);
        if !header.is_truncated {
            return Self { units: stored_units(parent).into(), header, ..Self::default() };
        }
        let mut units = units_of_records(&parent.status, records);
        let recorded = units.len();
        let total = counted_units(&parent.status).unwrap_or(0);
        let missing = |units: &[Unit]| total.saturating_sub(units.len());
        if missing(&units) > 0 {
            // The sample in the status tells of some.
            let known: HashSet<String> = units.iter().map(|unit| unit.name.clone()).collect();
            units.extend(stored_units(parent).into_iter().filter(|unit| !known.contains(&unit.name)));
        }
        let missing = i64::try_from(missing(&units)).unwrap_or(i64::MAX);
        header.lost_units = header.lost_units.saturating_add(missing);
        Self { units: units.into(), header, recorded, ..Self::default() }
    }
}

/// A child to create.
#[derive(Clone, Debug, PartialEq)]
pub struct Create {
    /// The unit that it is for.
    pub unit: String,
    /// The kind of the child.
    pub kind: ChildKind,
    /// Its name.
    pub name: String,
    /// Its attempt.
    pub attempt: u32,
    /// The digest of what it was built from.
    pub revision: String,
    /// The unit waited for others until now, and this is the first child of its turn.
    pub follows: bool,
    /// The object.
    pub object: Value,
}

/// A change of an existing child.
#[derive(Clone, Debug, PartialEq)]
pub enum ChildChange {
    /// It becomes controlled by its owner.
    Adopt(Arc<ChildView>),
    /// A Job ends with its pods, and stays as evidence.
    Stop(Arc<ChildView>),
    /// It is deleted, with its pods.
    Delete(Arc<ChildView>),
    /// Its withheld time to live begins, in seconds.
    SetTtl(Arc<ChildView>, i64),
    /// The object itself is deleted: its own time is over.
    DeleteSelf,
}

impl ChildChange {
    /// What it does.
    pub fn verb(&self) -> &'static str {
        match self {
            Self::Adopt(_) => "adopt",
            Self::Stop(_) => "stop",
            Self::Delete(_) | Self::DeleteSelf => "delete",
            Self::SetTtl(..) => "set the time to live of",
        }
    }

    /// What it does to which object.
    pub fn words(&self) -> String {
        let name = self.child().map_or("the object itself", |child| child.name.as_str());
        format!("{} {name}", self.verb())
    }

    /// What it changes and how, by the UID of that.
    pub fn key(&self, parent: &Parent) -> (String, &'static str) {
        (self.child().map_or(&parent.uid, |child| &child.uid).clone(), self.verb())
    }

    /// The child; `None` where it is about the object itself.
    pub fn child(&self) -> Option<&Arc<ChildView>> {
        match self {
            Self::Adopt(child) | Self::Stop(child) | Self::Delete(child) | Self::SetTtl(child, _) => Some(child),
            Self::DeleteSelf => None,
        }
    }
}

/// What a plan asks for.
#[derive(Clone, Debug, Default)]
pub struct ParentPlan {
    /// The new entries.
    pub units: Arc<Vec<Unit>>,
    /// The new rest of the status.
    pub header: Header,
    /// What is said of the object as a whole.
    pub verdict: ParentVerdict,
    /// Units or the set of nodes are to be durable before anything is created.
    pub durable_first: bool,
    /// Children to create.
    pub creates: Vec<Create>,
    /// The memory that their objects take.
    pub bytes: usize,
    /// Changes to make now.
    pub changes: Vec<ChildChange>,
    /// Changes to make once the status says what the plan says.
    pub settled: Vec<ChildChange>,
    /// Failed Jobs whose pods have to be listed before their units can be judged.
    pub reads: Vec<Arc<ChildView>>,
    /// Jobs that announced a failure, whose pods are listed at once: one that was evicted is gone when the failure is
    /// confirmed.
    pub early_reads: Vec<Arc<ChildView>>,
    /// How many Jobs without a pod at work are looked at.
    pub looked_at: usize,
    /// Those, and the others that were, by UID.
    pub waiting: HashSet<String>,
    /// Those of which it is due to see what they wait for.
    pub looks: Vec<Arc<ChildView>>,
    /// More is to be created, in the next round.
    pub more: bool,
    /// Parts of the object that have no effect, in sentences.
    pub ignored: Vec<String>,
    /// When the plan has to be made anew though nothing happens.
    pub due: Option<Timestamp>,
}

/// Most creates of one plan: a large set takes several, so that its status goes on meanwhile.
const CREATES: usize = 256;
/// Memory of the objects of one plan from which on it takes no more.
const BYTES: usize = 4 * 1024 * 1024;

impl ParentPlan {
    /// True where the next plan goes on with what is to be created.
    pub fn is_full(&self) -> bool {
        self.creates.len() >= CREATES || self.bytes >= BYTES
    }

    /// Asks for no reads: each pass over the units says anew which are due.
    pub fn forget_reads(&mut self) {
        self.reads.clear();
        self.early_reads.clear();
        self.looks.clear();
        self.waiting.clear();
        self.looked_at = 0;
    }

    /// Asks for a new plan at `time`, or before.
    pub fn wake_at(&mut self, time: Timestamp) {
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
