//! Replaces a pod by eviction, for the plugins Replace and Restart. Evicts a pod with a controller, and waits for the pod that
//! the controller creates in its place.
//!
//! It must not evict a pod that no controller would replace. It must not take a new pod that another target has claimed. A plugin
//! that uses this crate adds [`relations`] to its registration. Its manifest asks to evict pods, and to read their
//! `/status/conditions` and the [`KINDS`] of `apps/v1`. Source: docs/operationjob.md 6.2.

use core::time::Duration;

use oarlock_sdk::{
    Extras, Failure, Freshness, Job, Object, ObjectRef, Owner, Proposal, ReadError, Registration, Relation, Report,
    Result, Target, WAITS_FOR, get, parse_instant,
};

/// The extra with the name of the pod that replaces the target. It is exclusive: no two targets may have the same value.
pub const NEW_POD: &str = "NewPod";
/// The extra with the mode of a target, for plugins with several modes.
pub const MODE: &str = "Mode";
/// The value of [`MODE`] for a target that is evicted.
pub const EVICT: &str = "Evict";
/// The extra of the host with the controller that the target had, as `kind/name/uid`.
pub const OWNER: &str = "Owner";

/// The extra that says that the pod had ended by itself before its eviction.
const ENDED: &str = "Ended";
/// The reasons of the condition `Ready` that say that a pod has ended.
const HAS_ENDED: [&str; 2] = ["PodFailed", "PodCompleted"];
/// The kinds that keep ended pods, and have already replaced them.
const KEEPS_ENDED: [&str; 2] = ["Deployment", "ReplicaSet"];

/// The extra of the host with the time when the target was evicted or deleted.
const EVICTED_AT: &str = "EvictedAt";
/// The annotation of a pod that a kubelet made from a file on its node.
const MIRROR: &str = "kubernetes.io/config.mirror";
/// The relation to the pod that is recorded as `NewPod`.
const RECORDED: &str = "new-pod";
/// The relation to the pods that the target's controller has created since.
const SUCCESSORS: &str = "successors";
/// The kinds of `apps` that create a new pod for each deleted one. The manifest has to declare reads of them.
pub const KINDS: [&str; 4] = ["Deployment", "ReplicaSet", "StatefulSet", "DaemonSet"];
/// How long the plugin waits for the controller before it suspects that the controller is gone, and before it tells people what
/// the target waits for, in milliseconds. A ReplicaSet creates the new pod at once, so this nearly always avoids a live read.
pub const PATIENCE: u64 = 10_000;
/// The word for a target that waits for its new pod.
const AWAITED: &str = "NewPod";

/// The input of one call.
#[derive(Debug)]
pub struct Case<'a> {
    /// The job.
    pub job: &'a Job,
    /// The target.
    pub target: &'a Target,
    /// The extras of the target.
    pub extras: Extras,
    /// The pod of the target, or `None` if it is gone.
    pub pod: Option<Object>,
}

impl<'a> Case<'a> {
    /// Reads the facts that every call needs.
    #[must_use]
    pub fn of(job: &'a Job, target: &'a Target) -> Self {
        Self { job, target, extras: target.extras(), pod: target.object() }
    }

    /// Returns the pod that is recorded as `NewPod`. Only a live read can show that the pod is gone.
    ///
    /// # Errors
    ///
    /// If the host needs a live read first.
    pub fn new_pod(&self) -> Result<Option<Object>, ReadError> {
        let watched = self.target.related(RECORDED, Freshness::Watched)?.pop();
        if watched.is_some() {
            return Ok(watched);
        }
        Ok(self.target.related(RECORDED, Freshness::Live)?.pop())
    }
}

/// Returns the registration with the relations that an eviction needs.
#[must_use]
pub fn relations(registration: Registration) -> Registration {
    registration
        .relation(Relation::pods(RECORDED).by_extra(NEW_POD))
        .relation(Relation::pods(SUCCESSORS).same_controller())
        .exclusive(NEW_POD)
}

