//! Replace: takes a pod and yields its replacement by another one.
//!
//! There are two ways, fixed for a target at its first `operate`. Where the pod has a CollaSet, or carries the labels
//! of one, it is marked and the CollaSet makes the new pod before it removes the old one ([`collaset`]). Any other pod
//! is evicted, and its controller makes a new one ([`evict`]). May not count a pod as replaced before the new one was
//! seen to serve.

mod collaset;
mod evict;

use oarlock_sdk::{
    Action, Freshness, Job, Object, Proposal, ReadError, Registration, Relation, Report, Result, Target, export,
};

/// Extra: the name of the pod that takes the place of the target. No two targets may have the same.
const NEW_POD: &str = "NewPod";
/// Extra: the way, where it is not the CollaSet's.
const MODE: &str = "Mode";
/// Extra of the host: the controller that the target had, as `kind/name/uid`.
const OWNER: &str = "Owner";

/// Relation: pods that say they replace the target, or what took its place.
const PARTNERS: &str = "partners";
/// Relation: the pod that is recorded as `NewPod`.
const RECORDED: &str = "new-pod";
/// Relation: pods that the target's controller has made since.
const SUCCESSORS: &str = "successors";

/// The action.
#[derive(Debug)]
pub struct Replace;

impl Action for Replace {
    fn setup() -> Result<Registration> {
        Ok(Registration::new()
            .relation(Relation::pods(PARTNERS).by_label(collaset::ORIGIN_NAME))
            .relation(Relation::pods(RECORDED).by_extra(NEW_POD))
            .relation(Relation::pods(SUCCESSORS).same_controller())
            .exclusive(NEW_POD))
    }

    fn operate(job: &Job, target: &Target) -> Result<Proposal> {
        let pod = target.object();
        match Mode::of(job, target, pod.as_ref())? {
            Mode::CollaSet => collaset::operate(job, target, pod.as_ref()),
            Mode::Evict => evict::operate(job, target, pod.as_ref()),
        }
    }

    fn progress(job: &Job, target: &Target) -> Result<Report> {
        let pod = target.object();
        match Mode::of(job, target, pod.as_ref())? {
            Mode::CollaSet => collaset::progress(job, target, pod.as_ref()),
            Mode::Evict => evict::progress(job, target, pod.as_ref()),
        }
    }

    fn release(job: &Job, target: &Target) -> Result<Proposal> {
        let pod = target.object();
        match Mode::of(job, target, pod.as_ref())? {
            Mode::CollaSet => Ok(collaset::release(job, pod.as_ref())),
            Mode::Evict => Ok(evict::release(target, pod.as_ref())),
        }
    }
}

export!(Replace, manifest = include_str!("../manifest.json"));

/// The way in which a target is replaced.
enum Mode {
    CollaSet,
    Evict,
}

impl Mode {
    /// The way of this target. Each call works it out again, for what `operate` stores is not yet there for the
    /// `progress` of the same visit.
    fn of(job: &Job, target: &Target, pod: Option<&Object>) -> Result<Self> {
        if target.extra(MODE).is_some_and(|mode| mode == "Evict") {
            return Ok(Self::Evict);
        }
        let strategy: Option<String> = job.parameter("/strategy")?;
        Ok(match strategy.as_deref() {
            Some("CollaSet") => Self::CollaSet,
            Some("Evict") => Self::Evict,
            _ if Self::is_collaset(job, target, pod)? => Self::CollaSet,
            _ => Self::Evict,
        })
    }

    /// Whether strategy `Auto` means the CollaSet's way. Eviction stores its mode before it does anything, so whatever
    /// else is found stored or held shows that the other way was taken.
    fn is_collaset(job: &Job, target: &Target, pod: Option<&Object>) -> Result<bool> {
        if target.extra(NEW_POD).is_some() || target.extra(collaset::NOT_ALLOWED).is_some() {
            return Ok(true);
        }
        let Some(pod) = pod else {
            // Nothing was done to it. What is left to tell by is the controller that the host remembers.
            return Ok(target.extra(OWNER).is_none_or(|owner| owner.starts_with("CollaSet/")));
        };
        if collaset::is_marked(pod) || collaset::is_held(job, pod) {
            return Ok(true);
        }
        Ok(pod.controller()?.is_some_and(|owner| owner.group() == collaset::GROUP))
    }
}

/// The pod recorded as `NewPod`. That it is not there is believed only where the API server says so.
fn recorded(target: &Target) -> Result<Option<Object>, ReadError> {
    let watched = target.related(RECORDED, Freshness::Watched)?.pop();
    if watched.is_some() {
        return Ok(watched);
    }
    Ok(target.related(RECORDED, Freshness::Live)?.pop())
}
