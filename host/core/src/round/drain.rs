//! The drain of a node: which of its pods is evicted next, and which do not go.
//!
//! Takes the pods that the store shows on the node, and the results of earlier evictions; yields the next step. Pods go one
//! after the other, each by an entry of its own, so what keeps one of them keeps no other. May not take an absence for
//! granted: that no pod is left is seen by a live read. Source: docs/operationjob.md 3.16.

use std::collections::BTreeMap;

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use oarlock_api::TargetError;
use serde_json::{Value, json};

use crate::cluster::live_reads::LiveRead;
use crate::cluster::object::Object;
use crate::cluster::task_pod::{JOB_UID, MIRROR};
use crate::cluster::writes::{EntryResult, Stopped, Write};
use crate::job::state::{TargetState, cut, extras};
use crate::job::time::after;
use crate::plugin::proposal::{DrainRequest, Mutation, ObjectRef, PluginEvent, Proposal};
use crate::round::context::{Round, Target};
use crate::round::target::PlannedVisit;
use crate::round::target_memory::TargetMemory;

/// Annotation of pods that names the local volumes whose loss they bear, as cluster autoscalers read it.
const EXPENDABLE: &str = "cluster-autoscaler.kubernetes.io/safe-to-evict-local-volumes";
/// First wait after an eviction that was refused, in seconds; doubles up to a minute.
const REFUSED_WAIT: i64 = 5;
const LONGEST_WAIT: i64 = 60;
/// Time for the cache to show what became of an accepted eviction; after it, the pod is evicted again.
const UNSEEN: SignedDuration = SignedDuration::from_secs(10);
/// Time for the cache to show the change that made an eviction fail.
const OUTDATED: SignedDuration = SignedDuration::from_millis(500);
/// Time for a pod to be gone once its grace period is over.
const SLACK: SignedDuration = SignedDuration::from_secs(30);
/// Time between two visits of a node that is drained, whatever changes: a plugin cannot say when its own limit is over.
const CHECK: SignedDuration = SignedDuration::from_secs(1);
/// Evictions of pods that one controller makes for a cordoned node, after which its pods stay.
const COMES_BACK: u32 = 3;
/// Most pods that are named.
const NAMED: usize = 10;
/// Most bytes of their names in the extra.
const NAMED_BYTES: usize = 400;
/// Most evictions of one drain that a dry run tries.
const TRIED: usize = 50;

/// The evictions of one drain, by UID of the pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct DrainMemory {
    evicted: BTreeMap<String, Evicted>,
    /// UID of the pod whose eviction was decided last, and of its controller where that has made it since the node is cordoned.
    next: Option<(String, Option<String>)>,
    /// Since when the node is seen cordoned.
    since: Option<Timestamp>,
    /// How many pods were evicted that their controller has made since then, by its UID.
    came_back: BTreeMap<String, u32>,
}

/// The eviction of one pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Evicted {
    /// Refusals in a row.
    refusals: u32,
    /// It is not evicted again before this time.
    not_before: Option<Timestamp>,
    /// Why it was refused the last time.
    refused: Option<String>,
}

impl DrainMemory {
    /// Takes the result of an eviction of this drain. Returns false if it is none, or says nothing about its pod alone.
    pub fn takes(&mut self, result: &EntryResult) -> bool {
        let [Write::Evict { uid, .. }] = result.entry.writes.as_slice() else { return false };
        let Some((_, maker)) = self.next.as_ref().filter(|(next, _)| next == uid) else { return false };
        if let (None, Some(maker)) = (&result.stopped, maker) {
            *self.came_back.entry(maker.clone()).or_default() += 1;
        }
        let evicted = self.evicted.entry(uid.clone()).or_default();
        match &result.stopped {
            None | Some(Stopped::Gone) => {
                *evicted = Evicted { not_before: Some(after(result.at, UNSEEN)), ..Evicted::default() };
            }
            Some(Stopped::Blocked { message, retry_after }) => evicted.refuse(result.at, message, *retry_after),
            // Where there was no answer it may have been made: the pod shows that.
            Some(Stopped::Refused { message } | Stopped::Unknown { message }) => {
                evicted.refuse(result.at, message, None);
            }
            Some(Stopped::Conflict | Stopped::NotSent) => evicted.not_before = Some(after(result.at, OUTDATED)),
            Some(Stopped::Throttled { .. } | Stopped::LostLease) => return false,
        }
        true
    }

