//! Tasks of a target: from a request to a pod, and from the pod to the stored result.
//!
//! The request for a task is durable before the host makes the pod, and the result is durable before the pod goes. A
//! plugin asks for a task until it sees the task, as for any other change. A task whose pod the host saw never begins
//! again. For a command on a node, a marker on the node keeps a second pod from running the command. A task of the host
//! itself has an object in memory instead of a pod. The object is lost with the term; the host then begins the task
//! again, and the task goes on. Source: docs/operationjob.md 3.17.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;

use crate::cache::store::NODE_NAME;
use crate::object::api_object::{Kind, Object, ObjectKey};
use crate::object::task_pod::{JOB_UID, TASK, TASK_KIND, TaskPod};
use crate::object::time::{after, write_time};
use crate::operation_job::round::context::Target;
use crate::operation_job::round::target_memory::TargetMemory;
use crate::operation_job::state::{TargetState, extras};
use crate::operation_job::tasks::result::{
    STARTS_WITHIN, given_up, gone, must_have_ended, not_started, output, output_kind, progressed,
};
use crate::operation_job::tasks::settings::TaskSettings;
use crate::operation_job::tasks::stored::{StoredTask, TaskProgress};
use crate::operation_job::tasks::template::pod_name;
use crate::plugin::proposal::{Mutation, Proposal};
use crate::plugin::task::{RUN_ON_NODE, ScriptSource, Task, TaskRequest, is_of_host};
use crate::plugin::visit::TaskStatus;
use crate::requests::live_reads::{LiveRead, Sighting};
use crate::requests::scripts;
use crate::requests::writes::Write;

/// Message of a task that was not over when its target ended.
const CANCELLED: &str = "cancelled: its target ended before it did";

/// Adds the tasks of a proposal to the extras that the next record stores.
pub(crate) fn note_intents(proposal: &Proposal, extra: &mut BTreeMap<String, String>) {
    for task in requests(proposal) {
        if StoredTask::read(extra, &task.name).is_none() {
            StoredTask { of_host: is_of_host(&task.kind), ..StoredTask::default() }.store(extra, &task.name);
        }
    }
}

/// Returns the tasks that a proposal asks for.
pub(crate) fn requests(proposal: &Proposal) -> impl Iterator<Item = &TaskRequest> {
    proposal.mutations.iter().filter_map(|mutation| match mutation {
        Mutation::Task(task) => Some(task),
        _ => None,
    })
}

