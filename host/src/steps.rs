//! What a round does between the pure steps: gathers what they need, makes the calls, and keeps the shared tables.
//!
//! Takes what the round hands it; yields what the next step demands. May not decide: wherever a choice is made, a
//! function of `oarlock-core` makes it.

use std::sync::{Arc, Mutex};

use k8s_openapi::jiff::Timestamp;
use oarlock_api::OperationJob;
use oarlock_core::decide::Grounds;
use oarlock_core::judge::{Case, Verdict};
use oarlock_core::memory::JobMemory;
use oarlock_core::plan::{Gate, Plan};
use oarlock_core::plugin::{Found, PluginInfo};
use oarlock_core::proposal::Proposal;
use oarlock_core::reads::{Subject, VisitReads};
use oarlock_core::reflect::{Reflection, claim_stored};
use oarlock_core::state::{TargetState, extras};
use oarlock_core::store::Store;
use oarlock_core::turn::{Common, Planned, asked_to_go};
use oarlock_core::valid::{Invalid, ValidSpec};
use oarlock_core::visit::{Call, JobFacts, Looked, TargetFacts, Visit};
use oarlock_core::writes::{JobKey, Observed};
use oarlock_wasm::Wave;

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

/// What one round knows of its job.
pub struct Standing<'a> {
    key: &'a JobKey,
    job: &'a OperationJob,
    now: Timestamp,
    checked: &'a Result<Arc<ValidSpec>, Invalid>,
    found: &'a Found,
    store: &'a Arc<Store>,
    looked: Arc<Looked>,
}

impl<'a> Standing<'a> {
    /// What one round knows of its job.
    pub fn new(
        key: &'a JobKey,
        job: &'a OperationJob,
        observed: &Observed,
        checked: &'a Result<Arc<ValidSpec>, Invalid>,
        found: &'a Found,
        host: &'a Host,
    ) -> Self {
        let looked = Arc::new(observed.looked.clone());
        Self { key, job, now: observed.now, checked, found, store: host.cluster.store(), looked }
    }

    /// UID of the job.
    pub fn uid(&self) -> &str {
        self.job.metadata.uid.as_deref().unwrap_or_default()
    }

    fn plugin(&self) -> Option<&PluginInfo> {
        match self.found {
            Found::Serving(plugin) => Some(plugin),
            _ => None,
        }
    }

    /// What its targets have in common.
    pub fn common(&self) -> Common<'_> {
        let spec = self.job.spec.as_ref();
        let deadline = spec.and_then(|spec| spec.active_deadline_seconds).filter(|seconds| *seconds > 0);
        Common {
            key: self.key,
            job_uid: self.uid(),
            now: self.now,
            spec: self.checked.as_deref().ok(),
            deadline_seconds: i64::from(deadline.unwrap_or(10_800)),
            plugin: self.plugin(),
            deleting: self.job.metadata.deletion_timestamp.is_some(),
            store: self.store,
            looked: &self.looked,
        }
    }

    /// What the decision is made from.
    pub fn grounds(&self) -> Grounds<'_> {
        Grounds { job: self.job, common: self.common(), found: self.found, invalid: self.checked.as_ref().err() }
    }
}

/// Keeps the shared tables in step with a state that was read anew.
pub fn keep(reflection: Reflection, term: &Term, key: &JobKey, memory: &JobMemory, found: &Found) {
    if reflection != Reflection::Adopted {
        return;
    }
    term.relate(found);
    term.interest(|interest| interest.forget(key));
    term.claims(|claims| claim_stored(key, memory, found, claims));
    let registration = registration(found);
    term.interest(|interest| {
        for index in memory.processing.iter().chain(&memory.releasing) {
            if let Some(target) = memory.state.target(*index) {
                interest.set(key, *index, memory.state.name(*index), target, registration);
            }
        }
    });
}

fn registration(found: &Found) -> Option<&oarlock_core::proposal::Registration> {
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
            interest.set(key, *index, memory.state.name(*index), target, registration);
        }
    });
}

/// Whether targets may be started and visited in this round.
pub fn gate(term: &Term, standing: &Standing<'_>, memory: &JobMemory) -> Gate {
    let ended = memory.state.end.is_some();
    let read = memory.fenced || ended;
    if read {
        term.claims(|claims| claims.read(standing.key));
    }
    if !read && memory.state.start.is_some() || !term.claims(|claims| claims.ready(&standing.key.namespace)) {
        return Gate::Shut;
    }
    match (standing.checked, standing.found) {
        (Ok(_), Found::Serving(_)) => Gate::Open,
        _ => Gate::NoStarts,
    }
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
        let Some(stored) = memory.state.target(*index).cloned() else { continue };
        let name = memory.state.name(*index).to_owned();
        let call = OneCall { standing, common: &common, term, facts: &facts, index: *index, name: &name, stored: &stored, planned };
        let verdict = call.make(wave.as_mut(), memory).await;
        verdicts.push((*index, verdict));
    }
    (planned, verdicts)
}

