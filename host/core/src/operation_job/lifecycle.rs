//! One operation of KusionStack's PodOpsLifecycle, as the labels of its pod show it.
//!
//! Takes a pod; yields the state of the operation by its labels, and the patches that begin, finish and cancel the
//! operation. Source: docs/operationjob.md 5.

use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use crate::object::api_object::Object;
use crate::object::key::JobKey;

const DOMAIN: &str = "podopslifecycle.kusionstack.io";
const CONTROL: &str = "kusionstack.io/control";
/// Prefix of the finalizers by which traffic controllers keep a pod until it is drained.
const TRAFFIC: &str = "prot.podopslifecycle.kusionstack.io";
/// Longest name part of a label key, in bytes.
const LABEL_BYTES: usize = 63;
/// The step that an operation waits for, if it began long ago or is finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Awaited {
    /// KusionStack does not control the pod.
    NotControlled,
    /// KusionStack's webhook has not taken the operation.
    NoWebhook,
    /// The rules that KusionStack checks before the operation are not met.
    RulesPending,
    /// Traffic has not left the pod.
    TrafficDraining,
    /// The pod does not serve again.
    NotServiceAvailable,
}

impl Awaited {
    /// All steps that an operation may wait for.
    pub const ALL: [Self; 5] =
        [Self::NotControlled, Self::NoWebhook, Self::RulesPending, Self::TrafficDraining, Self::NotServiceAvailable];

    /// Returns the reason of the condition `LifecycleBlocked`.
    #[must_use]
    pub fn reason(self) -> &'static str {
        match self {
            Self::NotControlled => "NotControlled",
            Self::NoWebhook => "NoWebhook",
            Self::RulesPending => "RulesPending",
            Self::TrafficDraining => "TrafficDraining",
            Self::NotServiceAvailable => "NotServiceAvailable",
        }
    }

    /// Returns what a person can do about the wait.
    #[must_use]
    pub fn next_step(self) -> &'static str {
        match self {
            Self::NotControlled => "put label kusionstack.io/control=true on the pod, or delete the job",
            Self::NoWebhook => "see whether KusionStack's controllers run and their webhook matches the pod",
            Self::RulesPending => "see the PodTransitionRules that select the pod",
            Self::TrafficDraining => "see the controller of these finalizers",
            Self::NotServiceAvailable => "see whether the pod is Ready and KusionStack's controllers run",
        }
    }
}

/// First words of the labels that a job sets.
const OWN: [&str; 3] = ["operating", "operation-type", "undo-operation-type"];

/// The operation of one job on its pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodOperation {
    id: String,
    action: String,
}

impl PodOperation {
    /// Returns the operation of a job. A job name that is too long for a label key is replaced by its hash.
    pub fn of(job: &JobKey, action: &str) -> Self {
        let id = if job.name.len() <= LABEL_BYTES { job.name.clone() } else { format!("{:#x}", fnv1a(&job.name)) };
        Self { id, action: action.to_owned() }
    }

    fn label(&self, word: &str) -> String {
        format!("{word}.{DOMAIN}/{}", self.id)
    }

