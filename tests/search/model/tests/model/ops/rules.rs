//! Tests that a property catches each rule of OpsJobs that the driver breaks. With the rule, a search of the same depth
//! must find nothing.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use oarlock_model::ops::heal::{run_until, unhealed};
use oarlock_model::ops::scenario::{OpsBudget, OpsScenario};
use oarlock_model::ops::state::OpsState;
use oarlock_model::ops::steps::OpsAction;
use oarlock_model::ops::switch::OpsSwitch;
use oarlock_model::record::Fate;
use stateright::{Checker, CheckerBuilder, HasDiscoveries, Model};

use crate::alone;
use crate::ops_explore::{MOVING, NONE, ONE, READY};

/// Time limit for finding a broken rule.
const BOX: Duration = Duration::from_secs(60);

/// The property that caught a broken rule.
struct Row {
    rule: OpsSwitch,
    property: &'static str,
    steps: usize,
    why: &'static str,
    /// Number of states that hold while the rule is on.
    states: usize,
    took: Duration,
}

static TABLE: Mutex<Vec<Row>> = Mutex::new(Vec::new());

fn one(budget: OpsBudget) -> OpsScenario {
    OpsScenario::new("one", ONE, budget).from_anywhere()
}

fn ready(budget: OpsBudget) -> OpsScenario {
    OpsScenario::new("two with targets", READY, budget)
}

fn moving(budget: OpsBudget) -> OpsScenario {
    OpsScenario::new("two, one with a workspace", MOVING, budget)
}

/// Delays the request that stores the targets of the first OpsJob. Meanwhile the workspace moves, and the OpsJob takes
/// the other node.
fn other_targets(scenario: &OpsScenario, state: &mut OpsState) {
    let first = || "x".to_owned();
    for fate in [Fate::Done, Fate::Late] {
        state.step(scenario, &OpsAction::Round(0, first()));
        state.step(scenario, &OpsAction::Arrive(0, first(), fate));
    }
    state.step(scenario, &OpsAction::Move);
    at_work(scenario, state);
}

/// Makes the first process claim the node for the first OpsJob. Before the status is written, the second process takes
/// the lease, and its OpsJob takes the node.
fn another_leads(scenario: &OpsScenario, state: &mut OpsState) {
    state.step(scenario, &OpsAction::Round(0, "x".to_owned()));
    state.step(scenario, &OpsAction::Lead(1));
    let is_second = |step: &OpsAction| match step {
        OpsAction::Hear(h, _) => *h == 1,
        OpsAction::Round(h, name) | OpsAction::Arrive(h, name, _) => *h == 1 && name == "y",
        _ => true,
    };
    run_until(scenario, state, is_second, |state| has_started(state, "y"));
}

/// Makes the first OpsJob take the node. The second process has heard of nothing.
fn at_work(scenario: &OpsScenario, state: &mut OpsState) {
    run_until(scenario, state, is_first, |state| has_started(state, "x"));
}

/// Ends the first OpsJob by force while its OperationJob holds the node. The second process has heard of nothing.
fn held_at_the_end(scenario: &OpsScenario, state: &mut OpsState) {
    at_work(scenario, state);
    state.step(scenario, &OpsAction::Stop("x".to_owned()));
    run_until(scenario, state, is_first, |state| state.api.jobs["x"].job.view.status.has_ended());
}

/// Returns true for the steps of the first OpsJob, whose OperationJob holds the node.
fn is_first(step: &OpsAction) -> bool {
    match step {
        OpsAction::Round(_, name) | OpsAction::Arrive(_, name, _) => name == "x",
        OpsAction::End(_) | OpsAction::Release(_) => false,
        _ => true,
    }
}

fn has_started(state: &OpsState, name: &str) -> bool {
    state.api.children.get(name).is_some_and(|child| child.has_started())
}

/// Returns a search by one thread, which finds the same path each time.
fn builder(scenario: OpsScenario) -> CheckerBuilder<OpsScenario> {
    scenario.checker().timeout(BOX)
}

fn caught(scenario: &OpsScenario, rule: OpsSwitch, property: &'static str) {
    let _alone = alone();
    // The liveness of a small scenario is checked in more states.
    let one_in = if property == "L" { 8 } else { 512 };
    let broken = scenario.clone().without(rule).heals_one_in(one_in);
    let began = Instant::now();
    let found = builder(broken.clone()).finish_when(HasDiscoveries::AnyOf([property].into())).spawn_bfs().join();
    let visited = found.unique_state_count();
    let path = found.discovery(property).unwrap_or_else(|| {
        panic!("{rule:?} is not caught by {property} in {visited} states, {:?}", found.discoveries().into_keys())
    });
    let last = path.last_state().clone();
    let why = last.ledger.broken.values().next().copied().or_else(|| unhealed(&broken, &last)).unwrap();
    let actions = path.clone().into_actions();
    let kept = builder(scenario.clone()).target_max_depth(actions.len() + 1).spawn_bfs().join();
    let found: Vec<_> = kept.discoveries().into_iter().map(|(of, path)| (of, path.into_actions())).collect();
    assert!(found.is_empty(), "{found:?} without {rule:?} being off");
    let states = kept.unique_state_count();
    tell(Row { rule, property, steps: actions.len(), why, states, took: began.elapsed() });
}