fn facts(standing: &Standing<'_>, memory: &JobMemory) -> Arc<JobFacts> {
    let parameters = standing.checked.as_ref().map_or_else(|_| serde_json::json!({}), |spec| spec.parameters.clone());
    Arc::new(JobFacts {
        namespace: standing.key.namespace.clone(),
        name: standing.key.name.clone(),
        uid: standing.uid().to_owned(),
        action: crate::host::action(standing.job).to_owned(),
        now_ms: milliseconds(standing.now),
        parameters,
        target_count: u32::try_from(memory.state.targets.len()).unwrap_or(u32::MAX),
        cancelled: standing.job.metadata.deletion_timestamp.is_some(),
    })
}

fn milliseconds(time: Timestamp) -> u64 {
    u64::try_from(time.as_millisecond()).unwrap_or(0)
}

/// One call of one target.
struct OneCall<'a> {
    standing: &'a Standing<'a>,
    common: &'a Common<'a>,
    term: &'a Term,
    facts: &'a Arc<JobFacts>,
    index: u32,
    name: &'a str,
    stored: &'a TargetState,
    planned: &'a Planned,
}

impl OneCall<'_> {
    async fn make(&self, wave: Option<&mut Wave>, memory: &mut JobMemory) -> Verdict {
        let key = self.common.pod(self.name);
        let alone = self.planned.call == Call::Release && memory.target(self.index).release_alone;
        let case = Case {
            index: self.index,
            key: &key,
            stored: self.stored,
            planned: self.planned,
            common: self.common,
            plugin: self.common.plugin,
        };
        let Some(wave) = wave.filter(|_| !alone) else {
            return match self.planned.call {
                Call::Release => case.let_go(&Proposal::default()),
                _ => Verdict::default(),
            };
        };
        let reads = Arc::new(self.reads(memory));
        let visit = Visit {
            job: self.facts.clone(),
            target: self.target(memory),
            call: self.planned.call,
            reads: reads.clone(),
        };
        let answer = wave.call(visit).await;
        self.term.claims(|claims| case.judge(answer, reads.missing(), memory.target(self.index), claims))
    }

    fn target(&self, memory: &mut JobMemory) -> TargetFacts {
        let containers = memory.state.names.get(self.index as usize).and_then(|target| target.containers.clone());
        TargetFacts {
            name: self.name.to_owned(),
            index: self.index,
            kind: "Pod".to_owned(),
            object: self.planned.object.clone(),
            containers: containers.unwrap_or_default(),
            extras: self.stored.extra.clone(),
            attempt: self.planned.state.attempt,
            call_try: memory.target(self.index).tries + 1,
            started_ms: self.planned.state.start.map_or(0, milliseconds),
            deadline_ms: self.common.deadline(&self.planned.state).map(milliseconds),
        }
    }

    fn reads(&self, memory: &mut JobMemory) -> VisitReads {
        let state = &self.planned.state;
        let noted = state.extra(extras::EVICTED_AT).and_then(|text| text.parse().ok());
        let seen = self.planned.object.as_deref().and_then(asked_to_go);
        let since = noted.or(seen).or(memory.target(self.index).evicted_at).or(state.start).unwrap_or(self.standing.now);
        let owner = state.extra(extras::OWNER).and_then(|text| {
            let (kind, _) = text.split_once('/')?;
            Some((kind.to_owned(), text.rsplit('/').next()?.to_owned()))
        });
        VisitReads {
            store: self.standing.store.clone(),
            claims: self.term.claims.clone(),
            looked: self.standing.looked.clone(),
            registration: Arc::new(self.common.plugin.map(|plugin| plugin.registration.clone()).unwrap_or_default()),
            subject: Subject {
                namespace: self.standing.key.namespace.clone(),
                name: self.name.to_owned(),
                uid: state.uid.clone().unwrap_or_default(),
                extras: self.stored.extra.clone(),
                job_uid: self.standing.uid().to_owned(),
                since: oarlock_core::state::whole(since),
                owner,
                node: state.extra(extras::NODE).map(str::to_owned),
            },
            all_live: self.planned.last_look,
            missing: Mutex::default(),
        }
    }
}
