//! Strategies of statuses and records of every shape that the schema allows.

use proptest::prelude::*;
use proptest::sample::select;
use serde_json::{Value, json};

use crate::bad_input::json::{list, object, one_of, time};
use crate::bench::JOB_UID;

const UIDS: [&str; 5] = ["u-a", "u-b", "u-c", "v-a", "other"];

fn word() -> BoxedStrategy<Value> {
    one_of(vec!["Pending", "Processing", "Processing", "Succeeded", "Failed", "Great", ""])
}

fn extras() -> BoxedStrategy<Value> {
    object(vec![
        ("NewPod", one_of(vec!["b", "c", "nobody", ""])),
        ("ClaimedUID", one_of(vec!["NewPod=Pod/u-b", "NewPod=Pod/", "NewPod", "=/", ",,,"])),
        ("Owner", one_of(vec!["CloneSet/s/set", "StatefulSet/s/set", "DaemonSet/s/set", "/", "", "ReplicaSet/r/rs"])),
        ("Node", one_of(vec!["", "n"])),
        ("EvictedAt", time()),
        ("Released", one_of(vec!["true", "false", ""])),
        ("Mode", one_of(vec!["Evict", "?"])),
    ])
}

fn detail() -> BoxedStrategy<Value> {
    let error = object(vec![("reason", one_of(vec!["JobDeleted", ""])), ("message", one_of(vec!["m", ""]))]);
    object(vec![
        ("name", one_of(vec!["a", "b", "c", "z", "", "p4/status"])),
        ("progress", word()),
        ("progress", word()),
        ("startTime", time()),
        ("endTime", time()),
        ("extraInfo", extras()),
        (
            "error",
            error.prop_filter("both are required", |e| e["reason"].is_string() && e["message"].is_string()).boxed(),
        ),
        ("uid", one_of(UIDS.to_vec())),
        ("attempt", one_of(vec![i32::MIN, -1, 0, 1, 7, i32::MAX])),
        ("nextAttemptTime", time()),
    ])
    .prop_map(|mut detail| {
        // The schema requires a name.
        detail.as_object_mut().unwrap().entry("name").or_insert(json!(""));
        detail
    })
    .boxed()
}

fn ranges() -> BoxedStrategy<Value> {
    let text =
        || one_of(vec!["", "0", "0-1", "1,0", "2-0", "x", "0-4294967295", "-", ",,", "99999999999999999999", "3-9999"]);
    (text(), text(), text())
        .prop_map(|(processing, succeeded, failed)| {
            json!({"processing": processing, "succeeded": succeeded, "failed": failed})
        })
        .boxed()
}

fn epoch() -> BoxedStrategy<Value> {
    one_of(vec![i64::MIN, -1, 0, 1, 5, i64::MAX - 1, i64::MAX])
}

fn number() -> BoxedStrategy<Value> {
    one_of(vec![i32::MIN, -1, 0, 2, i32::MAX])
}

fn condition() -> BoxedStrategy<Value> {
    let words = (
        select(vec!["Complete", "Failed", "Valid", "ActionAvailable", "Odd", ""]),
        select(vec!["True", "False", "Unknown", "?"]),
        time(),
    );
    words
        .prop_map(|(kind, status, time)| {
            json!({"type": kind, "status": status, "reason": "R", "message": "m", "lastTransitionTime": time})
        })
        .boxed()
}

/// Returns a strategy of stored statuses. With `uses_records`, the statuses look like those of a job of more than 250 targets.
pub(super) fn status(uses_records: bool) -> BoxedStrategy<Value> {
    let selection = (select(vec!["Targets", "Selector"]), select(vec!["", "sha256:other"]))
        .prop_map(|(source, digest)| json!({"source": source, "time": "soon", "digest": digest}))
        .boxed();
    let plugin = select(vec!["sha256:1", "sha256:2", ""])
        .prop_map(|digest| json!({"name": "replace", "version": "x", "digest": digest}))
        .boxed();
    let mut fields = vec![
        ("observedGeneration", epoch()),
        ("progress", word()),
        ("startTime", time()),
        ("startTime", time()),
        ("endTime", proptest::option::weighted(0.2, time()).prop_map(|time| time.unwrap_or(Value::Null)).boxed()),
        ("totalPodCount", number()),
        ("succeededPodCount", number()),
        ("failedPodCount", number()),
        ("pendingPodCount", number()),
        ("processingPodCount", number()),
        ("targetDetails", list(detail(), 4)),
        ("plugin", plugin),
        ("epoch", epoch()),
        ("conditions", list(condition(), 3)),
        ("rangesTruncated", one_of(vec![true, false])),
    ];
    if uses_records {
        fields.push(("ranges", ranges()));
        fields.push(("records", one_of(vec![json!({"count": 2, "size": 250}), json!({"count": -1, "size": 0})])));
    } else {
        fields
            .push(("ranges", proptest::option::weighted(0.2, ranges()).prop_map(|r| r.unwrap_or(Value::Null)).boxed()));
        fields.push((
            "selection",
            proptest::option::weighted(0.2, selection).prop_map(|s| s.unwrap_or(Value::Null)).boxed(),
        ));
    }
    let whole = object(fields).prop_map(|mut status| {
        status.as_object_mut().unwrap().retain(|_, value| !value.is_null());
        status
    });
    prop_oneof![1 => Just(Value::Null), 4 => whole].boxed()
}

/// Returns a strategy of stored records of a job.
pub(super) fn record() -> BoxedStrategy<Value> {
    let shape = (
        select(vec![(-1i32, -250i32), (0, 0), (0, 0), (1, 250), (1, 250), (7, 1_750), (i32::MAX, i32::MAX)]),
        proptest::option::of(epoch()),
        proptest::collection::vec(
            prop_oneof![9 => detail().prop_map(|detail| detail.to_string()), 1 => Just("{".to_owned())],
            0..4,
        ),
    );
    shape
        .prop_map(|((shard, first), epoch, targets)| {
            json!({"apiVersion": "oarlock.dev/v1alpha1", "kind": "OperationRecord",
                "metadata": {"name": format!("r-{shard}"), "namespace": "d", "uid": format!("r-{shard}"), "resourceVersion": "1"},
                "job": {"name": "j", "uid": JOB_UID}, "shard": shard, "firstIndex": first, "epoch": epoch, "targets": targets})
        })
        .boxed()
}
