//! The drain of a node: the pod to evict next, and the pods that do not go.
//!
//! Takes the cached pods of the node and the results of earlier evictions; yields the next step. The host evicts one
//! pod after the other, each in its own write batch, so that a pod that stays does not block the others. May not trust
//! an absence in the cache: a live read must show that no pod is left. Source: docs/operationjob.md 3.16.

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use oarlock_api::TargetError;
use serde_json::{Value, json};

use crate::object::api_object::Object;
use crate::object::bound::cut;
use crate::object::task_pod::{JOB_UID, MIRROR};
use crate::object::time::after;
use crate::operation_job::round::context::{Round, Target};
use crate::operation_job::round::drain_memory::{Evicted, maker};
use crate::operation_job::round::target_memory::TargetMemory;
use crate::operation_job::round::visit::PlannedVisit;
use crate::operation_job::state::{TargetState, extras};
use crate::plugin::proposal::{DrainRequest, Mutation, ObjectRef, PluginEvent, Proposal};
use crate::requests::live_reads::LiveRead;
use crate::requests::writes::Write;

/// Annotation of pods that names the local volumes whose data may be lost, as cluster autoscalers read it.
const EXPENDABLE: &str = "cluster-autoscaler.kubernetes.io/safe-to-evict-local-volumes";
/// Time that a pod may take to disappear after its grace period.
const SLACK: SignedDuration = SignedDuration::from_secs(30);
/// Longest time between two visits of a node during its drain. A plugin cannot tell the host when its own limit is
/// over.
const CHECK: SignedDuration = SignedDuration::from_secs(1);
/// Most pods that an extra or an error names.
const NAMED: usize = 10;
/// Most bytes of pod names in the extra.
const NAMED_BYTES: usize = 400;
/// Most changes that a dry run of a drain tries.
const TRIED: usize = 50;

/// The next step of a drain.
#[derive(Debug, Default)]
pub(super) struct DrainStep {
    /// The eviction to send now.
    pub(super) evict: Option<Write>,
    /// The live read that shows whether pods are left.
    pub(super) read: Option<LiveRead>,
    /// True if no pod is left that must go.
    pub(super) done: bool,
    /// The pods that do not go, each with its reason.
    pub(super) blocked: Vec<(String, String)>,
    /// The pod whose termination ends last, with the time of that end.
    pub(super) slowest: Option<(Timestamp, String)>,
    /// Time of the next visit.
    pub(super) check_at: Option<Timestamp>,
}

impl DrainStep {
    /// Returns the value of the target's extra.
    pub(super) fn extra(&self) -> String {
        if self.done {
            return extras::DRAINED.to_owned();
        }
        let mut value = json!({"state": "Draining"});
        let mut bytes = 0;
        let short = |(pod, _): &&(String, String)| {
            bytes += pod.len();
            bytes <= NAMED_BYTES
        };
        let names: Vec<&str> = self.blocked.iter().take(NAMED).take_while(short).map(|(pod, _)| pod.as_str()).collect();
        let more = self.blocked.len().saturating_sub(names.len());
        if let Some(fields) = value.as_object_mut().filter(|_| !self.blocked.is_empty()) {
            fields.insert("blocked".to_owned(), json!(names));
            if more > 0 {
                fields.insert("more".to_owned(), json!(more));
            }
        }
        if let (Some(fields), Some((_, pod))) = (value.as_object_mut(), &self.slowest) {
            fields.insert("terminating".to_owned(), json!(pod));
        }
        value.to_string()
    }

    /// Returns the error that the target shows while pods do not go.
    pub(super) fn trouble(&self) -> Option<TargetError> {
        let (pod, why) = self.blocked.first()?;
        let others = self.blocked.iter().skip(1).take(NAMED - 1).map(|(pod, _)| pod.as_str());
        let others: Vec<&str> = others.collect();
        let others = if others.is_empty() { String::new() } else { format!("; also {}", others.join(", ")) };
        let message = format!("{}: {pod} ({}){others}", that_stay(self.blocked.len()), cut(why, 120));
        Some(TargetError { reason: "EvictionBlocked".to_owned(), message: cut(&message, 256) })
    }

