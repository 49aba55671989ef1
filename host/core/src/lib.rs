//! What Oarlock decides. Every function here is synchronous and pure, and takes the time as an argument.
//!
//! Takes views of the cluster and answers of plugins; yields plans, records and writes. May not know a client, a wasm
//! engine, a clock or randomness: the crate's dependency tree is held against an allow-list.

pub mod absorb;
pub mod authorize;
pub mod calls;
pub mod claims;
pub mod closing;
mod compact;
pub mod conditions;
pub mod decide;
pub mod farewell;
pub mod grant;
pub mod holds;
pub mod interest;
pub mod judge;
pub mod manifest;
pub mod memory;
pub mod mutations;
pub mod notes;
pub mod object;
pub mod plan;
pub mod plugin;
pub mod proposal;
pub mod ranges;
pub mod reads;
pub mod reflect;
pub mod standing;
pub mod state;
pub mod status;
pub mod store;
pub mod sweep;
pub mod turn;
pub mod valid;
pub mod visit;
pub mod writes;
