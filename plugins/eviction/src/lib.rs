//! Replacement of a pod by eviction, as the plugins Replace and Restart do it: takes a pod with a controller and yields its
//! eviction, then waits for the pod that the controller makes in its place.
//!
//! May not evict what nobody would make anew, nor take a pod for the new one that another target has taken. Whoever uses it
//! adds [`relations`] to its registration, asks in its manifest to evict pods, and to read their `/status/conditions`, and
//! [`KINDS`] of `apps/v1`. Source: docs/operationjob.md 6.2.

use core::time::Duration;

use oarlock_sdk::{
    Extras, Failure, Freshness, Job, Object, ObjectRef, Owner, Proposal, ReadError, Registration, Relation, Report,
    Result, Target, WAITS_FOR, get, parse_instant,
};

/// Extra: the name of the pod that takes the place of the target. No two targets may have the same.
pub const NEW_POD: &str = "NewPod";
/// Extra: the way that a target goes, where a plugin has several.
pub const MODE: &str = "Mode";
/// The value of [`MODE`] of a target that is evicted.
pub const EVICT: &str = "Evict";
/// Extra of the host: the controller that the target had, as `kind/name/uid`.
pub const OWNER: &str = "Owner";

/// Extra: the pod had ended by itself before it was evicted.
const ENDED: &str = "Ended";
/// The reasons by which a kubelet says that.
const HAS_ENDED: [&str; 2] = ["PodFailed", "PodCompleted"];
/// The kinds that keep such pods, and have made others in their place.
const KEEPS_ENDED: [&str; 2] = ["Deployment", "ReplicaSet"];

/// Extra of the host: when the target was asked to go.
const EVICTED_AT: &str = "EvictedAt";
/// Annotation: the kubelet of a node made the pod, from a file there.
const MIRROR: &str = "kubernetes.io/config.mirror";
/// Relation: the pod that is recorded as `NewPod`.
const RECORDED: &str = "new-pod";
/// Relation: pods that the target's controller has made since.
const SUCCESSORS: &str = "successors";
/// Kinds of `apps` that make a new pod for each that goes. The manifest reads them.
pub const KINDS: [&str; 4] = ["Deployment", "ReplicaSet", "StatefulSet", "DaemonSet"];
/// How long the controller is given before its absence is suspected, and before people are told what is awaited, in
/// milliseconds. A ReplicaSet makes the new pod at once, so the look that it would cost is spared nearly always.
pub const PATIENCE: u64 = 10_000;
/// The word for a target whose new pod is awaited.
const AWAITED: &str = "NewPod";

/// What one call is about.
#[derive(Debug)]
pub struct Case<'a> {
    /// The job.
    pub job: &'a Job,
    /// The target.
    pub target: &'a Target,
    /// What is stored for it.
    pub extras: Extras,
    /// Its pod; `None` where it is gone.
    pub pod: Option<Object>,
}

impl<'a> Case<'a> {
    /// Reads what every call needs.
    #[must_use]
    pub fn of(job: &'a Job, target: &'a Target) -> Self {
        Self { job, target, extras: target.extras(), pod: target.object() }
    }

    /// The pod recorded as `NewPod`. That it is not there is believed only where the API server says so.
    ///
    /// # Errors
    ///
    /// Where the host has to look first.
    pub fn new_pod(&self) -> Result<Option<Object>, ReadError> {
        let watched = self.target.related(RECORDED, Freshness::Watched)?.pop();
        if watched.is_some() {
            return Ok(watched);
        }
        Ok(self.target.related(RECORDED, Freshness::Live)?.pop())
    }
}

/// The registration with what an eviction needs to see.
#[must_use]
pub fn relations(registration: Registration) -> Registration {
    registration
        .relation(Relation::pods(RECORDED).by_extra(NEW_POD))
        .relation(Relation::pods(SUCCESSORS).same_controller())
        .exclusive(NEW_POD)
}

