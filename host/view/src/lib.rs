//! One job as people and scripts see it: as text, as a frame of a terminal, as JSON.
//!
//! Takes an OperationJob, its OperationRecords and the time as a value, or a plan; yields text, or cells of a frame. It may not read a
//! clock, a terminal or a cluster, and decides nothing about a job.

mod changes;
mod document;
mod frame;
mod head;
mod index_ranges;
mod job_plan;
mod job_view;
mod outlook;
mod plain;
mod plan_text;
mod screen;
mod shown_progress;
mod shown_text;
mod span_text;
mod target_accounts;
mod target_view;

pub use changes::{ViewChange, changes};
pub use document::{change_line, job_document, jobs_document};
pub use frame::draw;
pub use job_plan::{
    ClusterPlugin, Comparison, JobPlan, PlanChange, PlanCounts, PlanOutcome, PlanPlugin, PlanTarget, ServerAnswer,
    plan_document,
};
pub use job_view::{JobView, Notice};
pub use outlook::Outlook;
pub use plain::{ListColumns, TargetRows, change_text, job_list, job_text};
pub use plan_text::plan_text;
pub use screen::{Connection, Filter, JobScreen, Keypress, Moment, Reaction};
pub use shown_progress::{ShownCounts, ShownProgress};
pub use shown_text::escaped;
pub use target_view::TargetView;
