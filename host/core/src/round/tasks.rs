//! Tasks of a target: from a request to a pod, and from what the pod shows to what is stored.
//!
//! The intent is durable before the pod is made, and the result before the pod goes. A plugin asks for a task until it sees
//! it, as for anything else; a task whose pod was seen is never begun again, and of a command on a node the marker there
//! keeps a second pod from running it. A task of the host itself has an object in memory in place of a pod. With the term that
//! object goes, and the task is begun again and goes on. Source: docs/operationjob.md 3.17.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;

use crate::cluster::live_reads::{LiveRead, Sighting};
use crate::cluster::object::{Kind, Object, ObjectKey};
use crate::cluster::scripts;
use crate::cluster::store::NODE_NAME;
use crate::cluster::task_pod::{JOB_UID, TASK, TASK_KIND, TaskPod};
use crate::cluster::writes::{EntryResult, Stopped, Write};
use crate::job::state::{TargetState, extras};
use crate::job::task::{StoredTask, TaskProgress};
use crate::job::time::{after, write_time};
use crate::plugin::proposal::{Mutation, Proposal};
use crate::plugin::task::{RUN_ON_NODE, ScriptSource, Task, TaskRequest, is_of_host};
use crate::plugin::visit::TaskStatus;
use crate::round::context::Target;
use crate::round::target_memory::TargetMemory;
use crate::round::task_result::{STARTS_WITHIN, given_up, gone, must_have_ended, not_started, output, progressed};
use crate::round::task_settings::TaskSettings;
use crate::round::task_template::pod_name;

/// The message of a task that went on when its target ended.
const CANCELLED: &str = "cancelled: its target ended before it did";

/// The memory of the tasks of one target.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct TaskMemory {
    /// Tasks whose pod was made in this term, by name.
    begun: BTreeSet<String>,
    /// The API server refuses to keep outputs.
    outputs_refused: bool,
}

impl TaskMemory {
    /// Takes what became of writes.
    pub(super) fn take(&mut self, result: &EntryResult) {
        let made = result.entry.writes.iter().take(result.done);
        let task = |write: &Write| match write {
            Write::Create { object, body, .. } if object.kind == Kind::pod() => {
                let label = body.pointer("/metadata/labels")?.get(TASK)?;
                label.as_str().map(str::to_owned)
            }
            _ => None,
        };
        self.begun.extend(made.filter_map(task));
        let stopped = result.entry.writes.get(result.done);
        let keeps_output = stopped.is_some_and(|write| {
            matches!(write, Write::Create { object, body, .. }
                if object.kind == output_kind() && body.pointer("/metadata/labels").is_some_and(|labels| labels.get(TASK).is_some()))
        });
        self.outputs_refused |= keeps_output && matches!(result.stopped, Some(Stopped::Refused { .. }));
    }
}

/// The kind of the objects that keep outputs.
pub(super) fn output_kind() -> Kind {
    Kind::new("v1", "ConfigMap")
}

/// Notes the tasks of a proposal in the state to record.
pub(super) fn note_intents(proposal: &Proposal, extra: &mut BTreeMap<String, String>) {
    for task in requests(proposal) {
        if StoredTask::read(extra, &task.name).is_none() {
            StoredTask { of_host: is_of_host(&task.kind), ..StoredTask::default() }.store(extra, &task.name);
        }
    }
}

