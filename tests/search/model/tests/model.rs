//! Tests that every property holds in every reached state, and that a property catches each broken rule.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails loudly, its helpers too"
)]

#[path = "model/explore.rs"]
mod explore;
#[path = "model/ops/explore.rs"]
mod ops_explore;
#[path = "model/ops/rules.rs"]
mod ops_rules;
#[path = "model/rules.rs"]
mod rules;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Lets one test run at a time, because a model needs all cores.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}
