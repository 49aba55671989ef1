//! Replaces a pod of a CollaSet. The marks on the pod make its CollaSet create a new pod, and then delete the old one.
//!
//! A finalizer keeps the old pod until the name of the new pod is stored durably. The reason is that the CollaSet removes the
//! labels of the new pod once the old pod is gone. The plugin must not remove the finalizer before. Source: docs/operationjob.md
//! 6.1.

use eviction::{Case, NEW_POD};
use oarlock_sdk::{Change, Failure, Freshness, Job, Mark, Object, Proposal, ReadError, Report, Result, Target};

use crate::{PARTNERS, RELEASED};

/// The API group of CollaSet and related kinds.
pub(crate) const GROUP: &str = "apps.kusionstack.io";
/// The label on a new pod with the name of the pod that it replaces.
pub(crate) const ORIGIN_NAME: &str = "collaset.kusionstack.io/replace-pair-origin-name";
/// The extra with the name of the pod that the target itself replaces.
pub(crate) const NOT_ALLOWED: &str = "NotAllowedToReplaceNewPod";

/// The label that asks for a new pod.
const TO_REPLACE: &str = "collaset.kusionstack.io/to-replace";
/// The label that says that an update of the CollaSet replaces the pod.
const BY_UPDATE: &str = "collaset.kusionstack.io/replaced-by-replace-update";
/// The label with the instance ID of the pod's replacement.
const NEW_ID: &str = "collaset.kusionstack.io/replace-pair-new-id";
/// The label with the pod's instance ID, which is unique in its CollaSet.
const INSTANCE_ID: &str = "collaset.kusionstack.io/instance-id";
/// The label that says that the CollaSet is about to delete the pod.
const TO_DELETE: &str = "collaset.kusionstack.io/to-delete";
/// The label that says that a CollaSet or a related kind manages the pod's lifecycle.
const CONTROL: &str = "kusionstack.io/control";
/// The label that says that the pod is available.
const AVAILABLE: &str = "podopslifecycle.kusionstack.io/service-available";
/// The finalizer that keeps the old pod until the new one is recorded.
const PROTECTED: &str = "finalizer.operationjob.kusionstack.io/replace-protected";

/// Returns true if the labels of a pod say that a CollaSet manages it.
pub(crate) fn is_marked(pod: &Object) -> bool {
    pod.label(CONTROL).is_some_and(|value| value == "true") || pod.has_label(ORIGIN_NAME) || is_being_replaced(pod)
}

/// Returns true if this job holds a mark on the pod, even if somebody has removed the mark.
pub(crate) fn is_held(job: &Job, pod: &Object) -> bool {
    let holds = pod.holds(job);
    holds.has(Mark::Label(TO_REPLACE)) || holds.has(Mark::Finalizer(PROTECTED))
}

/// Marks the pod, or joins a replacement in progress.
pub(crate) fn operate(case: &Case<'_>) -> Result<Proposal> {
    let Some(pod) = &case.pod else { return Ok(Proposal::new()) };
    let noted = case.extras.get(NOT_ALLOWED);
    if let Some(origin) = pod.label(ORIGIN_NAME) {
        let known = noted == Some(origin.as_str());
        return Ok(if known { Proposal::new() } else { Proposal::new().extra(NOT_ALLOWED, origin) });
    }
    let proposal = match noted {
        Some(_) => Proposal::new().remove_extra(NOT_ALLOWED),
        None => Proposal::new(),
    };
    if pod.is_terminating() {
        return Ok(proposal);
    }
    let adopted = is_being_replaced(pod);
    Ok(match marks(case.job, pod, adopted)? {
        None => proposal,
        Some(change) if adopted => proposal.change(change),
        Some(change) => {
            let name = pod.name();
            let message = format!("Pod {name} is marked to be replaced; its CollaSet now creates the new pod.");
            proposal.change(change).event("ReplaceOriginPod", message)
        }
    })
}

/// Returns the change for the marks that this job can hold and does not hold yet.
fn marks(job: &Job, pod: &Object, adopted: bool) -> Result<Option<Change>, ReadError> {
    let holds = pod.holds(job);
    let label = match pod.label(TO_REPLACE) {
        // Somebody removed the label of this job, or nobody has asked for a replacement yet.
        None if !adopted || holds.has(Mark::Label(TO_REPLACE)) => Some("true".to_owned()),
        // Another job has asked for a replacement. Its value stays, and the replacement goes on when that job releases the label.
        Some(value) if holds.lacks(Mark::Label(TO_REPLACE))? => Some(value),
        _ => None,
    };
    let finalizer = holds.lacks(Mark::Finalizer(PROTECTED))?;
    if label.is_none() && !finalizer {
        return Ok(None);
    }
    let mut change = Change::of(pod);
    if let Some(value) = label {
        change = change.set_label(TO_REPLACE, value);
    }
    Ok(Some(if finalizer { change.add_finalizer(PROTECTED) } else { change }))
}

/// Finds the new pod, records it, releases the old pod, and waits until the new pod is available.
pub(crate) fn progress(case: &Case<'_>) -> Result<Report> {
    match (&case.pod, case.extras.get(NEW_POD)) {
        (Some(origin), stored) => Ok(Report::processing().with(accompany(case, origin, stored)?)),
        (None, Some(name)) => judge(case, name),
        (None, None) => identify(case.target),
    }
}

