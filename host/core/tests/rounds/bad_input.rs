//! Rounds from every stored state that the schema allows: no round panics, no job spins, and none is forgotten.
//!
//! The tests generate pods (times at the ends of the calendar, any grace period, odd owners, garbled holds), statuses and records, specs, and answers
//! of bad plugins. The cluster refuses, loses and forgets writes. A seed decides what the plugin and the cluster do later. Source:
//! docs/operationjob.md 3.1, 3.8, 3.11, L1, L3.

mod case;
mod case_run;
mod json;
mod manners;
mod objects;
mod promises;
mod status;
mod storm;

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use oarlock_core::object::time::{after, after_millis, after_seconds};
use proptest::prelude::*;
use proptest::test_runner::{FileFailurePersistence, RngSeed};
use serde_json::json;

use crate::bad_input::case::{Case, Event, Shown, case};
use crate::bad_input::case_run::CaseRun;
use crate::bench::START;

/// How long the plugin and the cluster misbehave.
const STORM: SignedDuration = SignedDuration::from_secs(40);
/// The longest time from a target's deadline to its end once the cluster is well: the backoff of a write, and the time for which a request of unknown
/// outcome may still take effect.
const GRACE: SignedDuration = SignedDuration::from_secs(150);
/// The longest time until a deleted job is gone once the cluster is well: six attempts to release, a minute apart, and six more after the holds are
/// removed.
const GOING: SignedDuration = SignedDuration::from_secs(1_000);

fn play(case: &Case) -> Result<(), TestCaseError> {
    let mut run = CaseRun::begin(case);
    let start: Timestamp = START.parse().unwrap();
    let mut events: Vec<(i64, Event)> = case.later.events.clone();
    let deletion = Event::Edit(Shown(json!({"metadata": {"deletionTimestamp": START}})));
    let goes = case.later.deleted_at.filter(|_| case.later.namespace_goes);
    if let Some(at) = case.later.deleted_at {
        events.push((at, deletion.clone()));
        events.sort_by_key(|(at, _)| *at);
    }
    for (at, event) in &events {
        run.run_until(after_millis(start, *at))?;
        run.happen(event);
        if goes.is_some_and(|goes| goes <= *at) {
            run.bench.namespace_terminating = true;
        }
    }
    run.run_until(after(start, STORM))?;
    run.clear_up();
    let seconds =
        case.stored.spec.0["activeDeadlineSeconds"].as_i64().filter(|limit| *limit > 0 && *limit < 100).unwrap_or(30);
    run.run_until(after(after_seconds(run.bench.now, seconds), GRACE.saturating_mul(2)))?;
    run.deadlines_were_kept()?;
    run.a_dry_run_did_nothing(case)?;
    run.happen(&deletion);
    run.run_until(after(run.bench.now, GOING))?;
    run.nothing_is_left()
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 512,
        max_shrink_iters: 1_000,
        rng_seed: RngSeed::Fixed(512),
        // The folder is next to this file, because the crate has its `main.rs` in the same folder.
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("proptest-regressions"))),
        ..ProptestConfig::default()
    })]

    /// A51, A60, L1, L3: the promises hold for every stored state and every behaviour of the plugin and the cluster.
    #[test]
    fn whatever_is_stored_no_round_panics_no_job_spins_and_none_is_forgotten(case in case()) {
        play(&case)?;
    }
}
