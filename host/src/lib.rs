//! The host around a round: commands, telemetry, and the manifests of a cluster.
//!
//! This crate is the only one that constructs adapters. All decisions about a job are in `oarlock-core`.

mod call_plugin;
mod call_share;
pub mod commands;
pub mod controller;
mod flows;
pub mod health;
pub mod history;
pub mod host;
pub mod images;
mod lead;
mod log_share;
mod logs;
pub mod manifests;
pub mod metrics;
mod ops_job;
mod places;
pub mod ports;
mod published;
pub mod queue;
mod reconcilers;
pub mod rehearsal;
pub mod rest;
pub mod round;
mod round_trouble;
mod running;
mod served_actions;
mod status_pace;
mod tasks;
pub mod telemetry;
pub mod term;
mod vanished;

pub use manifests::manifests;
