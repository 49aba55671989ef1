//! The Cluster port on a Kubernetes API. Only this crate writes to a cluster.
//!
//! The crate makes no decisions, does not know that plugins exist, and never repeats a write on its own. The steps of a round are in one
//! file each: `observe`, `record`, `apply`. The other files serve these steps.

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
    pub(crate) mod projection;
    pub mod requests;
    pub mod server_version;
    pub(crate) mod shares;
}

/// The cached objects, which lists and watches keep up to date.
pub mod watch {
    pub(crate) mod handler;
    pub mod health;
    pub(crate) mod jobs;
    pub mod mirror;
    pub mod objects;
    pub(crate) mod on_demand;
    pub(crate) mod operation_jobs;
    pub(crate) mod reflector;
    pub(crate) mod watches;
}

/// Leader election.
pub mod lease {
    pub mod config;
    pub mod elector;
    pub mod fence;
    mod holder;
    mod trouble;
}

/// Writes to objects, and their outcomes.
pub mod send {
    mod account_rights;
    pub mod apply;
    pub mod event_queue;
    pub(crate) mod events;
    pub(crate) mod hold_proof;
    pub(crate) mod known_keys;
    pub(crate) mod outcome;
    pub mod plugin_accounts;
    pub(crate) mod write;
}

/// Writes of statuses and records, which must be durable before the host acts.
pub mod persist {
    pub mod record;
}

/// Live reads, and the snapshot that a round works on.
pub mod read {
    mod answer;
    pub(crate) mod budgets;
    pub mod failed_log;
    pub(crate) mod live_reads;
    pub mod logs;
    pub mod observe;
    pub(crate) mod past_cache;
    pub(crate) mod secrets;
    pub(crate) mod selection;
    pub mod snapshot;
    pub mod target_pod;
}

/// Tasks that the host performs itself, and the scripts of tasks that pods perform.
pub mod tasks {
    mod host_tasks;
    pub mod runner;
    pub(crate) mod scripts;
}

pub mod cluster;
pub mod error_chain;
pub mod flows;
pub mod kinds;
mod link;
pub mod ops;

pub use cluster::{Cluster, Setup};
pub use send::hold_proof::{HOLD_KEYS, HOLD_SECRET, HoldKeysError, KEYS_EVERY, KEYS_MADE_WITHIN, OLD_POLICY};
pub use transport::call::REQUEST_TIMEOUT;
pub use transport::requests::Requests;
