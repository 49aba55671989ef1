//! Views of jobs for people and scripts: as text, as a frame of a terminal, and as JSON.
//!
//! This crate takes an OperationJob, an OpsJob, a JobFlow or a DaemonJob with its records and the time as a value, or a plan. It returns
//! text, or cells of a frame. It also has the catalogue of reasons. It may not read a clock, a terminal or a cluster, and it decides nothing about a job.

mod changes;
mod document;
mod flow_document;
mod flow_graph;
mod flow_layers;
mod flow_mermaid;
mod flow_plain;
mod flow_screen;
mod flow_text;
mod flow_view;
mod frame;
mod head;
mod index_ranges;
mod job_plan;
mod job_view;
mod ops_view;
mod outlook;
mod plain;
mod plan_text;
mod reason_entry;
mod reason_text;
mod retry;
mod rows;
mod screen;
mod shown_progress;
mod shown_text;
mod span_text;
mod target_accounts;
mod target_view;
mod unit_state;
mod unit_view;
mod watched;

pub use changes::{ViewChange, changes};
pub use document::{change_line, job_document, jobs_document};
pub use flow_document::{flow_change_line, flow_document};
pub use flow_graph::FlowGraph;
pub use flow_mermaid::graph_mermaid;
pub use flow_plain::{flow_change_text, flow_changes, flow_news, flow_text};
pub use flow_screen::{FlowScreen, draw_flow};
pub use flow_text::graph_text;
pub use flow_view::{FlowKind, FlowView, RETRY_ANNOTATION};
pub use frame::draw;
pub use head::shares;
pub use job_plan::{
    ClusterPlugin, Comparison, JobPlan, PlanChange, PlanCounts, PlanOutcome, PlanPlugin, PlanTarget, ServerAnswer,
    plan_document,
};
pub use job_view::{JobView, Notice};
pub use ops_view::{ShownInput, ShownOutput};
pub use outlook::Outlook;
pub use plain::{ListColumns, TargetRows, change_text, job_list, job_text, text_table};
pub use plan_text::plan_text;
pub use reason_entry::{ReasonEntry, ReasonKind, ReasonPlace, entries_of_reason, reason_entries, similar_reasons};
pub use reason_text::{reason_list, reasons_page, reasons_text};
pub use retry::retry_value;
pub use screen::{Connection, Filter, JobScreen, Keypress, Moment, Reaction};
pub use shown_progress::{ShownCounts, ShownProgress};
pub use shown_text::{cut_end, cut_middle, escaped};
pub use span_text::{between, rfc_3339};
pub use target_view::TargetView;
pub use unit_state::{ShownState, UnitCounts};
pub use unit_view::{StepWhen, UnitView};
pub use watched::{Watched, WatchedScreen};
