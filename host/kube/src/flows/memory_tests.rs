//! Tests of the memory that the whole cache takes for each child and node. An allocator counts the bytes by thread.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;

use oarlock_core::attempts::parent::{Parent, ParentKind};
use serde_json::{Value, json};

use crate::flows::cache::FlowCache;
use crate::flows::handlers::{BatchJobHandler, NodeHandler};
use crate::watch::handler::EventHandler;

/// The number of children and nodes of a large object.
const MANY: usize = 1_000;
const OWNER: &str = "0b9d8c1e-1111-4222-8333-444455556666";
const TIME: &str = "2026-01-01T00:00:00Z";

struct Counting;

thread_local! {
    static USED: Cell<isize> = const { Cell::new(0) };
}

/// Adds the size that an allocator takes for this layout. Size classes are multiples of 16.
fn count(layout: Layout, sign: isize) {
    let size = isize::try_from(layout.size().next_multiple_of(16)).unwrap_or(0);
    USED.with(|used| used.set(used.get().saturating_add(sign.saturating_mul(size))));
}

#[allow(unsafe_code, reason = "an allocator is unsafe by its nature; this one hands everything on")]
// SAFETY: every call goes unchanged to the allocator of the system.
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

/// Returns a cache with one object of this kind.
fn cache(kind: ParentKind) -> Arc<FlowCache> {
    let cache = FlowCache::default();
    let metadata = json!({"namespace": "cluster-maintenance", "name": "rollout", "uid": OWNER, "resourceVersion": "1"});
    cache.put_parent(Parent::read(kind, json!({ "metadata": metadata })).unwrap());
    Arc::new(cache)
}

/// Returns the bytes that `handler` keeps of each of many such documents. The handler reads one half as a list and the other half as events.
fn bytes_of_each(handler: &impl EventHandler, document: impl Fn(usize) -> Value) -> usize {
    let read = |index| {
        let text = document(index).to_string();
        handler.pick(handler.projection().read(text.as_bytes()).unwrap()).unwrap()
    };
    let before = USED.with(Cell::get);
    handler.listed((0..MANY / 2).map(read).collect(), 0);
    (MANY / 2..MANY).map(read).for_each(|item| handler.changed(item));
    let used = USED.with(Cell::get).saturating_sub(before);
    usize::try_from(used).unwrap() / MANY
}

/// Returns the Job of a unit as an API server stores it after its end.
fn job(owner: &str, annotations: &Value, index: usize) -> Value {
    let uid = format!("5f1c3a52-7d1e-4b5b-9c43-{index:012}");
    let name = format!("rollout-node-{index:04}");
    let condition = |kind: &str| {
        json!({"type": kind, "status": "True", "lastProbeTime": TIME, "lastTransitionTime": TIME,
            "reason": "CompletionsReached", "message": "Reached expected number of succeeded pods"})
    };
    let labels = json!({"batch.kubernetes.io/controller-uid": uid, "batch.kubernetes.io/job-name": name, "controller-uid": uid,
        "job-name": name, "app.kubernetes.io/name": "agent", "oarlock.dev/owner-kind": owner, "oarlock.dev/owner-uid": OWNER,
        "oarlock.dev/attempt": "0"});
    let reference = json!({"apiVersion": "api.practice.com/v1alpha1", "kind": owner, "name": "rollout", "uid": OWNER,
        "controller": true, "blockOwnerDeletion": true});
    let container = json!({"name": "agent", "image": "registry.example.com/team/agent:1.27.4", "command": ["agent", "--once"],
        "env": [{"name": "LEVEL", "value": "info"}], "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}}});
    json!({"apiVersion": "batch/v1", "kind": "Job",
        "metadata": {"name": name, "namespace": "cluster-maintenance", "uid": uid, "generation": 1, "labels": labels,
            "resourceVersion": (1_000_000 + index).to_string(), "creationTimestamp": TIME, "annotations": annotations,
            "ownerReferences": [reference],
            "managedFields": [{"manager": "oarlock", "operation": "Update", "apiVersion": "batch/v1", "time": TIME,
                "fieldsType": "FieldsV1", "fieldsV1": {"f:metadata": {"f:labels": {".": {}}}, "f:spec": {"f:template": {}}}}]},
        "spec": {"parallelism": 1, "completions": 1, "backoffLimit": 0, "suspend": false, "activeDeadlineSeconds": 3600,
            "completionMode": "NonIndexed", "selector": {"matchLabels": {"batch.kubernetes.io/controller-uid": uid}},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [container], "restartPolicy": "Never"}}},
        "status": {"conditions": [condition("SuccessCriteriaMet"), condition("Complete")], "startTime": TIME,
            "completionTime": TIME, "succeeded": 1, "terminating": 0, "ready": 0, "uncountedTerminatedPods": {}}})
}

