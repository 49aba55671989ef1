//! Explores as many states of OpsJobs as the time allows, in scenarios with every kind of fault.

use std::time::{Duration, Instant};

use oarlock_model::ops::heal::unhealed;
use oarlock_model::ops::scenario::{OpsBudget, OpsScenario, Task};
use stateright::{Checker, HasDiscoveries, Model};

use crate::alone;
use crate::explore::SOAK_VARIABLE;

/// Time for all scenarios.
const BOX: Duration = Duration::from_secs(8);
/// Time for all scenarios in a soak.
const SOAKED: Duration = Duration::from_secs(120);
/// The shortest time of each scenario.
const LEAST: Duration = Duration::from_millis(500);
/// The lowest number of states that says something about the host.
const FLOOR: usize = 20_000;

/// Two OpsJobs that name the same node.
pub(crate) const TWO: &[Task] = &[Task::on("n", "x"), Task::on("n", "y")];
/// Two OpsJobs that name the same node and have their targets.
pub(crate) const READY: &[Task] = &[Task::on("n", "x").with_targets(), Task::on("n", "y").with_targets()];
/// Two OpsJobs that name the same node. The user creates the first one by name at some time.
const ONE_LATER: &[Task] = &[Task::on("n", "x").later(), Task::on("n", "y")];
/// Two OpsJobs that name the same node, and one that names another node.
const THREE: &[Task] = &[Task::on("n", "x"), Task::on("n", "y"), Task::on("m", "z")];
/// Two OpsJobs. The first one selects its node by workspace, and the workspace may move to the node of the second one.
pub(crate) const MOVING: &[Task] = &[Task::on("n", "x").moving_to("m"), Task::on("m", "y").with_targets()];
/// One OpsJob.
pub(crate) const ONE: &[Task] = &[Task::on("n", "x")];
/// No fault.
pub(crate) const NONE: OpsBudget =
    OpsBudget { crashes: 0, takeovers: 0, losses: 0, stops: 0, deletions: 0, removals: 0, moves: 0, ticks: 0 };

fn scenarios() -> Vec<OpsScenario> {
    let users = OpsBudget { stops: 1, deletions: 1, removals: 1, ticks: 2, ..NONE };
    let trouble = OpsBudget { crashes: 1, takeovers: 2, losses: 1, ..users };
    vec![
        OpsScenario::new("two, undisturbed", TWO, NONE),
        OpsScenario::new("one later, undisturbed", ONE_LATER, NONE),
        OpsScenario::new("three, undisturbed", THREE, NONE),
        OpsScenario::new("one, another leader", ONE, OpsBudget { takeovers: 1, ..NONE }),
        OpsScenario::new("one, a loss", ONE, OpsBudget { losses: 1, ..NONE }),
        OpsScenario::new("one, its users", ONE, users),
        OpsScenario::new("two, a stop", READY, OpsBudget { stops: 1, ticks: 1, ..NONE }),
        OpsScenario::new("two, another leader", READY, OpsBudget { takeovers: 1, ..NONE }),
        OpsScenario::new("two, a loss", READY, OpsBudget { losses: 1, ..NONE }),
        OpsScenario::new("two, a loss and a move", MOVING, OpsBudget { losses: 1, moves: 1, ..NONE }),
        OpsScenario::new("one, all trouble", ONE, trouble).from_anywhere(),
        OpsScenario::new("two, all trouble", READY, trouble).from_anywhere(),
        OpsScenario::new("one later, all trouble", ONE_LATER, trouble).from_anywhere(),
    ]
}

/// Explores a scenario for this time. Returns the number of states, and adds the properties that do not hold to `failed`.
fn explore(scenario: &OpsScenario, time: Duration, failed: &mut Vec<String>) -> usize {
    let from = Instant::now();
    let checker = scenario.clone().checker().threads(2).timeout(time).finish_when(HasDiscoveries::AnyFailures);
    let checker = checker.spawn_bfs().join();
    let (unique, depth, took) = (checker.unique_state_count(), checker.max_depth(), from.elapsed().as_secs_f64());
    let whole = if took < time.as_secs_f64() { "all of them" } else { "" };
    println!("model of OpsJobs: {:<30} {unique:>8} states, depth {depth:>3}, {took:>5.1} s {whole}", scenario.name);
    for (property, path) in checker.discoveries() {
        let last = path.last_state().clone();
        let why = last.ledger.broken.values().next().copied().or_else(|| unhealed(scenario, &last));
        failed.push(format!("{}: {property}: {why:?} after {:#?}", scenario.name, path.into_actions()));
    }
    unique
}

#[test]
fn every_promise_of_ops_jobs_holds_in_every_state_that_is_reached() {
    let _alone = alone();
    let whole = if std::env::var_os(SOAK_VARIABLE).is_some() { SOAKED } else { BOX };
    let (began, scenarios) = (Instant::now(), scenarios());
    let (mut all, mut failed) = (0, Vec::new());
    for (place, scenario) in scenarios.iter().enumerate() {
        let left = u32::try_from(scenarios.len() - place).unwrap();
        let time = whole.saturating_sub(began.elapsed()) / left;
        all += explore(scenario, time.max(LEAST), &mut failed);
    }
    println!("model of OpsJobs: {all} states in {:.1} s", began.elapsed().as_secs_f64());
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    assert!(all >= FLOOR, "{all} states are too few");
}
