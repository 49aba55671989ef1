//! Whole rounds on `core` alone. The tests call the same functions as `host/src/round.rs`, with a closure as the plugin and a few maps as the
//! cluster. These tests show decisions; other tests show that the adapters agree.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails loudly, its helpers too"
)]

mod allocations;
mod answers;
mod bad_input;
mod bench;
mod budgets;
mod checks;
mod crowded;
mod crowds;
mod decisions;
mod drains;
mod dry_runs;
mod edges;
mod identities;
mod lifecycle;
mod lost_replies;
mod mishaps;
mod namesakes;
mod nodes;
mod policies;
mod restless;
mod selecting;
mod slow;
mod start_bounds;
mod tasks;
mod tenants;
mod unavailable;
mod unwatched;
