//! The host around a round: commands, telemetry, and the manifests of a cluster.
//!
//! Only this crate constructs adapters. All decisions about a job are in `oarlock-core`.

mod account_check;
mod action_plugin;
mod bound_jobs;
mod call_plugin;
mod call_share;
pub mod commands;
mod concurrency_limit;
pub mod controller;
mod declared_kinds;
mod engine;
mod flows;
pub mod health;
pub mod history;
pub mod host;
pub mod host_place;
pub mod images;
mod job_report;
pub mod kinds;
mod lead;
mod leftovers;
mod log_share;
mod logs;
pub mod manifests;
pub mod metrics;
mod ops_job;
mod own_rights;
mod policies;
pub mod ports;
pub mod preview;
mod published;
pub mod queue;
mod reconcilers;
pub mod rest;
pub mod round;
mod round_limits;
mod round_trouble;
mod served_actions;
mod status_rate_limit;
mod tasks;
pub mod telemetry;
pub mod term;
pub mod traces;
mod visit_store;

pub use manifests::manifests;
