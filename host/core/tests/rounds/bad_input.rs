//! Rounds from whatever somebody may have stored: no round panics, no job spins, and none is forgotten.
//!
//! Generated are pods (times at the ends of the calendar, any grace period, odd owners, garbled holds), statuses and
//! records of every shape that the schema lets pass, specs, answers of bad plugins, and a cluster that refuses, loses and
//! forgets. What a plugin and a cluster do later comes from a seed. Source: docs/operationjob.md 3.1, 3.8, 3.11, L1, L3.

mod case;
mod course;
mod json;
mod manners;
mod objects;
mod promises;
mod status;
mod storm;

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use oarlock_core::job::time::{after, after_millis, after_seconds};
use proptest::prelude::*;
use proptest::test_runner::{FileFailurePersistence, RngSeed};
use serde_json::json;

use crate::bad_input::case::{Case, Event, Shown, case};
use crate::bad_input::course::Course;
use crate::bench::START;

/// How long plugin and cluster are at their worst.
const STORM: SignedDuration = SignedDuration::from_secs(40);
/// How long after its deadline a target may take to end, once the cluster is well: the back-off of a write, and the time
/// for which a request of unknown outcome may still take effect.
const GRACE: SignedDuration = SignedDuration::from_secs(150);
/// How long a deleted job may take to go, once the cluster is well: six tries to release, a minute apart,
/// and as many once what was held is let go.
const GOING: SignedDuration = SignedDuration::from_secs(1_000);

fn play(case: &Case) -> Result<(), TestCaseError> {
    let mut course = Course::begin(case);
    let start: Timestamp = START.parse().unwrap();
    let mut events: Vec<(i64, Event)> = case.later.events.clone();
    let deletion = Event::Edit(Shown(json!({"metadata": {"deletionTimestamp": START}})));
    let goes = case.later.deleted_at.filter(|_| case.later.namespace_goes);
    if let Some(at) = case.later.deleted_at {
        events.push((at, deletion.clone()));
        events.sort_by_key(|(at, _)| *at);
    }
    for (at, event) in &events {
        course.run_until(after_millis(start, *at))?;
        course.happen(event);
        if goes.is_some_and(|goes| goes <= *at) {
            course.bench.namespace_terminating = true;
        }
    }
    course.run_until(after(start, STORM))?;
    course.clear_up();
    let seconds =
        case.stored.spec.0["activeDeadlineSeconds"].as_i64().filter(|limit| *limit > 0 && *limit < 100).unwrap_or(30);
    course.run_until(after(after_seconds(course.bench.now, seconds), GRACE.saturating_mul(2)))?;
    course.deadlines_were_kept()?;
    course.a_dry_run_did_nothing(case)?;
    course.happen(&deletion);
    course.run_until(after(course.bench.now, GOING))?;
    course.nothing_is_left()
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 512,
        max_shrink_iters: 1_000,
        rng_seed: RngSeed::Fixed(512),
        // Beside this file, whose crate has its `main.rs` in the same folder.
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("proptest-regressions"))),
        ..ProptestConfig::default()
    })]

    /// A51, A60, L1, L3: whatever is stored, whatever the plugin and the cluster do.
    #[test]
    fn whatever_is_stored_no_round_panics_no_job_spins_and_none_is_forgotten(case in case()) {
        play(&case)?;
    }
}