/// Evicts the pod. One that is going already is adopted.
///
/// The event goes out with the eviction: the host records the events of a proposal once its mutations are accepted.
///
/// # Errors
///
/// `NoController` and `NotReplaceable` for a pod that nobody would make anew.
pub fn operate(case: &Case<'_>) -> Result<Proposal> {
    let begun = case.extras.has(MODE);
    let proposal = if begun { Proposal::new() } else { Proposal::new().extra(MODE, EVICT) };
    let Some(pod) = &case.pod else {
        return if begun || case.extras.has(OWNER) { Ok(proposal) } else { Err(no_controller(&case.target.name())) };
    };
    if begun && pod.is_terminating() {
        return Ok(proposal);
    }
    if pod.annotation(MIRROR).is_some() {
        let message = format!("Pod {} is a mirror of a static pod: change the file on its node instead.", pod.name());
        return Err(Failure::permanent("NotReplaceable", message));
    }
    let Some(owner) = pod.controller()? else { return Err(no_controller(&pod.name())) };
    let makes_another = owner.group() == "apps" && KINDS.contains(&owner.kind.as_str());
    if !begun && !makes_another {
        return Err(not_replaceable(&pod.name(), owner));
    }
    if pod.is_terminating() {
        return Ok(proposal);
    }
    let has_ended = pod.condition("Ready")?.is_some_and(|ready| HAS_ENDED.contains(&ready.reason.as_str()));
    let message = format!("Pod {} is evicted; its controller now creates the new pod.", pod.name());
    let proposal = if has_ended { proposal.extra(ENDED, "true") } else { proposal };
    Ok(proposal.evict(pod, case.job.parameter("/gracePeriodSeconds")?).event("EvictedPod", message))
}

fn no_controller(name: &str) -> Failure {
    let message = format!("Pod {name} has no controller, so nothing would create a new one: it was left alone.");
    Failure::permanent("NoController", message)
}

/// A pod of a Job, say, has done a part of its work, and is one that its controller need not make again.
fn not_replaceable(name: &str, owner: &Owner) -> Failure {
    let message = format!(
        "Pod {name} belongs to {} {}; eviction replaces pods of a {} alone, so it was left alone.",
        owner.kind,
        owner.name,
        KINDS.join(", ")
    );
    Failure::permanent("NotReplaceable", message)
}

/// Waits until the pod is gone, takes a pod for the new one, and waits until that serves.
///
/// # Errors
///
/// Where something cannot be read, or the host has to look first.
pub fn progress(case: &Case<'_>) -> Result<Report> {
    if case.pod.is_some() {
        return Ok(Report::processing());
    }
    if case.extras.has(NEW_POD)
        && let Some(pod) = case.new_pod()?
    {
        return judge(case, &pod, Proposal::new());
    }
    match candidate(case, Freshness::Watched)? {
        Some(pod) => judge(case, &pod, Proposal::new().extra(NEW_POD, pod.name())),
        None => wait(case),
    }
}

/// The oldest pod of the same controller that is free to take. The host leaves out what other targets have taken.
fn candidate(case: &Case<'_>, freshness: Freshness) -> Result<Option<Object>, ReadError> {
    let mut pods = case.target.related(SUCCESSORS, freshness)?.into_iter();
    Ok(pods.find(|pod| !pod.is_terminating() && !pod.holds(case.job).is_barred()))
}

/// Ended well if the new pod has been Ready for long enough.
fn judge(case: &Case<'_>, pod: &Object, proposal: Proposal) -> Result<Report> {
    if pod.is_terminating() {
        return Ok(told(case, &format!("pod {} is being deleted", pod.name()), proposal));
    }
    let Some(ready) = pod.condition("Ready")?.filter(|ready| ready.is_true()) else {
        return Ok(told(case, &unready(pod)?, proposal));
    };
    let proposal = if case.extras.has(WAITS_FOR) { proposal.waits_no_more() } else { proposal };
    let seconds: u64 = case.job.parameter("/minReadySeconds")?.unwrap_or(0);
    if seconds == 0 {
        return Ok(Report::succeeded().with(proposal));
    }
    // Without a time nobody can tell for how long; the API server sets one whenever the status changes.
    let Some(since) = ready.since_ms() else { return Ok(Report::processing().with(proposal)) };
    Ok(match remaining(case.job, since, seconds.saturating_mul(1000)) {
        None => Report::succeeded().with(proposal),
        Some(wait) => Report::processing().with(proposal).check_after(wait),
    })
}

