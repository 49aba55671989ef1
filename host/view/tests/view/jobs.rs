//! Jobs and records as a cluster stores them.

use k8s_openapi::jiff::Timestamp;
use oarlock_api::{OperationJob, OperationRecord};
use oarlock_view::JobView;
use serde_json::{Value, json};

/// Returns a time on the day of these tests.
pub(crate) fn at(time: &str) -> Timestamp {
    format!("2026-07-01T{time}Z").parse().unwrap()
}

pub(crate) fn job(value: Value) -> OperationJob {
    serde_json::from_value(value).unwrap()
}

pub(crate) fn view(value: &Value) -> JobView {
    JobView::new(&job(value.clone()), &[])
}

/// Returns a job of six targets, one of each kind that a person distinguishes.
pub(crate) fn small() -> Value {
    let names: Vec<Value> = ["a", "b", "c", "d", "e", "f"].map(|name| json!({"name": name})).to_vec();
    json!({
        "metadata": {"name": "web", "namespace": "team-a", "uid": "u1", "creationTimestamp": "2026-07-01T10:00:00Z"},
        "spec": {"action": "Replace", "targets": names, "partition": 5, "parallelism": 2},
        "status": {
            "progress": "Processing", "startTime": "2026-07-01T10:00:00Z", "totalPodCount": 6,
            "succeededPodCount": 1, "failedPodCount": 2, "processingPodCount": 2, "pendingPodCount": 1,
            "waitsFor": "Budget web", "plugin": {"name": "replace", "version": "0.1.0", "digest": "sha256:1"},
            "conditions": [
                {"type": "Reconciling", "status": "True", "reason": "Waiting",
                    "message": "2 targets are in flight, and disruption budget web allows no eviction now"},
                {"type": "Paused", "status": "False", "reason": "NotPaused", "message": "the job is not paused"}],
            "targetDetails": [
                {"name": "a", "progress": "Succeeded", "startTime": "2026-07-01T10:01:10Z",
                    "endTime": "2026-07-01T10:01:20Z", "extraInfo": {"NewPod": "a2", "Owner": "CollaSet/foo/u", "ClaimedUID": "NewPod=Pod/u"}},
                {"name": "b", "progress": "Failed", "startTime": "2026-07-01T10:01:10Z",
                    "endTime": "2026-07-01T10:01:30Z", "error": {"reason": "PodNotFound", "message": "pod b is gone"}},
                {"name": "c", "progress": "Processing", "startTime": "2026-07-01T10:01:30Z", "extraInfo": {"NewPod": "c2"}},
                {"name": "d", "progress": "Processing", "startTime": "2026-07-01T10:01:00Z", "error": {
                    "reason": "EvictionBlocked", "message": "disruption budget web allows no eviction now"}},
                {"name": "e", "progress": "Failed", "startTime": "2026-07-01T10:01:00Z", "attempt": 2,
                    "endTime": "2026-07-01T10:01:10Z", "error": {"reason": "Boom", "message": "\u{1b}[31mred"}},
                {"name": "f", "progress": "Pending"}]},
    })
}

/// Returns a job of 10,000 targets: 5,000 have succeeded, 100 have failed, 200 are in flight.
pub(crate) fn large_without_records() -> OperationJob {
    job(json!({
        "metadata": {"name": "large", "namespace": "team-a", "uid": "u2"},
        "spec": {"action": "Replace", "targets": (0..10_000).map(|at| json!({"name": name(at)})).collect::<Vec<_>>()},
        "status": {
            "progress": "Processing", "startTime": "2026-07-01T09:00:00Z", "totalPodCount": 10_000,
            "succeededPodCount": 5_000, "failedPodCount": 100, "processingPodCount": 200, "pendingPodCount": 4_700,
            "records": {"count": 40, "size": 250},
            "ranges": {"succeeded": "0-4999", "failed": "5000-5099", "processing": "5100-5299"},
            "failures": [{"index": 5_000, "name": name(5_000), "reason": "PodNotFound", "message": "it is gone"}]},
    }))
}

fn name(index: usize) -> String {
    format!("web-7d9f8c6b5d-{index:05}")
}

/// Returns the large job with its records. The records are a little behind: they do not contain the failures yet.
pub(crate) fn large() -> (OperationJob, Vec<OperationRecord>) {
    let target = |index: usize| {
        let (progress, end) = match index {
            0..5000 => ("Succeeded", Some(format!("2026-07-01T10:{:02}:{:02}Z", index / 3000, index / 50 % 60))),
            5000..5300 => ("Processing", None),
            _ => ("Pending", None),
        };
        let line =
            json!({"name": name(index), "progress": progress, "startTime": "2026-07-01T09:59:00Z", "endTime": end});
        line.to_string()
    };
    let record = |shard: usize| {
        let first = shard * 250;
        let targets: Vec<String> = (first..first + 250).map(target).collect();
        serde_json::from_value(
            json!({"metadata": {"name": format!("large-{shard}")}, "shard": shard, "firstIndex": first,
            "job": {"name": "large", "uid": "u2"}, "targets": targets}),
        )
        .unwrap()
    };
    (large_without_records(), (0..40).map(record).collect())
}
