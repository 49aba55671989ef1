//! What Oarlock decides. Every function here is synchronous and pure, and takes the time as an argument.
//!
//! Takes views of the cluster and answers of plugins; yields plans, records and writes. May not know a client, a wasm
//! engine, a clock or randomness: the crate's dependency tree is held against an allow-list.

pub mod authorize;
pub mod grant;
pub mod manifest;
pub mod object;
pub mod proposal;
pub mod store;
pub mod visit;
pub mod writes;
