//! What a round does between the pure steps: makes the calls, and keeps the shared tables.
//!
//! Takes what the round hands it; yields what the next step demands. May not decide: wherever a choice is made, a
//! function of `oarlock-core` makes it.

use k8s_openapi::jiff::Timestamp;
use oarlock_core::cluster::object::ObjectKey;
use oarlock_core::cluster::store::Store;
use oarlock_core::cluster::writes::{JobKey, Write};
use oarlock_core::job::state::{Progress, indexes};
use oarlock_core::plugin::lookup::Found;
use oarlock_core::plugin::proposal::Registration;
use oarlock_core::round::calls::OneCall;
use oarlock_core::round::judge::Verdict;
use oarlock_core::round::memory::JobMemory;
use oarlock_core::round::plan::Plan;
use oarlock_core::round::refresh::claim_stored;
use oarlock_core::round::standing::{Standing, facts};
use oarlock_core::shared::cleanup::Parting;
use oarlock_core::shared::holds::held;
use oarlock_core::shared::wake_index::Place;
use oarlock_wasm::Session;

use crate::host::Host;
use crate::term::Term;

/// When a job wants its next round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rest {
    /// It is gone.
    Gone,
    /// At a change, or at this time.
    Until(Option<Timestamp>),
}

/// Keeps the shared tables in step with a state that was read anew.
pub fn keep(host: &Host, term: &Term, key: &JobKey, memory: &mut JobMemory, found: &Found) {
    still_held(host.cluster.store(), key, memory);
    term.relate(found);
    term.interest(|interest| interest.forget(key));
    term.claims(|claims| claim_stored(key, memory, found, claims));
    let registration = registration(found);
    term.interest(|interest| {
        for index in memory.processing.iter().chain(&memory.releasing) {
            if let Some(target) = memory.state.target(*index) {
                interest.set(place(key, *index, memory), target, registration);
            }
        }
    });
}

/// Targets that succeeded under an earlier leader, which did not come to let them go.
fn still_held(store: &Store, key: &JobKey, memory: &mut JobMemory) {
    let uid = memory.version.as_ref().map(|version| version.uid.clone()).unwrap_or_default();
    for index in indexes(&memory.state.targets, |target| target.progress == Progress::Succeeded) {
        let pod = store.get(&ObjectKey::pod(&key.namespace, memory.state.name(index)));
        let recorded = memory.state.target(index).and_then(|target| target.uid.as_ref());
        if pod.is_some_and(|pod| Some(&pod.uid) == recorded && held(&pod, &uid)) {
            memory.still_held(index);
        }
    }
}

fn registration(found: &Found) -> Option<&Registration> {
    match found {
        Found::Serving(plugin) => Some(&plugin.registration),
        _ => None,
    }
}

/// What targets that were decided wait for from now on.
pub fn remember(term: &Term, key: &JobKey, memory: &JobMemory, found: &Found) {
    if memory.decided.is_empty() {
        return;
    }
    term.relate(found);
    let registration = registration(found);
    term.interest(|interest| {
        for (index, target) in &memory.decided {
            interest.set(place(key, *index, memory), target, registration);
        }
    });
}

fn place<'a>(job: &'a JobKey, index: u32, memory: &'a JobMemory) -> Place<'a> {
    let job_uid = memory.version.as_ref().map_or("", |version| version.uid.as_str());
    Place { job, job_uid, index, name: memory.state.name(index) }
}

/// What a job that is being deleted owes others.
pub fn farewell(term: &Term, standing: &Standing<'_>) -> Vec<Write> {
    let common = standing.common();
    let parting = Parting { key: common.key, uid: common.job_uid, store: common.store };
    term.claims(|claims| term.interest(|interest| oarlock_core::shared::cleanup::farewell(parting, claims, interest)))
}

/// Makes the planned calls, in order: what one target claims is visible to the next.
pub async fn visit(
    host: &Host,
    term: &Term,
    standing: &Standing<'_>,
    mut planned: Plan,
    memory: &mut JobMemory,
) -> (Plan, Vec<(u32, Verdict)>) {
    let visits = std::mem::take(&mut planned.visits);
    if visits.is_empty() {
        return (planned, Vec::new());
    }
    let common = standing.common();
    let mut wave = common.plugin.and_then(|plugin| host.plugins.wave(&plugin.digest));
    let facts = facts(standing, memory);
    let mut verdicts = Vec::with_capacity(visits.len());
    for (index, planned) in &visits {
        let (Some(stored), name) = (memory.state.target(*index).cloned(), memory.state.name(*index).to_owned()) else {
            continue;
        };
        let (index, claims) = (*index, &term.claims);
        let call =
            OneCall { standing, common: &common, facts: &facts, claims, index, name: &name, stored: &stored, planned };
        verdicts.push((index, make(&call, wave.as_mut(), term, memory).await));
    }
    (planned, verdicts)
}

async fn make(call: &OneCall<'_>, wave: Option<&mut Session>, term: &Term, memory: &mut JobMemory) -> Verdict {
    let Some(wave) = wave.filter(|_| call.wants_plugin(memory)) else {
        return call.unanswered();
    };
    let (visit, reads) = call.visit(memory);
    let answer = wave.call(visit).await;
    term.claims(|claims| call.judge(answer, &reads, memory, claims))
}
