//! The Cluster port in front of a real API server, which shows that the tests in `port` hold beyond the in-memory API.
//!
//! Takes the binaries of a control plane; a missing one fails these tests and never skips them.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test may fail loudly"
)]

mod lease;
mod outage;
mod reads;
mod stage;
mod writes;
