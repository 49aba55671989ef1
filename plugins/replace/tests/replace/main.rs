//! Native tests of the plugin Replace, with pods built in memory and without WebAssembly.
#![allow(clippy::unwrap_used, reason = "a test may fail loudly")]

mod collaset;
mod contract;
mod evict;
mod strategy;