/// Why a new pod is not Ready, as it says itself.
fn unready(pod: &Object) -> Result<String> {
    let name = pod.name();
    if let Some(unplaced) = pod.condition("PodScheduled")?.filter(|placed| placed.status == "False") {
        return Ok(format!("pod {name} has no node: {}: {}", unplaced.reason, unplaced.message));
    }
    let why = pod.condition("Ready")?.map(|ready| if ready.message.is_empty() { ready.reason } else { ready.message });
    let why = why.filter(|why| !why.is_empty()).map(|why| format!(": {why}")).unwrap_or_default();
    Ok(format!("pod {name} is not Ready{why}"))
}

/// Waits on, and has people told for what once that lasts.
fn told(case: &Case<'_>, awaited: &str, proposal: Proposal) -> Report {
    let asked = case.extras.get(EVICTED_AT).and_then(parse_instant).unwrap_or_else(|| case.target.started_ms());
    if let Some(rest) = remaining(case.job, asked, PATIENCE) {
        return Report::processing().with(proposal).check_after(rest);
    }
    Report::processing().with(proposal.waits_for(AWAITED, awaited))
}

/// No pod to take yet: waits, unless the controller is gone and none will come.
fn wait(case: &Case<'_>) -> Result<Report> {
    let asked = case.extras.get(EVICTED_AT).and_then(parse_instant).unwrap_or_else(|| case.target.started_ms());
    if let Some(rest) = remaining(case.job, asked, PATIENCE) {
        return Ok(Report::processing().check_after(rest));
    }
    let Some((owner, uid)) = case.extras.get(OWNER).and_then(|owner| controller(case.job, owner)) else {
        return Ok(Report::processing());
    };
    let found = match get(&owner, Freshness::Live) {
        Err(ReadError::NotDeclared { .. }) => return Ok(Report::processing()),
        found => found?,
    };
    let is_there = found.is_some_and(|found| found.uid() == uid);
    if is_there && case.extras.has(ENDED) && KEEPS_ENDED.contains(&owner.kind.as_str()) {
        let message =
            format!("Pod {} had ended, so {} {} had made another already.", case.target.name(), owner.kind, owner.name);
        return Ok(Report::succeeded().with(Proposal::new().event("AlreadyReplaced", message)));
    }
    if is_there {
        let awaited = format!("{} {} has made no new pod; it may have been scaled down", owner.kind, owner.name);
        return Ok(told(case, &awaited, Proposal::new()));
    }
    // The owner may have made a pod as its last deed, and the host may not have seen it yet.
    if candidate(case, Freshness::Live)?.is_some() {
        return Ok(Report::processing());
    }
    let message = format!(
        "Pod {} is gone, and so is {} {}, which would have created the new pod; nothing is left to wait for.",
        case.target.name(),
        owner.kind,
        owner.name
    );
    Ok(Report::failed("OwnerGone", message))
}

/// The controller that the host remembers, as `kind/name/uid`, where it is of a kind that the manifest declares.
fn controller(job: &Job, owner: &str) -> Option<(ObjectRef, String)> {
    let mut parts = owner.splitn(3, '/');
    let (kind, name, uid) = (parts.next()?, parts.next()?, parts.next()?);
    KINDS.contains(&kind).then(|| (ObjectRef::new("apps/v1", kind, Some(job.namespace()), name), uid.to_owned()))
}

/// How much of `span` milliseconds since `start` is left; `None` once they are over.
#[must_use]
pub fn remaining(job: &Job, start: u64, span: u64) -> Option<Duration> {
    let end = start.saturating_add(span);
    end.checked_sub(job.now_ms()).filter(|rest| *rest > 0).map(Duration::from_millis)
}

/// There is nothing to take back; says what can't be, in an event of this reason.
#[must_use]
pub fn release(case: &Case<'_>, reason: &str) -> Proposal {
    if !case.extras.has(MODE) {
        return Proposal::new();
    }
    let name = case.target.name();
    let message = match &case.pod {
        None => format!("Pod {name} is gone; the pod that its controller creates in its place stays."),
        Some(pod) if pod.is_terminating() => format!("Pod {name} is being deleted, which can't be undone."),
        Some(_) => format!("Pod {name} was not evicted; nothing had to be undone."),
    };
    Proposal::new().event(reason, message)
}
