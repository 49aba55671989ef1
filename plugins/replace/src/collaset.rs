//! The way of a CollaSet: takes a pod and yields the marks that make its CollaSet create a new pod and then delete the
//! old one.
//!
//! A finalizer keeps the old pod until the name of the new one is durable, for the CollaSet takes the labels that tell
//! it off as soon as the old pod is gone. May not remove that finalizer before. Source: spec/operationjob.md §6.1.

use oarlock_sdk::{Change, Failure, Freshness, Job, Mark, Object, Proposal, ReadError, Report, Result, Target};

use crate::{NEW_POD, PARTNERS, recorded};

/// API group of the CollaSet and its kin.
pub(crate) const GROUP: &str = "apps.kusionstack.io";
/// Label on a new pod: the name of the pod it replaces.
pub(crate) const ORIGIN_NAME: &str = "collaset.kusionstack.io/replace-pair-origin-name";
/// Extra: the pod whose replacement the target itself is.
pub(crate) const NOT_ALLOWED: &str = "NotAllowedToReplaceNewPod";

/// Label: asks for a new pod.
const TO_REPLACE: &str = "collaset.kusionstack.io/to-replace";
/// Label: an update of the CollaSet replaces the pod.
const BY_UPDATE: &str = "collaset.kusionstack.io/replaced-by-replace-update";
/// Label: the instance ID of the pod's replacement.
const NEW_ID: &str = "collaset.kusionstack.io/replace-pair-new-id";
/// Label: the pod's instance ID, unique in its CollaSet.
const INSTANCE_ID: &str = "collaset.kusionstack.io/instance-id";
/// Label: the CollaSet is about to delete the pod.
const TO_DELETE: &str = "collaset.kusionstack.io/to-delete";
/// Label: the pod's lifecycle is managed, by a CollaSet or its kin.
const CONTROL: &str = "kusionstack.io/control";
/// Label: the pod serves.
const AVAILABLE: &str = "podopslifecycle.kusionstack.io/service-available";
/// Finalizer: keeps the old pod until the new one is recorded.
const PROTECTED: &str = "finalizer.operationjob.kusionstack.io/replace-protected";

/// Whether the labels of a pod say that a CollaSet looks after it.
pub(crate) fn is_marked(pod: &Object) -> bool {
    pod.label(CONTROL).is_some_and(|value| value == "true") || pod.has_label(ORIGIN_NAME) || is_being_replaced(pod)
}

/// Whether this job holds a mark on the pod, whatever became of the mark.
pub(crate) fn is_held(job: &Job, pod: &Object) -> bool {
    let holds = pod.holds(job);
    holds.has(Mark::Label(TO_REPLACE)) || holds.has(Mark::Finalizer(PROTECTED))
}

/// Marks the pod, or joins the replacement that is under way.
pub(crate) fn operate(job: &Job, target: &Target, pod: Option<&Object>) -> Result<Proposal> {
    let Some(pod) = pod else { return Ok(Proposal::new()) };
    let noted = target.extra(NOT_ALLOWED);
    if let Some(origin) = pod.label(ORIGIN_NAME) {
        let known = noted.is_some_and(|noted| noted == origin);
        return Ok(if known { Proposal::new() } else { Proposal::new().extra(NOT_ALLOWED, origin) });
    }
    let proposal = match noted {
        Some(_) => Proposal::new().remove_extra(NOT_ALLOWED),
        None => Proposal::new(),
    };
    if pod.is_terminating() {
        return Ok(proposal);
    }
    let change = marks(job, pod)?;
    Ok(match (change.is_empty(), is_being_replaced(pod)) {
        (true, _) => proposal,
        (false, true) => proposal.change(change),
        (false, false) => {
            let name = pod.name();
            let message = format!("Pod {name} is marked to be replaced; its CollaSet now creates the new pod.");
            proposal.change(change).event("ReplaceOriginPod", message)
        }
    })
}

/// The marks that this job does not hold yet and can hold.
fn marks(job: &Job, pod: &Object) -> Result<Change, ReadError> {
    let holds = pod.holds(job);
    let mut change = Change::of(pod);
    match pod.label(TO_REPLACE) {
        // Somebody took off what this job had put on, or nobody has asked for a replacement yet.
        None if holds.has(Mark::Label(TO_REPLACE)) || !is_being_replaced(pod) => {
            change = change.set_label(TO_REPLACE, "true");
        }
        // Another job has asked. Its value stays; the replacement goes on when that job lets go.
        Some(value) if holds.lacks(Mark::Label(TO_REPLACE))? => change = change.set_label(TO_REPLACE, value),
        _ => {}
    }
    if holds.lacks(Mark::Finalizer(PROTECTED))? {
        change = change.add_finalizer(PROTECTED);
    }
    Ok(change)
}