/// Evicts the pod. If the pod is already terminating, the target adopts that.
///
/// The event belongs to the eviction: the host records the events of a proposal after its mutations are accepted.
///
/// # Errors
///
/// With `NoController` or `NotReplaceable` if no controller would replace the pod.
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

/// A pod of a Job, for example, may have done part of its work. Its controller need not create it again.
fn not_replaceable(name: &str, owner: &Owner) -> Failure {
    let message = format!(
        "Pod {name} belongs to {} {}; eviction replaces pods of a {} alone, so it was left alone.",
        owner.kind,
        owner.name,
        KINDS.join(", ")
    );
    Failure::permanent("NotReplaceable", message)
}

/// Waits until the pod is gone, takes a new pod, and waits until the new pod is Ready.
///
/// # Errors
///
/// If something cannot be read, or the host needs a live read first.
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

/// Returns the oldest free pod of the same controller. The host leaves out pods that other targets have claimed.
fn candidate(case: &Case<'_>, freshness: Freshness) -> Result<Option<Object>, ReadError> {
    let mut pods = case.target.related(SUCCESSORS, freshness)?.into_iter();
    Ok(pods.find(|pod| !pod.is_terminating() && !pod.holds(case.job).is_barred()))
}

/// Reports success if the new pod has been Ready for long enough.
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
    // Without a time, the duration is unknown. The API server sets a time at the next change of the status.
    let Some(since) = ready.since_ms() else { return Ok(Report::processing().with(proposal)) };
    Ok(match remaining(case.job, since, seconds.saturating_mul(1000)) {
        None => Report::succeeded().with(proposal),
        Some(wait) => Report::processing().with(proposal).check_after(wait),
    })
}

/// Returns the reason why a new pod is not Ready, from its conditions.
fn unready(pod: &Object) -> Result<String> {
    let name = pod.name();
    if let Some(unplaced) = pod.condition("PodScheduled")?.filter(|placed| placed.status == "False") {
        return Ok(format!("pod {name} has no node: {}: {}", unplaced.reason, unplaced.message));
    }
    let why = pod.condition("Ready")?.map(|ready| if ready.message.is_empty() { ready.reason } else { ready.message });
    let why = why.filter(|why| !why.is_empty()).map(|why| format!(": {why}")).unwrap_or_default();
    Ok(format!("pod {name} is not Ready{why}"))
}

/// Goes on waiting. After some time, it tells people what the target waits for.
fn told(case: &Case<'_>, awaited: &str, proposal: Proposal) -> Report {
    let asked = case.extras.get(EVICTED_AT).and_then(parse_instant).unwrap_or_else(|| case.target.started_ms());
    if let Some(rest) = remaining(case.job, asked, PATIENCE) {
        return Report::processing().with(proposal).check_after(rest);
    }
    Report::processing().with(proposal.waits_for(AWAITED, awaited))
}

/// Waits for a new pod. Fails if the controller is gone, because then no new pod will come.
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
    // The owner may have created a pod before it was deleted, and the watch may not show that pod yet.
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

/// Returns the controller from the host's extra `kind/name/uid`, if the manifest declares its kind.
fn controller(job: &Job, owner: &str) -> Option<(ObjectRef, String)> {
    let mut parts = owner.splitn(3, '/');
    let (kind, name, uid) = (parts.next()?, parts.next()?, parts.next()?);
    KINDS.contains(&kind).then(|| (ObjectRef::new("apps/v1", kind, Some(job.namespace()), name), uid.to_owned()))
}

/// Returns the rest of `span` milliseconds since `start`, or `None` if they are over.
#[must_use]
pub fn remaining(job: &Job, start: u64, span: u64) -> Option<Duration> {
    let end = start.saturating_add(span);
    end.checked_sub(job.now_ms()).filter(|rest| *rest > 0).map(Duration::from_millis)
}

/// Returns an event that says what cannot be undone. An eviction has nothing to undo.
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
