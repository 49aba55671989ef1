//! Commands on simulated nodes: the kubelet's part of a pod whose containers end by themselves. This is the pod of a task, or a pod
//! that does not always restart. The effect of a command follows from its text (`deciders::script`). A task's command leaves a
//! marker on its node. Markers last as long as the simulation, even if the pod, the kubelet or the host ends.

use std::collections::HashMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::{ConfigMap, Container, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::Api;
use kube::api::{Patch, PatchParams};
use parking_lot::Mutex;
use serde_json::json;

use super::deciders::ending::{self, Ended};
use super::deciders::kubelet::Stage;
use super::deciders::script::{Deed, end_of};
use super::labels;
use super::pod_facts::PodFacts;
use super::rounds::{Rounds, advance_failed};
use super::writer::WriteFailed;

/// The most bytes of a command's output that its result keeps, from the end.
const MOST_OUTPUT: usize = 3 * 1024;

/// The started commands by node and id, with the uid of the pod that started each.
#[derive(Default)]
pub(crate) struct Markers {
    begun: Mutex<HashMap<(String, String), String>>,
}

impl Markers {
    /// Makes a marker. Returns false if another pod made it before.
    fn make(&self, node: &str, id: &str, pod: &str) -> bool {
        let mut begun = self.begun.lock();
        begun.entry((node.to_owned(), id.to_owned())).or_insert_with(|| pod.to_owned()) == pod
    }

    /// Returns the number of commands that were started on a node.
    pub(crate) fn count(&self, node: &str) -> usize {
        self.begun.lock().keys().filter(|(known, _)| known == node).count()
    }
}

/// The exit codes of commands on unhealthy nodes, by node.
#[derive(Default)]
pub(crate) struct Ailments {
    codes: Mutex<HashMap<String, i32>>,
}

impl Ailments {
    /// Makes commands on this node end with this exit code from now on.
    pub(crate) fn add(&self, node: &str, exit_code: i32) {
        self.codes.lock().insert(node.to_owned(), exit_code);
    }

    fn of(&self, node: &str) -> Option<i32> {
        self.codes.lock().get(node).copied()
    }
}

/// The task scripts that nodes have mounted, by namespace and name. A script's text never changes.
#[derive(Default)]
pub(crate) struct Scripts {
    texts: Mutex<HashMap<(String, String), String>>,
}

/// Returns namespace and name of the script that a task pod mounts.
fn script_of(pod: &Pod) -> Option<(String, String)> {
    let volumes = pod.spec.as_ref()?.volumes.as_ref()?;
    let name = volumes.iter().find_map(|volume| Some(volume.config_map.as_ref()?.name.clone()))?;
    Some((pod.pod_namespace().to_owned(), name))
}

fn annotation<'a>(pod: &'a Pod, key: &str) -> Option<&'a str> {
    pod.metadata.annotations.as_ref()?.get(key).map(String::as_str)
}

/// Returns the containers of a pod.
fn containers(pod: &Pod) -> &[Container] {
    pod.spec.as_ref().map(|spec| spec.containers.as_slice()).unwrap_or_default()
}

/// Returns the command of each container in order, and whether its output can be its termination message.
fn endings(pod: &Pod) -> Vec<(Deed, bool)> {
    let falls_back = |one: &Container| one.termination_message_policy.as_deref() == Some("FallbackToLogsOnError");
    containers(pod).iter().map(|one| (Deed::of(one), falls_back(one))).collect()
}

/// Returns the timeout of a command that the host's program runs on a node.
fn time_limit(pod: &Pod) -> Option<Duration> {
    let command = containers(pod).first()?.command.as_ref()?;
    let at = command.iter().position(|word| word == "--timeout-seconds")?;
    command.get(at + 1)?.parse().ok().map(Duration::from_secs)
}

impl Rounds {
    /// Returns the effect of a task pod, read from its script or else from its command.
    fn deed(&self, pod: &Pod) -> Deed {
        let script = script_of(pod).and_then(|place| self.scripts.texts.lock().get(&place).cloned());
        let container = pod.spec.as_ref().and_then(|spec| spec.containers.first());
        let words = || container.map(|one| [one.command.iter().flatten(), one.args.iter().flatten()]);
        let words = || words().into_iter().flatten().flatten().cloned().collect::<Vec<_>>().join("\n");
        Deed::read(&script.unwrap_or_else(words))
    }

    /// Mounts the script of a task. A pod whose script is missing does not start.
    async fn mount_script(&self, pod: &Pod) -> Result<(), WriteFailed> {
        let Some(place) = script_of(pod).filter(|place| !self.scripts.texts.lock().contains_key(place)) else {
            return Ok(());
        };
        let maps: Api<ConfigMap> = Api::namespaced(self.writer.client.clone(), &place.0);
        let map = self.writer.within_bound(maps.get(&place.1)).await.map_err(|source| advance_failed(pod, source))?;
        let text = map.data.unwrap_or_default().remove("script").unwrap_or_default();
        self.scripts.texts.lock().insert(place, text);
        Ok(())
    }

