//! Once faults stop: everything is delivered and done in a fair order, and the job has to come to an end that stays.

use crate::ledger::Property;
use crate::part::hash_of;
use crate::scene::Scene;
use crate::state::State;
use crate::steps::Action;

/// Steps within which a job that heals is over.
const STEPS: usize = 600;

/// True unless this is one of the states that are healed, and is not healed.
pub fn heals(scene: &Scene, state: &State) -> bool {
    let chosen = hash_of(state).is_multiple_of(scene.heal_one_in);
    !chosen || state.ledger.broken.contains_key(&Property::Liveness) || unhealed(scene, state).is_none()
}

/// Why a state does not heal, if it does not.
pub fn unhealed(scene: &Scene, state: &State) -> Option<&'static str> {
    let mut state = state.clone();
    state.raise();
    for _ in 0..STEPS {
        if !go_on(scene, &mut state) {
            let api = state.api.clone();
            state.ledger.edit(|ledger| ledger.at_rest(&api));
            return state.ledger.broken.values().next().copied();
        }
        if let Some(why) = state.ledger.broken.values().next() {
            return Some(why);
        }
    }
    Some("the job is never at rest")
}

/// The states through which a job goes that nothing happens to, up to its end.
pub fn life(scene: &Scene) -> Vec<State> {
    let mut states = vec![State::new(scene)];
    let over = |state: &State| {
        let status = state.api.job.as_ref().and_then(|job| job.job.status.as_ref());
        state.api.job.is_none() || status.is_some_and(|status| status.end_time.is_some())
    };
    while let Some(last) = states.last().filter(|last| !over(last)) {
        let mut next = last.clone();
        if !go_on(scene, &mut next) {
            break;
        }
        states.push(next);
    }
    states
}

/// Makes the next step of a fair course. False once there is none.
pub fn go_on(scene: &Scene, state: &mut State) -> bool {
    let mut steps = Vec::new();
    if !state.late.is_empty() {
        steps.push(Action::Late(0));
    } else if state.hosts.iter().all(|host| host.term.is_none()) {
        steps.push(Action::Lead(0));
    } else {
        state.usual(scene, &mut steps);
    }
    match steps.first() {
        Some(step) => state.step(scene, step),
        None if state.next_time().is_some() => state.step(scene, &Action::Tick),
        None => return false,
    }
    true
}
