//! The page of a JobFlow with its graph, and of a DaemonJob with the grid of its nodes.

use maud::{Markup, html};
use oarlock_view::{FlowGraph, FlowKind, FlowView, ReasonPlace, UnitView};

use crate::address::{LogAddress, ObjectAddress, ObjectKind, PageAddress, PartQuery};
use crate::command_lines;
use crate::flow_drawing;
use crate::grid::{Cell, grid};
use crate::job_page::{ended, from_place, title};
use crate::log_page::opener;
use crate::mark::{Bar, Mark};
use crate::object_head::{self, ObjectHead};
use crate::page_content::{Fragment, PageContent};
use crate::part_table::{PartTable, ROWS};
use crate::reason_help::ReasonHelp;
use crate::shown_event::{self, ShownEvent};
use crate::text_html::{Relative, fact, filled, label, line, message, name, time};

/// The columns of a detail in a table.
const DETAIL: usize = 300;

/// The values of a page about a JobFlow or a DaemonJob.
#[derive(Clone, Copy, Debug)]
pub struct FlowPage<'a> {
    /// The object.
    pub flow: &'a FlowView,
    /// The events of the object, the newest first.
    pub events: &'a [ShownEvent],
    /// The steps or nodes that the table shows.
    pub parts: &'a PartQuery,
    /// True if the server shows the logs of failed Jobs.
    pub has_logs: bool,
}

impl ObjectAddress {
    /// Returns the address of a JobFlow or a DaemonJob.
    pub fn of_flow(flow: &FlowView) -> Self {
        let kind = match flow.kind {
            FlowKind::JobFlow => ObjectKind::JobFlow,
            FlowKind::DaemonJob => ObjectKind::DaemonJob,
        };
        Self { kind, namespace: flow.namespace.clone(), name: flow.name.clone() }
    }
}

/// Returns the page of a JobFlow or a DaemonJob.
pub fn flow_content(page: &FlowPage<'_>) -> PageContent {
    let FlowPage { flow, events, parts, .. } = *page;
    let object = ObjectAddress::of_flow(flow);
    let help = ReasonHelp::default();
    let table = PartTable {
        object: &object,
        query: parts,
        states: flow.units().iter().map(|unit| (Mark::of_unit(unit.state), unit.state.word())).collect(),
        by_need: flow.by_need().map(|unit| unit.index).collect(),
        columns: &["Name", "State", "For", "Attempts", "Detail"],
    };
    let mut content = PageContent::new(title(&object, &state(flow)))
        .with("head", head(&object, flow))
        .with("notices", object_head::notices(&flow.notices, flow.missing_detail(), object.kind, &help));
    let place = |from| PageAddress::Object(object.clone(), from_place(from)).to_string();
    let is_whole = flow.units().len() <= ROWS && *parts == PartQuery::default();
    let link = |index| format!("{}#{}", if is_whole { String::new() } else { place(index) }, unit_id(index));
    if flow.kind == FlowKind::JobFlow {
        content = content.with_list(flow_drawing::section(&FlowGraph::new(flow), &link));
    }
    if !flow.units().is_empty() {
        let cell = |unit: &UnitView| (Mark::of_unit(unit.state), unit.state.word());
        let cells = flow.units().iter().map(|unit| {
            let (mark, state) = cell(unit);
            Cell { mark, name: &unit.name, state }
        });
        let cells: Vec<Cell<'_>> = if flow.kind == FlowKind::DaemonJob { cells.collect() } else { Vec::new() };
        let mut tiles = grid(&cells, object.kind.part(), &link, &|from| format!("{}#parts-title", place(from)));
        tiles.items.insert(0, table.legend());
        tiles.before = format!("<section class=\"panel\" aria-label=\"By state\">{}", tiles.before);
        tiles.after += "</section>";
        content = content
            .with_list(tiles)
            .with_list(table.rows(&|index| row(page, flow.units().get(index)?, &help)))
            .with("pager", table.pager());
    }
    content
        .with("commands", command_lines::section(&command_lines::of_flow(flow)))
        .with("events", shown_event::section(events, object.kind, &help))
        .with("reasons", help.section())
}

