//! Runs a state of OpsJobs to its end once faults stop. The model delivers and does everything in a fair order. Every
//! OpsJob must reach its end, and nothing of it may be left.

use crate::ops::ledger::OpsProperty;
use crate::ops::scenario::OpsScenario;
use crate::ops::state::OpsState;
use crate::ops::steps::OpsAction;
use crate::part::hash_of;

/// Number of steps within which all OpsJobs end.
const STEPS: usize = 600;

/// Returns false if this state is in the sample that the model checks for healing, and does not heal.
pub fn heals(scenario: &OpsScenario, state: &OpsState) -> bool {
    let chosen = hash_of(state).is_multiple_of(scenario.heal_one_in);
    !chosen || state.ledger.broken.contains_key(&OpsProperty::Liveness) || unhealed(scenario, state).is_none()
}

/// Returns the reason why a state does not heal, if it does not.
pub fn unhealed(scenario: &OpsScenario, state: &OpsState) -> Option<&'static str> {
    let mut state = state.clone();
    for _ in 0..STEPS {
        if let Some(why) = state.ledger.broken.values().next() {
            return Some(why);
        }
        if !go_on(scenario, &mut state) {
            let api = state.api.clone();
            let leader = state.hosts.iter().filter_map(|host| host.term.as_ref()).find(|term| !term.is_over);
            let claims = leader.map(|term| term.claims.clone()).unwrap_or_default();
            state.ledger.edit(|ledger| ledger.is_idle(&api, &claims));
            return state.ledger.broken.values().next().copied();
        }
    }
    Some("the OpsJobs are never at rest")
}

/// Returns the states of an undisturbed run, up to its end.
pub fn life(scenario: &OpsScenario) -> Vec<OpsState> {
    let mut states = vec![OpsState::new(scenario)];
    loop {
        let mut next = states.last().unwrap().clone();
        if !go_on(scenario, &mut next) || states.len() > STEPS {
            return states;
        }
        states.push(next);
    }
}

/// Makes steps that `may_happen` until `is_done`, in a fair order.
///
/// # Panics
/// If no such step is left before `is_done`.
pub fn run_until(
    scenario: &OpsScenario,
    state: &mut OpsState,
    may_happen: impl Fn(&OpsAction) -> bool,
    is_done: impl Fn(&OpsState) -> bool,
) {
    while !is_done(state) {
        let mut steps = Vec::new();
        state.usual(scenario, &mut steps);
        steps.retain(&may_happen);
        let step = steps.into_iter().next().unwrap_or(OpsAction::Tick);
        assert!(step != OpsAction::Tick || state.next_time().is_some(), "no step is left");
        state.step(scenario, &step);
    }
}

/// Makes the next step in a fair order. Returns false if no step is left.
fn go_on(scenario: &OpsScenario, state: &mut OpsState) -> bool {
    let mut steps = Vec::new();
    if !state.late.is_empty() {
        steps.push(OpsAction::Late(0));
    } else if state.hosts.iter().all(|host| host.term.as_ref().is_none_or(|term| term.is_over)) {
        steps.push(OpsAction::Lead(0));
    } else {
        state.usual(scenario, &mut steps);
    }
    match steps.first() {
        Some(step) => state.step(scenario, step),
        None if state.next_time().is_some() => state.step(scenario, &OpsAction::Tick),
        None => return false,
    }
    true
}
