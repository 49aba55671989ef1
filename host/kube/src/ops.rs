//! OpsJobs in the cluster: their cache with their children, lookups of their targets, and the requests of their rounds.

pub(crate) mod cache;
pub(crate) mod handlers;
mod lookups;
mod observer;
mod port;
mod published;

pub use cache::OpsCache;
pub use observer::OpsJobObserver;
pub use port::Ops;
