//! The Cluster port on a Kubernetes API: the only crate that writes to a cluster.
//!
//! Takes a client and what was decided; yields observations and what came of each write. May not decide, know that
//! plugins exist, or repeat a write on its own. One file per step: `observe`, `record`, `apply`; the rest serves them.

mod address;
mod apply;
mod call;
pub mod client;
pub mod clock;
pub mod cluster;
pub mod events;
pub mod feed;
mod gate;
pub mod health;
mod jobs;
pub mod lease;
mod list;
mod looks;
pub mod observe;
mod outcome;
pub mod record;
mod reflect;
pub mod requests;
mod served;
mod sieve;
mod write;

pub use cluster::{Cluster, Setup};
pub use requests::Requests;
