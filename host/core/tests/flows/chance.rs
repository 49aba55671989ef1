//! Random flows: every flow comes to rest, in whatever order its steps are written and whenever its driver dies.

mod case;
mod daemons;
mod play;

use proptest::prelude::*;
use proptest::test_runner::{FileFailurePersistence, RngSeed};
use serde_json::json;

use crate::chance::case::{Case, case, large_case};
use crate::chance::play::Play;

fn chances(cases: u32) -> ProptestConfig {
    ProptestConfig {
        cases,
        max_shrink_iters: 2_000,
        rng_seed: RngSeed::Fixed(u64::from(cases)),
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("proptest-regressions"))),
        ..ProptestConfig::default()
    }
}

/// Returns the steps of a case in a shuffled order.
fn mixed(case: &Case) -> Vec<usize> {
    let mut order: Vec<usize> = (0..case.steps.len()).collect();
    order.sort_by_key(|index| (index * 7 + usize::from(case.seed)) % case.steps.len());
    order.reverse();
    order
}

fn as_written(case: &Case) -> Vec<usize> {
    (0..case.steps.len()).collect()
}

proptest! {
    #![proptest_config(chances(3_600))]

    #[test]
    fn every_flow_comes_to_rest_and_a_retry_heals_it(case in case()) {
        let mut play = Play::new(&case, &as_written(&case), false);
        play.run()?;
        play.is_at_rest()?;
        play.heal()?;
        play.run()?;
        play.has_succeeded()?;
    }
}

proptest! {
    #![proptest_config(chances(2_600))]

    #[test]
    fn the_order_in_which_steps_are_written_changes_no_outcome(case in case()) {
        let (mut one, mut other) = (Play::new(&case, &as_written(&case), false), Play::new(&case, &mixed(&case), false));
        one.run()?;
        other.run()?;
        prop_assert_eq!(one.outcome(), other.outcome());
        prop_assert_eq!(one.fixture.state(), other.fixture.state());
    }
}

proptest! {
    #![proptest_config(chances(2_601))]

    #[test]
    fn a_restart_at_any_moment_changes_no_outcome(case in case()) {
        let (mut one, mut other) = (Play::new(&case, &as_written(&case), false), Play::new(&case, &as_written(&case), true));
        one.run()?;
        other.run()?;
        prop_assert_eq!(one.outcome(), other.outcome());
        prop_assert_eq!(one.fixture.attempts, other.fixture.attempts);
        prop_assert_eq!(one.fixture.parent.status["counts"].clone(), other.fixture.parent.status["counts"].clone());
    }
}

proptest! {
    #![proptest_config(chances(12))]

    #[test]
    fn large_flows_come_to_rest_as_small_ones_do(case in large_case()) {
        let (mut one, mut other) = (Play::new(&case, &as_written(&case), false), Play::new(&case, &mixed(&case), true));
        one.run()?;
        one.is_at_rest()?;
        other.run()?;
        prop_assert_eq!(one.outcome(), other.outcome());
    }
}

#[test]
fn a_chain_of_five_hundred_steps_runs_to_its_end() {
    use crate::fixture::make::{flow, step};
    let name = |index: usize| format!("s{index:03}");
    let needed = |index: usize| index.checked_sub(1).map(name);
    let of =
        |index: usize| step(&name(index), &needed(index).iter().map(String::as_str).collect::<Vec<_>>(), json!({}));
    let mut fixture = crate::fixture::Fixture::flow(flow((0..500).rev().map(of), json!({})));
    fixture.settle();
    (0..500).for_each(|index| fixture.succeed(&name(index)));
    assert_eq!((fixture.state(), fixture.created.len()), ("Succeed", 500));
}
