//! JobFlows, DaemonJobs and JobTemplates on the cluster: their cache, and the requests of their rounds.

pub mod cache;
pub(crate) mod kinds;
pub mod port;
mod sinks;
mod watches;

pub use cache::{FlowCache, FlowKey};
pub use port::{CreateError, Flows};
