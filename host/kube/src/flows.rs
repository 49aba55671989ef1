//! JobFlows, DaemonJobs and JobTemplates on the cluster: their cache, and the requests of their rounds.

pub mod cache;
mod children;
mod held;
mod key;
pub(crate) mod kinds;
#[cfg(test)]
mod memory_tests;
pub mod port;
mod reads;
mod records;
mod sinks;
mod writes;

pub use cache::FlowCache;
pub use key::FlowKey;
pub use port::{CreateError, Flows};
