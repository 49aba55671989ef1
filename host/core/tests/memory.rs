//! Bytes of memory that the host keeps for each child and node. One allocator counts them for each thread.

#![allow(clippy::unwrap_used, clippy::arithmetic_side_effects, reason = "a test fails loudly, and counts")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use oarlock_core::attempts::node::NodeView;
use oarlock_core::attempts::unit::{Unit, UnitState};
use oarlock_core::attempts::view::{ChildKind, ChildView};
use serde_json::{Value, json};

/// Number of children and nodes of a large DaemonJob.
const MANY: usize = 5_000;

struct Counting;

thread_local! {
    static USED: Cell<isize> = const { Cell::new(0) };
}

/// Counts the bytes that an allocator takes for this layout: its size classes are multiples of 16.
fn count(layout: Layout, sign: isize) {
    USED.with(|used| used.set(used.get() + sign * isize::try_from(layout.size().next_multiple_of(16)).unwrap_or(0)));
}

#[allow(unsafe_code, reason = "an allocator is unsafe by its nature; this one hands everything on")]
// SAFETY: every call goes unchanged to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout, 1);
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        count(layout, -1);
        unsafe { System.dealloc(place, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Returns the bytes that each of many such values takes.
fn bytes_of_each<T>(make: impl Fn(usize) -> T) -> usize {
    let mut all = Vec::with_capacity(MANY);
    let before = USED.with(Cell::get);
    all.extend((0..MANY).map(make));
    let heap = usize::try_from(USED.with(Cell::get) - before).unwrap() / MANY;
    heap + size_of::<T>()
}

/// Returns a Job of a DaemonJob that has ended, as a server stores it and a projection leaves it.
fn job(index: usize) -> Value {
    let time = "2026-01-01T00:00:00Z";
    let uid = format!("5f1c3a52-7d1e-4b5b-9c43-{index:012}");
    let condition = |kind: &str| {
        json!({"type": kind, "status": "True", "lastProbeTime": time, "lastTransitionTime": time,
        "reason": "CompletionsReached", "message": "Reached expected number of succeeded pods"})
    };
    let pod_labels = json!({"batch.kubernetes.io/controller-uid": uid, "batch.kubernetes.io/job-name": format!("rollout-node-{index:04}"),
        "controller-uid": uid, "job-name": format!("rollout-node-{index:04}"), "app.kubernetes.io/name": "agent",
        "oarlock.dev/owner-kind": "DaemonJob", "oarlock.dev/owner-uid": "0b9d8c1e-1111-4222-8333-444455556666", "oarlock.dev/attempt": "0"});
    json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {
        "name": format!("rollout-node-{index:04}"), "namespace": "cluster-maintenance", "uid": uid,
        "resourceVersion": (1_000_000 + index).to_string(), "generation": 1, "creationTimestamp": time, "labels": pod_labels,
        "annotations": {"oarlock.dev/node": format!("node-{index:04}"), "oarlock.dev/revision": "0123456789abcdef"},
        "ownerReferences": [{"apiVersion": "api.practice.com/v1alpha1", "kind": "DaemonJob", "name": "rollout",
            "uid": "0b9d8c1e-1111-4222-8333-444455556666", "controller": true, "blockOwnerDeletion": true}],
        "managedFields": [{"manager": "oarlock", "operation": "Update", "apiVersion": "batch/v1", "time": time,
            "fieldsType": "FieldsV1", "fieldsV1": {"f:metadata": {"f:labels": {".": {}}}, "f:spec": {"f:template": {}}}}]},
        "spec": {"suspend": false},
        "status": {"conditions": [condition("SuccessCriteriaMet"), condition("Complete")], "startTime": time,
            "completionTime": time, "succeeded": 1, "terminating": 0, "ready": 0, "uncountedTerminatedPods": {}}})
}

/// Returns a node as a kubelet and a cloud provider report it.
fn node(index: usize) -> Value {
    let name = format!("node-{index:04}.eu-central-1.compute.internal");
    let time = "2026-01-01T00:00:00Z";
    let condition = |kind: &str, status: &str| {
        json!({"type": kind, "status": status, "lastHeartbeatTime": time,
        "lastTransitionTime": time, "reason": "Kubelet", "message": "kubelet has it"})
    };
    json!({"metadata": {"name": name, "uid": format!("6a1c3a52-7d1e-4b5b-9c43-{index:012}"), "resourceVersion": "12345",
        "labels": {"beta.kubernetes.io/arch": "amd64", "beta.kubernetes.io/instance-type": "m5.2xlarge",
            "beta.kubernetes.io/os": "linux", "failure-domain.beta.kubernetes.io/region": "eu-central-1",
            "failure-domain.beta.kubernetes.io/zone": "eu-central-1a", "kubernetes.io/arch": "amd64",
            "kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "node.kubernetes.io/instance-type": "m5.2xlarge",
            "topology.kubernetes.io/region": "eu-central-1", "topology.kubernetes.io/zone": "eu-central-1a",
            "node-role.kubernetes.io/worker": "", "example.com/pool": "general"}},
        "spec": {"taints": [{"key": "example.com/dedicated", "value": "batch", "effect": "NoSchedule"}]},
        "status": {"conditions": [condition("MemoryPressure", "False"), condition("DiskPressure", "False"),
            condition("PIDPressure", "False"), condition("Ready", "True")]}})
}

#[test]
fn a_cached_child_takes_hardly_more_than_a_kilobyte() {
    let bytes = bytes_of_each(|index| ChildView::read(ChildKind::Job, &job(index)).unwrap());
    println!("{bytes} bytes for each child, {} of them in its own fields", size_of::<ChildView>());
    assert!(bytes <= 1_300, "{bytes}");
}

#[test]
fn a_node_takes_less_than_a_kilobyte() {
    let bytes = bytes_of_each(|index| NodeView::read(&node(index)).unwrap());
    println!("{bytes} bytes for each node, {} of them in its own fields", size_of::<NodeView>());
    assert!(bytes <= 900, "{bytes}");
}

#[test]
fn an_entry_takes_at_most_half_a_kilobyte() {
    let bytes = bytes_of_each(|index| {
        let mut unit = Unit {
            job: format!("rollout-node-{index:04}"),
            job_uid: format!("5f1c3a52-7d1e-4b5b-9c43-{index:012}"),
            node_uid: format!("6a1c3a52-7d1e-4b5b-9c43-{index:012}"),
            revision: "0123456789abcdef".to_owned(),
            start_time: Some("2026-01-01T00:00:00Z".to_owned()),
            completion_time: Some("2026-01-01T00:00:00Z".to_owned()),
            ..Unit::new(&format!("node-{index:04}"))
        };
        unit.set(UnitState::Succeed, "", "");
        unit
    });
    println!("{bytes} bytes for each entry, {} of them in its own fields", size_of::<Unit>());
    assert!(bytes <= 600, "{bytes}");
}