/// Finds the new pod, records it, lets the old one go, and sees that the new one serves.
pub(crate) fn progress(job: &Job, target: &Target, pod: Option<&Object>) -> Result<Report> {
    let stored = target.extra(NEW_POD);
    match (pod, stored) {
        (Some(origin), stored) => Ok(Report::processing().with(accompany(job, target, origin, stored)?)),
        (None, Some(name)) => judge(target, &name),
        (None, None) => identify(target),
    }
}

/// While the old pod is there: records its partner, and lets the old pod go once that is durable.
fn accompany(job: &Job, target: &Target, origin: &Object, stored: Option<String>) -> Result<Proposal> {
    let partner = match origin.label(NEW_ID) {
        Some(id) => partner(target, &origin.name(), &id, Freshness::Watched)?,
        None => None,
    };
    if let Some(found) = partner.as_ref().map(Object::name).filter(|name| stored.as_ref() != Some(name)) {
        return Ok(record(target, found));
    }
    // Whoever is first to need the finalizer gone also has to find the new pod alive: a later one may take its place.
    let guards = origin.is_terminating() && stored.is_some() && origin.holds(job).has(Mark::Finalizer(PROTECTED));
    if guards && (partner.is_some() || recorded(target)?.is_some_and(|pod| is_staying(&pod))) {
        return Ok(Proposal::new().change(Change::of(origin).remove_finalizer(PROTECTED)));
    }
    Ok(Proposal::new())
}

/// The old pod is gone and no new one is recorded: a pod that names it as its origin is the one.
fn identify(target: &Target) -> Result<Report> {
    let name = target.name();
    match successor(target, &name)? {
        Some(pod) => Ok(outcome(&pod, record(target, pod.name()))),
        None => {
            let message = format!(
                "Pod {name} is gone and no pod names it as its origin, so nothing shows that it was replaced; look at its CollaSet."
            );
            Ok(Report::failed("PodNotFound", message))
        }
    }
}

/// The old pod is gone and the new one is recorded: it serves, or somebody replaces it in turn.
fn judge(target: &Target, name: &str) -> Result<Report> {
    let Some(pod) = recorded(target)? else {
        return match successor(target, name)? {
            Some(next) => Ok(outcome(&next, record(target, next.name()))),
            None => {
                let message = format!("New pod {name} is gone; waiting for a pod that names it as its origin.");
                Err(Failure::retryable("GetObjectFailed", message))
            }
        };
    };
    if !is_available(&pod)
        && let Some(id) = pod.label(NEW_ID)
        && let Some(next) = partner(target, name, &id, Freshness::Watched)?
    {
        return Ok(outcome(&next, record(target, next.name())));
    }
    Ok(outcome(&pod, Proposal::new()))
}

/// Lets go of the marks, on a terminating pod too.
pub(crate) fn release(job: &Job, pod: Option<&Object>) -> Proposal {
    let Some(pod) = pod else { return Proposal::new() };
    let holds = pod.holds(job);
    let mut change = Change::of(pod);
    if holds.has(Mark::Label(TO_REPLACE)) {
        change = change.remove_label(TO_REPLACE);
    }
    if holds.has(Mark::Finalizer(PROTECTED)) {
        change = change.remove_finalizer(PROTECTED);
    }
    let proposal = if change.is_empty() { Proposal::new() } else { Proposal::new().change(change) };
    if !pod.has_label(TO_DELETE) {
        return proposal;
    }
    let message =
        format!("Pod {} is let go, but its CollaSet has marked it for deletion: it may still be replaced.", pod.name());
    proposal.warning("ReplaceReleased", message)
}

/// The pod that replaces `origin`: its instance ID is the one that `origin` was given as its pair.
fn partner(target: &Target, origin: &str, id: &str, freshness: Freshness) -> Result<Option<Object>, ReadError> {
    let mut pods = target.related(PARTNERS, freshness)?.into_iter();
    Ok(pods.find(|pod| names(pod, origin) && pod.label(INSTANCE_ID).is_some_and(|own| own == id) && is_staying(pod)))
}

/// A pod that names `origin`, which is gone and can't tell any more which of them is its pair: one that stays, if any.
fn successor(target: &Target, origin: &str) -> Result<Option<Object>, ReadError> {
    let pods = target.related(PARTNERS, Freshness::Live)?.into_iter();
    let (staying, leaving): (Vec<_>, Vec<_>) = pods.filter(|pod| names(pod, origin)).partition(is_staying);
    Ok(staying.into_iter().chain(leaving).next())
}

fn record(target: &Target, name: String) -> Proposal {
    let message = format!("Pod {name} takes the place of pod {}.", target.name());
    Proposal::new().extra(NEW_POD, name).event("ReplaceNewPod", message)
}

/// Ended well if the new pod serves.
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