/// Records the partner of an existing old pod. Releases the old pod once the record is durable.
fn accompany(case: &Case<'_>, origin: &Object, stored: Option<&str>) -> Result<Proposal> {
    let partner = match origin.label(NEW_ID) {
        Some(id) => partner(case.target, &origin.name(), &id)?,
        None => None,
    };
    if let Some(found) = partner.as_ref().map(Object::name).filter(|name| stored != Some(name)) {
        return Ok(record(case.target, found));
    }
    let guards = origin.is_terminating() && stored.is_some() && origin.holds(case.job).has(Mark::Finalizer(PROTECTED));
    // The CollaSet may have removed the labels of the recorded pod. That pod counts as long as it stays. If it is deleted, a
    // later pod may take its place. The plugin can recognise the later pod only while the old pod exists.
    if guards && (partner.is_some() || case.new_pod()?.is_some_and(|pod| is_staying(&pod))) {
        return Ok(Proposal::new().change(Change::of(origin).remove_finalizer(PROTECTED)));
    }
    Ok(Proposal::new())
}

/// Handles an old pod that is gone without a recorded new pod: a pod that names it as its origin is the new pod.
fn identify(target: &Target) -> Result<Report> {
    let name = target.name();
    if let Some(pod) = successor(target, &name)? {
        return Ok(outcome(&pod, record(target, pod.name())));
    }
    let message = format!(
        "Pod {name} is gone and no pod names it as its origin, so nothing shows that it was replaced; look at its CollaSet."
    );
    Ok(Report::failed("PodNotFound", message))
}

/// Handles an old pod that is gone with a recorded new pod: the new pod is available, or is itself being replaced.
fn judge(case: &Case<'_>, name: &str) -> Result<Report> {
    let new_pod = case.new_pod()?;
    let next = match &new_pod {
        Some(pod) if is_available(pod) => None,
        Some(pod) => pod.label(NEW_ID).map(|id| partner(case.target, name, &id)).transpose()?.flatten(),
        None => successor(case.target, name)?,
    };
    match (next, new_pod) {
        (Some(next), _) => Ok(outcome(&next, record(case.target, next.name()))),
        (None, Some(pod)) => Ok(outcome(&pod, Proposal::new())),
        (None, None) => {
            let message = format!("New pod {name} is gone; waiting for a pod that names it as its origin.");
            Err(Failure::retryable("GetObjectFailed", message))
        }
    }
}

/// Releases the marks, also on a terminating pod.
pub(crate) fn release(case: &Case<'_>) -> Proposal {
    let Some(pod) = &case.pod else { return Proposal::new() };
    let holds = pod.holds(case.job);
    let (label, finalizer) = (holds.has(Mark::Label(TO_REPLACE)), holds.has(Mark::Finalizer(PROTECTED)));
    let mut proposal = Proposal::new();
    if label || finalizer {
        let change = if label { Change::of(pod).remove_label(TO_REPLACE) } else { Change::of(pod) };
        proposal = proposal.change(if finalizer { change.remove_finalizer(PROTECTED) } else { change });
    }
    let name = pod.name();
    if pod.has_label(TO_DELETE) {
        let message =
            format!("Pod {name} is let go, but its CollaSet has marked it for deletion: it may still be replaced.");
        return proposal.warning(RELEASED, message);
    }
    // A CollaSet removes a new pod only if it is not available yet. Nothing ends if another job holds the mark too.
    let ends = label && holds.is_shared(Mark::Label(TO_REPLACE)).is_ok_and(|shared| !shared);
    match pod.label(NEW_ID).and_then(|id| partner(case.target, &name, &id).ok().flatten()) {
        Some(new) if ends && is_available(&new) => {
            let message = format!(
                "Pod {name} is let go, but its new pod {new} serves already: their CollaSet keeps both; label one of \
                 them {TO_DELETE}=true.",
                new = new.name()
            );
            proposal.warning(RELEASED, message)
        }
        _ => proposal,
    }
}

/// Returns the pod that replaces `origin`: its instance ID is the pair ID of `origin`.
fn partner(target: &Target, origin: &str, id: &str) -> Result<Option<Object>, ReadError> {
    let mut pods = target.related(PARTNERS, Freshness::Watched)?.into_iter();
    Ok(pods.find(|pod| names(pod, origin) && pod.label(INSTANCE_ID).is_some_and(|own| own == id) && is_staying(pod)))
}

/// Returns a pod that names `origin` as its origin. `origin` is gone, so its pair ID is unknown. Prefers a pod that is not being
/// deleted.
fn successor(target: &Target, origin: &str) -> Result<Option<Object>, ReadError> {
    let pods = target.related(PARTNERS, Freshness::Live)?.into_iter();
    let (staying, leaving): (Vec<_>, Vec<_>) = pods.filter(|pod| names(pod, origin)).partition(is_staying);
    Ok(staying.into_iter().chain(leaving).next())
}

fn record(target: &Target, name: String) -> Proposal {
    let message = format!("Pod {name} takes the place of pod {}.", target.name());
    Proposal::new().extra(NEW_POD, name).event("ReplaceNewPod", message)
}

/// Reports success if the new pod is available.
fn outcome(pod: &Object, proposal: Proposal) -> Report {
    if !is_available(pod) {
        return Report::processing().with(proposal);
    }
    Report::succeeded().with(proposal.event("ReplaceNewPod", format!("New pod {} is available.", pod.name())))
}

fn names(pod: &Object, origin: &str) -> bool {
    pod.label(ORIGIN_NAME).is_some_and(|name| name == origin)
}

fn is_being_replaced(pod: &Object) -> bool {
    [TO_REPLACE, NEW_ID, BY_UPDATE].into_iter().any(|label| pod.has_label(label))
}

fn is_staying(pod: &Object) -> bool {
    !pod.has_label(TO_DELETE) && !pod.is_terminating()
}

fn is_available(pod: &Object) -> bool {
    pod.has_label(AVAILABLE) && !pod.is_terminating()
}
