//! Explores as many states as the time allows, in scenarios with every kind of fault.

use std::time::{Duration, Instant};

use oarlock_model::scenario::{Budget, Scenario, Way};
use serde_json::json;
use stateright::{Checker, HasDiscoveries, Model};

use crate::alone;

/// Time for all scenarios.
const BOX: Duration = Duration::from_secs(20);
/// Time for all scenarios in a soak.
const SOAKED: Duration = Duration::from_secs(180);
/// The shortest time of each scenario.
const LEAST: Duration = Duration::from_millis(500);
/// Goal for the number of states in a minute on two idle cores.
const GOAL: f64 = 1_000_000.0;
/// The lowest number of states that says something about the host.
const FLOOR: usize = 50_000;

fn scenarios() -> Vec<Scenario> {
    let one: &[&str] = &["a"];
    let two: &[&str] = &["a", "b"];
    let budget = Budget { ticks: 6, ..Budget::default() };
    let trouble = Budget { crashes: 2, takeovers: 2, losses: 2, deletions: 1, removals: 1, ..budget };
    let serial = json!({"parallelism": 1});
    let again = json!({"retryPolicy": {"limit": 1, "backoffSeconds": 1}});
    let held = json!({"partition": 1});
    vec![
        Scenario::new("evicted, undisturbed", Way::Evicted, one, budget),
        Scenario::new("marked, undisturbed", Way::Marked, one, budget),
        Scenario::new("two, undisturbed", Way::Evicted, two, Budget { ticks: 4, ..budget }).with(&serial),
        Scenario::new("evicted, another leader", Way::Evicted, one, Budget { takeovers: 1, ..budget }),
        Scenario::new("marked, another leader", Way::Marked, one, Budget { takeovers: 1, ..budget }),
        Scenario::new("evicted, two crashes", Way::Evicted, one, Budget { crashes: 2, ..budget }).from_anywhere(),
        Scenario::new(
            "evicted, a loss and a deletion",
            Way::Evicted,
            one,
            Budget { losses: 1, deletions: 1, ..budget },
        )
        .from_anywhere(),
        Scenario::new("marked, a loss and a deletion", Way::Marked, one, Budget { losses: 1, deletions: 1, ..budget })
            .from_anywhere(),
        Scenario::new("evicted, all trouble", Way::Evicted, one, trouble).from_anywhere(),
        Scenario::new("evicted under its name, all trouble", Way::EvictedUnderItsName, one, trouble).from_anywhere(),
        Scenario::new("marked, all trouble", Way::Marked, one, trouble).from_anywhere(),
        Scenario::new("two of them, all trouble", Way::Evicted, two, trouble).with(&serial).from_anywhere(),
        Scenario::new("two marked, all trouble", Way::Marked, two, trouble).from_anywhere(),
        Scenario::new("marked, two attempts", Way::Marked, one, Budget { ticks: 8, ..trouble })
            .with(&again)
            .from_anywhere(),
        Scenario::new("two, the second held back", Way::Evicted, two, Budget { edits: 1, ..trouble })
            .with(&held)
            .from_anywhere(),
    ]
}

/// The environment variable that asks for a soak.
pub(crate) const SOAK_VARIABLE: &str = "OARLOCK_SOAK";

/// Returns the CPU time of all threads of this process, in seconds. Returns `None` if the system does not show it.
fn computed() -> Option<f64> {
    let told = std::fs::read_to_string("/proc/self/stat").ok()?;
    // Fields 14 and 15 count from behind the name, because the name may have spaces. A second has a hundred ticks.
    let fields: Vec<&str> = told.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks = fields.get(11..13)?.iter().map(|field| field.parse::<u32>().ok()).sum::<Option<u32>>()?;
    Some(f64::from(ticks) / 100.0)
}

/// Explores a scenario for this time. Returns the number of states, and adds the properties that do not hold to `failed`.
fn explore(scenario: &Scenario, time: Duration, failed: &mut Vec<String>) -> usize {
    let from = Instant::now();
    let checker = scenario.clone().checker().threads(2).timeout(time).finish_when(HasDiscoveries::AnyFailures);
    let checker = checker.spawn_bfs().join();
    let (unique, depth, took) = (checker.unique_state_count(), checker.max_depth(), from.elapsed().as_secs_f64());
    let whole = if took < time.as_secs_f64() { "all of them" } else { "" };
    println!("model: {:<40} {unique:>8} states, depth {depth:>3}, {took:>5.1} s {whole}", scenario.name);
    for (property, path) in checker.discoveries() {
        let last = path.last_state().clone();
        let why =
            last.ledger.broken.values().next().copied().or_else(|| oarlock_model::heal::unhealed(scenario, &last));
        failed.push(format!("{}: {property}: {why:?} after {:#?}", scenario.name, path.into_actions()));
    }
    unique
}

#[test]
fn every_property_holds_in_every_state_that_is_reached() {
    let _alone = alone();
    let whole = if std::env::var_os(SOAK_VARIABLE).is_some() { SOAKED } else { BOX };
    let (began, computed_before, scenarios) = (Instant::now(), computed(), scenarios());
    let (mut all, mut failed) = (0, Vec::new());
    for (place, scenario) in scenarios.iter().enumerate() {
        let left = u32::try_from(scenarios.len() - place).unwrap();
        let time = whole.saturating_sub(began.elapsed()) / left;
        all += explore(scenario, time.max(LEAST), &mut failed);
    }
    let took = began.elapsed().as_secs_f64();
    println!("model: {all} states in {took:.1} s");
    if let Some(computed) = computed().zip(computed_before).map(|(now, before)| now - before) {
        let minute = all as f64 / computed * 120.0;
        let reached = if minute >= GOAL { "reached" } else { "missed" };
        println!(
            "model: {computed:.1} s of it computed, so {minute:.0} in a minute on two idle cores: {GOAL} is {reached}"
        );
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    assert!(all >= FLOOR, "{all} states are too few");
}