/// Returns a node as a kubelet and a cloud provider report it.
fn node(index: usize) -> Value {
    let name = format!("node-{index:04}.eu-central-1.compute.internal");
    let condition = |kind: &str, status: &str| {
        json!({"type": kind, "status": status, "lastHeartbeatTime": TIME, "lastTransitionTime": TIME, "reason": "Kubelet",
            "message": "kubelet has it"})
    };
    json!({"apiVersion": "v1", "kind": "Node",
        "metadata": {"name": name, "uid": format!("6a1c3a52-7d1e-4b5b-9c43-{index:012}"), "resourceVersion": "12345",
            "labels": {"beta.kubernetes.io/arch": "amd64", "beta.kubernetes.io/instance-type": "m5.2xlarge",
                "beta.kubernetes.io/os": "linux", "failure-domain.beta.kubernetes.io/region": "eu-central-1",
                "failure-domain.beta.kubernetes.io/zone": "eu-central-1a", "kubernetes.io/arch": "amd64",
                "kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "node.kubernetes.io/instance-type": "m5.2xlarge",
                "topology.kubernetes.io/region": "eu-central-1", "topology.kubernetes.io/zone": "eu-central-1a",
                "node-role.kubernetes.io/worker": "", "example.com/pool": "general"}},
        "spec": {"taints": [{"key": "example.com/dedicated", "value": "batch", "effect": "NoSchedule"}]},
        "status": {"conditions": [condition("MemoryPressure", "False"), condition("DiskPressure", "False"),
            condition("PIDPressure", "False"), condition("Ready", "True")], "nodeInfo": {"osImage": "linux"}}})
}

#[test]
fn a_child_in_the_cache_takes_at_most_two_kilobytes_in_all() {
    let cache = cache(ParentKind::Daemon);
    let annotations =
        |index| json!({"oarlock.dev/node": format!("node-{index:04}"), "oarlock.dev/revision": "0123456789abcdef"});
    let bytes = bytes_of_each(&BatchJobHandler(cache), |index| job("DaemonJob", &annotations(index), index));
    println!("{bytes} bytes of the cache for each job of a node");
    assert!(bytes <= 2_048, "{bytes}");
}

#[test]
fn a_child_of_a_template_takes_at_most_two_kilobytes_in_all() {
    let cache = cache(ParentKind::Flow);
    let annotations = |index| {
        json!({"oarlock.dev/step": format!("step-{index:04}"), "oarlock.dev/revision": "0123456789abcdef",
            "createByJobTemplate": "cluster-maintenance.loader", "oarlock.dev/ttl": "3600"})
    };
    let bytes = bytes_of_each(&BatchJobHandler(cache), |index| job("JobFlow", &annotations(index), index));
    println!("{bytes} bytes of the cache for each job of a step");
    assert!(bytes <= 2_048, "{bytes}");
}

#[test]
fn a_node_in_the_cache_takes_at_most_a_kilobyte_in_all() {
    let bytes = bytes_of_each(&NodeHandler(cache(ParentKind::Daemon)), node);
    println!("{bytes} bytes of the cache for each node");
    assert!(bytes <= 1_024, "{bytes}");
}
