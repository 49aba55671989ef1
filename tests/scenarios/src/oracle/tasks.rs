//! Checks the pod of a task, given the state that was durable before.
//!
//! Takes a version of such a pod; yields the broken properties.

use std::collections::BTreeSet;

use oarlock_core::object::task_pod::CONTAINER;
use oarlock_sim::world::{Version, labels};

use super::Seen;

/// The prefix of the keys of tasks in the extras of a target.
const TASK: &str = "Task/";

/// The identity of a task: the UID of its job, the position of its target, the name.
pub(super) type TaskId = (String, usize, String);

/// Returns the tasks that a version of a job has stored: the position of the target, and the name.
pub(super) fn stored(job: &Version) -> BTreeSet<(usize, String)> {
    let details = job.at("/status/targetDetails").as_array().into_iter().flatten().enumerate();
    let tasks = details.flat_map(|(index, target)| {
        let extras = target.pointer("/extraInfo").and_then(|extras| extras.as_object()).into_iter().flatten();
        extras.filter_map(move |(key, _)| Some((index, key.strip_prefix(TASK)?.to_owned())))
    });
    tasks.collect()
}

/// Returns true if a pod runs a task of a job in the namespace.
pub(super) fn is_of(pod: &Version, namespace: &str) -> bool {
    let job = pod.at("/metadata/annotations/oarlock.dev~1job").as_str().unwrap_or_default();
    pod.plural == "pods" && id(pod).is_some() && job.split_once('/').is_some_and(|(own, _)| own == namespace)
}

fn id(pod: &Version) -> Option<TaskId> {
    let label = |key: &str| pod.at("/metadata/labels").get(key)?.as_str();
    let index = label("oarlock.dev/target-index")?.parse().ok()?;
    Some((label("oarlock.dev/job-uid")?.to_owned(), index, label(labels::TASK)?.to_owned()))
}

/// Returns true while the container of the task runs. Kubernetes guarantees no order of container statuses.
fn is_running(pod: &Version) -> bool {
    let mut all = pod.at("/status/containerStatuses").as_array().into_iter().flatten();
    all.any(|one| one.get("name").is_some_and(|name| name == CONTAINER) && one.pointer("/state/running").is_some())
}

impl Seen<'_> {
    /// Checks S7: a pod runs a task only after the task is durable. Checks S1: a command runs once, whatever happens to its pod.
    pub(super) fn task_pod(&mut self, pod: &Version) -> Vec<String> {
        let Some(id) = id(pod) else { return Vec::new() };
        let mut wrong = Vec::new();
        let is_new = self.task_pods.insert(pod.uid.clone());
        let job = self.jobs.get(&id.0).filter(|job| !job.in_records);
        if is_new && job.is_some_and(|job| !job.tasks.contains(&(id.1, id.2.clone()))) {
            wrong.push(format!("S7: it was made before task {} of target {} was stored", id.2, id.1));
        }
        let on_node = pod.at("/metadata/labels").get(labels::TASK_KIND).is_some_and(|kind| kind == labels::RUN_ON_NODE);
        if on_node && is_running(pod) {
            let first = self.commands.entry(id.clone()).or_insert_with(|| pod.uid.clone());
            if *first != pod.uid {
                wrong.push(format!("S1: task {} of target {} runs again, after pod {first} ran it", id.2, id.1));
            }
        }
        wrong
    }
}
