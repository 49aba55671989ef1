//! A JobFlow or DaemonJob as plain text: a table of its units, and a line for each change.

use std::collections::HashMap;

use k8s_openapi::jiff::Timestamp;

use crate::changes::ViewChange;
use crate::flow_view::FlowView;
use crate::plain::text_table;
use crate::shown_text::escaped;
use crate::span_text::{between, rfc_3339};
use crate::unit_view::UnitView;

/// The number of units that are shown.
const FIRST_ROWS: usize = 20;

/// Returns the changes between two views: first the object, then its units in their order. Without an earlier view, the changes are all
/// units that do not simply wait. An index is an index of [`FlowView::units`] of `now`.
pub fn flow_changes(before: Option<&FlowView>, now: &FlowView) -> Vec<ViewChange> {
    // The lookup is by name, because a node that joins moves the indexes of the others.
    let old: HashMap<&str, &UnitView> =
        before.into_iter().flat_map(FlowView::units).map(|unit| (unit.name.as_str(), unit)).collect();
    let waiting = UnitView::default();
    let moved = |unit: &&UnitView| old.get(unit.name.as_str()).copied().unwrap_or(&waiting).differs_from(unit);
    let object = before.is_none_or(|before| told(before) != told(now)).then_some(ViewChange::Job);
    object.into_iter().chain(now.units().iter().filter(moved).map(|unit| ViewChange::Target(unit.index))).collect()
}

/// Returns the fields of the object whose changes are reported.
fn told(view: &FlowView) -> impl PartialEq + use<'_> {
    (&view.state, &view.progress, view.counts, &view.notices, view.is_deleting, view.has_ended)
}

/// Returns the line for one change, after its time.
pub fn flow_change_text(change: &ViewChange, view: &FlowView, now: Timestamp) -> String {
    format!("{}  {}", rfc_3339(now), flow_news(change, view, now))
}

/// Returns the line for one change without its time.
pub fn flow_news(change: &ViewChange, view: &FlowView, now: Timestamp) -> String {
    let line = |kind: &str, name: &str, state: &str, rest: &str| format!("{kind:<9} {name:<24} {state:<10} {rest}");
    let kind = view.kind.word();
    let line = match change {
        ViewChange::Job => {
            let mut parts = vec![progress(view), view.counts.sentence()];
            parts.extend(view.notices.iter().map(|notice| format!("{}: {}", notice.reason, notice.message)));
            parts.retain(|part| !part.is_empty());
            line(kind, &view.name, &word(view), &parts.join("; "))
        }
        ViewChange::Target(index) => view.units().get(*index).map_or_else(String::new, |unit| {
            let took = unit.state.is_terminal().then(|| unit.span(now)).flatten();
            let detail = Some(unit.detail()).filter(|detail| !detail.is_empty());
            let rest: Vec<String> = took.into_iter().chain(detail).collect();
            line(view.kind.unit(), &unit.name, unit.state.word(), &rest.join("; "))
        }),
        ViewChange::Disconnected(cause) => format!("the cluster is not reached, asking again: {cause}"),
        ViewChange::Connected => "the cluster is reached again".to_owned(),
        ViewChange::Deleted => line(kind, &view.name, "deleted", "before it ended"),
    };
    escaped(line.trim_end()).into_owned()
}

/// Returns the object with a table of its units. Units that need attention come first.
pub fn flow_text(view: &FlowView, now: Timestamp) -> String {
    let took = between(view.started, Some(view.ended.unwrap_or(now)));
    let head = format!("{} {}/{}", view.kind.word(), view.namespace, view.name);
    let head: Vec<String> =
        [head, word(view), progress(view), view.counts.sentence()].into_iter().chain(took).collect();
    let mut text = format!("{}\n", escaped(&head.join("  ")));
    for notice in &view.notices {
        let line = format!("{}={} {}: {}", notice.condition, notice.status, notice.reason, notice.message);
        text += &format!("{}\n", escaped(&line));
    }
    text.extend(view.missing_detail().map(|line| line + "\n"));
    let row = |unit: &UnitView| {
        let state = format!("{} {}", unit.state.symbol(), unit.state.word());
        vec![unit.name.clone(), state, unit.span(now).unwrap_or_default(), unit.detail()]
    };
    if !view.units().is_empty() {
        let header = view.kind.unit().to_uppercase();
        let rows = view.by_need().take(FIRST_ROWS).map(row);
        text += &format!("\n{}", text_table(&[&header, "STATE", "FOR", ""], rows));
    }
    let left = view.units().len().saturating_sub(FIRST_ROWS);
    if left > 0 { text + &format!("... and {left} more\n") } else { text }
}

/// Returns the state, and whether the object is being deleted.
pub(crate) fn word(view: &FlowView) -> String {
    let leaves = view.is_deleting && view.state != "Terminating";
    format!("{}{}", view.state, if leaves { " (being deleted)" } else { "" })
}

/// Returns the progress, such as `3/5`, from the status or, without one, from the numbers.
pub(crate) fn progress(view: &FlowView) -> String {
    if view.progress.is_empty() {
        return format!("{}/{}", view.counts.ended(), view.counts.total);
    }
    view.progress.clone()
}