    /// Returns the duration of a pod's command. Returns none if its containers do not end by themselves or do not run now.
    pub(crate) fn task_time(&self, pod: &Pod, stage: Stage) -> Option<Duration> {
        if pod.phase() != "Running" || pod.is_terminating() || stage == Stage::Starting {
            return None;
        }
        if pod.bears(labels::TASK) {
            let sleep = self.deed(pod).sleep;
            return Some(time_limit(pod).map_or(sleep, |limit| sleep.min(limit)));
        }
        let longest = || endings(pod).iter().map(|(deed, _)| deed.sleep).max().unwrap_or_default();
        let waits = ending::crash_back_off(ending::restarts(pod));
        ending::ends_by_itself(pod).then(|| waits + longest().mul_f64(self.sleep_factor))
    }

    /// Starts the command of a pod. A pod that must not start its command ends at once. Returns `None` for an ordinary pod.
    pub(crate) async fn begin_task(&self, pod: &Pod) -> Option<Result<(), WriteFailed>> {
        let is_task = pod.bears(labels::TASK);
        if !is_task && !ending::ends_by_itself(pod) {
            return None;
        }
        if let Err(failed) = self.mount_script(pod).await {
            return Some(Err(failed));
        }
        let on_node = is_task && pod.label(labels::TASK_KIND) == Some(labels::RUN_ON_NODE);
        if on_node && !self.markers.make(pod.node().unwrap_or_default(), pod.pod_name(), pod.uid()) {
            let message = "lost: it was begun on this node before, and runs at most once";
            return Some(self.end_task(pod, 0, &json!({ "message": message }).to_string()).await);
        }
        Some(self.write_status(pod, true).await)
    }

    /// Ends the command of a pod, and writes its exit codes and messages.
    pub(crate) async fn finish_task(&self, pod: &Pod) -> Result<(), WriteFailed> {
        if !pod.bears(labels::TASK) {
            let (ended, ailment) = (endings(pod), self.ailments.of(pod.node().unwrap_or_default()));
            let ended = ended.iter().map(|(deed, falls_back)| Ended {
                exit_code: ailment.unwrap_or(deed.exit),
                message: deed.termination_message(*falls_back),
            });
            let ended = ended.collect::<Vec<_>>();
            return self.end_containers(pod, &ended).await;
        }
        let deed = self.deed(pod);
        if pod.label(labels::TASK_KIND) != Some(labels::RUN_ON_NODE) {
            let exit = self.ailments.of(pod.node().unwrap_or_default()).unwrap_or(deed.exit);
            let mut deed = deed;
            deed.exit = exit;
            return self.end_task(pod, deed.exit, &deed.termination_message(true)).await;
        }
        let (output, Deed { exit, sleep, .. }) = (deed.output(), deed);
        if let Some(limit) = time_limit(pod).filter(|limit| *limit < sleep) {
            let result = json!({"message": format!("timed out after {} s", limit.as_secs())});
            return self.end_task(pod, 0, &result.to_string()).await;
        }
        match annotation(pod, labels::TASK_BUILTIN) {
            Some("reboot") => self.reboot(pod.node().unwrap_or_default()),
            Some("commit") => {
                let message = "ToolMissing: nodes in memory have no containers to commit: take mode copy";
                return self.end_task(pod, 0, &json!({"exitCode": 1, "message": message}).to_string()).await;
            }
            _ => {}
        }
        let kept = end_of(&output, MOST_OUTPUT);
        let result = json!({"exitCode": exit, "output": kept, "truncated": kept.len() < output.len()});
        self.end_task(pod, 0, &result.to_string()).await
    }

    async fn end_task(&self, pod: &Pod, exit_code: i32, message: &str) -> Result<(), WriteFailed> {
        let ended = Ended { exit_code, message: message.to_owned() };
        self.end_containers(pod, &vec![ended; containers(pod).len()]).await
    }

    async fn end_containers(&self, pod: &Pod, ended: &[Ended]) -> Result<(), WriteFailed> {
        let now = self.clock.now();
        let now = Time(Timestamp::from_second(now.as_second()).unwrap_or(now));
        let meta = json!({ "uid": pod.uid(), "resourceVersion": pod.metadata.resource_version });
        let body = Patch::Merge(json!({ "metadata": meta, "status": ending::ended(pod, ended, &now) }));
        let (api, parameters) = (self.writer.pods(pod.pod_namespace()), PatchParams::default());
        let request = api.patch_status(pod.pod_name(), &parameters, &body);
        let patched = self.writer.within_bound(request).await.map_err(|source| advance_failed(pod, source))?;
        self.store.put_pod(patched);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_marker_is_made_once_on_its_node() {
        let markers = Markers::default();
        let made = [("n", "a", "1"), ("n", "a", "1"), ("n", "a", "2"), ("m", "a", "2"), ("n", "b", "2")];
        assert_eq!(made.map(|(node, id, pod)| markers.make(node, id, pod)), [true, true, false, true, true]);
        assert_eq!((markers.count("n"), markers.count("m")), (2, 1));
    }
}
