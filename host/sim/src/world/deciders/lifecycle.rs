//! Decides for KusionStack's webhook (W) and lifecycle controller (C): the steps of a PodOpsLifecycle on one pod.
//! Source: docs/operationjob.md 5.
//!
//! ```text
//! begin -W-> pre-check -C-> pre-checked -W-> preparing -C-> service-ready False, drained -W-> operate
//! finish -W-> operated, post-check -C-> post-checked -W-> completing -C-> service-ready True -W-> no label left
//! ```
//!
//! KusionStack's W changes a pod within the request. The API servers of this project have no webhooks, so here W writes right
//! after the request. In between, a watch shows a pod that W has not seen. A job may remove its labels in this time, as it does
//! if nothing answers them. W then clears the remaining labels of this ID. IDs do not wait for each other. The condition
//! `service-ready` and the label `service-available` are shared, so they wait until the last ID allows the change.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::Pod;

use crate::world::labels;
use crate::world::pod_facts::PodFacts;

/// The labels to change. A value of none removes the label.
pub(crate) type LabelChanges = BTreeMap<String, Option<String>>;

/// The words of the labels with an ID, as in `operating.podopslifecycle.kusionstack.io/<id>`.
const WORDS: [&str; 12] = [
    OPERATING,
    OPERATION_TYPE,
    PRE_CHECK,
    PRE_CHECKED,
    PREPARING,
    OPERATE,
    OPERATED,
    DONE_TYPE,
    POST_CHECK,
    POST_CHECKED,
    COMPLETING,
    UNDO,
];
const OPERATING: &str = "operating";
const OPERATION_TYPE: &str = "operation-type";
const PRE_CHECK: &str = "pre-check";
const PRE_CHECKED: &str = "pre-checked";
const PREPARING: &str = "preparing";
const OPERATE: &str = "operate";
const OPERATED: &str = "operated";
const DONE_TYPE: &str = "done-operation-type";
const POST_CHECK: &str = "post-check";
const POST_CHECKED: &str = "post-checked";
const COMPLETING: &str = "completing";
const UNDO: &str = "undo-operation-type";
/// The word of the only label with an operation type instead of an ID.
const PERMISSION: &str = "operation-permission";
/// The words that keep the pod out of traffic, as long as their ID does not have `completing`.
const OUT_OF_SERVICE: [&str; 5] = [PREPARING, OPERATE, OPERATED, POST_CHECK, POST_CHECKED];

/// A step of C.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LifecycleStep {
    pub(crate) kind: StepKind,
    pub(crate) change: StepChange,
}

/// The kind of a step. It determines the delay and the pause of the step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum StepKind {
    /// The rules before an operation pass.
    PreCheck,
    /// The rules after an operation pass.
    PostCheck,
    /// The condition `service-ready` changes.
    Readiness,
    /// Traffic controllers release the pod.
    Drain,
}

/// The change that a step makes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum StepChange {
    /// The labels to set.
    Labels(LabelChanges),
    /// The status of the condition `service-ready`.
    ServiceReady(bool),
    /// The finalizers that remain.
    Finalizers(Vec<String>),
}

/// Returns true if the pod takes part in the PodOpsLifecycle.
pub(crate) fn is_controlled(pod: &Pod) -> bool {
    pod.label(labels::CONTROL) == Some("true")
}

/// Returns true if the pod has a label of any ID.
pub(crate) fn is_operated_on(pod: &Pod) -> bool {
    !ids_of(pod).is_empty()
}

/// Returns the label of a word and an ID, or of a word and a type.
pub(crate) fn label(word: &str, id: &str) -> String {
    format!("{word}.{}/{id}", labels::LIFECYCLE)
}

/// Returns the changes that W makes to the pod. `now` is in Unix nanoseconds.
pub(crate) fn webhook(pod: &Pod, now: &str) -> LabelChanges {
    let mut changes = LabelChanges::new();
    if !is_controlled(pod) || pod.is_terminating() {
        return changes;
    }
    let ids = ids_of(pod);
    let is_drained = prot_finalizers(pod).is_empty() && service_ready(pod) == Some(false);
    for (id, words) in &ids {
        let mut put = |word: &str| drop(changes.insert(label(word, id), Some(now.to_owned())));
        let has = |word: &str| words.contains_key(word);
        if has(UNDO) || was_abandoned(words) {
            undo(&mut changes, pod, &ids, id);
        } else if has(OPERATING) && has(OPERATE) {
            // The operation is in progress.
        } else if has(OPERATING) && has(PREPARING) {
            if is_drained {
                put(OPERATE);
                changes.insert(label(PREPARING, id), None);
            }
        } else if has(OPERATING) && has(PRE_CHECKED) {
            put(PREPARING);
            changes.insert(label(PRE_CHECK, id), None);
            if pod.bears(labels::SERVICE_AVAILABLE) {
                changes.insert(labels::SERVICE_AVAILABLE.to_owned(), None);
            }
        } else if has(OPERATING) && has(OPERATION_TYPE) && !has(PRE_CHECK) {
            put(PRE_CHECK);
        } else if has(OPERATE) {
            put(OPERATED);
            put(POST_CHECK);
            finish(&mut changes, id, words.get(OPERATION_TYPE));
        } else if has(COMPLETING) {
            if service_ready(pod) != Some(false) {
                changes.extend(words.keys().map(|word| (label(word, id), None)));
            }
        } else if has(POST_CHECKED) {
            put(COMPLETING);
            changes.insert(label(POST_CHECK, id), None);
        }
    }
    changes.retain(|key, value| value.is_some() || pod.bears(key));
    changes
}