    /// True for a pod whose controller makes them for this node although it is cordoned: it would not become empty.
    fn comes_back(&self, pod: &Object, began: Option<Timestamp>) -> bool {
        let maker = maker(pod, began);
        maker.is_some_and(|maker| self.came_back.get(maker).is_some_and(|evicted| *evicted >= COMES_BACK))
    }
}

/// UID of the controller of a pod that it has made since then.
fn maker(pod: &Object, began: Option<Timestamp>) -> Option<&str> {
    let is_new = pod.created.zip(began).is_some_and(|(created, began)| created > began);
    pod.controller().filter(|_| is_new).map(|owner| owner.uid.as_str())
}

impl Evicted {
    fn refuse(&mut self, at: Timestamp, message: &str, asked: Option<u32>) {
        let doubled = (REFUSED_WAIT << self.refusals.min(5)).min(LONGEST_WAIT);
        let seconds = asked.map_or(doubled, |seconds| i64::from(seconds.max(1)).min(LONGEST_WAIT));
        self.refusals = self.refusals.saturating_add(1);
        self.not_before = Some(after(at, SignedDuration::from_secs(seconds)));
        self.refused = Some(message.to_owned());
    }

    fn may_be_tried(&self, now: Timestamp) -> bool {
        self.not_before.is_none_or(|time| time <= now)
    }
}

/// The next step of a drain.
#[derive(Debug, Default)]
pub(super) struct DrainStep {
    /// The eviction that is due.
    pub(super) evict: Option<Write>,
    /// The live read that shows whether pods are left.
    pub(super) read: Option<LiveRead>,
    /// No pod is left that has to go.
    pub(super) done: bool,
    /// The pods that do not go, each with the reason.
    pub(super) blocked: Vec<(String, String)>,
    /// The pod whose time to terminate ends last, and that time.
    pub(super) slowest: Option<(Timestamp, String)>,
    /// Time of the next visit.
    pub(super) check_at: Option<Timestamp>,
}

impl DrainStep {
    /// The value of the extra.
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

    /// The error that the target shows while pods do not go.
    pub(super) fn trouble(&self) -> Option<TargetError> {
        let (pod, why) = self.blocked.first()?;
        let others = self.blocked.iter().skip(1).take(NAMED - 1).map(|(pod, _)| pod.as_str());
        let others: Vec<&str> = others.collect();
        let others = if others.is_empty() { String::new() } else { format!("; also {}", others.join(", ")) };
        let message = format!("{}: {pod} ({}){others}", that_stay(self.blocked.len()), cut(why, 120));
        Some(TargetError { reason: "EvictionBlocked".to_owned(), message: cut(&message, 256) })
    }

    /// The same as an event, which is told once.
    pub(super) fn event(&self, node: &str) -> Option<PluginEvent> {
        let TargetError { reason, message } = self.trouble()?;
        Some(PluginEvent { warning: true, reason, message: format!("{node}: {message}") })
    }
}

fn that_stay(count: usize) -> String {
    if count == 1 { "1 pod of the node stays".to_owned() } else { format!("{count} pods of the node stay") }
}

/// What a drain does with a pod.
enum Fate {
    /// It does not concern the drain.
    Stays,
    /// It goes, or is about to: it is waited for.
    Goes,
    /// It has to be evicted.
    Evict,
    /// It has to go and does not, for this reason.
    Blocked(String),
}

/// True for a pod with an `emptyDir` whose loss it does not bear.
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

