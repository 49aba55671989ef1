//! As many states as there is time for, in scenes with everything that may go wrong.

use std::time::{Duration, Instant};

use oarlock_model::scene::{Budget, Scene, Way};
use serde_json::json;
use stateright::{Checker, HasDiscoveries, Model};

use crate::alone;

/// The time for all scenes.
const BOX: Duration = Duration::from_secs(20);
/// The same for a soak.
const SOAKED: Duration = Duration::from_secs(180);
/// What each scene has at least.
const LEAST: Duration = Duration::from_millis(500);
/// So many states are to be reached in a minute on two idle cores.
const GOAL: f64 = 1_000_000.0;
/// Fewer say nothing.
const FLOOR: usize = 50_000;

fn scenes() -> Vec<Scene> {
    let one: &[&str] = &["a"];
    let two: &[&str] = &["a", "b"];
    let budget = Budget { ticks: 6, ..Budget::default() };
    let trouble = Budget { crashes: 2, takeovers: 2, losses: 2, deletions: 1, removals: 1, ..budget };
    let serial = json!({"parallelism": 1});
    let again = json!({"retryPolicy": {"limit": 1, "backoffSeconds": 1}});
    let held = json!({"partition": 1});
    vec![
        Scene::new("evicted, undisturbed", Way::Evicted, one, budget),
        Scene::new("marked, undisturbed", Way::Marked, one, budget),
        Scene::new("two, undisturbed", Way::Evicted, two, Budget { ticks: 4, ..budget }).with(&serial),
        Scene::new("evicted, another leader", Way::Evicted, one, Budget { takeovers: 1, ..budget }),
        Scene::new("marked, another leader", Way::Marked, one, Budget { takeovers: 1, ..budget }),
        Scene::new("evicted, two crashes", Way::Evicted, one, Budget { crashes: 2, ..budget }).from_anywhere(),
        Scene::new("evicted, a loss and a deletion", Way::Evicted, one, Budget { losses: 1, deletions: 1, ..budget })
            .from_anywhere(),
        Scene::new("marked, a loss and a deletion", Way::Marked, one, Budget { losses: 1, deletions: 1, ..budget })
            .from_anywhere(),
        Scene::new("evicted, all trouble", Way::Evicted, one, trouble).from_anywhere(),
        Scene::new("evicted under its name, all trouble", Way::EvictedUnderItsName, one, trouble).from_anywhere(),
        Scene::new("marked, all trouble", Way::Marked, one, trouble).from_anywhere(),
        Scene::new("two of them, all trouble", Way::Evicted, two, trouble).with(&serial).from_anywhere(),
        Scene::new("two marked, all trouble", Way::Marked, two, trouble).from_anywhere(),
        Scene::new("marked, two attempts", Way::Marked, one, Budget { ticks: 8, ..trouble })
            .with(&again)
            .from_anywhere(),
        Scene::new("two, the second held back", Way::Evicted, two, Budget { edits: 1, ..trouble })
            .with(&held)
            .from_anywhere(),
    ]
}

/// Set for a run that takes as long as it takes.
const SOAK_VARIABLE: &str = "OARLOCK_SOAK";

/// The time that all threads of this process have computed so far, where the system tells it.
fn computed() -> Option<f64> {
    let told = std::fs::read_to_string("/proc/self/stat").ok()?;
    // Fields 14 and 15, counted behind the name, which may have spaces in it; a hundred a second.
    let fields: Vec<&str> = told.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks = fields.get(11..13)?.iter().map(|field| field.parse::<u32>().ok()).sum::<Option<u32>>()?;
    Some(f64::from(ticks) / 100.0)
}

/// Explores a scene for so long. Yields how many states it has seen, and adds what does not hold in one of them.
fn explore(scene: &Scene, time: Duration, failed: &mut Vec<String>) -> usize {
    let from = Instant::now();
    let checker = scene.clone().checker().threads(2).timeout(time).finish_when(HasDiscoveries::AnyFailures);
    let checker = checker.spawn_bfs().join();
    let (unique, depth, took) = (checker.unique_state_count(), checker.max_depth(), from.elapsed().as_secs_f64());
    let whole = if took < time.as_secs_f64() { "all of them" } else { "" };
    println!("model: {:<40} {unique:>8} states, depth {depth:>3}, {took:>5.1} s {whole}", scene.name);
    for (property, path) in checker.discoveries() {
        let last = path.last_state().clone();
        let why = last.ledger.broken.values().next().copied().or_else(|| oarlock_model::heal::unhealed(scene, &last));
        failed.push(format!("{}: {property}: {why:?} after {:#?}", scene.name, path.into_actions()));
    }
    unique
}

#[test]
fn every_property_holds_in_every_state_that_is_reached() {
    let _alone = alone();
    let whole = if std::env::var_os(SOAK_VARIABLE).is_some() { SOAKED } else { BOX };
    let (began, computed_before, scenes) = (Instant::now(), computed(), scenes());
    let (mut all, mut failed) = (0, Vec::new());
    for (place, scene) in scenes.iter().enumerate() {
        let left = u32::try_from(scenes.len() - place).unwrap();
        let time = whole.saturating_sub(began.elapsed()) / left;
        all += explore(scene, time.max(LEAST), &mut failed);
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
