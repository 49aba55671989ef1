//! The scenario `reboots`: one job reboots all nodes, a tenth of the nodes at once. One run leaves the host alone; the other kills
//! it again and again.
//!
//! It measures the time of the job, its ratio to the *pipeline bound* (`pipeline.rs`), which no host can beat, and its ratio to the
//! operator's estimate. It also counts wrong outcomes. A node is away for two to four seconds, drawn for each node. In a real
//! cluster it would be minutes.
//!
//! A reboot lasts from its first physical effect, the creation of the pod that runs the command, until the node is Ready again with
//! another boot id. The times come from the event log of this run. The cordon comes before the reboot and is the host's own time.

use std::collections::BTreeMap;
use std::path::Path;

use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt as _;
use kube::api::{Api, ApiResource, ListParams};
use oarlock_sim::world::{Effect, Entry, OperationTimings, Span};
use serde_json::{Map, Value, json};

use crate::arguments::Operations;
use crate::backend::Backend;
use crate::calm_and_killed::{self, Run};
use crate::children::Dropped;
use crate::goals::{self, Goal};
use crate::ideal::Ideal;
use crate::node_history::most_out_of_service;
use crate::node_setup::{NodeSetup, NodeSetupOptions, TASK_START, at_once};
use crate::pipeline::Operation;
use crate::setup::figures_of;

const GOALS: [Goal; 7] = [
    Goal { figure: "/calm/timeToPipelineBound", name: "time to the pipeline bound", goal: "at most 1.15" },
    Goal { figure: "/calm/mostOutOfService", name: "nodes out of service, calm", goal: "at most parallelism" },
    Goal { figure: "/killed/mostOutOfService", name: "nodes out of service, killed", goal: "at most parallelism" },
    Goal { figure: "/calm/doubleReboots", name: "nodes rebooted twice, calm", goal: "0" },
    Goal { figure: "/killed/doubleReboots", name: "nodes rebooted twice, killed", goal: "0" },
    Goal { figure: "/calm/wrong", name: "wrong outcomes, calm", goal: "0" },
    Goal { figure: "/killed/wrong", name: "wrong outcomes, killed", goal: "0" },
];

const NOTES: &str = "\
calm: the host is left alone; killed: it gets SIGKILL again and again, --kill-every seconds after it was started, and is started
again at once. seconds: from the job's creation until a watch brought its end.
- pipelineBoundSeconds: the greater of the sum of all reboots' durations divided by parallelism and the longest of them. A reboot
  lasts from the creation of the pod that runs the command until the node is Ready again with another boot id, by the world's
  ledger of this very run. No host that keeps within parallelism can be faster.
- backToBackSeconds: the same reboots in the order in which they began, each as soon as another has ended: what a host takes that
  loses no time and does not know how long each will take.
- batchesSeconds: nodes divided by parallelism, rounded up, times configuredSeconds: the mean duration of one reboot as the world
  is configured. operationSecondsMean: the same as measured.
- mostOutOfService: nodes that were cordoned or not Ready at the worst resourceVersion of the history of a watch; gaps: how often
  that watch broke and may have missed some.
- wrong: nodes that did not reboot, by the ledger, and have Succeeded, by the status, or the other way round, or are cordoned or
  held after the end, or have not ended. failed: by the status.";

/// Returns the timings: a tenth of a second from the command until the node goes down, and two to four seconds until it is back.
fn timings() -> OperationTimings {
    let (reboot_notice, reboot) = (Span::millis(50, 150), Span::millis(2_000, 4_000));
    OperationTimings { reboot_notice, reboot, ..OperationTimings::default() }
}

/// Runs the scenario.
///
/// # Errors
/// If a cluster cannot be started, or a host does not start.
pub(crate) async fn run(asked: &Operations, nodes: usize, components: &Path) -> anyhow::Result<Value> {
    let backend = Backend::for_contenders(asked.on).await?;
    backend.install(Dropped::Reboot).await?;
    let recorded = ApiResource::erase::<Node>(&());
    let options = NodeSetupOptions { nodes, components, dropped: Dropped::Reboot, timings: timings(), recorded };
    let once = async |run: Run| {
        let setup = NodeSetup::set(&backend, &run.namespace, options.clone()).await?;
        once(setup, &run, at_once(asked, nodes)).await
    };
    let run = calm_and_killed::run(asked, ("reboot", nodes), once).await?;
    Ok(figures_of(asked, vec![goals::beside(run, &GOALS)], NOTES))
}

