//! Tests that a property catches each rule of the architecture that the driver breaks. With the rule, a search of the
//! same depth must find nothing.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use oarlock_model::heal::unhealed;
use oarlock_model::scenario::{Budget, Scenario, Way};
use oarlock_model::switch::Switch;
use stateright::{Checker, CheckerBuilder, HasDiscoveries, Model};

use crate::alone;

/// Time limit for finding a broken rule.
const BOX: Duration = Duration::from_secs(60);

/// The property that caught a broken rule.
struct Row {
    rule: Switch,
    property: &'static str,
    steps: usize,
    why: &'static str,
    /// Number of states that hold while the rule is on.
    states: usize,
    took: Duration,
}

static TABLE: Mutex<Vec<Row>> = Mutex::new(Vec::new());

/// Returns a scenario with one pod, and enough time for its deadline.
fn one(way: Way, budget: Budget) -> Scenario {
    Scenario::new("one pod", way, &["a"], Budget { ticks: 6, ..budget })
}

fn two(way: Way, budget: Budget) -> Scenario {
    Scenario::new("two pods", way, &["a", "b"], Budget { ticks: 4, ..budget })
}

fn builder(scenario: Scenario) -> CheckerBuilder<Scenario> {
    scenario.checker().timeout(BOX).threads(2)
}

fn caught(scenario: &Scenario, rule: Switch, property: &'static str) {
    let _alone = alone();
    let broken = scenario.clone().without(rule);
    let began = Instant::now();
    let found = builder(broken.clone()).finish_when(HasDiscoveries::AnyOf([property].into())).spawn_bfs().join();
    let path = found.discovery(property).unwrap_or_else(|| panic!("{rule:?} is not caught by {property}"));
    let last = path.last_state().clone();
    let why = last.ledger.broken.values().next().copied().or_else(|| unhealed(&broken, &last)).unwrap();
    let steps = path.clone().into_actions().len();
    let kept = builder(scenario.clone()).target_max_depth(steps + 1).spawn_bfs().join();
    let found: Vec<_> = kept.discoveries().into_keys().collect();
    assert!(found.is_empty(), "{found:?} without {rule:?} being off");
    let states = kept.unique_state_count();
    tell(Row { rule, property, steps, why, states, took: began.elapsed() });
}

/// Adds a row to the table, and prints the table once it is complete.
fn tell(row: Row) {
    let mut table = TABLE.lock().unwrap_or_else(PoisonError::into_inner);
    table.push(row);
    if table.len() < TESTS {
        return;
    }
    table.sort_by_key(|row| Switch::ALL.iter().position(|rule| *rule == row.rule));
    for Row { rule, property, steps, why, states, took } in table.iter() {
        let (rule, took) = (format!("{rule:?}"), took.as_secs_f64());
        println!(
            "model: {rule:<26} {property:<2} after {steps:>2} steps: {why} ({states} states hold with it, {took:.1} s)"
        );
    }
}

/// Generates a test for each rule, with its scenario and the property that catches the broken rule.
macro_rules! rules {
    ($($name:ident: $rule:ident in $scenario:expr => $property:literal,)*) => {
        $(#[test]
        fn $name() {
            caught(&$scenario, Switch::$rule, $property);
        })*

        const TESTS: usize = [$(Switch::$rule),*].len();

        #[test]
        fn every_rule_that_can_be_switched_off_has_a_test() {
            let tested = [$(Switch::$rule),*];
            assert!(Switch::ALL.iter().all(|rule| tested.contains(rule)));
        }
    };
}

const NONE: Budget = Budget { crashes: 0, takeovers: 0, losses: 0, deletions: 0, edits: 0, removals: 0, ticks: 0 };

rules! {
    a_fence_that_is_not_asked_is_caught:
        AsksNoFence in one(Way::Evicted, Budget { takeovers: 1, ..NONE }) => "S6",
    an_effect_before_its_record_is_caught:
        SendsBeforeItRecords in one(Way::Evicted, NONE) => "S7",
    a_lost_record_that_counts_as_durable_is_caught:
        TakesEveryRecordAsDurable in one(Way::Evicted, Budget { losses: 1, ..NONE }) => "S7",
    a_record_without_a_version_is_caught:
        RecordsWithoutVersion in one(Way::Evicted, Budget { takeovers: 1, ..NONE }) => "S6",
    a_write_without_a_version_is_caught:
        WritesWithoutVersion in one(Way::Evicted, Budget { losses: 1, ..NONE }).from_anywhere() => "S3",
    a_name_instead_of_a_uid_is_caught:
        NamesInsteadOfUids in one(Way::EvictedUnderItsName, Budget { takeovers: 1, ..NONE }).from_anywhere() => "S5",
    an_unknown_write_that_counts_as_not_made_is_caught:
        UnknownIsNotMade in one(Way::Evicted, Budget { losses: 1, ..NONE }) => "S3",
    a_bump_that_is_not_made_is_caught:
        BumpsNothing in one(Way::Evicted, Budget { takeovers: 1, ..NONE }).from_anywhere() => "S6",
    a_term_that_begins_with_old_memory_is_caught:
        RemembersItsLastTerm in one(Way::Evicted, Budget { takeovers: 1, ..NONE }) => "S6",
    a_term_that_begins_with_old_entries_is_caught:
        KeepsItsQueue in one(Way::Evicted, Budget { takeovers: 1, ..NONE }) => "S6",
    an_epoch_that_is_not_raised_is_caught:
        RaisesNoEpoch in one(Way::Evicted, Budget { takeovers: 1, ..NONE }) => "S6",
    a_busy_target_that_is_decided_anew_is_caught:
        NobodyIsBusy in one(Way::Evicted, Budget { deletions: 1, ..NONE }) => "S3",
    an_entry_that_is_not_taken_back_is_caught:
        TakesNothingBack in one(Way::Evicted, Budget { deletions: 1, ..NONE }) => "S3",
    a_request_that_is_repeated_on_a_fresh_view_is_caught:
        RepeatsOnAFreshView in one(Way::EvictedUnderItsName, Budget { removals: 1, ..NONE }) => "S5",
    a_job_without_its_finalizer_is_caught:
        PutsNoFinalizer in one(Way::Evicted, Budget { deletions: 1, ..NONE }) => "S2",
    a_final_check_of_the_cache_is_caught:
        ReadsTheCache in one(Way::Evicted, NONE).from_anywhere() => "S3",
    claims_that_are_forgotten_are_caught:
        ForgetsClaims in two(Way::Evicted, NONE).from_anywhere() => "S1",
    results_that_are_lost_are_caught:
        LosesResults in one(Way::Evicted, NONE) => "L",
    due_times_that_are_forgotten_are_caught:
        ForgetsDueTimes in one(Way::Evicted, Budget { losses: 1, ..NONE }) => "L",
    a_deletion_that_is_not_noticed_is_caught:
        IgnoresDeletion in one(Way::Evicted, Budget { deletions: 1, ..NONE }) => "L",
}
