//! The finalizer of a job, and its end: the removal of that, and deletion after its time to live.
//!
//! Source: docs/operationjob.md 3.11, 3.12.

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use crate::cluster::writes::{EventNote, Write};
use crate::job::spec::ttl_seconds;
use crate::job::time::{after, after_seconds};
use crate::round::context::Round;
use crate::round::events::EventBuilder;
use crate::round::memory::JobMemory;

/// The finalizer of every job that has started a target.
pub const FINALIZER: &str = "finalizer.operating.kusionstack.io/protected";

/// Shortest time between two writes that restore a finalizer which another client removed.
const FINALIZER_AGAIN: SignedDuration = SignedDuration::from_secs(60);

/// The next write of the job itself.
#[derive(Debug, PartialEq)]
pub enum Finalize {
    /// No write before something changes.
    Rest,
    /// A write is due at this time.
    Later(Timestamp),
    /// This write now, and the event that follows it.
    Write(Box<Write>, Option<Box<EventNote>>),
}

/// The reason of a job whose finalizers are not held, since they are too many: its list is not written.
pub const TOO_MANY_FINALIZERS: &str = "TooManyFinalizers";

fn has_unknown_finalizers(round: &Round<'_>) -> bool {
    round.object.unread.as_ref().is_some_and(|unread| unread.reason == TOO_MANY_FINALIZERS)
}

/// The patch that adds the finalizer, if it is missing and may still be added: with the first start, and again if
/// another client removed it while targets are in flight. A dry run has nothing to undo, and so needs none.
pub fn finalizer(round: &Round<'_>, memory: &JobMemory) -> Option<Value> {
    let meta = &round.object.metadata;
    let mut list = meta.finalizers.clone().unwrap_or_default();
    let is_there = list.iter().any(|name| name == FINALIZER);
    if round.deleting() || round.dry_run || is_there || has_unknown_finalizers(round) {
        return None;
    }
    let starts = memory.decided.values().any(|decided| decided.state.started() && decided.state.uid.is_some());
    let owes = !memory.durable.processing.is_empty() || !memory.releasing.is_empty();
    let paced = memory.finalizer_put.is_none_or(|put| after(put, FINALIZER_AGAIN) <= round.now);
    if !(starts || owes && paced) {
        return None;
    }
    list.push(FINALIZER.to_owned());
    Some(json!({"metadata": {"uid": meta.uid, "resourceVersion": meta.resource_version, "finalizers": list}}))
}

/// The write that is due for the job, given that all of `memory` is durable.
pub fn finalize(round: &Round<'_>, memory: &JobMemory) -> Finalize {
    let due = if round.deleting() { remove_finalizer(round, memory) } else { time_to_live(round, memory) };
    match (due, memory.job_retry) {
        (Finalize::Write(..), Some((retry, _))) if retry > round.now => Finalize::Later(retry),
        (due, _) => due,
    }
}

/// Removes the finalizer once every release is durable and no target is in flight.
fn remove_finalizer(round: &Round<'_>, memory: &JobMemory) -> Finalize {
    let meta = &round.object.metadata;
    let mut list = meta.finalizers.clone().unwrap_or_default();
    let before = list.len();
    list.retain(|name| name != FINALIZER);
    if list.len() == before || !memory.at_rest() {
        return Finalize::Rest;
    }
    let body = json!({"metadata": {"uid": meta.uid, "resourceVersion": meta.resource_version, "finalizers": list}});
    Finalize::Write(Box::new(Write::patch(&round.job.key.object(), body)), None)
}

/// Deletes the job at the version seen, since its time to live may just have been raised.
fn time_to_live(round: &Round<'_>, memory: &JobMemory) -> Finalize {
    let Some(end) = memory.state.end.filter(|_| memory.at_rest()) else { return Finalize::Rest };
    let ttl = ttl_seconds(round.object.spec.as_ref());
    let due = after_seconds(end, ttl);
    if due > round.now {
        return Finalize::Later(due);
    }
    let write = Write::Delete {
        object: round.job.key.object(),
        uid: round.job.uid.clone(),
        resource_version: round.object.metadata.resource_version.clone(),
        grace_seconds: None,
        propagation: Some("Background".to_owned()),
    };
    let message = format!("deleted {ttl} s after its end, as set by spec.TTLSecondsAfterFinished");
    let events = EventBuilder { job: &round.job, action: round.action() };
    Finalize::Write(Box::new(write), Some(Box::new(events.about_job(false, "TTL", message))))
}
