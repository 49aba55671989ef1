//! The servers that tests run against. No part of this crate needs the host to be compiled.
//!
//! It starts a real etcd and API server with clients for several accounts. A proxy counts writes and injects faults at chosen
//! writes. This crate does not ship, and it must not leave a process behind.

pub mod accounts;
pub mod audit;
pub mod children;
mod compaction;
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
