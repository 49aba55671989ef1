//! Random DaemonJobs: the bound on slots holds whenever the driver dies and whatever happens to nodes.

use proptest::collection::vec;
use proptest::prelude::*;
use serde_json::json;

use crate::chance::chances;
use crate::chance::play::{hold, mix};
use crate::fixture::make::daemon;
use crate::fixture::{Death, Fixture};

/// An event between two rounds.
#[derive(Clone, Copy, Debug)]
enum Step {
    Ends(u8, bool),
    Evicted(u8),
    Ready(u8, bool),
    Leaves(u8),
    Joins(u8),
    Passes(u8),
    Dies(Death),
}

fn step() -> impl Strategy<Value = Step> {
    let node = 0u8..8;
    prop_oneof![
        8 => (any::<u8>(), proptest::bool::weighted(0.8)).prop_map(|(at, well)| Step::Ends(at, well)),
        1 => any::<u8>().prop_map(Step::Evicted),
        1 => (node.clone(), any::<bool>()).prop_map(|(node, ready)| Step::Ready(node, ready)),
        1 => node.clone().prop_map(Step::Leaves),
        1 => node.prop_map(Step::Joins),
        2 => (1u8..60).prop_map(Step::Passes),
        3 => proptest::sample::select(vec![Death::AtOnce, Death::AfterCreates, Death::AfterStatus]).prop_map(Step::Dies),
    ]
}

fn rollout() -> impl Strategy<Value = serde_json::Value> {
    let policies = proptest::sample::select(vec!["FailFast", "Continue", "Pause"]);
    let new = proptest::sample::select(vec!["Ignore", "Run"]);
    let ready = proptest::sample::select(vec!["Wait", "Skip"]);
    let timeout = proptest::option::of(20u8..60);
    (1u8..4, policies, 0u8..3, 0u8..3, new, ready, timeout).prop_map(
        |(slots, policy, failures, limit, new, ready, timeout)| {
            json!({"concurrency": slots, "failurePolicy": {"type": policy, "maxFailures": failures}, "newNodePolicy": new,
                "notReadyPolicy": ready, "nodeTimeoutSeconds": timeout, "retryPolicy": {"limit": limit, "backoffSeconds": 4}})
        },
    )
}

fn open(fixture: &Fixture) -> Vec<String> {
    let open = fixture.children.iter().filter(|child| !child.gone && child.progress.ended.is_none());
    let mut open: Vec<String> = open.map(|child| child.name.clone()).collect();
    open.sort_by_key(|name| mix(7, name));
    open
}

/// Returns the number of children that hold a slot: undecided children of nodes that still belong to the set.
fn slots_used(fixture: &Fixture) -> usize {
    let units = fixture.plan().units;
    let holds = |name: &String| units.iter().any(|unit| unit.job == **name && !unit.state.is_terminal());
    open(fixture).iter().filter(|name| holds(name)).count()
}

fn act(fixture: &mut Fixture, step: Step) -> Option<Death> {
    let node = |index: u8| format!("n{index}");
    match step {
        Step::Ends(at, well) => {
            let open = open(fixture);
            if let Some(name) = open.get(usize::from(at) % open.len().max(1)) {
                fixture.end_child(name, well);
            }
        }
        Step::Evicted(at) => {
            let open = open(fixture);
            if let Some(name) = open.get(usize::from(at) % open.len().max(1)) {
                let report =
                    oarlock_core::attempts::pods::PodReport { message: String::new(), is_infrastructure: true };
                fixture.pods.insert(name.clone(), report);
                fixture.end_child(name, false);
            }
        }
        Step::Ready(index, ready) if fixture.nodes.contains_key(&node(index)) => fixture.set_ready(&node(index), ready),
        Step::Leaves(index) => drop(fixture.nodes.remove(&node(index))),
        Step::Joins(index) => {
            let uid = format!("uid-{}-{}", fixture.created.len(), fixture.now);
            fixture.set_node(json!({"metadata": {"name": node(index), "uid": uid}}));
        }
        Step::Passes(seconds) => {
            fixture.now = oarlock_core::object::time::after_seconds(fixture.now, i64::from(seconds))
        }
        Step::Dies(death) => return Some(death),
        Step::Ready(..) => {}
    }
    None
}

proptest! {
    #![proptest_config(chances(1_400))]

    #[test]
    fn no_more_nodes_than_slots_are_undecided_and_each_attempt_has_one_job(
        rollout in rollout(), nodes in 0usize..8, steps in vec(step(), 0..30)
    ) {
        let most = usize::try_from(rollout["concurrency"].as_u64().unwrap()).unwrap();
        let names: Vec<String> = (0..nodes).map(|index| format!("n{index}")).collect();
        let mut fixture = Fixture::daemon(daemon(rollout), names.iter().map(String::as_str));
        for step in steps {
            let death = act(&mut fixture, step);
            let plan = fixture.plan();
            hold(&fixture, &plan)?;
            fixture.carry_out(&plan, death);
            if death.is_some() {
                fixture.restart();
            }
            let used = slots_used(&fixture);
            prop_assert!(used <= most, "{used} of {most}: {:?}", fixture.states());
        }
        // Every node becomes Ready, every Job ends, and the DaemonJob comes to rest.
        let there: Vec<String> = fixture.nodes.keys().cloned().collect();
        there.iter().for_each(|name| fixture.set_ready(name, true));
        for _ in 0..200 {
            let plan = fixture.settle();
            match (open(&fixture).first(), plan.due) {
                (Some(name), _) => fixture.end_child(name, true),
                (None, Some(due)) => fixture.now = due,
                (None, None) => break,
            }
        }
        let is_paused = fixture.condition("Paused").starts_with("True");
        let at_rest = fixture.memory.units.iter().all(|unit| unit.state.is_terminal());
        prop_assert!(at_rest || is_paused, "{:?}", fixture.states());
        prop_assert!(is_paused || fixture.parent.status["completionTime"].is_string());
        prop_assert!(open(&fixture).is_empty());
    }
}
