//! OpsJobs in the cluster: their cache with their children, and the requests of their rounds.

pub(crate) mod cache;
pub(crate) mod handlers;
mod observer;
mod port;
mod published;
mod shipped;

pub use cache::OpsCache;
pub use observer::OpsJobObserver;
pub use port::Ops;
pub use shipped::shipped_policies;