    fn value<'a>(&self, pod: &'a Object, word: &str) -> Option<&'a str> {
        pod.labels.get(&self.label(word))
    }

    /// Returns true if the pod has any label of this operation.
    pub fn shows(&self, pod: &Object) -> bool {
        pod.labels.keys().any(|key| parts(key).is_some_and(|(_, id)| id == self.id))
    }

    /// Returns true if the operation has begun.
    pub fn begun(&self, pod: &Object) -> bool {
        self.value(pod, "operating").is_some() && self.value(pod, "operation-type") == Some(&self.action)
    }

    /// Returns the time at which the operation began, if its label holds a time.
    pub fn begun_at(&self, pod: &Object) -> Option<Timestamp> {
        self.value(pod, "operating").and_then(nanoseconds)
    }

    /// Returns the time since which the job may operate on the pod; `None` if it may not.
    pub fn allowed_since(&self, pod: &Object) -> Option<Timestamp> {
        let value = self.value(pod, "operate").filter(|_| self.begun(pod))?;
        Some(nanoseconds(value).unwrap_or(Timestamp::UNIX_EPOCH))
    }

    /// Returns why the operation cannot begin now: another operation is under way, or labels of an earlier operation
    /// with the same ID are left.
    pub fn busy(&self, pod: &Object) -> Option<String> {
        let foreign = pod
            .labels
            .keys()
            .filter_map(parts)
            .find(|(word, id)| *id != self.id && ["operating", "operate", "operated"].contains(word));
        if let Some((_, id)) = foreign {
            return Some(format!("operation {id} of the PodOpsLifecycle is under way on pod {}", pod.key.name));
        }
        let other = self.value(pod, "operation-type").filter(|action| *action != self.action);
        if let Some(action) = other {
            return Some(format!("operation {} on pod {} is of another type, {action}", self.id, pod.key.name));
        }
        let stale = ["operate", "operated"].into_iter().find(|word| self.value(pod, word).is_some());
        if let Some(word) = stale.filter(|_| !self.begun(pod)) {
            // The old permission would count for the new operation, although no controller has drained the pod for it.
            return Some(format!("an earlier operation {} has left `{word}` on pod {}", self.id, pod.key.name));
        }
        let undone = self.value(pod, "undo-operation-type").is_some();
        undone.then(|| format!("operation {} on pod {} is still being cancelled", self.id, pod.key.name))
    }

    /// Returns the patch that begins the operation.
    pub fn begin(&self, pod: &Object, now: Timestamp) -> Value {
        let labels = json!({
            self.label("operating"): now.as_nanosecond().to_string(),
            self.label("operation-type"): self.action,
        });
        patch(pod, labels)
    }

    /// Returns the patch that finishes the operation, if it is not finished.
    pub fn finish(&self, pod: &Object) -> Option<Value> {
        self.value(pod, "operating")?;
        Some(patch(pod, json!({ self.label("operating"): null })))
    }

    /// Returns the patch that cancels the operation, if a label of the job is left. The first patch asks KusionStack to
    /// cancel. If KusionStack does not take that request, or the pod terminates, the next patch removes the job's
    /// labels. Labels of other clients stay.
    pub fn cancel(&self, pod: &Object) -> Option<Value> {
        let left: Vec<&str> = OWN.into_iter().filter(|word| self.value(pod, word).is_some()).collect();
        if left.is_empty() {
            return None;
        }
        if self.value(pod, "undo-operation-type") != Some(&self.action) && !pod.terminating() {
            return Some(patch(pod, json!({ self.label("undo-operation-type"): self.action })));
        }
        let labels: serde_json::Map<String, Value> = left.iter().map(|word| (self.label(word), Value::Null)).collect();
        Some(patch(pod, labels.into()))
    }

    /// Returns the pod without any label of the operation, still at the resourceVersion that the host saw. `None` if
    /// the pod has no label of the operation.
    pub fn without(&self, pod: &Object) -> Option<Object> {
        let is_own = |key: &str| parts(key).is_some_and(|(_, id)| id == self.id);
        let left = pod.labels.iter().filter(|(key, _)| !is_own(key));
        let labels = left.map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
        self.shows(pod).then(|| Object { labels, ..pod.clone() })
    }

    /// Returns the step that an operation which began long ago waits for, and a message about it.
    pub fn awaited(&self, pod: &Object) -> (Awaited, String) {
        if !controlled(pod) {
            return (Awaited::NotControlled, format!("label {CONTROL}=true is missing"));
        }
        if self.value(pod, "preparing").is_some() {
            let guards: Vec<&str> =
                pod.finalizers.iter().filter(|name| name.starts_with(TRAFFIC)).map(String::as_str).collect();
            let why =
                if guards.is_empty() { "traffic".to_owned() } else { format!("finalizers {}", guards.join(", ")) };
            return (Awaited::TrafficDraining, format!("waits for {why}"));
        }
        if self.value(pod, "pre-check").is_some() {
            return (Awaited::RulesPending, "waits for its rules".to_owned());
        }
        (Awaited::NoWebhook, "no webhook has taken the operation".to_owned())
    }
}

/// Returns true if KusionStack controls the pod.
pub fn controlled(pod: &Object) -> bool {
    pod.labels.get(CONTROL) == Some("true")
}

/// Returns true if KusionStack's labels say that the pod serves.
pub fn service_available(pod: &Object) -> bool {
    pod.labels.contains_key(&format!("{DOMAIN}/service-available"))
}

/// Returns the first word and the ID of a label of an operation.
fn parts(key: &str) -> Option<(&str, &str)> {
    let (prefix, id) = key.split_once('/')?;
    let word = prefix.strip_suffix(DOMAIN)?.strip_suffix('.')?;
    // The label with the permission for an operation type has no ID.
    (word != "operation-permission").then_some((word, id))
}

fn patch(pod: &Object, labels: Value) -> Value {
    json!({"metadata": {"uid": pod.uid, "resourceVersion": pod.resource_version, "labels": labels}})
}

fn nanoseconds(text: &str) -> Option<Timestamp> {
    Timestamp::from_nanosecond(text.parse().ok()?).ok()
}

