//! The Cluster port in front of the in-memory API, under paused time: what a round sees, writes and is told.
//!
//! Takes nothing from outside: no sockets, no wall clock, no sleeps.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test may fail loudly"
)]

mod apply;
mod elect;
mod emit;
mod faults;
mod feed;
mod observe;
mod record;
mod scene;