/// Adds a row to the table, and prints the table once it is complete.
fn tell(row: Row) {
    let mut table = TABLE.lock().unwrap_or_else(PoisonError::into_inner);
    table.push(row);
    if table.len() < TESTS {
        return;
    }
    table.sort_by_key(|row| OpsSwitch::ALL.iter().position(|rule| *rule == row.rule));
    for Row { rule, property, steps, why, states, took } in table.iter() {
        let (rule, took) = (format!("{rule:?}"), took.as_secs_f64());
        println!(
            "model of OpsJobs: {rule:<29} {property:<8} after {steps:>2} steps: {why} ({states} states hold with it, {took:.1} s)"
        );
    }
}

/// Generates a test for each rule, with its scenario and the property that catches the broken rule.
macro_rules! rules {
    ($($name:ident: $rule:ident in $scenario:expr => $property:literal,)*) => {
        $(#[test]
        fn $name() {
            caught(&$scenario, OpsSwitch::$rule, $property);
        })*

        const TESTS: usize = [$(OpsSwitch::$rule),*].len();

        #[test]
        fn every_rule_of_ops_jobs_that_can_be_switched_off_has_a_test() {
            let tested = [$(OpsSwitch::$rule),*];
            assert!(OpsSwitch::ALL.iter().all(|rule| tested.contains(rule)));
        }
    };
}

rules! {
    a_fence_of_ops_jobs_that_is_not_asked_is_caught:
        AsksNoFence in ready(OpsBudget { takeovers: 1, ..NONE }).after(another_leads) => "one job",
    claims_that_are_not_restored_are_caught:
        RestoresNoClaims in ready(OpsBudget { takeovers: 1, ..NONE }).alone().after(at_work) => "one job",
    claims_that_are_restored_from_the_cache_are_caught:
        RestoresFromTheCache in ready(OpsBudget { takeovers: 1, ..NONE }).after(at_work) => "one job",
    claims_that_are_restored_by_age_are_caught:
        RestoresByAge in ready(OpsBudget { takeovers: 2, ..NONE }).alone().after(another_leads) => "one job",
    an_ended_job_whose_claim_is_not_restored_is_caught:
        RestoresNoEndedJob in ready(OpsBudget { takeovers: 1, ..NONE }).after(held_at_the_end) => "one job",
    a_claim_that_is_made_only_once_is_caught:
        ClaimsOnce in ready(OpsBudget { takeovers: 1, ..NONE }).after(another_leads) => "one job",
    a_status_without_a_version_is_caught:
        WritesStatusWithoutVersion in one(OpsBudget { takeovers: 1, ..NONE }).alone() => "end",
    a_patch_without_a_version_is_caught:
        PatchesWithoutVersion in moving(OpsBudget { takeovers: 1, ..NONE }).alone().after(other_targets) => "one job",
    an_unpause_without_a_live_read_is_caught:
        UnpausesWithoutLiveRead in one(OpsBudget { stops: 1, ..NONE }) => "stop",
    an_unpause_before_the_record_is_caught:
        UnpausesBeforeItRecords in one(OpsBudget { removals: 1, crashes: 1, ..NONE }).alone() => "once",
    an_unpause_by_name_is_caught:
        PausesByName in one(OpsBudget { losses: 2, removals: 1, ..NONE }).alone() => "once",
    an_operation_job_that_is_created_unpaused_is_caught:
        CreatesUnpaused in one(OpsBudget { stops: 1, ..NONE }) => "stop",
    a_recorded_child_that_is_not_read_is_caught:
        ReadsNoRecordedChild in ready(OpsBudget { takeovers: 1, ..NONE }).after(at_work) => "outcomes",
    a_stale_cache_at_the_end_is_caught:
        TrustsTheCacheAtTheEnd in ready(OpsBudget { takeovers: 1, ..NONE }).after(held_at_the_end) => "one job",
    a_child_that_is_not_the_recorded_one_is_caught:
        FollowsAnyChild in one(OpsBudget { losses: 1, removals: 1, ..NONE }) => "once",
    a_deletion_before_the_outcomes_is_caught:
        DeletesBeforeItStoresOutcomes in one(NONE) => "outcomes",
    a_finalizer_that_goes_too_early_is_caught:
        DropsFinalizerEarly in ready(NONE).after(held_at_the_end) => "one job",
    claims_of_jobs_that_are_gone_are_caught:
        KeepsClaimsOfTheGone in one(OpsBudget { deletions: 1, ..NONE }) => "L",
}
