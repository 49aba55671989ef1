//! What tests lie on, none of which needs the host to be compiled.
//!
//! Takes the binaries of a control plane and requests of tests; yields a running etcd and API server with clients for several
//! accounts, a proxy that counts writes and injects faults at chosen ones, and a suite of request scripts that runs against any
//! two API servers. Nothing here ships, and nothing here may leave a process behind.

pub mod accounts;
pub mod audit;
pub mod children;
mod compaction;
pub mod conformance;
mod connection;
pub mod control_plane;
mod exchange;
pub mod faults;
pub mod install;
pub mod interception;
pub mod logged;
pub mod orders;
pub mod postgres;
pub mod proxy;
mod server_flags;
pub mod small_disk;
mod workplace;
