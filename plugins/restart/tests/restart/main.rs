//! Native tests of the plugin Restart, with pods built in memory and without WebAssembly.
#![allow(clippy::unwrap_used, reason = "a test may fail loudly")]

mod contract;
mod evict;
mod in_place;
