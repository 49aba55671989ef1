//! Replace: takes a pod and yields its replacement by another one.
//!
//! There are two ways, fixed for a target at its first `operate`. Where the pod has a CollaSet, or carries the labels
//! of one, it is marked and the CollaSet makes the new pod before it removes the old one ([`collaset`]). Any other pod
//! is evicted, and its controller makes a new one ([`eviction`]). May not count a pod as replaced before the new one was
//! seen to serve.

mod collaset;

use eviction::{Case, EVICT, MODE, NEW_POD, OWNER};
use oarlock_sdk::{Action, Job, Proposal, Registration, Relation, Report, Result, Target, export};

/// Relation: pods that say they replace the target, or what took its place.
const PARTNERS: &str = "partners";
/// Event: what is let go, and what cannot be taken back.
const RELEASED: &str = "ReplaceReleased";

/// The action.
#[derive(Debug)]
pub struct Replace;

impl Action for Replace {
    fn setup() -> Result<Registration> {
        let partners = Relation::pods(PARTNERS).by_label(collaset::ORIGIN_NAME);
        Ok(eviction::relations(Registration::new().relation(partners)))
    }

    fn operate(job: &Job, target: &Target) -> Result<Proposal> {
        let case = Case::of(job, target);
        match mode(&case)? {
            Mode::CollaSet => collaset::operate(&case),
            Mode::Evict => eviction::operate(&case),
        }
    }

    fn progress(job: &Job, target: &Target) -> Result<Report> {
        let case = Case::of(job, target);
        match mode(&case)? {
            Mode::CollaSet => collaset::progress(&case),
            Mode::Evict => eviction::progress(&case),
        }
    }

    fn release(job: &Job, target: &Target) -> Result<Proposal> {
        let case = Case::of(job, target);
        Ok(match mode(&case)? {
            Mode::CollaSet => collaset::release(&case),
            Mode::Evict => eviction::release(&case, RELEASED),
        })
    }
}

export!(Replace, manifest = include_str!("../manifest.json"));

/// The way in which a target is replaced.
enum Mode {
    CollaSet,
    Evict,
}

/// The way of this target. Each call works it out again, for what `operate` stores is not yet there for the
/// `progress` of the same visit.
fn mode(case: &Case<'_>) -> Result<Mode> {
    if case.extras.get(MODE) == Some(EVICT) {
        return Ok(Mode::Evict);
    }
    let strategy: Option<String> = case.job.parameter("/strategy")?;
    Ok(match strategy.as_deref() {
        Some("CollaSet") => Mode::CollaSet,
        Some("Evict") => Mode::Evict,
        _ if has_collaset(case)? => Mode::CollaSet,
        _ => Mode::Evict,
    })
}

/// Whether strategy `Auto` means the CollaSet's way. Eviction stores its mode before it does anything, so whatever
/// else is found stored or held shows that the other way was taken.
fn has_collaset(case: &Case<'_>) -> Result<bool> {
    if case.extras.has(NEW_POD) || case.extras.has(collaset::NOT_ALLOWED) {
        return Ok(true);
    }
    let Some(pod) = &case.pod else {
        // Nothing was done to it. What is left to tell by is the controller that the host remembers.
        return Ok(case.extras.get(OWNER).is_none_or(|owner| owner.starts_with("CollaSet/")));
    };
    if collaset::is_marked(pod) || collaset::is_held(case.job, pod) {
        return Ok(true);
    }
    Ok(pod.controller()?.is_some_and(|owner| owner.group() == collaset::GROUP))
}
