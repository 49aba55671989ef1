//! Objects that the original operator has worked on. Source: docs/jobflow.md 2.10.

use serde_json::Value;

use crate::child::children::Children;
use crate::child::fields::{at, list, object};
use crate::child::header::Header;
use crate::child::parent::Parent;
use crate::child::plan::ParentPlan;
use crate::child::progress::of_job;
use crate::child::settings::asks_too_often;
use crate::child::unit::{Unit, UnitState};
use crate::job::policy::MOST_ATTEMPTS;

/// Stands for the UID of a Job that only the original's status tells of.
pub(super) const UNSEEN: &str = "unknown";

/// The reason of an entry that was taken over.
const IMPORTED: &str = "Imported";

/// Begins the first plan of a spec: notes fields that have no effect.
pub fn take_up(parent: &Parent, plan: &mut ParentPlan, ignored: Option<String>) {
    if plan.header.observed_generation == Some(parent.generation) {
        return;
    }
    plan.ignored.extend(ignored);
    if at(&parent.spec, "/errorHandler").is_some() {
        plan.ignored.push("spec.errorHandler is no field of this kind; write its steps into spec.finally".to_owned());
    }
    let steps = ["/flows", "/finally"].into_iter().flat_map(|field| list(&parent.spec, field));
    if asks_too_often(steps.chain(at(&parent.spec, "/rollout"))) {
        plan.ignored.push(format!(
            "a retryPolicy asks for more than {MOST_ATTEMPTS} further attempts, and gets {MOST_ATTEMPTS}"
        ));
    }
}

/// Takes over a stored object that has a state and no `observedGeneration`: what it had ended stays ended.
/// A Job that is there speaks for itself.
pub fn import(parent: &Parent, children: &Children<'_>, units: &mut [Unit], header: &mut Header) {
    if header.observed_generation.is_some() || header.state.is_empty() {
        return;
    }
    let had_ended = matches!(header.state.as_str(), "Succeed" | "Failed");
    let list = object(&parent.status, "/jobStatusList");
    let is_there = |unit: &Unit| children.newest(parent, unit, 0).is_some_and(|child| !child.gone);
    for unit in units.iter_mut().filter(|unit| !unit.has_child() && !is_there(unit)) {
        let job = format!("{}-{}", parent.name, unit.name);
        let stored = list.and_then(|list| list.get(&parent.list_key(&job)));
        take_over(unit, &job, stored, had_ended.then_some(header.state.as_str()));
    }
    header.imported_generation = had_ended.then_some(parent.generation);
}

fn take_over(unit: &mut Unit, job: &str, stored: Option<&Value>, ended: Option<&str>) {
    let outcome = stored.map(|status| of_job(status).ended);
    let (state, message) = match (outcome, ended) {
        (Some(Some(end)), _) if end.well => (UnitState::Succeed, "taken over from the stored status"),
        (Some(Some(_)), _) => (UnitState::Failed, "taken over from the stored status"),
        (_, Some("Succeed")) => (UnitState::Succeed, "the object had ended before it was taken over"),
        (_, Some(_)) => (UnitState::Omitted, "the object had ended before it was taken over"),
        // It may still be there: its child is found by its name, and else was deleted.
        (Some(None), None) => {
            job.clone_into(&mut unit.job);
            UNSEEN.clone_into(&mut unit.job_uid);
            return;
        }
        (None, None) => return,
    };
    if stored.is_some() {
        job.clone_into(&mut unit.job);
    }
    unit.set(state, IMPORTED, message);
}

/// An edit of an object that was taken over: what had not run may run.
pub fn lift(parent: &Parent, units: &mut [Unit], header: &mut Header) {
    if header.imported_generation.is_none_or(|generation| generation == parent.generation) {
        return;
    }
    header.imported_generation = None;
    for unit in units.iter_mut().filter(|unit| unit.reason == IMPORTED && unit.state == UnitState::Omitted) {
        unit.start_over();
    }
}
