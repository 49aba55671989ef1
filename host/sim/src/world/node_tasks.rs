//! Tasks on simulated nodes: the kubelet's part of a pod that does one, and the marker that a command leaves on its node.
//!
//! A script is not run: lines of it say what it would do, `# sim: sleep SECONDS`, `# sim: output TEXT`, `# sim: exit CODE`, and
//! of a check `# sim: message TEXT`, what it writes to `/dev/termination-log`. The marker of a command is kept for its node as
//! long as the world lives, whatever becomes of pod, kubelet or host.

use std::collections::HashMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::deciders::kubelet::{self, Stage};
use super::labels;
use super::pod_facts::PodFacts;
use super::rounds::{Rounds, advance_failed};
use super::writer::WriteFailed;

/// What the kubelet takes of a termination message.
const MOST_MESSAGE: usize = 4096;
/// What the kubelet takes of a log in its place.
const MOST_LOG: usize = 2048;
/// The end of an output that a command leaves in its result.
const MOST_OUTPUT: usize = 3 * 1024;

/// The commands that were begun on nodes, by node and id, each with the UID of the pod that began it.
#[derive(Default)]
pub(crate) struct Markers {
    begun: Mutex<HashMap<(String, String), String>>,
}

impl Markers {
    /// Makes a marker; false if another pod made it before.
    fn make(&self, node: &str, id: &str, pod: &str) -> bool {
        let mut begun = self.begun.lock();
        begun.entry((node.to_owned(), id.to_owned())).or_insert_with(|| pod.to_owned()) == pod
    }

    /// The number of commands that were begun on a node.
    pub(crate) fn count(&self, node: &str) -> usize {
        self.begun.lock().keys().filter(|(known, _)| known == node).count()
    }
}

/// The exit codes of checks on nodes that are not healthy, by node.
#[derive(Default)]
pub(crate) struct Ailments {
    codes: Mutex<HashMap<String, i32>>,
}

impl Ailments {
    /// From now on checks on this node end with this exit code.
    pub(crate) fn add(&self, node: &str, exit_code: i32) {
        self.codes.lock().insert(node.to_owned(), exit_code);
    }

    fn of(&self, node: &str) -> Option<i32> {
        self.codes.lock().get(node).copied()
    }
}

/// What a script would do.
#[derive(Debug, Default, PartialEq, Eq)]
struct Deed {
    sleep: Duration,
    output: String,
    message: String,
    exit: i32,
}

impl Deed {
    /// Reads the lines of a script that are for the simulation.
    fn read(script: &str) -> Self {
        let mut deed = Self::default();
        for line in script.lines().filter_map(|line| line.trim().strip_prefix("# sim: ")) {
            match line.split_once(' ').unwrap_or((line, "")) {
                ("sleep", seconds) => deed.sleep += Duration::from_secs_f64(seconds.trim().parse().unwrap_or(0.0)),
                ("output", text) => deed.output += &format!("{text}\n"),
                ("message", text) => deed.message += &format!("{text}\n"),
                ("repeat", count) => deed.output = deed.output.repeat(count.trim().parse().unwrap_or(1)),
                ("exit", code) => deed.exit = code.trim().parse().unwrap_or(1),
                _ => {}
            }
        }
        deed
    }

    /// The termination message of its container under `FallbackToLogsOnError`: what it wrote for that, else what it printed,
    /// but only where it failed.
    fn termination_message(&self) -> &str {
        match (self.message.is_empty(), self.exit) {
            (false, _) => end_of(&self.message, MOST_MESSAGE),
            (true, 0) => "",
            (true, _) => end_of(&self.output, MOST_LOG),
        }
    }
}

/// The end of a text, at most so many bytes.
fn end_of(text: &str, most: usize) -> &str {
    let mut from = text.len().saturating_sub(most);
    while !text.is_char_boundary(from) {
        from += 1;
    }
    text.get(from..).unwrap_or_default()
}

fn annotation<'a>(pod: &'a Pod, key: &str) -> Option<&'a str> {
    pod.metadata.annotations.as_ref()?.get(key).map(String::as_str)
}

fn deed(pod: &Pod) -> Deed {
    let container = pod.spec.as_ref().and_then(|spec| spec.containers.first());
    let words = || container.map(|one| [one.command.iter().flatten(), one.args.iter().flatten()]);
    let words = || words().into_iter().flatten().flatten().cloned().collect::<Vec<_>>().join("\n");
    Deed::read(&annotation(pod, labels::TASK_SCRIPT).map_or_else(words, str::to_owned))
}

