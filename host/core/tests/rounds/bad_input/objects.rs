//! Objects that others make: pods with odd times, owners and holds, and the spec of the job.

use proptest::prelude::*;
use proptest::sample::select;
use serde_json::{Value, json};

use crate::bad_input::json::{list, object, one_of, time};

/// The label of held pods.
const HELD: &str = "oarlock.dev/held";
pub(super) const NAMES: [&str; 3] = ["a", "b", "c"];

pub(super) fn pod() -> BoxedStrategy<Value> {
    let owner = object(vec![
        ("apiVersion", one_of(vec!["apps/v1", "odd"])),
        ("kind", one_of(vec!["CloneSet", "ReplicaSet", "StatefulSet", "DaemonSet", "Job"])),
        ("name", one_of(vec!["s", ""])),
        ("uid", one_of(vec!["set", "rs", ""])),
        ("controller", one_of(vec![true, true, false])),
    ]);
    let holds = object(vec![
        (
            "hold.oarlock.dev/job-uid",
            one_of(vec![
                "[]",
                "[\"barred\"]",
                "[\"label:mark\",\"finalizer:f.io/f\"]",
                "[\"touch\"]",
                "{",
                "",
                "[\"label:\"]",
                "[1]",
            ]),
        ),
        ("hold.oarlock.dev/someone", one_of(vec!["[\"label:mark\"]", "nothing", ""])),
        ("hold.oarlock.dev/", one_of(vec!["[]"])),
    ]);
    let meta = object(vec![
        ("creationTimestamp", time()),
        (
            "deletionTimestamp",
            proptest::option::weighted(0.3, time()).prop_map(|time| time.unwrap_or(Value::Null)).boxed(),
        ),
        ("deletionGracePeriodSeconds", one_of(vec![i64::MIN, -1, 0, 1, 30, i64::MAX])),
        ("labels", object(vec![("mark", one_of(vec!["true", "x"])), (HELD, one_of(vec!["true", "true", "no"]))])),
        ("annotations", holds),
        ("finalizers", list(one_of(vec!["f.io/f", "other.io/f"]), 2)),
        ("ownerReferences", list(owner, 2)),
    ]);
    (select(NAMES.to_vec()), select(vec!["u", "v", "w"]), meta)
        .prop_map(|(name, kind, mut meta)| {
            let uid = format!("{kind}-{name}");
            meta["name"] = json!(name);
            meta["namespace"] = json!("d");
            meta["uid"] = json!(uid);
            json!({"metadata": meta})
        })
        .boxed()
}

pub(super) fn spec(uses_records: bool) -> BoxedStrategy<Value> {
    let target = prop_oneof![
        12 => select(NAMES.to_vec()).prop_map(|name| json!({ "name": name })),
        1 => Just(json!({})),
        1 => Just(json!({"name": "p4/status"})),
        1 => Just(json!({"name": "a", "containers": ["x", "x"]})),
    ];
    let few = prop_oneof![
        5 => (1usize..=3).prop_map(|count| json!(NAMES[..count].iter().map(|name| json!({"name": name})).collect::<Vec<_>>())),
        1 => list(target.boxed(), 4),
    ];
    let many = Just(json!((0..253)
        .map(|number| json!({"name": NAMES.get(number % 251).map_or_else(|| format!("p{number}"), ToString::to_string)}))
        .collect::<Vec<_>>()));
    let many = many.prop_map(|mut targets| {
        // The names are distinct, and the existing pods are at both ends.
        for (at, name) in [(251, "q251"), (252, "q252")] {
            targets[at] = json!({ "name": name });
        }
        targets
    });
    let targets = if uses_records { many.boxed() } else { few.boxed() };
    let odd = object(vec![
        ("partition", one_of(vec![-1, 0, 1, 2, i32::MAX])),
        ("operationDelaySeconds", one_of(vec![i32::MIN, 0, 3, 20, i32::MAX])),
        ("TTLSecondsAfterFinished", one_of(vec![i32::MIN, 0, 60, i32::MAX])),
        ("parameters", one_of(vec![json!({}), json!({}), json!({"x": 1}), json!([])])),
        ("paused", one_of(vec![false, false, true])),
        ("dryRun", one_of(vec![false, false, true])),
        ("targetKind", one_of(vec!["Pod", "Pod", "Node"])),
    ]);
    let more = prop_oneof![2 => Just(json!({})), 1 => odd];
    let deadline =
        prop_oneof![6 => Just(json!(30)), 1 => one_of(vec![i32::MIN, 0, 1, i32::MAX]), 1 => Just(Value::Null)];
    let whole = (targets, deadline, more).prop_map(|(targets, deadline, more)| {
        let mut spec = json!({"action": "Replace", "targets": targets, "activeDeadlineSeconds": deadline});
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        spec
    });
    let selectors = one_of(vec![
        json!({"labelSelector": {"matchLabels": {"mark": "true"}}}),
        json!({"ownerRef": {"apiVersion": "apps/v1", "kind": "CloneSet", "name": "s"}}),
        json!({"labelSelector": {"matchLabels": {"mark": "("}}}),
        json!({}),
    ]);
    let chosen = (whole.clone(), selectors).prop_map(|(mut spec, selector)| {
        spec["selector"] = selector;
        spec.as_object_mut().unwrap().remove("targets");
        spec
    });
    prop_oneof![2 => Just(Value::Null), 30 => whole, 10 => chosen].boxed()
}
