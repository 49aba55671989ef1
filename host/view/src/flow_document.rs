//! JobFlows and DaemonJobs as JSON for scripts. The field names are stable, and docs/watching.md lists them.

use k8s_openapi::jiff::Timestamp;
use serde::Serialize;

use crate::changes::ViewChange;
use crate::document::{pretty, printable};
use crate::flow_view::FlowView;
use crate::job_view::Notice;
use crate::span_text::rfc_3339;
use crate::unit_state::{ShownState, UnitCounts};
use crate::unit_view::UnitView;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct FlowFields<'a> {
    kind: &'a str,
    namespace: &'a str,
    name: &'a str,
    uid: &'a str,
    state: &'a str,
    progress: &'a str,
    counts: UnitCounts,
    #[serde(skip_serializing_if = "Option::is_none")]
    creation_time: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    start_time: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    completion_time: Option<String>,
    #[serde(skip_serializing_if = "str::is_empty")]
    waits_for: &'a str,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    notices: &'a Vec<Notice>,
    deleting: bool,
    ended: bool,
    detail_complete: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    units: Option<Vec<UnitFields<'a>>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct UnitFields<'a> {
    name: &'a str,
    state: ShownState,
    #[serde(skip_serializing_if = "str::is_empty")]
    reason: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    message: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    job: &'a str,
    attempt: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    start_time: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    completion_time: Option<String>,
    finally: bool,
    outdated: bool,
    tolerated: bool,
    #[serde(skip_serializing_if = "str::is_empty")]
    handled_by: &'a str,
}

#[derive(Serialize)]
struct FlowChangeFields<'a> {
    #[serde(rename = "type")]
    change: &'a str,
    time: String,
    kind: &'a str,
    namespace: &'a str,
    name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    object: Option<FlowFields<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    unit: Option<UnitFields<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<&'a str>,
}

/// Returns the document of one object with all of its units.
///
/// # Errors
///
/// If a number has no form in JSON.
pub fn flow_document(view: &FlowView) -> serde_json::Result<String> {
    pretty(&FlowFields { units: Some(view.units().iter().map(unit_fields).collect()), ..flow_fields(view) })
}

/// Returns the line for one change, without a line break.
///
/// # Errors
///
/// If a number has no form in JSON.
pub fn flow_change_line(change: &ViewChange, view: &FlowView, now: Timestamp) -> serde_json::Result<String> {
    let (change, object, unit, message) = match change {
        ViewChange::Job => ("object", Some(flow_fields(view)), None, None),
        ViewChange::Target(index) => ("unit", None, view.units().get(*index).map(unit_fields), None),
        ViewChange::Disconnected(cause) => ("disconnected", None, None, Some(cause.as_str())),
        ViewChange::Connected => ("connected", None, None, None),
        ViewChange::Deleted => ("deleted", None, None, None),
    };
    let (kind, namespace, name) = (view.kind.word(), view.namespace.as_str(), view.name.as_str());
    let fields = FlowChangeFields { change, time: rfc_3339(now), kind, namespace, name, object, unit, message };
    Ok(printable(&serde_json::to_string(&fields)?))
}

fn flow_fields(view: &FlowView) -> FlowFields<'_> {
    FlowFields {
        kind: view.kind.word(),
        namespace: &view.namespace,
        name: &view.name,
        uid: &view.uid,
        state: &view.state,
        progress: &view.progress,
        counts: view.counts,
        creation_time: view.created.map(rfc_3339),
        start_time: view.started.map(rfc_3339),
        completion_time: view.ended.map(rfc_3339),
        waits_for: &view.waiting,
        notices: &view.notices,
        deleting: view.is_deleting,
        ended: view.has_ended,
        detail_complete: view.missing == 0,
        units: None,
    }
}

fn unit_fields(unit: &UnitView) -> UnitFields<'_> {
    UnitFields {
        name: &unit.name,
        state: unit.state,
        reason: &unit.reason,
        message: &unit.message,
        job: &unit.job,
        attempt: unit.attempt,
        start_time: unit.started.map(rfc_3339),
        completion_time: unit.ended.map(rfc_3339),
        finally: unit.is_finally,
        outdated: unit.outdated,
        tolerated: unit.tolerated,
        handled_by: &unit.handled_by,
    }
}
