//! Tests of planned changes: how they are written, read again and cut.

use serde_json::json;

use super::*;
use crate::object::api_object::{Kind, ObjectKey};
use crate::plugin::proposal::ObjectRef;

fn rules(writes: Value) -> (Manifest, Grant) {
    let manifest =
        json!({"schema": 1, "name": "p", "version": "1.0.0", "action": "P", "target": ["Pod"], "writes": writes});
    let manifest = Manifest::parse(manifest.to_string().as_bytes()).unwrap();
    let grant = Grant::of_all(&manifest);
    (manifest, grant)
}

fn pod() -> ObjectRef {
    ObjectRef { key: ObjectKey::pod("d", "web-1"), uid: None }
}

fn mark(labels: &[(&str, &str)]) -> Mutation {
    Mutation::Metadata(MetadataChange {
        object: pod(),
        set_labels: labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect(),
        remove_labels: vec!["old".into()],
        set_annotations: vec![],
        remove_annotations: vec![],
        add_finalizers: vec!["f/x".into()],
        remove_finalizers: vec!["f/y".into()],
        keep: false,
    })
}

fn evict() -> Mutation {
    Mutation::Evict { pod: pod(), grace_seconds: None }
}

#[test]
fn the_first_changes_stand_exactly_and_the_others_as_possible() {
    let (manifest, grant) = rules(json!([
        {"verb": "delete", "apiVersion": "v1", "kind": "Pod", "reason": "r"},
        {"verb": "metadata", "apiVersion": "v1", "kind": "Pod", "finalizers": ["a/b"], "labels": ["c/*"], "reason": "r"},
    ]));
    let planned = Planned::of([&evict()], &manifest, &grant);
    let line = "evict pod web-1; then possible: delete pods, patch pods (labels c/*; finalizers a/b)";
    assert_eq!(planned.line(MOST_BYTES), line);
    let both = Planned::of([&mark(&[("a", "b")]), &evict()], &manifest, &grant);
    let line = "patch pod web-1 (labels a=b, old-; finalizers f/x, f/y-), then evict pod web-1; then possible: ";
    assert!(both.line(MOST_BYTES).starts_with(line), "{}", both.line(MOST_BYTES));
}

#[test]
fn the_data_say_the_same_in_order() {
    let (manifest, grant) = rules(json!([{"verb": "evict", "apiVersion": "v1", "kind": "Pod", "reason": "r"}]));
    let delete = Mutation::Delete {
        object: ObjectRef {
            key: ObjectKey { kind: Kind::new("apps/v1", "ReplicaSet"), namespace: None, name: "r".into() },
            uid: None,
        },
        grace_seconds: Some(5),
        propagation: Some("Orphan".into()),
    };
    let create = Mutation::Create(json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}}));
    let patch = Mutation::Patch {
        object: pod(),
        subresource: Some("status".into()),
        patch: json!({"status": {"phase": "Failed", "reason": null}}),
    };
    let planned = Planned::of([&delete, &create, &patch], &manifest, &grant);
    let written = json!({
        "first": [
            {"verb": "delete", "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "what": "grace period 5 s; propagation Orphan"},
            {"verb": "create", "apiVersion": "v1", "kind": "ConfigMap", "name": "c"},
            {"verb": "patch", "apiVersion": "v1", "kind": "Pod", "name": "web-1",
                "what": "subresource status; fields /status/phase=\"Failed\", /status/reason-"},
        ],
        "possible": [{"verb": "evict", "apiVersion": "v1", "kind": "Pod"}],
    });
    assert_eq!(serde_json::to_value(&planned).unwrap(), written);
    assert_eq!(serde_json::from_value::<Planned>(written).unwrap(), planned);
}

#[test]
fn only_what_is_asked_for_and_granted_is_possible() {
    let (manifest, mut grant) = rules(json!([
        {"verb": "evict", "apiVersion": "v1", "kind": "Pod", "reason": "r"},
        {"verb": "metadata", "apiVersion": "v1", "kind": "Pod", "labels": ["a", "b"], "reason": "r"},
        {"verb": "create", "apiVersion": "v1", "kind": "NetworkPolicy", "reason": "r"},
    ]));
    grant.writes.retain(|rule| rule.verb != Verb::Evict);
    grant.writes[0].labels = vec!["b*".into()];
    let planned = Planned { waits: "the plugin waits".into(), ..Planned::of([], &manifest, &grant) };
    let line = "nothing at first: the plugin waits; then possible: patch pods (labels b), create networkpolicies";
    assert_eq!(planned.line(MOST_BYTES), line);
}

#[test]
fn what_may_become_of_a_node_has_the_words_of_kubectl() {
    let (manifest, grant) = rules(json!([
        {"verb": "schedulable", "apiVersion": "v1", "kind": "Node", "reason": "r"},
        {"verb": "taint", "apiVersion": "v1", "kind": "Node", "reason": "r"},
    ]));
    let cordon = Mutation::Schedulable { node: "n".into(), schedulable: false };
    let line = "cordon node n; then possible: cordon/uncordon nodes, taint nodes";
    assert_eq!(Planned::of([&cordon], &manifest, &grant).line(MOST_BYTES), line);
}

#[test]
fn what_the_host_does_before_comes_first() {
    let (manifest, grant) = rules(json!([]));
    let planned =
        Planned { before: vec!["begin the PodOpsLifecycle".into()], ..Planned::of([&evict()], &manifest, &grant) };
    assert_eq!(planned.line(MOST_BYTES), "begin the PodOpsLifecycle, then evict pod web-1");
    let other = Mutation::Other { verb: "drain".into() };
    assert_eq!(Planned::of([&other], &manifest, &grant).line(MOST_BYTES), "drain (cannot be tried)");
}

#[test]
fn a_line_is_never_longer_than_asked_whatever_a_plugin_proposes() {
    let (manifest, grant) =
        rules(json!([{"verb": "metadata", "apiVersion": "v1", "kind": "Pod", "labels": ["l/ä"], "reason": "r"}]));
    let value = "ä\n".repeat(500);
    let marks: Vec<Mutation> = (0..64).map(|_| mark(&[("a", &value)])).collect();
    for count in [0, 1, 2, 64] {
        let planned = Planned::of(&marks[..count], &manifest, &grant);
        for most in [20, 40, 100, 200, 300, MOST_BYTES] {
            let line = planned.line(most);
            assert!(line.len() <= most, "{} bytes of {most}: {line}", line.len());
            assert!(!line.contains('\n'), "{line}");
        }
    }
    let line = Planned::of(&marks, &manifest, &grant).line(MOST_BYTES);
    assert!(line.contains(" and 60 more; then possible: "), "{line}");
}
