//! Harnesses for tests of the whole host. Nothing here ships.
//!
//! A [`rig::Rig`] is a cluster (in memory or real), a world, and a host with the real plugin component in it; scenarios
//! are written once against it and run on both.

pub mod components;
pub mod crash;
pub mod crash_host;
pub mod crash_line;
pub mod crash_mishap;
pub mod crash_process;
pub mod crash_script;
pub mod crash_sweep;
pub mod hosts;
pub mod invariants;
pub mod jobs;
pub mod rig;
pub mod scenarios;
pub mod variants;
pub mod variants_belief;
pub mod variants_identity;
pub mod variants_order;
pub mod wire;
