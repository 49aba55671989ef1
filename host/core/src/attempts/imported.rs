//! Takes over objects that the original operator has worked on. Source: docs/jobflow.md 2.10.

use serde_json::Value;

use crate::attempts::children::Children;
use crate::attempts::header::Header;
use crate::attempts::parent::Parent;
use crate::attempts::plan::ParentPlan;
use crate::attempts::progress::of_job;
use crate::attempts::settings::asks_too_often;
use crate::attempts::unit::{UNSEEN, Unit, UnitState};
use crate::object::fields::{at, list, object};
use crate::status::policy::MOST_ATTEMPTS;

/// The reason of an entry that the host took over.
const IMPORTED: &str = "Imported";

/// Notes the fields of a new spec that have no effect.
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

/// Takes over a stored object that has a state and no `observedGeneration`. An object that had ended stays ended. An existing Job counts by its own
/// status.
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
        // The Job may still exist. If it does, the host finds it by its name; otherwise the Job was deleted.
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

/// Allows the omitted units of an object that was taken over to run, once its spec is edited.
pub fn lift(parent: &Parent, units: &mut [Unit], header: &mut Header) {
    if header.imported_generation.is_none_or(|generation| generation == parent.generation) {
        return;
    }
    header.imported_generation = None;
    for unit in units.iter_mut().filter(|unit| unit.reason == IMPORTED && unit.state == UnitState::Omitted) {
        unit.start_over();
    }
}
