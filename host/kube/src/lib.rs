//! The Cluster port on a Kubernetes API: the only crate that writes to a cluster.
//!
//! It does not decide, does not know that plugins exist, and never repeats a write on its own. One file per step:
//! `observe`, `record`, `apply`; the rest serves them.

/// Requests to the API server and their replies.
pub mod transport {
    pub(crate) mod call;
    pub mod client;
    pub mod clock;
    pub(crate) mod discovery;
    pub(crate) mod items;
    pub(crate) mod limiter;
    pub(crate) mod list;
    pub(crate) mod path;
    pub mod requests;
    pub mod server_version;
    pub(crate) mod shares;
}

/// The objects in memory, kept up to date by lists and watches.
pub mod watch {
    pub mod health;
    pub(crate) mod jobs;
    pub(crate) mod on_demand;
    pub(crate) mod operation_jobs;
    pub(crate) mod projection;
    pub(crate) mod reflector;
    pub mod watches;
}

pub mod apply;
mod budgets;
pub mod cluster;
pub mod event_queue;
mod events;
pub mod flows;
mod hold_proof;
pub mod host_tasks;
pub mod lease;
mod lease_holder;
mod lease_trouble;
mod live_reads;
pub mod logs;
pub mod observe;
pub mod ops;
mod outcome;
mod past_cache;
mod published;
pub mod record;
mod scripts;
mod secrets;
mod selection;
pub mod snapshot;
mod write;

pub use cluster::{Cluster, Setup};
pub use hold_proof::{HOLD_KEYS, HOLD_SECRET, HoldKeysError, KEYS_EVERY, KEYS_MADE_WITHIN, OLD_POLICY};
pub use past_cache::ReadFailed;
pub use transport::requests::Requests;
