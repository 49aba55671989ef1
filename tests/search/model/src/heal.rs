//! Runs a state to its end once faults stop. The model delivers and does everything in a fair order, and the job must
//! reach an end that stays.

use crate::ledger::Property;
use crate::part::hash_of;
use crate::scenario::Scenario;
use crate::state::State;
use crate::steps::Action;

/// Number of steps within which a healing job ends.
const STEPS: usize = 600;

/// Returns false if this state is in the sample that the model checks for healing, and does not heal.
pub fn heals(scenario: &Scenario, state: &State) -> bool {
    let chosen = hash_of(state).is_multiple_of(scenario.heal_one_in);
    !chosen || state.ledger.broken.contains_key(&Property::Liveness) || unhealed(scenario, state).is_none()
}

/// Returns the reason why a state does not heal, if it does not.
pub fn unhealed(scenario: &Scenario, state: &State) -> Option<&'static str> {
    let mut state = state.clone();
    state.raise();
    for _ in 0..STEPS {
        if !go_on(scenario, &mut state) {
            let api = state.api.clone();
            state.ledger.edit(|ledger| ledger.is_idle(&api));
            return state.ledger.broken.values().next().copied();
        }
        if let Some(why) = state.ledger.broken.values().next() {
            return Some(why);
        }
    }
    Some("the job is never at rest")
}

/// Returns the states of a job's undisturbed run, up to its end.
pub fn life(scenario: &Scenario) -> Vec<State> {
    let mut states = vec![State::new(scenario)];
    let over = |state: &State| {
        let status = state.api.job.as_ref().and_then(|job| job.job.status.as_ref());
        state.api.job.is_none() || status.is_some_and(|status| status.end_time.is_some())
    };
    while let Some(last) = states.last().filter(|last| !over(last)) {
        let mut next = last.clone();
        if !go_on(scenario, &mut next) {
            break;
        }
        states.push(next);
    }
    states
}

/// Makes the next step in a fair order. Returns false if no step is left.
pub fn go_on(scenario: &Scenario, state: &mut State) -> bool {
    let mut steps = Vec::new();
    if !state.late.is_empty() {
        steps.push(Action::Late(0));
    } else if state.hosts.iter().all(|host| host.term.is_none()) {
        steps.push(Action::Lead(0));
    } else {
        state.usual(scenario, &mut steps);
    }
    match steps.first() {
        Some(step) => state.step(scenario, step),
        None if state.next_time().is_some() => state.step(scenario, &Action::Tick),
        None => return false,
    }
    true
}
