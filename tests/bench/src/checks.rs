//! The scenario `checks`: one job runs a check of a second on each node, a tenth of the nodes at once. On every tenth node the
//! check fails. One run leaves the host alone; the other kills it again and again.
//!
//! It measures the time of the job, its ratio to the *pipeline bound* (`pipeline.rs`), which no host can beat, and its ratio to the
//! operator's estimate. It also counts wrong outcomes. A check lasts from the creation of its pod until its container has ended, by
//! the event log of the simulated cluster in this run.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::api::ApiResource;
use oarlock_api::TargetDetail;
use oarlock_core::object::own::TASKS_NAMESPACE;
use oarlock_sim::world::{Effect, Entry, OperationTimings, Span, Version};
use serde_json::{Map, Value, json};

use crate::arguments::Operations;
use crate::backend::Backend;
use crate::calm_and_killed::{self, Run};
use crate::children::Dropped;
use crate::goals::{self, Goal};
use crate::ideal::Ideal;
use crate::node_history::{most_pods, pods_of_targets};
use crate::node_setup::{NodeSetup, NodeSetupOptions, TASK_START, at_once};
use crate::pipeline::Operation;
use crate::setup::figures_of;

/// The script of a check, as the simulated cluster reads it. `CHECK` is its duration.
const SCRIPT: &str = "# sim: sleep 1\n# sim: message checked";
const CHECK: Span = Span::millis(1_000, 1_000);
/// One node in this number is unhealthy. The checks on it end with this exit code.
const UNHEALTHY: (usize, i32) = (10, 3);

const GOALS: [Goal; 6] = [
    Goal { figure: "/calm/mostChecksAtOnce", name: "checks at once, calm", goal: "at most parallelism" },
    Goal { figure: "/killed/mostChecksAtOnce", name: "checks at once, killed", goal: "at most parallelism" },
    Goal { figure: "/calm/notOnePod", name: "nodes without exactly one check pod, calm", goal: "0" },
    Goal { figure: "/killed/notOnePod", name: "nodes without exactly one check pod, killed", goal: "0" },
    Goal { figure: "/calm/wrong", name: "wrong outcomes, calm", goal: "0" },
    Goal { figure: "/killed/wrong", name: "wrong outcomes, killed", goal: "0" },
];

const NOTES: &str = "\
calm: the host is left alone; killed: it gets SIGKILL again and again, --kill-every seconds after it was started, and is started
again at once. seconds: from the job's creation until a watch brought its end.
- pipelineBoundSeconds: the greater of the sum of all checks' durations divided by parallelism and the longest of them. A check
  lasts from the creation of its pod until its container has ended, by the world's ledger of this very run. No host that keeps
  within parallelism can be faster.
- backToBackSeconds: the same checks in the order in which they began, each as soon as another has ended: what a host takes that
  loses no time and does not know how long each will take.
- batchesSeconds: nodes divided by parallelism, rounded up, times configuredSeconds: the mean duration of one check as the world is
  configured. operationSecondsMean: the same as measured.
- mostChecksAtOnce: pods of checks that had not ended, at the worst resourceVersion of the history of a watch; mostPods: those that
  had ended too and were not removed yet; gaps: how often that watch broke and may have missed some.
- wrong: nodes that Succeeded, by the status, although their check ended with another exit code than 0, by the ledger, or the other
  way round, or failed for another reason, or have not ended. failed: by the status.";

/// Runs the scenario.
///
/// # Errors
/// If a cluster cannot be started, or a host does not start.
pub(crate) async fn run(asked: &Operations, nodes: usize, components: &Path) -> anyhow::Result<Value> {
    let backend = Backend::for_contenders(asked.on).await?;
    backend.install(Dropped::Preflight).await?;
    let (timings, recorded) = (OperationTimings::default(), ApiResource::erase::<Pod>(&()));
    let options = NodeSetupOptions { nodes, components, dropped: Dropped::Preflight, timings, recorded };
    let once = async |run: Run| {
        let setup = NodeSetup::set(&backend, &run.namespace, options.clone()).await?;
        once(setup, &run, at_once(asked, nodes)).await
    };
    let run = calm_and_killed::run(asked, ("check", nodes), once).await?;
    Ok(figures_of(asked, vec![goals::beside(run, &GOALS)], NOTES))
}

