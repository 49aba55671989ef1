//! As many states as there is time for, in scenes with everything that may go wrong.

use std::time::{Duration, Instant};

use oarlock_model::scene::{Budget, Scene, Way};
use serde_json::json;
use stateright::{Checker, HasDiscoveries, Model};

use crate::alone;

/// The time for all scenes.
const BOX: Duration = Duration::from_secs(45);
/// So many states are to be reached on two cores.
const GOAL: usize = 1_000_000;
/// Fewer say nothing.
const FLOOR: usize = 200_000;

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

#[test]
fn every_property_holds_in_every_state_that_is_reached() {
    let _alone = alone();
    let (began, scenes) = (Instant::now(), scenes());
    let (mut all, mut failed) = (0, Vec::new());
    for (place, scene) in scenes.iter().enumerate() {
        let left = u32::try_from(scenes.len() - place).unwrap();
        let time = BOX.saturating_sub(began.elapsed()) / left;
        let from = Instant::now();
        let checker = scene.clone().checker().threads(2).timeout(time).finish_when(HasDiscoveries::AnyFailures);
        let checker = checker.spawn_bfs().join();
        let (unique, depth, took) = (checker.unique_state_count(), checker.max_depth(), from.elapsed().as_secs_f64());
        let whole = if took < time.as_secs_f64() { "all of them" } else { "" };
        println!("model: {:<40} {unique:>8} states, depth {depth:>3}, {took:>5.1} s {whole}", scene.name);
        all += unique;
        for (property, path) in checker.discoveries() {
            let last = path.last_state().clone();
            let why =
                last.ledger.broken.values().next().copied().or_else(|| oarlock_model::heal::unhealed(scene, &last));
            failed.push(format!("{}: {property}: {why:?} after {:#?}", scene.name, path.into_actions()));
        }
    }
    let took = began.elapsed().as_secs_f64();
    let reached = if all >= GOAL { "reached" } else { "missed" };
    println!(
        "model: {all} states in {took:.1} s; the goal, {GOAL} in {} s on two idle cores, is {reached}",
        BOX.as_secs()
    );
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    assert!(all >= FLOOR, "{all} states are too few");
}
