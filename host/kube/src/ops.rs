//! OpsJobs on the cluster: what is known of them, their children and the nodes, and the requests of their rounds.

pub(crate) mod cache;
mod key;
mod lookups;
mod port;
pub(crate) mod sinks;
mod tap;

pub use cache::OpsCache;
pub use key::OpsKey;
pub use port::Ops;
pub use tap::OpsTap;