impl Rounds {
    /// Time that the command of a pod takes; none if it does no task, or is not at that.
    pub(crate) fn task_time(pod: &Pod, stage: Stage) -> Option<Duration> {
        let runs = pod.bears(labels::TASK) && pod.phase() == "Running" && !pod.is_terminating();
        (runs && stage != Stage::Starting).then(|| deed(pod).sleep)
    }

    /// Begins the command of a pod; a pod that may not begin it ends at once. `None` if the pod does no task.
    pub(crate) async fn begin_task(&self, pod: &Pod) -> Option<Result<(), WriteFailed>> {
        if !pod.bears(labels::TASK) {
            return None;
        }
        let on_node = pod.label(labels::TASK_KIND) == Some(labels::RUN_ON_NODE);
        if on_node && !self.markers.make(pod.node().unwrap_or_default(), pod.pod_name(), pod.uid()) {
            let message = "lost: it was begun on this node before, and runs at most once";
            return Some(self.end_task(pod, 0, &json!({ "message": message }).to_string()).await);
        }
        Some(self.write_status(pod, true).await)
    }

    /// Ends the command of a pod.
    pub(crate) async fn finish_task(&self, pod: &Pod) -> Result<(), WriteFailed> {
        let deed = deed(pod);
        if pod.label(labels::TASK_KIND) != Some(labels::RUN_ON_NODE) {
            let exit = self.ailments.of(pod.node().unwrap_or_default()).unwrap_or(deed.exit);
            let deed = Deed { exit, ..deed };
            return self.end_task(pod, deed.exit, deed.termination_message()).await;
        }
        let Deed { output, exit, .. } = deed;
        if annotation(pod, labels::TASK_BUILTIN) == Some("reboot") {
            self.reboot(pod.node().unwrap_or_default());
        }
        let kept = end_of(&output, MOST_OUTPUT);
        let result = json!({"exitCode": exit, "output": kept, "truncated": kept.len() < output.len()});
        self.end_task(pod, 0, &result.to_string()).await
    }

    async fn end_task(&self, pod: &Pod, code: i32, message: &str) -> Result<(), WriteFailed> {
        let now = self.clock.now();
        let now = Time(Timestamp::from_second(now.as_second()).unwrap_or(now));
        let mut status = json!(kubelet::running(pod, false, now.clone()));
        let reason = if code == 0 { "Completed" } else { "Error" };
        let ended = json!({"terminated": {"exitCode": code, "reason": reason, "message": message, "startedAt": now, "finishedAt": now}});
        for container in status.get_mut("containerStatuses").and_then(Value::as_array_mut).into_iter().flatten() {
            if let Some(fields) = container.as_object_mut() {
                fields.insert("state".to_owned(), ended.clone());
                fields.insert("started".to_owned(), json!(false));
            }
        }
        if let Some(fields) = status.as_object_mut() {
            fields.insert("phase".to_owned(), json!(if code == 0 { "Succeeded" } else { "Failed" }));
        }
        let meta = json!({ "uid": pod.uid(), "resourceVersion": pod.metadata.resource_version });
        let body = Patch::Merge(json!({ "metadata": meta, "status": status }));
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
    fn a_script_says_what_it_would_do() {
        let deed =
            Deed::read("#!/bin/sh\n# sim: sleep 1.5\n  # sim: output a b\n# sim: exit 3\n# sim: sleep 1\necho x\n");
        let output = "a b\n".to_owned();
        assert_eq!(deed, Deed { sleep: Duration::from_millis(2_500), output, exit: 3, ..Deed::default() });
        assert_eq!(Deed::read("echo x"), Deed::default());
        assert_eq!(Deed::read("# sim: output ab\n# sim: repeat 1000").output.len(), 3_000);
    }

    #[test]
    fn a_check_says_what_it_wrote_for_that_and_only_where_it_failed_what_it_printed() {
        let said = |script: &str| Deed::read(script).termination_message().to_owned();
        assert_eq!(said("# sim: output no fan"), "");
        assert_eq!(said("# sim: output no fan\n# sim: exit 1"), "no fan\n");
        assert_eq!(said("# sim: output no fan\n# sim: repeat 1000\n# sim: exit 1").len(), 2_048);
        assert_eq!(said("# sim: output no fan\n# sim: message hot\n# sim: exit 1"), "hot\n");
        assert_eq!(said("# sim: message hot"), "hot\n");
    }

    #[test]
    fn a_marker_is_made_once_on_its_node() {
        let markers = Markers::default();
        let made = [("n", "a", "1"), ("n", "a", "1"), ("n", "a", "2"), ("m", "a", "2"), ("n", "b", "2")];
        assert_eq!(made.map(|(node, id, pod)| markers.make(node, id, pod)), [true, true, false, true, true]);
        assert_eq!((markers.count("n"), markers.count("m")), (2, 1));
    }
}
