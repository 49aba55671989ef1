//! One JobFlow or DaemonJob at one time, made from what the cluster stores of it.
//!
//! Takes the object and those of its JobRecords that could be read, as JSON: steps hold whole pod templates, of which nothing
//! is shown. No field is trusted. Source: docs/jobflow.md 5.

use std::collections::HashMap;

use k8s_openapi::jiff::Timestamp;
use oarlock_api::recorded_units;
use serde_json::Value;

use crate::job_view::Notice;
use crate::unit_state::{ShownState, UnitCounts};
use crate::unit_view::{UnitView, text, time};

/// Conditions that tell why an object does not go on, or that it ended badly, and the status with which they do.
const TELLING: [(&str, &str); 4] = [("Valid", "False"), ("Blocked", "True"), ("Paused", "True"), ("Failed", "True")];
/// The annotation by which a retry is asked for.
pub const RETRY_ANNOTATION: &str = "oarlock.dev/retry";

/// The kind of an object that is shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FlowKind {
    /// A graph of steps.
    #[default]
    JobFlow,
    /// One run on each node.
    DaemonJob,
}

impl FlowKind {
    /// The word of the API.
    pub fn word(self) -> &'static str {
        match self {
            Self::JobFlow => "JobFlow",
            Self::DaemonJob => "DaemonJob",
        }
    }

    /// As `kubectl` takes it before a name.
    pub fn short(self) -> &'static str {
        match self {
            Self::JobFlow => "jf",
            Self::DaemonJob => "dj",
        }
    }

    /// The word for one of its units.
    pub fn unit(self) -> &'static str {
        match self {
            Self::JobFlow => "step",
            Self::DaemonJob => "node",
        }
    }
}

/// One JobFlow or DaemonJob at one time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FlowView {
    /// Its kind.
    pub kind: FlowKind,
    /// Its namespace; empty for a file that names none.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
    /// Its state, a word of the API; `Pending` where it has none yet.
    pub state: String,
    /// Such as `3/5`; empty where it has none yet.
    pub progress: String,
    /// Its units by state.
    pub counts: UnitCounts,
    /// Time of its creation.
    pub created: Option<Timestamp>,
    /// Time of its start.
    pub started: Option<Timestamp>,
    /// Time at which the last of it came to rest.
    pub ended: Option<Timestamp>,
    /// Conditions that a person should read.
    pub notices: Vec<Notice>,
    /// What it waits for, as the condition `Progressing` says.
    pub waiting: String,
    /// True if it was deleted and is not gone yet.
    pub is_deleting: bool,
    /// True if nothing of it moves any more, and no edit or retry is waiting to be seen.
    pub has_ended: bool,
    /// Entries that the status lacks and no record brought.
    pub missing: usize,
    units: Vec<UnitView>,
    /// Indexes of `units`: what needs eyes first.
    order: Vec<usize>,
}

impl FlowView {
    /// The view of `object`, with the entries of those `records` that it owns.
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

    /// The units: steps in the order of the spec, finally last; nodes by name.
    pub fn units(&self) -> &[UnitView] {
        &self.units
    }

    /// The units with what needs eyes first.
    pub fn by_need(&self) -> impl Iterator<Item = &UnitView> {
        self.order.iter().filter_map(|index| self.units.get(*index))
    }

    /// True if it ended well.
    pub fn has_succeeded(&self) -> bool {
        self.state == "Succeed"
    }

    /// `jf/NAME` or `dj/NAME`.
    pub fn handle(&self) -> String {
        format!("{}/{}", self.kind.short(), self.name)
    }

    /// The sentence about entries that are missing, if any are.
    pub fn missing_detail(&self) -> Option<String> {
        (self.missing > 0).then(|| {
            let (missing, total) = (self.missing, self.counts.total);
            format!("{missing} of {total} {}s are in JobRecords that were not read", self.kind.unit())
        })
    }
}

/// The entries by name. Those of the status are newer than those of records, which are written before it.
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

/// The condition of this type, if it has this status.
fn condition(status: &Value, kind: &str, value: &str) -> Option<Notice> {
    let mut all = status.get("conditions").and_then(Value::as_array).into_iter().flatten();
    let found = all.find(|condition| text(condition, "type") == kind && text(condition, "status") == value)?;
    let [reason, message] = ["reason", "message"].map(|field| text(found, field));
    Some(Notice { condition: kind.to_owned(), status: value.to_owned(), reason, message })
}

fn notices(status: &Value) -> Vec<Notice> {
    TELLING.iter().filter_map(|(kind, value)| condition(status, kind, value)).collect()
}

/// True if the status says that nothing moves any more. One of the original operator has neither conditions nor an end.
fn is_at_rest(status: &Value, state: Option<&str>) -> bool {
    let has_conditions = status.get("conditions").and_then(Value::as_array).is_some_and(|all| !all.is_empty());
    let is_over = status.get("completionTime").is_some_and(|time| !time.is_null())
        || ["Complete", "Failed"].iter().any(|kind| condition(status, kind, "True").is_some());
    matches!(state, Some("Succeed" | "Failed")) && (is_over || !has_conditions)
}

/// True if the status is of this spec, and of this request for a retry.
fn is_seen(metadata: &Value, status: &Value) -> bool {
    let generation = |object: &Value, field: &str| object.get(field).and_then(Value::as_i64);
    let is_of_spec = match (generation(metadata, "generation"), generation(status, "observedGeneration")) {
        (Some(wanted), Some(seen)) => seen >= wanted,
        _ => true,
    };
    let asked = metadata.get("annotations").map(|all| text(all, RETRY_ANNOTATION)).unwrap_or_default();
    let seen = text(status, "retryToken");
    let token = asked.split('/').next().unwrap_or_default();
    // Of a long value, the status has the token and a digest.
    let is_of_token = seen.split('#').next() == Some(token);
    is_of_spec && (asked.is_empty() || seen == asked || is_of_token)
}
