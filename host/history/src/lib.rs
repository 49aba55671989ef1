//! The history of deleted OpsJobs and of requests, in SQLite or PostgreSQL. Source: docs/opsjob-rest.md 9.
//!
//! The cluster is the source of truth for existing jobs. A row grants no right and makes no job do anything.

mod audit;
mod database;
mod failed;
mod filter;
mod place;
mod query;
mod row;
mod schema;

pub use crate::audit::AuditRow;
pub use crate::database::History;
pub use crate::failed::HistoryFailed;
pub use crate::filter::{JobFilter, SortKey, Viewer, Window};
pub use crate::place::HistoryPlace;
pub use crate::row::{GoneJob, JobRow, JobSnapshot, REQUEST};