async fn once(mut setup: NodeSetup<'_>, run: &Run, parallelism: u32) -> anyhow::Result<Value> {
    let (each, exit_code) = UNHEALTHY;
    for name in setup.nodes.iter().skip(each - 1).step_by(each) {
        setup.cluster.world.fail_checks(name, exit_code);
    }
    let parameters = json!({"image": "check:1", "script": SCRIPT});
    let spec = json!({"action": "preflight", "parallelism": parallelism, "parameters": parameters});
    let course = setup.run(spec, run.kill_every).await?;
    let checks = of(&setup.cluster.world.ledger().entries());
    setup.until_recorded(|versions| pods_of_targets(versions, TASKS_NAMESPACE).len() >= checks.len()).await;
    let mut figures = wrong(&setup, &checks).await?;
    figures.extend(course.figures);
    let operations: Vec<Operation> = checks.values().flatten().map(|check| check.operation).collect();
    let ideal = Ideal { targets: setup.nodes.len(), at_once: parallelism, configured: &[TASK_START, CHECK] };
    figures.extend(ideal.figures(&operations, course.took));
    figures.extend(pods(&setup.history.versions(), setup.nodes.len()));
    setup.end().await?;
    Ok(figures.into())
}

/// One check that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Check {
    pub(crate) operation: Operation,
    exit_code: i32,
}

/// Returns the ended checks, or other pods of tasks, by the names of their nodes.
pub(crate) fn of(entries: &[Entry]) -> BTreeMap<String, Vec<Check>> {
    let (mut created, mut node_of): (BTreeMap<&str, Duration>, BTreeMap<&str, &str>) = Default::default();
    let mut checks: BTreeMap<String, Vec<Check>> = BTreeMap::new();
    for Entry { uid, time, effect, .. } in entries {
        match effect {
            Effect::PodCreated { .. } => drop(created.insert(uid, *time)),
            Effect::PodStarted { node } => drop(node_of.insert(uid, node)),
            Effect::PodEnded { exit_code } => {
                let begun = created.get(uid.as_str()).copied().unwrap_or(*time);
                let check = Check { operation: Operation { begun, ended: *time }, exit_code: *exit_code };
                let node = node_of.get(uid.as_str()).copied().unwrap_or_default();
                checks.entry(node.to_owned()).or_default().push(check);
            }
            _ => {}
        }
    }
    checks
}

/// Counts wrong outcomes of the nodes, by the status and the event log.
async fn wrong(setup: &NodeSetup<'_>, checks: &BTreeMap<String, Vec<Check>>) -> anyhow::Result<Map<String, Value>> {
    let details = setup.details().await?;
    let usual = TargetDetail::default();
    let of = |name: &String| details.get(name).unwrap_or(&usual);
    let progress = |name: &String| of(name).progress.as_deref().unwrap_or_default();
    let reason = |name: &String| of(name).error.as_ref().map(|error| error.reason.as_str()).unwrap_or_default();
    let exit_code = |name: &String| checks.get(name).and_then(|all| Some(all.first()?.exit_code));
    let right = |name: &String| match (progress(name), exit_code(name)) {
        ("Succeeded", Some(0)) => true,
        ("Failed", Some(code)) => code != 0 && reason(name) == "CheckFailed",
        _ => false,
    };
    let count = |is: &dyn Fn(&String) -> bool| setup.nodes.iter().filter(|name| is(name)).count();
    let figures = json!({
        "wrong": count(&|name| !right(name)),
        "failed": count(&|name| progress(name) == "Failed"),
        "stuck": count(&|name| !["Succeeded", "Failed"].contains(&progress(name))),
    });
    Ok(figures.as_object().cloned().unwrap_or_default())
}

/// Counts the pods of checks, by their recorded versions.
fn pods(versions: &[Version], nodes: usize) -> Map<String, Value> {
    let (most, of) = (most_pods(versions, TASKS_NAMESPACE), pods_of_targets(versions, TASKS_NAMESPACE));
    let one = of.values().filter(|pods| pods.len() == 1).count();
    let figures = json!({
        "mostChecksAtOnce": most.at_work,
        "mostPods": most.there,
        "notOnePod": nodes.saturating_sub(one),
    });
    figures.as_object().cloned().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn check_lasts_from_its_pod_until_its_container_has_ended() {
        let entry = |uid: &str, ms: u64, effect: Effect| {
            let time = Duration::from_millis(ms);
            Entry { time, namespace: TASKS_NAMESPACE.into(), name: uid.into(), uid: uid.into(), effect }
        };
        let entries = [
            entry("p", 5, Effect::PodCreated { owner: None, for_origin: None }),
            entry("q", 6, Effect::PodCreated { owner: None, for_origin: None }),
            entry("p", 9, Effect::PodStarted { node: "n".into() }),
            entry("p", 40, Effect::PodEnded { exit_code: 3 }),
        ];
        let (begun, ended) = (Duration::from_millis(5), Duration::from_millis(40));
        let check = Check { operation: Operation { begun, ended }, exit_code: 3 };
        assert_eq!(of(&entries), [("n".to_owned(), vec![check])].into());
    }
}
