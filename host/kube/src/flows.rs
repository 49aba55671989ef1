//! JobFlows, DaemonJobs and JobTemplates in the cluster: their cache, and the requests of their rounds.

pub mod cache;
mod cache_state;
mod children;

mod handlers;
#[cfg(test)]
mod memory_tests;
pub mod port;
mod records;

pub use cache::FlowCache;
pub use port::Flows;