/// Returns the id of the row of a step or node.
pub(crate) fn unit_id(index: usize) -> String {
    format!("unit-{index}")
}

/// Returns the state of a flow in words.
pub(crate) fn state(flow: &FlowView) -> String {
    let is_leaving = flow.is_deleting && flow.state != "Terminating";
    format!("{}{}", flow.state, if is_leaving { " (being deleted)" } else { "" })
}

/// Returns the mark of a flow: one that something holds up is blocked.
pub(crate) fn mark(flow: &FlowView) -> Mark {
    match Mark::of_flow(&flow.state) {
        Mark::Waiting | Mark::Running if !flow.notices.is_empty() => Mark::Blocked,
        mark => mark,
    }
}

fn head(object: &ObjectAddress, flow: &FlowView) -> Markup {
    let facts = html! {
        (fact("Created", flow.created.map(|at| time(at, Relative::Ago))))
        (fact("Started", flow.started.map(|at| time(at, Relative::Ago))))
        (fact("Ended", flow.ended.map(|at| ended(flow.started, at))))
        (fact("Waits for", filled(&flow.waiting).filter(|_| !flow.has_ended).map(message)))
    };
    // The state is a text of the cluster.
    ObjectHead { object, mark: mark(flow), state: label(&state(flow)), bar: Bar::of_units(&flow.counts), facts }.html()
}

fn row(page: &FlowPage<'_>, unit: &UnitView, help: &ReasonHelp) -> Option<Fragment> {
    let FlowPage { flow, has_logs, .. } = *page;
    let id = unit_id(unit.index);
    let mark = Mark::of_unit(unit.state);
    let html = html! {
        tr id=(id) {
            th scope="row" { (name(&unit.name)) @if unit.is_finally { " " span class="muted" { "finally" } } }
            td { (mark.with_word(unit.state.word())) }
            td class="number" data-column="For" { (span(unit)) }
            td class="number" data-column="Attempts" { @if !unit.job.is_empty() || unit.attempt > 0 { (unit.attempt.saturating_add(1)) } }
            td class="wide" {
                @let notes = unit.notes();
                @let has_reason = !unit.reason.is_empty();
                @let has_text = has_reason || !unit.message.is_empty();
                @if !unit.job.is_empty() { (child(flow, unit)) @if has_text || !notes.is_empty() { "; " } }
                @if has_reason { (help.word(ObjectAddress::of_flow(flow).kind, ReasonPlace::Step, &unit.reason)) @if !unit.message.is_empty() { ": " } }
                @if !unit.message.is_empty() { (line(&unit.message, DETAIL)) }
                @if !notes.is_empty() { @if has_text { "; " } (line(&notes, DETAIL)) }
                @if mark == Mark::Failed {
                    @if has_logs && unit.has_log() {
                        (opener(&LogAddress { object: ObjectAddress::of_flow(flow), job: unit.job.clone() }))
                    }
                    details class="more" {
                        summary { "Commands" }
                        @for command in command_lines::of_unit(flow, unit) { (command_lines::copyable(&command)) }
                    }
                }
            }
        }
    };
    Some(Fragment { id, html: html.into_string() })
}

/// Returns the name of a unit's child. An OperationJob is a link.
fn child(flow: &FlowView, unit: &UnitView) -> Markup {
    let kind = ObjectKind::OperationJob;
    let object = ObjectAddress { kind, namespace: flow.namespace.clone(), name: unit.job.clone() };
    html! {
        @if unit.is_operation { a href=(object) { (name(&unit.job)) } }
        @else { span class="muted" { "Job " (name(&unit.job)) } }
    }
}

fn span(unit: &UnitView) -> Markup {
    html! {
        @match (unit.state.is_terminal(), unit.started) {
            (true, started) => (oarlock_view::between(started, unit.ended).unwrap_or_default()),
            (false, Some(started)) if unit.ended.is_none() => (time(started, Relative::Age)),
            (false, started) => (oarlock_view::between(started, unit.ended).unwrap_or_default()),
        }
    }
}