async fn once(mut setup: NodeSetup<'_>, run: &Run, parallelism: u32) -> anyhow::Result<Value> {
    let spec = json!({"action": "reboot", "parallelism": parallelism});
    let course = setup.run(spec, run.kill_every).await?;
    let mut figures = wrong(&setup).await?;
    figures.extend(course.figures);
    let operations: Vec<Operation> = of(&setup.cluster.world.ledger().entries()).into_values().collect();
    let configured = [TASK_START, timings().reboot_notice, timings().reboot];
    let ideal = Ideal { targets: setup.nodes.len(), at_once: parallelism, configured: &configured };
    figures.extend(ideal.figures(&operations, course.took));
    figures.insert("mostOutOfService".to_owned(), most_out_of_service(&setup.history.versions()).into());
    setup.end().await?;
    Ok(figures.into())
}

/// Returns the reboots of nodes that are back, by name.
fn of(entries: &[Entry]) -> BTreeMap<&str, Operation> {
    let (mut created, mut begun, mut reboots) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
    for Entry { uid, name, time, effect, .. } in entries {
        match effect {
            Effect::PodCreated { .. } => drop(created.insert(uid.as_str(), *time)),
            Effect::PodStarted { node } => {
                begun.entry(node.as_str()).or_insert_with(|| created.get(uid.as_str()).copied().unwrap_or(*time));
            }
            Effect::NodeReady { .. } => {
                let begun = begun.get(name.as_str()).copied().unwrap_or(*time);
                reboots.entry(name.as_str()).or_insert(Operation { begun, ended: *time });
            }
            _ => {}
        }
    }
    reboots
}

/// Counts wrong outcomes of the nodes, by the status, the event log and the nodes themselves.
async fn wrong(setup: &NodeSetup<'_>) -> anyhow::Result<Map<String, Value>> {
    let (counts, details) = (setup.cluster.world.ledger().reboots(), setup.details().await?);
    let nodes: Api<Node> = Api::all(setup.cluster.client.clone());
    let nodes = nodes.list(&ListParams::default()).await?;
    let held = |node: &Node| node.annotations().keys().any(|key| key.starts_with("hold.oarlock.dev/"));
    let cordoned = |node: &Node| node.spec.as_ref().is_some_and(|spec| spec.unschedulable == Some(true));
    let kept: Vec<String> =
        nodes.iter().filter(|node| held(node) || cordoned(node)).map(|node| node.name_any()).collect();
    let newest: u64 = nodes.iter().filter_map(|node| node.resource_version()?.parse().ok()).max().unwrap_or_default();
    setup.until_recorded(|all| all.last().is_some_and(|last| last.resource_version >= newest)).await;
    let progress = |name: &String| details.get(name).and_then(|detail| detail.progress.as_deref()).unwrap_or_default();
    let count = |is: &dyn Fn(&String) -> bool| setup.nodes.iter().filter(|name| is(name)).count();
    let rebooted = |name: &String| counts.contains_key(name);
    let agree = |name: &String| (progress(name) == "Succeeded") == rebooted(name);
    let ended = |name: &String| ["Succeeded", "Failed"].contains(&progress(name));
    let figures = json!({
        "wrong": count(&|name| !agree(name) || !ended(name) || kept.contains(name)),
        "succeededNotRebooted": count(&|name| progress(name) == "Succeeded" && !rebooted(name)),
        "rebootedNotSucceeded": count(&|name| progress(name) != "Succeeded" && rebooted(name)),
        "stillCordoned": kept.len(),
        "failed": count(&|name| progress(name) == "Failed"),
        "stuck": count(&|name| !ended(name)),
        "doubleReboots": counts.values().filter(|count| **count > 1).count(),
    });
    Ok(figures.as_object().cloned().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn reboot_lasts_from_the_pod_of_its_command_until_the_node_is_ready_with_another_boot_id() {
        let entry = |name: &str, ms: u64, effect: Effect| {
            let time = Duration::from_millis(ms);
            Entry { time, namespace: String::new(), name: name.into(), uid: name.into(), effect }
        };
        let entries = [
            entry("p", 5, Effect::PodCreated { owner: None, for_origin: None }),
            entry("p", 9, Effect::PodStarted { node: "n".into() }),
            entry("q", 11, Effect::PodStarted { node: "n".into() }),
            entry("n", 20, Effect::NodeRebooted { count: 1 }),
            entry("m", 21, Effect::NodeRebooted { count: 1 }),
            entry("n", 40, Effect::NodeReady { count: 1 }),
        ];
        let (begun, ended) = (Duration::from_millis(5), Duration::from_millis(40));
        assert_eq!(of(&entries), [("n", Operation { begun, ended })].into());
    }
}
