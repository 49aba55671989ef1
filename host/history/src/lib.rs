//! What is known of OpsJobs that are gone, and who asked for what: rows in SQLite or PostgreSQL. Source: docs/opsjob-rest.md 9.
//!
//! The cluster says what lives, and these rows say what has been. Nobody gets a right by a row, and no row makes a job do anything.

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
