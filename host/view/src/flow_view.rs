//! A view of one JobFlow or DaemonJob at one time, made from the objects that the cluster stores.
//!
//! A view takes the object and its readable JobRecords as JSON, because steps contain whole pod templates, which no view shows. It trusts
//! no field. Source: docs/jobflow.md 5.

use std::collections::HashMap;

use k8s_openapi::jiff::Timestamp;
use oarlock_api::recorded_units;
use serde_json::Value;

use crate::job_view::Notice;
use crate::unit_state::{ShownState, UnitCounts};
use crate::unit_view::{UnitView, text, time};

/// The conditions that explain why an object waits or failed, with the status in which they do.
const TELLING: [(&str, &str); 4] = [("Valid", "False"), ("Blocked", "True"), ("Paused", "True"), ("Failed", "True")];
/// The annotation that requests a retry.
pub const RETRY_ANNOTATION: &str = "oarlock.dev/retry";

/// The kind of a shown object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FlowKind {
    /// The object is a graph of steps.
    #[default]
    JobFlow,
    /// The object has one run on each node.
    DaemonJob,
}

impl FlowKind {
    /// Returns the word of the API.
    pub fn word(self) -> &'static str {
        match self {
            Self::JobFlow => "JobFlow",
            Self::DaemonJob => "DaemonJob",
        }
    }

    /// Returns the short name that `kubectl` accepts before a name.
    pub fn short(self) -> &'static str {
        match self {
            Self::JobFlow => "jf",
            Self::DaemonJob => "dj",
        }
    }

    /// Returns the word for a unit of this kind.
    pub fn unit(self) -> &'static str {
        match self {
            Self::JobFlow => "step",
            Self::DaemonJob => "node",
        }
    }
}

/// A view of one JobFlow or DaemonJob at one time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FlowView {
    /// The kind of the object.
    pub kind: FlowKind,
    /// The namespace of the object. It is empty for a file that names no namespace.
    pub namespace: String,
    /// The name of the object.
    pub name: String,
    /// The UID of the object.
    pub uid: String,
    /// The state of the object, a word of the API. It is `Pending` if the object has no state yet.
    pub state: String,
    /// The progress, such as `3/5`. It is empty if the object has no progress yet.
    pub progress: String,
    /// The number of units in each state.
    pub counts: UnitCounts,
    /// The creation time of the object.
    pub created: Option<Timestamp>,
    /// The start time of the object.
    pub started: Option<Timestamp>,
    /// The time at which the last unit ended.
    pub ended: Option<Timestamp>,
    /// The conditions that the user should read.
    pub notices: Vec<Notice>,
    /// The reason why the object waits, from the condition `Progressing`.
    pub waiting: String,
    /// True if the object was deleted and still exists.
    pub is_deleting: bool,
    /// True if nothing in the object changes any more and the host has seen every edit and retry request.
    pub has_ended: bool,
    /// The number of entries that neither the status nor a record has.
    pub missing: usize,
    units: Vec<UnitView>,
    /// The indexes of `units`. Units that need attention come first.
    order: Vec<usize>,
}

impl FlowView {
    /// Returns the view of `object`, with the entries of those `records` that the object owns.
    pub fn new<'a>(object: &Value, records: impl IntoIterator<Item = &'a Value>) -> Self {
        let empty = Value::Null;
        let field = |name: &str| object.get(name).unwrap_or(&empty);
        let (metadata, spec, status) = (field("metadata"), field("spec"), field("status"));
        let kind = if text(object, "kind") == "DaemonJob" { FlowKind::DaemonJob } else { FlowKind::JobFlow };
        let uid = text(metadata, "uid");
        let entries = entries(status, &uid, records);
        let units = match kind {
            FlowKind::JobFlow => steps(spec, &entries),
            FlowKind::DaemonJob => nodes(&entries),
        };
        let states: Vec<ShownState> = units.iter().map(|unit| unit.state).collect();
        let mut order: Vec<usize> = (0..units.len()).collect();
        order.sort_by_key(|index| units.get(*index).map(|unit| unit.state.rank()));
        let counts = UnitCounts::new(status.get("counts"), &states);
        let state = Some(text(status, "state")).filter(|state| !state.is_empty());
        let ended = time(status, "completionTime");
        let is_truncated = status.get("tableTruncated").and_then(Value::as_bool).unwrap_or_default();
        Self {
            kind,
            namespace: text(metadata, "namespace"),
            name: text(metadata, "name"),
            progress: text(status, "progress"),
            created: time(metadata, "creationTimestamp"),
            started: time(status, "startTime"),
            ended,
            notices: notices(status),
            waiting: condition(status, "Progressing", "True").map(|told| told.message).unwrap_or_default(),
            is_deleting: metadata.get("deletionTimestamp").is_some_and(|time| !time.is_null()),
            has_ended: is_at_rest(status, state.as_deref()) && is_seen(metadata, status),
            missing: if is_truncated { counts.total.saturating_sub(entries.len()) } else { 0 },
            state: state.unwrap_or_else(|| "Pending".to_owned()),
            uid,
            counts,
            units,
            order,
        }
    }

    /// Returns the units: steps in the order of the spec with `finally` last, or nodes by name.
    pub fn units(&self) -> &[UnitView] {
        &self.units
    }

    /// Returns the units. Units that need attention come first.
    pub fn by_need(&self) -> impl Iterator<Item = &UnitView> {
        self.order.iter().filter_map(|index| self.units.get(*index))
    }

    /// Returns true if the object succeeded.
    pub fn has_succeeded(&self) -> bool {
        self.state == "Succeed"
    }

    /// Returns the handle of the object, `jf/NAME` or `dj/NAME`.
    pub fn handle(&self) -> String {
        format!("{}/{}", self.kind.short(), self.name)
    }

    /// Returns the sentence about missing entries, if any entries are missing.
    pub fn missing_detail(&self) -> Option<String> {
        (self.missing > 0).then(|| {
            let (missing, total) = (self.missing, self.counts.total);
            format!("{missing} of {total} {}s are in JobRecords that were not read", self.kind.unit())
        })
    }
}