    /// Returns the error as an event, which the host emits once.
    pub(super) fn event(&self, node: &str) -> Option<PluginEvent> {
        let TargetError { reason, message } = self.trouble()?;
        Some(PluginEvent { warning: true, reason, message: format!("{node}: {message}") })
    }
}

fn that_stay(count: usize) -> String {
    if count == 1 { "1 pod of the node stays".to_owned() } else { format!("{count} pods of the node stay") }
}

/// The outcome of a drain for one pod.
enum DrainAction {
    /// The pod does not concern the drain.
    Stays,
    /// The pod goes or is about to go, and the drain waits for it.
    Goes,
    /// The host must evict the pod.
    Evict,
    /// The pod must go and does not, for this reason.
    Blocked(String),
}

/// Returns true if the pod has an `emptyDir` whose data must not be lost.
fn has_local_data(pod: &Object) -> bool {
    let names = pod.annotations.get(EXPENDABLE).unwrap_or_default();
    let is_expendable = |volume: &Value| {
        let name = volume.get("name").and_then(Value::as_str).unwrap_or_default();
        names.split(',').any(|one| one.trim() == name)
    };
    let document = pod.fields.value();
    let mut volumes = document.pointer("/spec/volumes").and_then(Value::as_array).into_iter().flatten();
    volumes.any(|volume| volume.get("emptyDir").is_some() && !is_expendable(volume))
}

/// Returns the outcome of a drain for `pod`. `tried` is an earlier eviction of the pod.
fn drain_action(pod: &Object, request: &DrainRequest, tried: Option<&Evicted>, round: &Round<'_>) -> DrainAction {
    let now = round.now;
    let document = pod.fields.value();
    let of_daemon_set = pod.controller().is_some_and(|owner| owner.kind.kind == "DaemonSet");
    let of_task =
        pod.key.namespace.as_deref() == Some(round.tasks.namespace.as_str()) && pod.labels.contains_key(JOB_UID);
    let ended = document.pointer("/status/phase").is_some_and(|phase| phase == "Succeeded" || phase == "Failed");
    // The kubelet recreates a mirror pod that was evicted.
    if of_daemon_set || of_task || ended || pod.annotations.contains_key(MIRROR) {
        return DrainAction::Stays;
    }
    if let Some(deleted) = pod.deleted {
        let late = after(deleted, SLACK) <= now;
        return if late { DrainAction::Blocked("it does not terminate".to_owned()) } else { DrainAction::Goes };
    }
    if pod.controller().is_none() && !request.force {
        return DrainAction::Blocked(
            "no controller would make it anew: an OperationJob with `force` evicts it".to_owned(),
        );
    }
    if !request.delete_empty_dir_data && !pod.is_whole() {
        return DrainAction::Blocked(
            "the host does not hold all of it, so it may have data in an emptyDir: an OperationJob with \
             `deleteEmptyDirData` evicts it"
                .to_owned(),
        );
    }
    if !request.delete_empty_dir_data && has_local_data(pod) {
        let words = "the data in its emptyDir would be lost: an OperationJob with `deleteEmptyDirData` evicts it";
        return DrainAction::Blocked(words.to_owned());
    }
    match tried {
        Some(tried) if !tried.may_be_tried(now) => match &tried.refused {
            Some(why) => DrainAction::Blocked(why.clone()),
            None => DrainAction::Goes,
        },
        _ => DrainAction::Evict,
    }
}

/// Returns true if pods of a node that is drained do not go, as the target's extra says. `None` if the node is not
/// drained.
pub(super) fn is_blocked(state: &TargetState) -> Option<bool> {
    state.extra(extras::DRAIN).map(|drain| drain.contains("\"blocked\""))
}

