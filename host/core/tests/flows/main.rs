//! Whole courses of JobFlows and DaemonJobs on the pure plans. A fixture stands in for the driver and the cluster.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "a test fails loudly and moves its own clock, its helpers too"
)]

mod bad_input;
mod branches;
mod builds;
mod chance;
mod cleanup;
mod conditions;
mod described;
mod edits;
mod failing;
mod fixture;
mod forged;
mod imported;
mod nodes;
mod operations;
mod refused;
mod retries;
mod rollouts;
mod starting;
mod status;
mod vanished;
