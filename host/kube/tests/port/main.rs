//! The Cluster port in front of the in-memory API, under paused time: observations, writes and events.
//!
//! The tests use no sockets, no wall clock and no sleeps.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test may fail loudly"
)]

mod apply;
mod dry_runs;
mod events;
mod faults;
mod fixture;
mod flow_replies;
mod flow_watches;
mod holds;
mod identities;
mod lease;
mod lease_note;
mod nodes;
mod observe;
mod places;
mod record;
mod selecting;
mod tasks;
mod watches;
mod write_sender;
