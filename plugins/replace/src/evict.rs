//! The way of eviction: takes a pod with a controller and yields its eviction, then waits for the pod that the
//! controller makes in its place.
//!
//! May not evict what nobody would make anew, nor take a pod for the new one that another target has taken. Source:
//! spec/operationjob.md §6.2.

use core::time::Duration;

use oarlock_sdk::{
    Failure, Freshness, Job, Object, ObjectRef, Proposal, ReadError, Report, Result, Target, get, parse_instant,
};

use crate::{MODE, NEW_POD, OWNER, SUCCESSORS, recorded};

/// Extra of the host: when the target was asked to go.
const EVICTED_AT: &str = "EvictedAt";
/// Annotation: the kubelet of a node made the pod, from a file there.
const MIRROR: &str = "kubernetes.io/config.mirror";
/// How long the controller is given before its absence is suspected, in milliseconds. A ReplicaSet makes the new pod
/// at once, so the look that it would cost is spared nearly always.
const PATIENCE: u64 = 10_000;

/// Evicts the pod. One that is going already is adopted.
///
/// The event goes out with the eviction: the host records the events of a proposal once its mutations are accepted.
pub(crate) fn operate(job: &Job, target: &Target, pod: Option<&Object>) -> Result<Proposal> {
    let begun = target.extra(MODE).is_some();
    let proposal = if begun { Proposal::new() } else { Proposal::new().extra(MODE, "Evict") };
    let Some(pod) = pod else {
        return if begun || target.extra(OWNER).is_some() { Ok(proposal) } else { Err(no_controller(&target.name())) };
    };
    if begun && pod.is_terminating() {
        return Ok(proposal);
    }
    if pod.annotation(MIRROR).is_some() {
        let message = format!("Pod {} is a mirror of a static pod: change the file on its node instead.", pod.name());
        return Err(Failure::permanent("NotReplaceable", message));
    }
    if pod.controller()?.is_none() {
        return Err(no_controller(&pod.name()));
    }
    if pod.is_terminating() {
        return Ok(proposal);
    }
    let message = format!("Pod {} is evicted; its controller now creates the new pod.", pod.name());
    Ok(proposal.evict(pod, job.parameter("/gracePeriodSeconds")?).event("EvictedPod", message))
}

fn no_controller(name: &str) -> Failure {
    let message = format!("Pod {name} has no controller, so nothing would create a new one: it was left alone.");
    Failure::permanent("NoController", message)
}

/// Waits until the pod is gone, takes a pod for the new one, and waits until that serves.
pub(crate) fn progress(job: &Job, target: &Target, pod: Option<&Object>) -> Result<Report> {
    if pod.is_some() {
        return Ok(Report::processing());
    }
    if target.extra(NEW_POD).is_some()
        && let Some(pod) = recorded(target)?
    {
        return judge(job, &pod);
    }
    match candidate(job, target, Freshness::Watched)? {
        Some(pod) => Ok(judge(job, &pod)?.with(Proposal::new().extra(NEW_POD, pod.name()))),
        None => wait(job, target),
    }
}

/// The oldest pod of the same controller that is free to take. The host leaves out what other targets have taken.
fn candidate(job: &Job, target: &Target, freshness: Freshness) -> Result<Option<Object>, ReadError> {
    let mut pods = target.related(SUCCESSORS, freshness)?.into_iter();
    Ok(pods.find(|pod| !pod.is_terminating() && !pod.holds(job).is_barred()))
}

/// Ended well if the new pod has been Ready for long enough.
fn judge(job: &Job, pod: &Object) -> Result<Report> {
    if pod.is_terminating() {
        return Ok(Report::processing());
    }
    let Some(ready) = pod.condition("Ready")?.filter(|ready| ready.is_true()) else {
        return Ok(Report::processing());
    };
    let seconds: u64 = job.parameter("/minReadySeconds")?.unwrap_or(0);
    if seconds == 0 {
        return Ok(Report::succeeded());
    }
    // Without a time nobody can tell for how long; the API server sets one whenever the status changes.
    let Some(since) = ready.since_ms() else { return Ok(Report::processing()) };
    Ok(match remaining(job, since, seconds.saturating_mul(1000)) {
        None => Report::succeeded(),
        Some(wait) => Report::processing().check_after(wait),
    })
}

/// No pod to take yet: waits, unless the controller is gone and none will come.
fn wait(job: &Job, target: &Target) -> Result<Report> {
    let asked = target.extra(EVICTED_AT).and_then(|time| parse_instant(&time)).unwrap_or_else(|| target.started_ms());
    if let Some(rest) = remaining(job, asked, PATIENCE) {
        return Ok(Report::processing().check_after(rest));
    }
    let Some((owner, uid)) = target.extra(OWNER).as_deref().and_then(|owner| controller(job, owner)) else {
        return Ok(Report::processing());
    };
    let found = match get(&owner, Freshness::Live) {
        Err(ReadError::NotDeclared { .. }) => return Ok(Report::processing()),
        found => found?,
    };
    // The owner may have made a pod as its last deed, and the host may not have seen it yet.
    if found.is_some_and(|found| found.uid() == uid) || candidate(job, target, Freshness::Live)?.is_some() {
        return Ok(Report::processing());
    }
    let message = format!(
        "Pod {} is gone, and so is {} {}, which would have created the new pod; nothing is left to wait for.",
        target.name(),
        owner.kind,
        owner.name
    );
    Ok(Report::failed("OwnerGone", message))
}

/// The controller that the host remembers, as `kind/name/uid`, where it is of a kind that the manifest declares.
fn controller(job: &Job, owner: &str) -> Option<(ObjectRef, String)> {
    let mut parts = owner.splitn(3, '/');
    let (kind, name, uid) = (parts.next()?, parts.next()?, parts.next()?);
    let declared = matches!(kind, "ReplicaSet" | "StatefulSet" | "DaemonSet");
    declared.then(|| (ObjectRef::new("apps/v1", kind, Some(job.namespace()), name), uid.to_owned()))
}

/// How much of `span` milliseconds since `start` is left; `None` once they are over.
fn remaining(job: &Job, start: u64, span: u64) -> Option<Duration> {
    let end = start.saturating_add(span);
    end.checked_sub(job.now_ms()).filter(|rest| *rest > 0).map(Duration::from_millis)
}

/// There is nothing to take back; says what can't be.
pub(crate) fn release(target: &Target, pod: Option<&Object>) -> Proposal {
    if target.extra(MODE).is_none() {
        return Proposal::new();
    }
    let name = target.name();
    let message = match pod {
        None => format!("Pod {name} is gone; the pod that its controller creates in its place stays."),
        Some(pod) if pod.is_terminating() => format!("Pod {name} is being deleted, which can't be undone."),
        Some(_) => format!("Pod {name} was not evicted; nothing had to be undone."),
    };
    Proposal::new().event("ReplaceReleased", message)
}
