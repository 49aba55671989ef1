//! OpsJobs in the cluster, beside what the engine knows of them: the meter of their written bytes, and what the leader publishes.

mod port;
mod published;
mod shipped;

pub use port::Ops;
pub use shipped::shipped_policies;
