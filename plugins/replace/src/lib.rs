//! Replace: takes a pod and yields its replacement by another one.
//!
//! There are two ways, fixed for a target at its first `operate`. Where the pod has a CollaSet, or carries the labels
//! of one, it is marked and the CollaSet makes the new pod before it removes the old one ([`collaset`]). Any other pod
//! is evicted, and its controller makes a new one ([`evict`]). May not count a pod as replaced before the new one was
//! seen to serve.

mod collaset;
mod evict;

use oarlock_sdk::{
    Action, Extras, Freshness, Job, Object, Proposal, ReadError, Registration, Relation, Report, Result, Target, export,
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
        let case = Case::of(job, target);
        match case.mode()? {
            Mode::CollaSet => collaset::operate(&case),
            Mode::Evict => evict::operate(&case),
        }
    }

    fn progress(job: &Job, target: &Target) -> Result<Report> {
        let case = Case::of(job, target);
        match case.mode()? {
            Mode::CollaSet => collaset::progress(&case),
            Mode::Evict => evict::progress(&case),
        }
    }

    fn release(job: &Job, target: &Target) -> Result<Proposal> {
        let case = Case::of(job, target);
        Ok(match case.mode()? {
            Mode::CollaSet => collaset::release(&case),
            Mode::Evict => evict::release(&case),
        })
    }
}

export!(Replace, manifest = include_str!("../manifest.json"));

/// What one call is about.
struct Case<'a> {
    job: &'a Job,
    target: &'a Target,
    extras: Extras,
    /// The pod to replace; `None` where it is gone.
    pod: Option<Object>,
}

/// The way in which a target is replaced.
enum Mode {
    CollaSet,
    Evict,
}

impl<'a> Case<'a> {
    fn of(job: &'a Job, target: &'a Target) -> Self {
        Self { job, target, extras: target.extras(), pod: target.object() }
    }

    /// The way of this target. Each call works it out again, for what `operate` stores is not yet there for the
    /// `progress` of the same visit.
    fn mode(&self) -> Result<Mode> {
        if self.extras.get(MODE) == Some("Evict") {
            return Ok(Mode::Evict);
        }
        let strategy: Option<String> = self.job.parameter("/strategy")?;
        Ok(match strategy.as_deref() {
            Some("CollaSet") => Mode::CollaSet,
            Some("Evict") => Mode::Evict,
            _ if self.has_collaset()? => Mode::CollaSet,
            _ => Mode::Evict,
        })
    }

    /// Whether strategy `Auto` means the CollaSet's way. Eviction stores its mode before it does anything, so whatever
    /// else is found stored or held shows that the other way was taken.
    fn has_collaset(&self) -> Result<bool> {
        if self.extras.has(NEW_POD) || self.extras.has(collaset::NOT_ALLOWED) {
            return Ok(true);
        }
        let Some(pod) = &self.pod else {
            // Nothing was done to it. What is left to tell by is the controller that the host remembers.
            return Ok(self.extras.get(OWNER).is_none_or(|owner| owner.starts_with("CollaSet/")));
        };
        if collaset::is_marked(pod) || collaset::is_held(self.job, pod) {
            return Ok(true);
        }
        Ok(pod.controller()?.is_some_and(|owner| owner.group() == collaset::GROUP))
    }

    /// The pod recorded as `NewPod`. That it is not there is believed only where the API server says so.
    fn new_pod(&self) -> Result<Option<Object>, ReadError> {
        let watched = self.target.related(RECORDED, Freshness::Watched)?.pop();
        if watched.is_some() {
            return Ok(watched);
        }
        Ok(self.target.related(RECORDED, Freshness::Live)?.pop())
    }
}
