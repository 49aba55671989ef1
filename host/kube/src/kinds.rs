//! The kinds of the engine in the cluster: their caches, watches and requests. This module knows no kind.

pub mod cache;
pub(crate) mod handlers;
pub mod port;

pub use cache::{EngineCache, KindObserver, LearnedFrom};
pub use port::KindPort;
