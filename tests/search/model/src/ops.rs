//! Explores how OpsJobs claim nodes: two OpsJobs on one node, two leaders, crashes, stale views and late writes.
//!
//! A state is an API server with a few OpsJobs and their OperationJobs, and two processes with a view each. It also has
//! the rounds between two of their requests, and the requests that the API server may still carry out. A round calls
//! the production plan of OpsJobs, answers its live reads and sends its writes, as `host/src/engine.rs` and
//! `host/kube/src/kinds` do. A ledger judges the durable changes and the events on the nodes.
//!
//! An OperationJob is abstract: it takes its node at some time after its start is allowed, ends, and releases its node
//! only after somebody deletes it.
//!
//! The model leaves out the history, files, scripts, exports, refused requests, live reads that fail, and two OpsJobs
//! of one name.

pub mod api;
pub mod heal;
pub mod host;
pub mod ledger;
pub mod requests;
pub mod round;
pub mod scenario;
pub mod state;
pub mod steps;
pub mod switch;