/// Returns the entries by name. Entries of the status are newer than entries of records, because the host writes records first.
fn entries<'a>(status: &Value, uid: &str, records: impl IntoIterator<Item = &'a Value>) -> HashMap<String, Value> {
    let own = records.into_iter().filter(|record| is_owned(record, uid));
    let of_records = recorded_units(status, own, |entry: &Value| entry.get("name")?.as_str());
    let of_status = ["steps", "nodes"].into_iter().filter_map(|name| status.get(name)?.as_array()).flatten().cloned();
    let named = of_records.into_iter().chain(of_status).map(|entry| (text(&entry, "name"), entry));
    named.filter(|(name, _)| !name.is_empty()).collect()
}

fn is_owned(record: &Value, uid: &str) -> bool {
    let owners = record.pointer("/metadata/ownerReferences").and_then(Value::as_array);
    owners.is_some_and(|owners| owners.iter().any(|owner| text(owner, "uid") == uid))
}

fn steps(spec: &Value, entries: &HashMap<String, Value>) -> Vec<UnitView> {
    let list = |name: &str| spec.get(name).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let flows = list("flows").iter().map(|step| (step, false));
    let all = flows.chain(list("finally").iter().map(|step| (step, true))).enumerate();
    let view = |(index, (step, is_finally))| {
        let unit = UnitView { index, ..UnitView::of_step(step, is_finally) };
        match entries.get(&unit.name) {
            Some(entry) => unit.with_status(entry),
            None => unit,
        }
    };
    all.map(view).collect()
}

fn nodes(entries: &HashMap<String, Value>) -> Vec<UnitView> {
    let mut named: Vec<(&String, &Value)> = entries.iter().collect();
    named.sort_unstable_by_key(|(name, _)| *name);
    let view = |(index, (name, entry)): (usize, (&String, &Value))| {
        UnitView { index, name: name.clone(), ..UnitView::default() }.with_status(entry)
    };
    named.into_iter().enumerate().map(view).collect()
}

/// Returns the condition of this type if it has this status.
fn condition(status: &Value, kind: &str, value: &str) -> Option<Notice> {
    let mut all = status.get("conditions").and_then(Value::as_array).into_iter().flatten();
    let found = all.find(|condition| text(condition, "type") == kind && text(condition, "status") == value)?;
    let [reason, message] = ["reason", "message"].map(|field| text(found, field));
    Some(Notice { condition: kind.to_owned(), status: value.to_owned(), reason, message })
}

fn notices(status: &Value) -> Vec<Notice> {
    TELLING.iter().filter_map(|(kind, value)| condition(status, kind, value)).collect()
}

/// Returns true if the status says that nothing changes any more. A status of the original operator has neither conditions nor an end time.
fn is_at_rest(status: &Value, state: Option<&str>) -> bool {
    let has_conditions = status.get("conditions").and_then(Value::as_array).is_some_and(|all| !all.is_empty());
    let is_over = status.get("completionTime").is_some_and(|time| !time.is_null())
        || ["Complete", "Failed"].iter().any(|kind| condition(status, kind, "True").is_some());
    matches!(state, Some("Succeed" | "Failed")) && (is_over || !has_conditions)
}

/// Returns true if the status belongs to this spec and to this retry request.
fn is_seen(metadata: &Value, status: &Value) -> bool {
    let generation = |object: &Value, field: &str| object.get(field).and_then(Value::as_i64);
    let is_of_spec = match (generation(metadata, "generation"), generation(status, "observedGeneration")) {
        (Some(wanted), Some(seen)) => seen >= wanted,
        _ => true,
    };
    let asked = metadata.get("annotations").map(|all| text(all, RETRY_ANNOTATION)).unwrap_or_default();
    let seen = text(status, "retryToken");
    let token = asked.split('/').next().unwrap_or_default();
    // For a long value, the status has the token and a digest.
    let is_of_token = seen.split('#').next() == Some(token);
    is_of_spec && (asked.is_empty() || seen == asked || is_of_token)
}
