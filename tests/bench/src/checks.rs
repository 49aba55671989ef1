//! The scenario `checks`: one job runs a check of a second on each node, a tenth of them at once, with a host that is left alone
//! and with one that is killed again and again. On every tenth node the check fails.
//!
//! Takes the number of nodes; yields the time of the job, its ratio to the *pipeline bound* (`pipeline.rs`), which no host can
//! beat, and to the operator's estimate, and what went wrong. One check lasts from the creation of its pod until its container
//! has ended, by the world's ledger of this very run. May not judge.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::api::ApiResource;
use oarlock_api::TargetDetail;
use oarlock_core::cluster::own::TASKS_NAMESPACE;
use oarlock_sim::world::{Effect, Entry, OperationTimings, Span, Version};
use serde_json::{Map, Value, json};

use crate::arguments::Operations;
use crate::calm_and_killed::{self, Run};
use crate::children::Dropped;
use crate::goals::{self, Goal};
use crate::ground::Ground;
use crate::ideal::Ideal;
use crate::node_history::{most_pods, pods_of_targets};
use crate::node_scene::{NodeCast, NodeScene, TASK_START, at_once};
use crate::pipeline::Operation;
use crate::scene::figures_of;

/// What a check does, as the world reads it, and how long that takes.
const SCRIPT: &str = "# sim: sleep 1\n# sim: message checked";
const CHECK: Span = Span::millis(1_000, 1_000);
/// One of so many nodes is not healthy; its checks end with this exit code.
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

/// Runs it.
///
/// # Errors
/// If a cluster cannot be started or a host does not start.
pub(crate) async fn run(asked: &Operations, nodes: usize, components: &Path) -> anyhow::Result<Value> {
    let ground = Ground::for_contenders(asked.on).await?;
    ground.install(Dropped::Preflight).await?;
    let (timings, recorded) = (OperationTimings::default(), ApiResource::erase::<Pod>(&()));
    let cast = NodeCast { nodes, components, dropped: Dropped::Preflight, timings, recorded };
    let once = async |run: Run| {
        let scene = NodeScene::set(&ground, &run.namespace, cast.clone()).await?;
        once(scene, &run, at_once(asked, nodes)).await
    };
    let run = calm_and_killed::run(asked, ("check", nodes), once).await?;
    Ok(figures_of(asked, vec![goals::beside(run, &GOALS)], NOTES))
}

async fn once(mut scene: NodeScene<'_>, run: &Run, parallelism: u32) -> anyhow::Result<Value> {
    let (each, exit_code) = UNHEALTHY;
    for name in scene.nodes.iter().skip(each - 1).step_by(each) {
        scene.site.world.fail_checks(name, exit_code);
    }
    let parameters = json!({"image": "check:1", "script": SCRIPT});
    let spec = json!({"action": "preflight", "parallelism": parallelism, "parameters": parameters});
    let course = scene.run(spec, run.kill_every).await?;
    let checks = of(&scene.site.world.ledger().entries());
    scene.until_recorded(|versions| pods_of_targets(versions, TASKS_NAMESPACE).len() >= checks.len()).await;
    let mut figures = wrong(&scene, &checks).await?;
    figures.extend(course.figures);
    let operations: Vec<Operation> = checks.values().flatten().map(|check| check.operation).collect();
    let ideal = Ideal { targets: scene.nodes.len(), at_once: parallelism, configured: &[TASK_START, CHECK] };
    figures.extend(ideal.figures(&operations, course.took));
    figures.extend(pods(&scene.history.versions(), scene.nodes.len()));
    scene.end().await?;
    Ok(figures.into())
}

/// One check that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Check {
    pub(crate) operation: Operation,
    exit_code: i32,
}

/// The checks that have ended, or what else pods of tasks do, by the names of their nodes.
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

/// What became of the nodes, by the status and the ledger.
async fn wrong(scene: &NodeScene<'_>, checks: &BTreeMap<String, Vec<Check>>) -> anyhow::Result<Map<String, Value>> {
    let details = scene.details().await?;
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
    let count = |is: &dyn Fn(&String) -> bool| scene.nodes.iter().filter(|name| is(name)).count();
    let figures = json!({
        "wrong": count(&|name| !right(name)),
        "failed": count(&|name| progress(name) == "Failed"),
        "stuck": count(&|name| !["Succeeded", "Failed"].contains(&progress(name))),
    });
    Ok(figures.as_object().cloned().unwrap_or_default())
}

/// How many pods of checks there were, by the versions of them.
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