/// What a drain does with `pod`, whose eviction may have been tried.
fn fate(pod: &Object, request: &DrainRequest, tried: Option<&Evicted>, round: &Round<'_>) -> Fate {
    let now = round.now;
    let document = pod.fields.value();
    let of_daemon_set = pod.controller().is_some_and(|owner| owner.kind.kind == "DaemonSet");
    let of_task =
        pod.key.namespace.as_deref() == Some(round.tasks.namespace.as_str()) && pod.labels.contains_key(JOB_UID);
    let ended = document.pointer("/status/phase").is_some_and(|phase| phase == "Succeeded" || phase == "Failed");
    // The kubelet shows a mirror pod again that was evicted.
    if of_daemon_set || of_task || ended || pod.annotations.contains_key(MIRROR) {
        return Fate::Stays;
    }
    if let Some(deleted) = pod.deleted {
        let late = after(deleted, SLACK) <= now;
        return if late { Fate::Blocked("it does not terminate".to_owned()) } else { Fate::Goes };
    }
    if pod.controller().is_none() && !request.force {
        return Fate::Blocked("no controller would make it anew: an OperationJob with `force` evicts it".to_owned());
    }
    if !request.delete_empty_dir_data && !pod.is_whole() {
        return Fate::Blocked(
            "the host does not hold all of it, so it may have data in an emptyDir: an OperationJob with \
             `deleteEmptyDirData` evicts it"
                .to_owned(),
        );
    }
    if !request.delete_empty_dir_data && has_local_data(pod) {
        let words = "the data in its emptyDir would be lost: an OperationJob with `deleteEmptyDirData` evicts it";
        return Fate::Blocked(words.to_owned());
    }
    match tried {
        Some(tried) if !tried.may_be_tried(now) => match &tried.refused {
            Some(why) => Fate::Blocked(why.clone()),
            None => Fate::Goes,
        },
        _ => Fate::Evict,
    }
}

/// True if pods of a node that is drained do not go, as its extra says; `None` where it is not drained.
pub(super) fn is_blocked(state: &TargetState) -> Option<bool> {
    state.extra(extras::DRAIN).map(|drain| drain.contains("\"blocked\""))
}

/// The drain that a proposal asks for.
pub(super) fn drain_of(proposal: &Proposal) -> Option<&DrainRequest> {
    proposal.mutations.iter().find_map(|mutation| match mutation {
        Mutation::Drain(request) => Some(request),
        _ => None,
    })
}

impl Target<'_> {
    /// The next step of the drain of this target.
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
            let fate = fate(pod, request, tried, self.round);
            left |= !matches!(fate, Fate::Stays);
            let terminates = pod.deleted.filter(|_| matches!(fate, Fate::Goes));
            step.slowest = step.slowest.max(terminates.map(|end| (end, place(pod))));
            match fate {
                Fate::Stays | Fate::Goes => {}
                Fate::Evict => due.push((tried.and_then(|tried| tried.not_before), pod)),
                Fate::Blocked(why) => step.blocked.push((place(pod), why)),
            }
            let again = tried.and_then(|tried| tried.not_before).filter(|time| *time > now);
            step.check_at = step.check_at.min(again.or(step.check_at));
        }
        // First those that were not tried yet, then the one that has waited longest.
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

    /// The mutations of a dry run, with each drain as what it would do now: a cordon, and evictions. Also the pods that do
    /// not go.
    pub(super) fn drains_spelled_out(&self, mutations: Vec<Mutation>) -> (Vec<Mutation>, Vec<String>) {
        let (mut all, mut stay) = (Vec::new(), Vec::new());
        for mutation in mutations {
            let Mutation::Drain(request) = mutation else {
                all.push(mutation);
                continue;
            };
            all.push(Mutation::Schedulable { node: request.node.clone(), schedulable: false });
            for pod in self.round.store.on_node(self.name) {
                match fate(&pod, &request, None, self.round) {
                    Fate::Stays | Fate::Goes => {}
                    Fate::Blocked(why) => stay.push(format!("{} ({why})", place(&pod))),
                    Fate::Evict => {
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
