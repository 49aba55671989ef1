//! The finalizer of a job, and the end of the job: the removal of the finalizer, and the deletion after its time to
//! live.
//!
//! Source: docs/operationjob.md 3.11, 3.12.

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use crate::object::time::{after, after_seconds};
use crate::operation_job::round::context::Round;
use crate::operation_job::round::events::EventBuilder;
use crate::operation_job::round::memory::{Decisions, Housekeeping, StoredState, Targets};
use crate::operation_job::spec::ttl_seconds;
use crate::requests::writes::{EventNote, Write};

/// The finalizer of every job that has started a target.
pub const FINALIZER: &str = "finalizer.operating.kusionstack.io/protected";

/// Shortest time between two writes that restore a finalizer which another client removed.
const FINALIZER_AGAIN: SignedDuration = SignedDuration::from_secs(60);

/// The next write of the job itself.
#[derive(Debug, PartialEq)]
pub enum Finalize {
    /// No write is due before something changes.
    Nothing,
    /// A write is due at this time.
    Later(Timestamp),
    /// The write to make now, and the event that follows it.
    Write(Box<Write>, Option<Box<EventNote>>),
}

/// Reason of a job whose finalizers the host does not keep, because there are too many. The host does not write that
/// list.
pub const TOO_MANY_FINALIZERS: &str = "TooManyFinalizers";

fn has_unknown_finalizers(round: &Round<'_>) -> bool {
    round.object.unread.as_ref().is_some_and(|unread| unread.reason == TOO_MANY_FINALIZERS)
}

/// Returns the patch that adds the finalizer, if the finalizer is missing and may still be added. The host adds it with
/// the first start, and again if another client removed it while targets are in flight. A dry run has nothing to undo,
/// so it needs no finalizer.
pub fn finalizer(round: &Round<'_>, stored: &StoredState, decisions: &Decisions, targets: &Targets) -> Option<Value> {
    let meta = &round.object.metadata;
    let mut list = meta.finalizers.clone().unwrap_or_default();
    let is_there = list.iter().any(|name| name == FINALIZER);
    if round.deleting() || round.dry_run || is_there || has_unknown_finalizers(round) {
        return None;
    }
    let starts = decisions.decided.values().any(|decided| decided.state.started() && decided.state.uid.is_some());
    let owes = !stored.durable.processing.is_empty() || !targets.releasing.is_empty();
    let paced = stored.finalizer_put.is_none_or(|put| after(put, FINALIZER_AGAIN) <= round.now);
    if !(starts || owes && paced) {
        return None;
    }
    list.push(FINALIZER.to_owned());
    Some(json!({"metadata": {"uid": meta.uid, "resourceVersion": meta.resource_version, "finalizers": list}}))
}

/// Returns the write that is due for the job. All decisions must be durable. `is_idle` says that every target is
/// ended and released.
pub fn finalize(round: &Round<'_>, stored: &StoredState, housekeeping: &Housekeeping, is_idle: bool) -> Finalize {
    let end = stored.state.end.filter(|_| is_idle);
    let due = if round.deleting() { remove_finalizer(round, is_idle) } else { time_to_live(round, end) };
    match (due, housekeeping.job_retry) {
        (Finalize::Write(..), Some((retry, _))) if retry > round.now => Finalize::Later(retry),
        (due, _) => due,
    }
}

/// Returns the write that removes the finalizer, once every release is durable and no target is in flight.
fn remove_finalizer(round: &Round<'_>, is_idle: bool) -> Finalize {
    let meta = &round.object.metadata;
    let mut list = meta.finalizers.clone().unwrap_or_default();
    let before = list.len();
    list.retain(|name| name != FINALIZER);
    if list.len() == before || !is_idle {
        return Finalize::Nothing;
    }
    let body = json!({"metadata": {"uid": meta.uid, "resourceVersion": meta.resource_version, "finalizers": list}});
    Finalize::Write(Box::new(Write::patch(&round.job.key.object(), body)), None)
}

/// Returns the write that deletes a job that has been over since `end`, at the version that the host saw. A user may just
/// have raised its time to live.
fn time_to_live(round: &Round<'_>, end: Option<Timestamp>) -> Finalize {
    let Some(end) = end else { return Finalize::Nothing };
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
