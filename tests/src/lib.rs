//! Harnesses for tests of the whole host. Nothing here ships.
//!
//! A [`rig::Rig`] is a cluster (in memory or real), a world, and a host with the real plugin component in it; scenarios
//! are written once against it and run on both.

pub mod components;
pub mod costly;
/// Hosts that are killed, and what must be true then.
pub mod crash;
pub mod dev;
pub mod flows;
pub mod hosts;
pub mod image_registry;
pub mod jobs;
pub mod misfits;
pub mod ops;
pub mod oracle;
pub mod rig;
pub mod scenarios;
pub mod terminal;
pub mod variants;
pub mod wire;
