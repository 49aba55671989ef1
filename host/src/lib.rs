//! The host around a round: commands, telemetry, and what a cluster needs first.
//!
//! Takes arguments; yields a running host. This crate is the only one that constructs adapters. It may not decide
//! anything about a job: that is `oarlock-core`'s.

mod call_plugin;
pub mod commands;
pub mod controller;
pub mod health;
pub mod host;
mod lead;
pub mod manifests;
pub mod metrics;
pub mod ports;
pub mod queue;
pub mod round;
pub mod telemetry;
pub mod term;

pub use manifests::manifests;
