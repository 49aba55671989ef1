//! The Cluster port on a Kubernetes API: the only crate that writes to a cluster.
//!
//! Takes a client and what was decided; yields observations and what came of each write. May not decide, know that
//! plugins exist, or repeat a write on its own.

mod address;
mod apply;
mod call;
pub mod client;
mod clock;
mod cluster;
mod events;
mod feed;
mod gate;
mod health;
mod jobs;
mod lease;
mod list;
mod looks;
mod observe;
mod outcome;
mod record;
mod reflect;
mod requests;
mod served;
mod write;

pub use clock::{Clock, ServerClock};
pub use cluster::{Cluster, REQUEST_TIMEOUT, Setup};
pub use events::EventCounts;
pub use feed::{Declared, DeclaredKind, News};
pub use health::KindHealth;
pub use lease::{Candidacy, Election, Fence, Leadership};
pub use observe::{Detail, ObserveError};
pub use record::{Decided, RecordError};
pub use requests::{LATENCY_BOUNDS, RequestLabels, Requests, Tally};
