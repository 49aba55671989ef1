//! The Cluster port in front of a real API server. These tests show that the tests in `port` hold beyond the in-memory API.
//!
//! The tests need the binaries of a control plane. A missing binary fails the tests and never skips them.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test may fail loudly"
)]

mod fixture;
mod lease;
mod outage;
mod reads;
mod writes;
