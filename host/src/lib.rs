//! The host around a round: commands, telemetry, and what a cluster needs first.
//!
//! Takes arguments; yields a running host. This crate is the only one that constructs adapters. It may not decide
//! anything about a job: that is `oarlock-core`'s.

pub mod commands;
pub mod health;
pub mod manifests;
pub mod metrics;
pub mod telemetry;

pub use manifests::manifests;
