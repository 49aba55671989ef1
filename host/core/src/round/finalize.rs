//! How a job itself comes to its end: its finalizer goes, or its time to live is over.
//!
//! Takes a job whose targets are at rest; yields the one write that is due, or when it will be. May not write. Source:
//! spec/operationjob.md §§3.11, 3.12.

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use oarlock_api::OperationJob;
use serde_json::json;

use crate::cluster::object::{Kind, ObjectKey};
use crate::cluster::writes::{EventNote, JobKey, TargetWrites, Write};
use crate::job::spec::ttl_seconds;
use crate::round::decide::FINALIZER;
use crate::round::events::Teller;
use crate::round::memory::JobMemory;

/// What is due for the job itself.
#[derive(Debug, PartialEq)]
pub enum Closing {
    /// Nothing, ever, unless something changes.
    Rest,
    /// Something, at this time.
    Later(Timestamp),
    /// This write now, and the event that goes with it.
    Write(Box<TargetWrites>, Option<Box<EventNote>>),
}

/// What is due for `job`, with everything that `memory` knows durable.
pub fn closing(job: &OperationJob, memory: &JobMemory, key: &JobKey, now: Timestamp) -> Closing {
    let uid = job.metadata.uid.clone().unwrap_or_default();
    let deleting = job.metadata.deletion_timestamp.is_some();
    let due = if deleting { finalizer(job, memory, key) } else { time_to_live(job, memory, key, &uid, now) };
    match (due, memory.job_retry) {
        (Closing::Write(..), Some((retry, _))) if retry > now => Closing::Later(retry),
        (due, _) => due,
    }
}

fn object(key: &JobKey) -> ObjectKey {
    let kind = Kind::new(oarlock_api::OPERATION_JOB_API_VERSION, "OperationJob");
    ObjectKey { kind, namespace: Some(key.namespace.clone()), name: key.name.clone() }
}

/// The finalizer goes once every release is durable and no target is in flight.
fn finalizer(job: &OperationJob, memory: &JobMemory, key: &JobKey) -> Closing {
    let mut list = job.metadata.finalizers.clone().unwrap_or_default();
    let before = list.len();
    list.retain(|name| name != FINALIZER);
    if list.len() == before || !memory.at_rest() {
        return Closing::Rest;
    }
    let meta = &job.metadata;
    let body = json!({"metadata": {"uid": meta.uid, "resourceVersion": meta.resource_version, "finalizers": list}});
    let write = Write::Patch { object: object(key), subresource: None, body };
    Closing::Write(Box::new(TargetWrites { target: None, writes: vec![write] }), None)
}

/// The job is deleted at the version seen, since its time to live may just have been raised.
fn time_to_live(job: &OperationJob, memory: &JobMemory, key: &JobKey, uid: &str, now: Timestamp) -> Closing {
    let Some(end) = memory.state.end.filter(|_| memory.at_rest()) else { return Closing::Rest };
    let ttl = ttl_seconds(job.spec.as_ref());
    let due = end + SignedDuration::from_secs(ttl);
    if due > now {
        return Closing::Later(due);
    }
    let write = Write::Delete {
        object: object(key),
        uid: uid.to_owned(),
        resource_version: job.metadata.resource_version.clone(),
        grace_seconds: None,
        propagation: Some("Background".to_owned()),
    };
    let action = crate::round::standing::action(job);
    let message = format!("ended {ttl} s ago, and is deleted as spec.TTLSecondsAfterFinished says");
    let note = Teller { key, uid, action }.job(false, "TTL", message);
    Closing::Write(Box::new(TargetWrites { target: None, writes: vec![write] }), Some(Box::new(note)))
}