/// Returns true if the job removed its labels before the operation was over. A job that finishes leaves its type.
fn was_abandoned(words: &BTreeMap<&str, &str>) -> bool {
    !words.keys().any(|word| [OPERATING, OPERATION_TYPE, OPERATED, POST_CHECK, POST_CHECKED, COMPLETING].contains(word))
}

/// Removes all labels of an ID, and each permission that no other ID needs.
fn undo(changes: &mut LabelChanges, pod: &Pod, ids: &Ids<'_>, id: &str) {
    let Some(words) = ids.get(id) else { return };
    changes.extend(words.keys().map(|word| (label(word, id), None)));
    let others = ids.iter().filter(|(other, words)| **other != id && !words.contains_key(UNDO));
    let needed: BTreeSet<String> =
        others.filter_map(|(_, words)| Some(label(PERMISSION, words.get(OPERATION_TYPE)?))).collect();
    let granted = pod.meta().labels.iter().flatten().filter(|(key, _)| key.starts_with(&label(PERMISSION, "")));
    changes.extend(granted.filter(|(key, _)| !needed.contains(*key)).map(|(key, _)| (key.clone(), None)));
}

/// Ends the operation of an ID, and moves its type to `done-operation-type`.
fn finish(changes: &mut LabelChanges, id: &str, kind: Option<&&str>) {
    changes.insert(label(PRE_CHECKED, id), None);
    changes.insert(label(OPERATE, id), None);
    if let Some(kind) = kind {
        changes.insert(label(OPERATION_TYPE, id), None);
        changes.insert(label(PERMISSION, kind), None);
        changes.insert(label(DONE_TYPE, id), Some((*kind).to_owned()));
    }
}

/// Returns the possible steps of C and of the traffic controllers that work with it. `now` is in Unix nanoseconds. C sets
/// `service-available` on pods without any ID. This is the kubelet's stage `Unavailable`.
pub(crate) fn controller(pod: &Pod, now: &str) -> Vec<LifecycleStep> {
    if !is_controlled(pod) || pod.is_terminating() {
        return Vec::new();
    }
    let ids = ids_of(pod);
    let mut steps = Vec::new();
    let mut step = |kind, change| steps.push(LifecycleStep { kind, change });
    let is_out = |words: &BTreeMap<&str, &str>| {
        !words.contains_key(COMPLETING) && OUT_OF_SERVICE.iter().any(|word| words.contains_key(word))
    };
    let serves = !ids.values().any(is_out);
    // A pod that was never out of service lacks the condition and does not need it.
    if service_ready(pod).map_or(!serves, |ready| ready != serves) {
        step(StepKind::Readiness, StepChange::ServiceReady(serves));
    }
    let prot = prot_finalizers(pod);
    if ids.values().any(|words| words.contains_key(PREPARING)) && service_ready(pod) == Some(false) && !prot.is_empty()
    {
        let finalizers = pod.meta().finalizers.iter().flatten();
        let stay = finalizers.filter(|name| !prot.contains(name.as_str())).cloned().collect();
        step(StepKind::Drain, StepChange::Finalizers(stay));
    }
    let (mut before, mut after) = (LabelChanges::new(), LabelChanges::new());
    for (id, words) in ids.iter().filter(|(_, words)| !words.contains_key(UNDO)) {
        if let (true, Some(kind)) = (words.contains_key(PRE_CHECK), words.get(OPERATION_TYPE)) {
            let wanted = [label(PERMISSION, kind), label(PRE_CHECKED, id)].into_iter().filter(|key| !pod.bears(key));
            before.extend(wanted.map(|key| (key, Some(now.to_owned()))));
        }
        if words.contains_key(POST_CHECK) && !words.contains_key(POST_CHECKED) {
            after.insert(label(POST_CHECKED, id), Some(now.to_owned()));
        }
    }
    for (kind, changes) in [(StepKind::PreCheck, before), (StepKind::PostCheck, after)] {
        if !changes.is_empty() {
            step(kind, StepChange::Labels(changes));
        }
    }
    steps
}

/// The words and values of each ID on a pod.
type Ids<'a> = BTreeMap<&'a str, BTreeMap<&'a str, &'a str>>;

fn ids_of(pod: &Pod) -> Ids<'_> {
    let mut ids = Ids::new();
    for (key, value) in pod.meta().labels.iter().flatten() {
        let Some((domain, id)) = key.split_once('/') else { continue };
        let word = domain.strip_suffix(labels::LIFECYCLE).and_then(|word| word.strip_suffix('.'));
        if let Some(word) = word.filter(|word| WORDS.contains(word)) {
            ids.entry(id).or_default().insert(word, value);
        }
    }
    ids
}

/// Returns the finalizers with which traffic controllers keep a pod that still gets traffic.
fn prot_finalizers(pod: &Pod) -> BTreeSet<&str> {
    let all = pod.meta().finalizers.iter().flatten().map(String::as_str);
    all.filter(|name| name.starts_with(labels::PROT_FINALIZERS)).collect()
}

/// Returns the status of the condition `service-ready`, or none if the pod lacks the condition.
fn service_ready(pod: &Pod) -> Option<bool> {
    pod.condition(labels::SERVICE_READY).map(|condition| condition.status == "True")
}

#[cfg(test)]
#[path = "lifecycle_tests.rs"]
mod tests;
