//! Every property holds in every state that is reached, and each rule of the architecture that a driver breaks is caught.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails loudly, its helpers too"
)]

#[path = "model/explore.rs"]
mod explore;
#[path = "model/rules.rs"]
mod rules;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// One test at a time: a model needs all cores.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}