/// The tasks that a proposal asks for.
pub(super) fn requests(proposal: &Proposal) -> impl Iterator<Item = &TaskRequest> {
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

    /// The pods of tasks that go on, and whose pod was not seen.
    pub(super) fn unseen_tasks(&self) -> Vec<ObjectKey> {
        let unseen = |(name, task): &(String, StoredTask)| {
            !task.of_host && task.pod.is_none() && self.task_pod(name, false).is_none()
        };
        let tasks = unfinished(self.stored).into_iter().filter(unseen);
        tasks.map(|(name, _)| self.task_object(Kind::pod(), &name)).collect()
    }

    /// The pod of a task, or what shows one of the host, if it is there. One of its name that another node shows, or that a kubelet
    /// made, is not it, whatever its labels say.
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

    /// The same, once its UID is stored only the pod of that UID: no other one has its result.
    fn known_pod(&self, name: &str, task: &StoredTask) -> Option<Arc<Object>> {
        self.task_pod(name, task.of_host).filter(|pod| task.pod.as_ref().is_none_or(|uid| *uid == pod.uid))
    }

    /// The write that begins a task; `None` if it was begun, or may have been.
    pub(super) fn begin_task(&self, request: &TaskRequest, state: &TargetState) -> Option<Write> {
        let of_host = is_of_host(&request.kind);
        let stored = StoredTask::read(&state.extra, &request.name);
        let was_begun = stored.is_some_and(|task| match of_host {
            true => task.state.terminal(),
            false => task.state != TaskProgress::Waiting || task.pod.is_some(),
        });
        if was_begun || self.task_pod(&request.name, of_host).is_some() {
            return None;
        }
        // It was authorized, so it can be read.
        let (task, planned) = (request.task().ok()?, self.planned(state));
        let (kind, body) = match of_host {
            true => (Kind::host_task(), planned.host_task_document(request)),
            false => (Kind::pod(), planned.task_document(request, &task, self.round.target_count)),
        };
        let object = self.task_object(kind, &request.name);
        Some(Write::Create { object, body, owner_uid: self.round.job.uid.clone() })
    }

    /// The write that makes the script of a task, which is there before the pod that mounts it.
    pub(super) fn make_script(&self, request: &TaskRequest) -> Option<Write> {
        let task = request.task().ok()?;
        match task.script()? {
            ScriptSource::Text(text) => Some(scripts::create(text, &self.round.tasks.namespace, &self.round.job.uid)),
            // Whoever named it by its digest has made it.
            ScriptSource::Stored(_) => None,
        }
    }

    /// The node on which its tasks are done, as far as that is known: itself, or that of a pod.
    pub(super) fn node(&self) -> Option<String> {
        match self.key.kind == Kind::node() {
            true => Some(self.name.to_owned()),
            false => self.object()?.text(NODE_NAME),
        }
    }

    /// Why this host carries out no proposal of a plugin that has commands run on nodes: the reason, and words. On a node it is said
    /// before the first of its changes: a node is not drained for a reboot that cannot begin.
    pub(super) fn cannot_run(&self, proposal: &Proposal, state: &TargetState) -> Option<(&'static str, String)> {
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

    /// `state` with its tasks as their pods show them, and the live reads without which nobody knows that a pod is gone.
    pub(super) fn with_tasks(&self, mut state: TargetState, known: &mut TargetMemory) -> (TargetState, Vec<LiveRead>) {
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

    /// A task as its pod shows it now. What a kubelet must have ended before has failed: nothing else ends it where that is
    /// dead. What did not start in time is stored before its pod goes, so that a host that dies in between knows it too.
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

    /// A task with the time since when it waits.
    fn since(&self, before: &StoredTask, now: StoredTask) -> StoredTask {
        let since = match (now.waits.is_empty(), before.waits.is_empty()) {
            (true, _) => String::new(),
            (false, true) => write_time(self.round.now),
            (false, false) => before.since.clone(),
        };
        StoredTask { since, ..now }
    }

    /// `state` with every task ended: those that go on are cancelled.
    pub(super) fn with_tasks_ended(&self, state: TargetState) -> TargetState {
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

    /// The writes that keep the outputs of ended tasks and remove their pods, and those that remove pods which did not start
    /// in time. They follow what is stored: `state`, once it is recorded.
    pub(super) fn task_writes(&self, state: &TargetState, known: &TargetMemory) -> Vec<Write> {
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
                // One that starts meanwhile has another version.
                writes.push(delete(Some(pod.resource_version.clone())));
            }
        }
        writes
    }

    /// The outputs that go with the job, once it is known what is there: the writes, and the live reads that are missing.
    pub(super) fn outputs(&self) -> (Vec<Write>, Vec<LiveRead>) {
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

    /// The time by which kubelets must have ended the last of its commands that were cancelled and may still run; `None` if
    /// none does. One that was given up has run out of that time.
    pub(super) fn commands_end_until(&self, state: &TargetState) -> Option<Timestamp> {
        let until = |name: &str| {
            let pod = self.task_pod(name, false).filter(|pod| pod.labels.get(TASK_KIND) == Some(RUN_ON_NODE))?;
            let seen = pod.task.as_deref().filter(|seen| !seen.is_over())?;
            must_have_ended(&pod, seen).filter(|time| *time > self.round.now)
        };
        let cancelled = StoredTask::all(&state.extra).filter(|(_, task)| task.message == CANCELLED);
        cancelled.filter_map(|(name, _)| until(name)).max()
    }

    /// True if pods of its tasks are left.
    pub(super) fn has_task_pods(&self, state: &TargetState) -> bool {
        let is_there =
            |(name, task): (&str, StoredTask)| self.task_pod(name, task.of_host).is_some_and(|pod| !pod.terminating());
        StoredTask::all(&state.extra).any(is_there)
    }

    /// The tasks of a target as its plugin sees them. One that was not seen to begin is asked for again.
    pub(super) fn task_statuses(&self, state: &TargetState) -> BTreeMap<String, TaskStatus> {
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

/// True if a target has tasks that go on, or pods of tasks may be left.
pub(crate) fn may_have_pods(state: &TargetState) -> bool {
    state.extra.range(extras::TASK.to_owned()..).next().is_some_and(|(key, _)| key.starts_with(extras::TASK))
}

/// The pods of tasks of this job, with the position of their targets.
pub(super) fn pods_of(pods: &[Arc<Object>], job_uid: &str) -> Vec<u32> {
    let own = pods.iter().filter(|pod| pod.task.is_some() && pod.labels.get(JOB_UID) == Some(job_uid));
    own.filter_map(|pod| pod.labels.get(crate::cluster::task_pod::TARGET_INDEX)?.parse().ok()).collect()
}
