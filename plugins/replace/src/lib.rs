//! Replace: replaces a pod by a new one.
//!
//! There are two modes. The first `operate` of a target fixes its mode. If the pod has a CollaSet, or carries labels of one, the
//! plugin marks it. Then the CollaSet creates the new pod before it removes the old one ([`collaset`]). The plugin evicts any
//! other pod, and its controller creates a new one ([`eviction`]). A pod counts as replaced only after the new pod was seen to be
//! available.

mod collaset;

use eviction::{Case, EVICT, MODE, NEW_POD, OWNER};
use oarlock_sdk::{Action, Job, Proposal, Registration, Relation, Report, Result, Target, export};

/// The relation to pods that say they replace the target or its replacement.
const PARTNERS: &str = "partners";
/// The event reason for released marks, and for changes that cannot be undone.
const RELEASED: &str = "ReplaceReleased";

/// The action of this plugin.
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

/// The mode of a replacement.
enum Mode {
    CollaSet,
    Evict,
}

/// Returns the mode of this target. Each call computes it again, because `progress` does not see the values yet that `operate`
/// stores in the same visit.
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

/// Returns true if the strategy `Auto` means the CollaSet mode. Eviction stores its mode before it does anything. So any other
/// stored extra or hold shows that the CollaSet mode was chosen.
fn has_collaset(case: &Case<'_>) -> Result<bool> {
    if case.extras.has(NEW_POD) || case.extras.has(collaset::NOT_ALLOWED) {
        return Ok(true);
    }
    let Some(pod) = &case.pod else {
        // No change was made to the pod. Only the remembered controller is left to decide by.
        return Ok(case.extras.get(OWNER).is_none_or(|owner| owner.starts_with("CollaSet/")));
    };
    if collaset::is_marked(pod) || collaset::is_held(case.job, pod) {
        return Ok(true);
    }
    Ok(pod.controller()?.is_some_and(|owner| owner.group() == collaset::GROUP))
}
