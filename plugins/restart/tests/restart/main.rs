//! Tests of Restart, natively: takes pods built in memory, yields what was proposed. May not run WebAssembly.
#![allow(clippy::unwrap_used, reason = "a test may fail loudly")]

mod contract;
mod evict;
mod in_place;