/// Returns the drain that a proposal asks for.
pub(super) fn drain_of(proposal: &Proposal) -> Option<&DrainRequest> {
    proposal.mutations.iter().find_map(|mutation| match mutation {
        Mutation::Drain(request) => Some(request),
        _ => None,
    })
}

impl Target<'_> {
    /// Returns the next step of the drain of this target.
    pub(super) fn drain(&self, planned: &PlannedVisit, request: &DrainRequest, known: &mut TargetMemory) -> DrainStep {
        let now = self.round.now;
        let cordoned = planned.object.as_ref().and_then(|node| node.node.as_deref()).is_some_and(|spec| spec.cordoned);
        let mut step = DrainStep { check_at: Some(after(now, CHECK)), ..DrainStep::default() };
        let memory = known.drain.get_or_insert_default();
        if !cordoned {
            memory.since = None;
            return step;
        }
        let there = self.round.store.on_node(self.name);
        memory.evicted.retain(|uid, _| there.iter().any(|pod| pod.uid == *uid));
        let mut due: Vec<(Option<Timestamp>, &Object)> = Vec::new();
        let mut left = false;
        let began = Some(*memory.since.get_or_insert(now));
        for pod in there.iter().filter(|pod| !memory.comes_back(pod, began)) {
            let tried = memory.evicted.get(&pod.uid);
            let drain_action = drain_action(pod, request, tried, self.round);
            left |= !matches!(drain_action, DrainAction::Stays);
            let terminates = pod.deleted.filter(|_| matches!(drain_action, DrainAction::Goes));
            step.slowest = step.slowest.max(terminates.map(|end| (end, place(pod))));
            match drain_action {
                DrainAction::Stays | DrainAction::Goes => {}
                DrainAction::Evict => due.push((tried.and_then(|tried| tried.not_before), pod)),
                DrainAction::Blocked(why) => step.blocked.push((place(pod), why)),
            }
            let requeue_now = tried.and_then(|tried| tried.not_before).filter(|time| *time > now);
            step.check_at = step.check_at.min(requeue_now.or(step.check_at));
        }
        // First the pods that were not tried yet, then the pod that has waited longest.
        due.sort_by_key(|(waited, _)| *waited);
        if let Some((_, pod)) = due.first() {
            memory.next = Some((pod.uid.clone(), maker(pod, began).map(str::to_owned)));
            step.evict = Some(Write::Evict {
                pod: pod.key.clone(),
                uid: pod.uid.clone(),
                resource_version: None,
                grace_seconds: request.grace_seconds,
            });
        }
        let read = LiveRead::OnNode { node: self.name.to_owned() };
        if !left {
            step.done = self.round.live.has(&read);
            step.read = Some(read).filter(|_| !step.done);
        }
        step
    }

    /// Returns the mutations of a dry run, with each drain replaced by its present effect: a cordon, and evictions.
    /// Also returns the pods that do not go.
    pub(super) fn drains_spelled_out(&self, mutations: Vec<Mutation>) -> (Vec<Mutation>, Vec<String>) {
        let (mut all, mut stay) = (Vec::new(), Vec::new());
        for mutation in mutations {
            let Mutation::Drain(request) = mutation else {
                all.push(mutation);
                continue;
            };
            all.push(Mutation::Schedulable { node: request.node.clone(), schedulable: false });
            for pod in self.round.store.on_node(self.name) {
                match drain_action(&pod, &request, None, self.round) {
                    DrainAction::Stays | DrainAction::Goes => {}
                    DrainAction::Blocked(why) => stay.push(format!("{} ({why})", place(&pod))),
                    DrainAction::Evict => {
                        let reference = ObjectRef { key: pod.key.clone(), uid: Some(pod.uid.clone()) };
                        all.push(Mutation::Evict { pod: reference, grace_seconds: request.grace_seconds });
                    }
                }
            }
            all.truncate(TRIED);
        }
        (all, stay)
    }
}

fn place(pod: &Object) -> String {
    format!("{}/{}", pod.key.namespace.as_deref().unwrap_or_default(), pod.key.name)
}