/// Returns the FNV-1a hash with 32 bits.
fn fnv1a(text: &str) -> u32 {
    text.bytes().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::api_object::Kind;

    fn pod(labels: &[(&str, &str)]) -> Object {
        let labels: serde_json::Map<String, Value> =
            labels.iter().map(|(key, value)| ((*key).to_owned(), json!(value))).collect();
        let document =
            json!({"metadata": {"name": "a", "namespace": "d", "uid": "u", "resourceVersion": "7", "labels": labels}});
        Object::slim(&document, &Kind::pod(), &[]).unwrap()
    }

    fn operation() -> PodOperation {
        PodOperation::of(&JobKey { namespace: "d".into(), name: "j".into() }, "Restart")
    }

    const OPERATING: &str = "operating.podopslifecycle.kusionstack.io/j";
    const TYPE: &str = "operation-type.podopslifecycle.kusionstack.io/j";
    const OPERATE: &str = "operate.podopslifecycle.kusionstack.io/j";
    const UNDO: &str = "undo-operation-type.podopslifecycle.kusionstack.io/j";

    #[test]
    fn an_operation_has_begun_with_both_labels_and_is_allowed_with_the_third() {
        let operation = operation();
        assert!(
            !operation.begun(&pod(&[(OPERATING, "1")])) && !operation.begun(&pod(&[(OPERATING, "1"), (TYPE, "Other")]))
        );
        let begun = pod(&[(OPERATING, "1"), (TYPE, "Restart")]);
        assert!(operation.begun(&begun) && operation.allowed_since(&begun).is_none());
        let allowed = pod(&[(OPERATING, "1"), (TYPE, "Restart"), (OPERATE, "1700000000000000000")]);
        assert_eq!(operation.allowed_since(&allowed).unwrap().as_second(), 1_700_000_000);
        let odd = pod(&[(OPERATING, "1"), (TYPE, "Restart"), (OPERATE, "soon")]);
        assert!(operation.allowed_since(&odd).is_some(), "presence counts");
    }

    #[test]
    fn a_pod_without_an_operation_keeps_the_labels_of_others() {
        let other = "operating.podopslifecycle.kusionstack.io/other";
        let after = operation().without(&pod(&[(OPERATING, "1"), (TYPE, "Restart"), (other, "1")])).unwrap();
        assert_eq!(after.labels.keys().collect::<Vec<_>>(), [other]);
        assert_eq!(operation().without(&after), None);
    }

    #[test]
    fn a_pod_is_busy_with_somebody_elses_operation_another_type_or_an_undo() {
        let busy = |labels: &[(&str, &str)]| operation().busy(&pod(labels));
        for word in ["operating", "operate", "operated"] {
            let label = format!("{word}.podopslifecycle.kusionstack.io/other");
            assert!(busy(&[(&label, "1")]).unwrap().contains("operation other"), "{word}");
        }
        assert!(busy(&[(TYPE, "Other")]).unwrap().contains("another type"));
        assert!(busy(&[(UNDO, "Restart")]).unwrap().contains("cancelled"));
        assert!(busy(&[(OPERATE, "1")]).unwrap().contains("earlier"), "its permission is not for the next one");
        let free =
            [("operation-permission.podopslifecycle.kusionstack.io/Restart", "1"), ("kusionstack.io/control", "true")];
        assert_eq!((busy(&free), busy(&[(OPERATING, "1"), (TYPE, "Restart")])), (None, None));
    }

    #[test]
    fn a_cancel_asks_first_and_clears_the_jobs_labels_where_nobody_listens() {
        let operation = operation();
        assert_eq!(operation.cancel(&pod(&[])), None);
        let asked = operation.cancel(&pod(&[(OPERATING, "1"), (TYPE, "Restart")])).unwrap();
        assert_eq!(asked["metadata"]["labels"], json!({ UNDO: "Restart" }));
        let cleared = operation.cancel(&pod(&[(OPERATING, "1"), (TYPE, "Restart"), (UNDO, "Restart")])).unwrap();
        assert_eq!(cleared["metadata"]["labels"], json!({ OPERATING: null, TYPE: null, UNDO: null }));
        let others = pod(&[("pre-check.podopslifecycle.kusionstack.io/j", "1")]);
        assert_eq!(operation.cancel(&others), None);
    }

    #[test]
    fn a_long_name_goes_by_its_hash() {
        let long = PodOperation::of(&JobKey { namespace: "d".into(), name: "a".repeat(64) }, "Restart");
        assert!(long.id.starts_with("0x") && long.id.len() <= 10, "{}", long.id);
        assert_eq!((fnv1a(""), fnv1a("a"), fnv1a("foobar")), (0x811c_9dc5, 0xe40c_292c, 0xbf9c_f968));
    }
}
