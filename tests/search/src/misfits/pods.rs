//! Pods that are created as targets and have content that no pod should have.

use serde_json::{Value, json};

use super::told::POD;
use super::{Begin, Misfit, Told};

/// Returns a misfit whose pod gets this patch and is the target of a job that marks the pod, with a short deadline.
fn marked(name: &str, change: Value, told: Told) -> Misfit {
    let spec = json!({"parameters": {"strategy": "CollaSet"}, "activeDeadlineSeconds": 5});
    Misfit::new(name, Begin::Pod(change, spec), told)
}

/// Returns a misfit whose pod gets this patch and is the target of a job that evicts the pod, with a short deadline.
fn evicted(name: &str, change: Value, told: Told) -> Misfit {
    let spec = json!({"parameters": {"strategy": "Evict"}, "activeDeadlineSeconds": 30});
    Misfit::new(name, Begin::Pod(change, spec), told)
}

fn annotated(key: &str, value: &str) -> Value {
    json!({"metadata": {"annotations": {key: value}}})
}

/// Returns a patch with these holds and the label of held pods, as a host sets them. No key proves that a host wrote these holds.
fn held(holds: &Value) -> Value {
    json!({"metadata": {"labels": {"oarlock.dev/held": "true"}, "annotations": holds}})
}

fn owned(kind: &str, name: &str, uid: &str) -> Value {
    let api_version = if kind == "Pod" { "v1" } else { "apps/v1" };
    json!({"metadata": {"ownerReferences": [{"apiVersion": api_version, "kind": kind, "name": name, "uid": uid,
        "controller": true}]}})
}

/// Returns all misfits of this module.
pub fn table() -> Vec<Misfit> {
    const LATE: Told = Told::Target("Failed/DeadlineExceeded");
    let hold = |value: &str| held(&json!({"hold.oarlock.dev/00000000-0000-0000-0000-000000000000": value}));
    let many: Value = (0..500).map(|number| (format!("hold.oarlock.dev/{number}"), json!("[\"label:app\"]"))).collect();
    let wide: serde_json::Map<String, Value> = (0..2_000).map(|number| (format!("l{number}"), json!("x"))).collect();
    vec![
        marked("a hold that is no list", hold("{"), LATE),
        marked(
            "a hold that lists what it cannot have",
            hold("[\"finalizer:a\",\"label:\",\"label:app\",\"x:y\",\"\"]"),
            LATE,
        ),
        marked("a hold of 100 KiB", hold(&format!("[\"{}\"]", "x".repeat(100 << 10))), LATE),
        marked(
            "a hold without the label of held pods",
            annotated("hold.oarlock.dev/00000000-0000-0000-0000-000000000000", "[\"label:app\"]"),
            LATE,
        ),
        marked("500 holds", held(&many), Told::Target("Failed/PodTooLarge")),
        marked("a hold that bars it", hold("[\"barred\"]"), LATE),
        marked("2,000 labels", json!({"metadata": {"labels": wide}}), LATE),
        marked("an annotation of 200 KiB", annotated("a.test/x", &"x".repeat(200 << 10)), LATE),
        marked("an annotation that clears the screen", annotated("a.test/x", "\u{1b}[2J\u{202e}\r\n"), LATE),
        marked(
            "a mark that a user has set",
            json!({"metadata": {"labels": {"collaset.kusionstack.io/to-replace": "nonsense"}}}),
            LATE,
        ),
        marked(
            "a partner of itself",
            json!({"metadata": {"labels": {
            "collaset.kusionstack.io/replace-pair-origin-name": POD,
            "collaset.kusionstack.io/replace-pair-new-id": "1", "collaset.kusionstack.io/instance-id": "1"}}}),
            LATE,
        ),
        marked(
            "a partner of a good pod",
            json!({"metadata": {"labels": {
            "collaset.kusionstack.io/replace-pair-origin-name": "good-0"}}}),
            LATE,
        ),
        marked(
            "a finalizer of the host without a hold",
            json!({"metadata": {"finalizers": [
            "finalizer.operationjob.kusionstack.io/replace-protected"]}}),
            LATE,
        ),
        marked(
            "fifty finalizers of strangers",
            json!({"metadata": {"finalizers":
            (0..50).map(|number| format!("stranger.test/f{number}")).collect::<Vec<_>>()}}),
            LATE,
        ),
        evicted("no controller", json!({}), Told::Target("Failed/NoController")),
        evicted(
            "a controller that is not there",
            owned("ReplicaSet", "ghost", "no-such-uid"),
            Told::Target("Failed/OwnerGone"),
        ),
        evicted("a controller that is itself", owned("Pod", POD, "no-such-uid"), Told::Target("Failed/NotReplaceable")),
        evicted("a controller of no kind", owned("Nonsense", "x", "u"), Told::Target("Failed/NotReplaceable")),
        evicted(
            "a controller whose name is a path",
            owned("ReplicaSet", "../../nodes", "u"),
            Told::Target("Failed/OwnerGone"),
        ),
        marked("it has failed", json!({"status": {"phase": "Failed"}}), LATE),
        marked("it says nothing of itself", json!({"status": {"phase": null, "conditions": null}}), LATE),
        marked(
            "it is ready since the year 1",
            json!({"status": {"conditions": [
            {"type": "Ready", "status": "True", "lastTransitionTime": "0001-01-01T00:00:00Z"}]}}),
            LATE,
        ),
        marked(
            "conditions without a word",
            json!({"status": {"conditions": [
            {"type": "", "status": ""}, {"type": "\u{1b}[2J", "status": "Perhaps"}]}}),
            LATE,
        ),
    ]
}
