//! Explores the decisions of Oarlock under leader changes, crashes, stale views and late writes. Every state has the
//! production memory, tables and queue. The steps between states call the production functions in the order of
//! `host/src/round.rs`.
//!
//! A state is an API server with one job and up to four pods, two processes with a view each, the requests in flight,
//! and the requests that timed out. A ledger judges what becomes durable and what happens. Time passes in whole
//! seconds, to the next due time. A process whose term is over does nothing more, because no request of it passes the
//! fence. The API server may still carry out the requests that such a process had in flight.
//!
//! The model leaves out OperationRecords, two jobs that share pods, requests that the server refuses, live reads that
//! fail, and the cleanup of holds whose job is gone.
//!
//! The module `part` shares pieces of states. `scenario`, `plugin` and `switch` define what the model explores. `api`,
//! `world` and `ledger` are the cluster. `host`, `round`, `record`, `in_flight` and `terms` do what `host/src` and
//! `host/kube` do around the decisions. `state` and `steps` combine these modules, and `heal` runs a state to its end
//! without faults. `ops` is a second model, of OpsJobs.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a model fails loudly; nothing of it ships"
)]

pub mod api;
pub mod heal;
pub mod host;
pub mod in_flight;
pub mod ledger;
pub mod ops;
pub mod part;
pub mod patch;
pub mod plugin;
pub mod record;
pub mod round;
pub mod scenario;
pub mod state;
pub mod steps;
pub mod switch;
pub mod terms;
pub mod world;