impl Target<'_> {
    fn task_object(&self, kind: Kind, task: &str) -> ObjectKey {
        let (namespace, name) = (self.round.tasks.namespace.clone(), pod_name(&self.round.job.uid, self.name, task));
        ObjectKey { kind, namespace: Some(namespace), name }
    }

    /// Returns the pods of unfinished tasks that the host has not seen.
    pub(crate) fn unseen_tasks(&self) -> Vec<ObjectKey> {
        let unseen = |(name, task): &(String, StoredTask)| {
            !task.of_host && task.pod.is_none() && self.task_pod(name, false).is_none()
        };
        let tasks = unfinished(self.stored).into_iter().filter(unseen);
        tasks.map(|(name, _)| self.task_object(Kind::pod(), &name)).collect()
    }

    /// Returns the pod of a task, or the object of a task of the host, if it is there. A pod of that name on another
    /// node, or one that a kubelet made, is not the task's pod, whatever its labels say.
    fn task_pod(&self, task: &str, of_host: bool) -> Option<Arc<Object>> {
        let kind = if of_host { Kind::host_task() } else { Kind::pod() };
        let found = self.round.sighting(&self.task_object(kind, task)).found();
        let node = self.node();
        found.filter(|pod| {
            let labels = [(JOB_UID, self.round.job.uid.as_str()), (TASK, task)];
            pod.task.as_ref().is_some_and(|seen| seen.is_for(node.as_deref()))
                && labels.iter().all(|(key, value)| pod.labels.get(key) == Some(*value))
        })
    }

    /// Returns the pod of a task. Once the UID of the pod is stored, only the pod with that UID counts, because no
    /// other pod has the result.
    fn known_pod(&self, name: &str, task: &StoredTask) -> Option<Arc<Object>> {
        self.task_pod(name, task.of_host).filter(|pod| task.pod.as_ref().is_none_or(|uid| *uid == pod.uid))
    }

    /// Returns the write that begins a task; `None` if the task was begun, or may have been begun.
    pub(crate) fn begin_task(&self, request: &TaskRequest, state: &TargetState) -> Option<Write> {
        let of_host = is_of_host(&request.kind);
        let stored = StoredTask::read(&state.extra, &request.name);
        let was_begun = stored.is_some_and(|task| match of_host {
            true => task.state.terminal(),
            false => task.state != TaskProgress::Waiting || task.pod.is_some(),
        });
        if was_begun || self.task_pod(&request.name, of_host).is_some() {
            return None;
        }
        // The request was authorized, so it can be read.
        let (task, planned) = (request.task().ok()?, self.planned(state));
        let (kind, body) = match of_host {
            true => (Kind::host_task(), planned.host_task_document(request)),
            false => (Kind::pod(), planned.task_document(request, &task, self.round.target_count)),
        };
        let object = self.task_object(kind, &request.name);
        Some(Write::Create { object, body, owner_uid: self.round.job.uid.clone() })
    }

    /// Returns the write that makes the script of a task. The script must exist before the pod that mounts it.
    pub(crate) fn make_script(&self, request: &TaskRequest) -> Option<Write> {
        let task = request.task().ok()?;
        match task.script()? {
            ScriptSource::Text(text) => Some(scripts::create(text, &self.round.tasks.namespace, &self.round.job.uid)),
            // The client that named the script by its digest has made it.
            ScriptSource::Stored(_) => None,
        }
    }

    /// Returns the node on which the target's tasks run, as far as it is known: the target itself, or the node of a
    /// pod.
    pub(crate) fn node(&self) -> Option<String> {
        match self.key.kind == Kind::node() {
            true => Some(self.name.to_owned()),
            false => self.object()?.text(NODE_NAME),
        }
    }

    /// Returns why this host cannot carry out a proposal of a plugin that runs commands on nodes: a reason and a
    /// message. For a node, the check comes before the first change, so that the host does not drain a node for a
    /// reboot that cannot begin.
    pub(crate) fn cannot_run(&self, proposal: &Proposal, state: &TargetState) -> Option<(&'static str, String)> {
        let plugin = self.round.serving()?;
        let commits =
            |request: &TaskRequest| matches!(request.task(), Ok(Task::RunOnNode(run)) if run.commit.is_some());
        let commits = requests(proposal).any(commits);
        let begins = self.key.kind == Kind::node()
            && !proposal.mutations.is_empty()
            && plugin.manifest.tasks.iter().any(|task| task.name == RUN_ON_NODE)
            && StoredTask::all(&state.extra).next().is_none();
        let TaskSettings { image, exports, .. } = &*self.round.tasks;
        let why = if image.is_none() && (commits || begins) {
            let words =
                "the host has no image for commands on nodes: an admin has to start it with `--task-image IMAGE`";
            ("NoTaskImage", words)
        } else if exports.is_none() && commits {
            let words = "the host has no registry to export to: an admin has to start it with `--export-registry HOST`";
            ("NoRegistry", words)
        } else if commits && self.planned(state).node().is_none() {
            ("NoNode", "the pod is on no node, so none of its containers can be committed")
        } else {
            return None;
        };
        let (reason, words) = why;
        Some((reason, words.to_owned()))
    }

    /// Returns `state` with its tasks as their pods show them, and the live reads that are needed to know that a pod is
    /// gone.
    pub(crate) fn with_tasks(&self, mut state: TargetState, known: &mut TargetMemory) -> (TargetState, Vec<LiveRead>) {
        let mut reads = Vec::new();
        for (name, task) in unfinished(&state) {
            let Some(pod) = self.known_pod(&name, &task) else {
                let was_there = !task.of_host && (task.pod.is_some() || known.tasks.begun.contains(&name));
                let read = LiveRead::Object(self.task_object(Kind::pod(), &name));
                if was_there && self.round.live.has(&read) {
                    gone(task).store(&mut state.extra, &name);
                } else if was_there {
                    reads.push(read);
                }
                continue;
            };
            let Some(seen) = pod.task.as_deref() else { continue };
            self.seen_now(&task, &pod, seen).store(&mut state.extra, &name);
        }
        (state, reads)
    }

    /// Returns a task as its pod shows it now. A task that its kubelet must have ended by now has failed, because
    /// nothing else ends it if the kubelet is dead. A task that did not start in time is stored before its pod goes, so
    /// that the next leader knows it even if this host dies in between.
    fn seen_now(&self, task: &StoredTask, pod: &Object, seen: &TaskPod) -> StoredTask {
        let task = self.since(task, progressed(task, pod, seen));
        let is_due = |time: Timestamp| time <= self.round.now;
        if task.state.terminal() || task.of_host {
            return task;
        }
        if must_have_ended(pod, seen).is_some_and(is_due) {
            return given_up(task, pod);
        }
        let late = pod.created.is_none_or(|made| is_due(after(made, STARTS_WITHIN)));
        if task.state == TaskProgress::Waiting && late && task.message.is_empty() && !seen.phase.is_empty() {
            return StoredTask { message: not_started(seen), ..task };
        }
        task
    }

    /// Returns a task with the time since which it waits.
    fn since(&self, before: &StoredTask, now: StoredTask) -> StoredTask {
        let since = match (now.waits.is_empty(), before.waits.is_empty()) {
            (true, _) => String::new(),
            (false, true) => write_time(self.round.now),
            (false, false) => before.since.clone(),
        };
        StoredTask { since, ..now }
    }

    /// Returns `state` with every task ended. Unfinished tasks are cancelled.
    pub(crate) fn with_tasks_ended(&self, state: TargetState) -> TargetState {
        let mut next = state;
        for (name, task) in unfinished(&next) {
            let pod = self.known_pod(&name, &task);
            let seen = pod.as_ref().and_then(|pod| Some(progressed(&task, pod, pod.task.as_deref()?)));
            let ended = seen.unwrap_or(task);
            let ended = match ended.state.terminal() {
                true => ended,
                false => StoredTask { state: TaskProgress::Failed, message: CANCELLED.to_owned(), ..ended },
            };
            ended.store(&mut next.extra, &name);
        }
        next
    }

    /// Returns the writes that keep the outputs of ended tasks and remove their pods, and those that remove pods which
    /// did not start in time. The host makes these writes once `state` is recorded.
    pub(crate) fn task_writes(&self, state: &TargetState, known: &TargetMemory) -> Vec<Write> {
        let mut writes = Vec::new();
        for (name, task) in StoredTask::all(&state.extra) {
            let Some(pod) = self.task_pod(name, task.of_host).filter(|pod| !pod.terminating()) else { continue };
            let seen = pod.task.as_deref();
            let delete = |version: Option<String>| Write::Delete {
                object: pod.key.clone(),
                uid: pod.uid.clone(),
                resource_version: version,
                grace_seconds: None,
                propagation: None,
            };
            if task.state.terminal() {
                let output = seen.filter(|_| task.pod.as_ref() == Some(&pod.uid)).and_then(|seen| output(&pod, seen));
                let output = output.filter(|output| !output.is_empty());
                let keeps = !known.tasks.outputs_refused && !self.round.deleting() && !task.of_host;
                let kept = output.filter(|_| keeps);
                writes.extend(kept.map(|output| Write::Create {
                    object: self.task_object(output_kind(), name),
                    body: self.output_document(name, &output),
                    owner_uid: self.round.job.uid.clone(),
                }));
                writes.push(delete(None));
            } else if !task.message.is_empty() && seen.is_some_and(|seen| !seen.started) {
                // A pod that starts meanwhile has another version.
                writes.push(delete(Some(pod.resource_version.clone())));
            }
        }
        writes
    }

    /// Returns the writes that delete the outputs of tasks with their job, and the live reads that are missing to know
    /// which outputs exist.
    pub(crate) fn outputs(&self) -> (Vec<Write>, Vec<LiveRead>) {
        let (mut writes, mut reads) = (Vec::new(), Vec::new());
        if !self.round.deleting() {
            return (writes, reads);
        }
        for (name, _) in StoredTask::all(&self.stored.extra) {
            let object = self.task_object(output_kind(), name);
            match self.round.sighting(&object) {
                Sighting::Found(found)
                    if !found.terminating() && found.labels.get(JOB_UID) == Some(self.round.job.uid.as_str()) =>
                {
                    let uid = found.uid.clone();
                    let (resource_version, grace_seconds, propagation) = (None, None, None);
                    writes.push(Write::Delete { object, uid, resource_version, grace_seconds, propagation });
                }
                Sighting::Found(_) | Sighting::Absent => {}
                Sighting::Unread => reads.push(LiveRead::Object(object)),
            }
        }
        reads.retain(|read| !self.round.live.refused(read));
        (writes, reads)
    }

    /// Returns the time by which kubelets must have ended the last cancelled command that may still run; `None` if no
    /// such command is left. For a command that was given up, this time is over.
    pub(crate) fn commands_end_until(&self, state: &TargetState) -> Option<Timestamp> {
        let until = |name: &str| {
            let pod = self.task_pod(name, false).filter(|pod| pod.labels.get(TASK_KIND) == Some(RUN_ON_NODE))?;
            let seen = pod.task.as_deref().filter(|seen| !seen.is_over())?;
            must_have_ended(&pod, seen).filter(|time| *time > self.round.now)
        };
        let cancelled = StoredTask::all(&state.extra).filter(|(_, task)| task.message == CANCELLED);
        cancelled.filter_map(|(name, _)| until(name)).max()
    }

    /// Returns true if pods of the target's tasks are left.
    pub(crate) fn has_task_pods(&self, state: &TargetState) -> bool {
        let is_there =
            |(name, task): (&str, StoredTask)| self.task_pod(name, task.of_host).is_some_and(|pod| !pod.terminating());
        StoredTask::all(&state.extra).any(is_there)
    }

    /// Returns the tasks of a target as its plugin sees them. The plugin asks again for a task that was not seen to
    /// begin.
    pub(crate) fn task_statuses(&self, state: &TargetState) -> BTreeMap<String, TaskStatus> {
        let is_seen = |name: &str, task: &StoredTask| match task.of_host {
            true => self.task_pod(name, true).is_some(),
            false => task.pod.is_some(),
        };
        let tasks = StoredTask::all(&state.extra).filter(|(name, task)| task.state.terminal() || is_seen(name, task));
        let shown = tasks.map(|(name, task)| {
            let pod = || self.task_pod(name, task.of_host);
            let why = || pod().and_then(|pod| Some(pod.task.as_ref()?.why.clone())).unwrap_or_default();
            let message = if task.state.terminal() { task.message } else { why() };
            let status =
                TaskStatus { state: task.state.word(), exit_code: task.exit_code, output: task.output, message };
            (name.to_owned(), status)
        });
        shown.collect()
    }
}

fn unfinished(state: &TargetState) -> Vec<(String, StoredTask)> {
    let tasks = StoredTask::all(&state.extra).filter(|(_, task)| !task.state.terminal());
    tasks.map(|(name, task)| (name.to_owned(), task)).collect()
}

/// Returns true if a target has stored tasks, so that unfinished tasks or pods of tasks may be left.
pub(crate) fn may_have_pods(state: &TargetState) -> bool {
    state.extra.range(extras::TASK.to_owned()..).next().is_some_and(|(key, _)| key.starts_with(extras::TASK))
}

/// Returns the positions of the targets to which the pods of this job's tasks belong.
pub(crate) fn pods_of(pods: &[Arc<Object>], job_uid: &str) -> Vec<u32> {
    let own = pods.iter().filter(|pod| pod.task.is_some() && pod.labels.get(JOB_UID) == Some(job_uid));
    own.filter_map(|pod| pod.labels.get(crate::object::task_pod::TARGET_INDEX)?.parse().ok()).collect()
}
