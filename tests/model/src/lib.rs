//! Explores the decisions of Oarlock: leaders, crashes, stale views and late writes, with the production memory, tables and
//! queue in every state, and the production functions in the order of `host/src/round.rs` between them.
//!
//! A state is an API server with one job and up to four pods, two processes with a view each, the requests on the wire and
//! those that went astray, and a ledger that judges what is made durable and what happens. Time passes in whole seconds, to
//! the next due time. A process whose term is over does nothing more, since no request of it passes the fence: what it had on
//! the wire may still be carried out. Not in it: OperationRecords, two jobs that share pods, requests that the server
//! refuses, live reads that fail, the sweep for holds of jobs that are gone.
//!
//! The modules: `part` shares pieces of states; `scene`, `plugin` and `switch` say what is explored; `api`, `world` and
//! `ledger` are the cluster; `host`, `round`, `record`, `wire` and `terms` do what `host/src` and `host/kube` do around the
//! decisions; `state` and `steps` put all that together, and `heal` lets it come to its end.
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
pub mod ledger;
pub mod part;
pub mod patch;
pub mod plugin;
pub mod record;
pub mod round;
pub mod scene;
pub mod state;
pub mod steps;
pub mod switch;
pub mod terms;
pub mod wire;
pub mod world;
