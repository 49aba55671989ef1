//! What a plugin's answer means for its target.
//!
//! Takes a planned visit and its [`Answer`]; yields a [`Verdict`]: the state to record, the writes to make after that,
//! the events that follow, and when to come back. A denial, a trap or a failure is an outcome of this target and of
//! nothing else. May not write. Source: spec/operationjob.md §§3.7, 3.8, 3.10, 3.11.

use std::collections::BTreeSet;

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use oarlock_api::TargetError;

use crate::cluster::object::ObjectKey;
use crate::cluster::writes::Write;
use crate::job::state::{Progress, TargetState, extras, whole};
use crate::plugin::authorize::{Gate, authorize};
use crate::plugin::lookup::PluginInfo;
use crate::plugin::proposal::{CallFailure, PluginEvent, Proposal, Report, State};
use crate::plugin::visit::{Answer, Call, Look, Trap};
use crate::round::memory::{Fate, TargetMemory};
use crate::round::mutations::{self, Origin};
use crate::round::target::{Common, Planned, ended};
use crate::shared::claims::{Claim, Claims};
use crate::shared::holds;

/// Traps in a row, each on a fresh instance, that cost a target its attempt.
const TRAPS: u32 = 3;
/// First wait after a retryable failure; doubles.
const FIRST_WAIT: i64 = 1;
/// Longest wait after a retryable failure.
const LONGEST_WAIT: i64 = 60;
/// Visits nothing brought forward: a slow check that nothing was missed.
const SLOW_CHECK: SignedDuration = SignedDuration::from_secs(60);
/// Most looks of one target in one round: a plugin that goes on to ask for more waits as after any failure.
const LOOKS: usize = 32;

/// What an answer means.
#[derive(Debug, Default)]
pub struct Verdict {
    /// The state to record; equal to the stored one where nothing changed.
    pub state: Option<TargetState>,
    /// What to write after that, in order.
    pub writes: Vec<Write>,
    /// What to tell people.
    pub events: Vec<PluginEvent>,
    /// When to visit again though nothing happens. `Some(now)`: at once.
    pub wake: Option<Timestamp>,
    /// The looks that the call lacked.
    pub looks: BTreeSet<Look>,
}

/// Whose answer it is.
pub struct Case<'a> {
    /// Index of the target.
    pub index: u32,
    /// Its key.
    pub key: &'a ObjectKey,
    /// The durable state.
    pub stored: &'a TargetState,
    /// The visit.
    pub planned: &'a Planned,
    /// What its targets have in common.
    pub common: &'a Common<'a>,
    /// The plugin that answered; `None` where the host lets go without one.
    pub plugin: Option<&'a PluginInfo>,
}

impl Case<'_> {
    /// The meaning of `answer`. `missing` are the looks that the plugin's reads lacked; `claims` is the table of this
    /// term, and what this target claims is visible to the next.
    pub fn judge(
        &self,
        answer: Answer,
        missing: BTreeSet<Look>,
        memory: &mut TargetMemory,
        claims: &mut Claims,
    ) -> Verdict {
        // One visit may need several looks, and learns of them one after the other: all are made again together, for an
        // answer counts in its own round alone.
        let mut looks = std::mem::take(&mut memory.looks);
        looks.extend(missing.iter().cloned());
        match (self.planned.call, answer) {
            (_, Answer::Failed(failure)) if failure.retryable && !missing.is_empty() && looks.len() <= LOOKS => {
                memory.looks.clone_from(&looks);
                Verdict { looks, ..self.unchanged() }
            }
            (Call::Release, answer) => self.released(answer, memory),
            (_, answer) if self.planned.last_look => self.last_look(answer, memory, claims),
            (_, Answer::Proposed(proposal)) => {
                self.proposed([&Proposal::default(), &proposal], State::Processing, memory, claims)
            }
            (_, Answer::Reported { operate, report }) => self.reported(&operate, report, memory, claims),
            (_, Answer::Failed(failure)) => self.failed(failure, memory),
            (_, Answer::Trapped(trap)) => self.trapped(trap, memory),
        }
    }

    fn unchanged(&self) -> Verdict {
        Verdict { state: Some(self.planned.state.clone()), ..Verdict::default() }
    }

    fn now(&self) -> Timestamp {
        self.common.now
    }

    fn reported(&self, operate: &Proposal, report: Report, memory: &mut TargetMemory, claims: &mut Claims) -> Verdict {
        let wait = report.check_after_ms.map_or(SLOW_CHECK, |ms| SignedDuration::from_millis(i64::from(ms)));
        let processing = report.state == State::Processing;
        let mut verdict = self.proposed([operate, &report.proposal], report.state, memory, claims);
        if processing && verdict.wake.is_none() {
            verdict.wake = Some(self.now() + wait);
        }
        verdict
    }

    /// What `operate` proposed beside mutations, the proposal itself, and how far the target is with it.
    fn proposed(&self, parts: [&Proposal; 2], state: State, memory: &mut TargetMemory, claims: &mut Claims) -> Verdict {
        memory.tries = 0;
        memory.traps = 0;
        let [operate, proposal] = parts;
        for part in parts {
            if let Err(denied) = self.authorized(part) {
                return self.doomed("MutationDenied", denied, memory);
            }
        }
        let writes = self.writes(proposal);
        let mut next = self.planned.state.clone();
        if writes.is_empty() {
            // What it waited for is over; while a write is tried again, it is not.
            memory.trouble = None;
            next.error = None;
        }
        for part in parts {
            part.remove_extra.iter().for_each(|key| drop(next.extra.remove(key)));
            next.extra.extend(part.set_extra.iter().cloned());
        }
        if !self.claim(&next, claims) {
            // Another target was quicker: the call is repeated, and no longer sees what that one took.
            return Verdict { wake: Some(self.now()), ..self.unchanged() };
        }
        let events = operate.events.iter().chain(&proposal.events).cloned().collect();
        match state {
            State::Processing => Verdict { state: Some(next), writes, events, ..Verdict::default() },
            State::Succeeded => {
                memory.held =
                    self.planned.object.as_ref().is_some_and(|object| holds::held(object, self.common.job_uid));
                let next = ended(&next, Progress::Succeeded, whole(self.now()), None);
                Verdict { state: Some(next), writes, events, ..Verdict::default() }
            }
            State::Failed(error) => {
                let mut verdict = self.doomed(&error.reason, error.message, memory);
                verdict.events = events;
                verdict
            }
        }
    }

    fn exclusive(&self) -> impl Iterator<Item = &String> {
        self.plugin.iter().flat_map(|plugin| &plugin.registration.exclusive_extras)
    }

    fn authorized(&self, proposal: &Proposal) -> Result<(), String> {
        let Some(plugin) = self.plugin else { return Err("no plugin answers for it".to_owned()) };
        let seen = |key: &ObjectKey| self.common.store.get(key);
        let gate = Gate {
            manifest: &plugin.manifest,
            grant: &plugin.grant,
            namespace: &self.common.key.namespace,
            job_uid: self.common.job_uid,
            target: self.key,
            target_uid: self.planned.state.uid.as_deref(),
            extras: &self.planned.state.extra,
            seen: &seen,
        };
        authorize(proposal, &gate).map_err(|denied| denied.sentence)
    }

    /// Claims what the state's exclusive extras name, and lets go of what they no longer name.
    fn claim(&self, next: &TargetState, claims: &mut Claims) -> bool {
        let values: Vec<&str> = self.exclusive().filter_map(|key| next.extra(key)).collect();
        let target_uid = next.uid.clone().unwrap_or_default();
        if values.iter().any(|value| claims.taken(&self.common.key.namespace, value, &target_uid)) {
            return false;
        }
        for value in &values {
            let claim = Claim { job: self.common.key.clone(), index: self.index, target_uid: target_uid.clone() };
            claims.claim(value, claim);
        }
        // What is durably stored is let go only once the newer state is durable too.
        let durable = self.exclusive().filter_map(|key| self.stored.extra(key));
        let kept: Vec<&str> = values.iter().copied().chain(durable).collect();
        claims.lapse(self.common.key, self.index, &kept);
        true
    }

    fn writes(&self, proposal: &Proposal) -> Vec<Write> {
        let origin = Origin {
            job: self.common.key,
            job_uid: self.common.job_uid,
            target: self.key,
            object: self.planned.object.as_ref(),
            store: self.common.store,
        };
        mutations::writes(&proposal.mutations, &origin)
    }

    /// An end other than Succeeded. It is recorded at once where no write of ours can still take effect.
    fn doomed(&self, reason: &str, message: String, memory: &mut TargetMemory) -> Verdict {
        let error = TargetError { reason: reason.to_owned(), message };
        let first_round = self.stored.progress == Progress::Pending;
        let settled = (memory.own_intent || first_round) && memory.unknown.is_none();
        if settled {
            return self.lost(error);
        }
        memory.fate = Some(Fate { error, settled: false, final_word: false });
        Verdict { wake: Some(self.now()), ..self.unchanged() }
    }

    fn lost(&self, error: TargetError) -> Verdict {
        let next = ended(&self.planned.state, Progress::Failed, whole(self.now()), Some(error));
        Verdict { state: Some(next), ..Verdict::default() }
    }

    fn failed(&self, failure: CallFailure, memory: &mut TargetMemory) -> Verdict {
        if !failure.retryable {
            return self.doomed(&failure.reason, failure.message, memory);
        }
        let wait = wait_after(memory.tries, failure.retry_after_ms);
        memory.tries = memory.tries.saturating_add(1);
        memory.not_before = Some(self.now() + wait);
        let trouble = TargetError { reason: failure.reason, message: crate::round::target::cut(&failure.message, 256) };
        let mut verdict = self.troubled(trouble, memory);
        verdict.wake = memory.not_before;
        verdict
    }

    /// A trouble that may pass is written once it has lasted two rounds.
    fn troubled(&self, trouble: TargetError, memory: &mut TargetMemory) -> Verdict {
        let rounds = memory.trouble.as_ref().map_or(1, |(_, rounds)| rounds + 1);
        let mut verdict = self.unchanged();
        if rounds >= 2
            && let Some(state) = verdict.state.as_mut()
        {
            state.error = Some(trouble.clone());
        }
        memory.trouble = Some((trouble, rounds));
        verdict
    }

    fn trapped(&self, trap: Trap, memory: &mut TargetMemory) -> Verdict {
        memory.traps += 1;
        if memory.traps < TRAPS {
            return Verdict { wake: Some(self.now()), ..self.unchanged() };
        }
        memory.traps = 0;
        let message = format!("{} ({TRAPS} times in a row)", trap.message);
        self.doomed(trap.reason, message, memory)
    }

    /// The last look at a target whose fate is settled: only `succeeded` counts.
    fn last_look(&self, answer: Answer, memory: &mut TargetMemory, claims: &mut Claims) -> Verdict {
        let Some(fate) = memory.fate.clone() else { return self.unchanged() };
        match answer {
            Answer::Reported { operate, report } if report.state == State::Succeeded => {
                self.proposed([&operate, &report.proposal], State::Succeeded, memory, claims)
            }
            Answer::Trapped(_) if memory.traps + 1 < TRAPS => {
                memory.traps += 1;
                Verdict { wake: Some(self.now()), ..self.unchanged() }
            }
            _ => self.lost(fate.error),
        }
    }

    /// An answer to `release`. The host lets go of what is held, with the plugin or without.
    fn released(&self, answer: Answer, memory: &mut TargetMemory) -> Verdict {
        let alone = |why: String, memory: &mut TargetMemory| {
            let told = !memory.release_alone;
            memory.release_alone = true;
            let message = format!("{}: released without the plugin: {why}", self.key.name);
            let event = PluginEvent { warning: true, reason: "ReleaseTargetFailed".into(), message };
            (Proposal::default(), told.then_some(event))
        };
        let (proposal, event) = match answer {
            Answer::Proposed(proposal) => match self.authorized(&proposal) {
                Ok(()) => (proposal, None),
                Err(denied) => alone(denied, memory),
            },
            Answer::Failed(failure) if failure.retryable && memory.release_tries < 5 => {
                memory.not_before = Some(self.now() + wait_after(memory.release_tries, failure.retry_after_ms));
                memory.release_tries += 1;
                return Verdict { wake: memory.not_before, ..self.unchanged() };
            }
            Answer::Failed(failure) => alone(format!("{}: {}", failure.reason, failure.message), memory),
            Answer::Trapped(_) if memory.traps + 1 < TRAPS => {
                memory.traps += 1;
                return Verdict { wake: Some(self.now()), ..self.unchanged() };
            }
            Answer::Trapped(trap) => alone(trap.message, memory),
            Answer::Reported { .. } => (Proposal::default(), None),
        };
        let mut verdict = self.let_go(&proposal);
        verdict.events.extend(proposal.events);
        verdict.events.extend(event);
        verdict
    }

    /// Takes away what the proposal and the job's hold name. `Released` is recorded once nothing is left.
    pub fn let_go(&self, proposal: &Proposal) -> Verdict {
        let held = self.planned.object.as_ref().and_then(|object| holds::let_go(object, self.common.job_uid));
        let mut writes = self.writes(proposal);
        // A proposal that changes the target's metadata goes by the same hold: one patch does both.
        writes.retain(|write| held.is_none() || !matches!(write, Write::Patch { object, .. } if object == self.key));
        writes.extend(held.map(|body| Write::Patch { object: self.key.clone(), subresource: None, body }));
        if !writes.is_empty() {
            return Verdict { writes, ..self.unchanged() };
        }
        let mut state = self.planned.state.clone();
        if state.progress == Progress::Failed {
            state.extra.insert(extras::RELEASED.to_owned(), "true".to_owned());
        }
        Verdict { state: Some(state), ..Verdict::default() }
    }
}

/// The wait after `tries` failures in a row, or the plugin's own.
pub fn wait_after(tries: u32, own_ms: Option<u32>) -> SignedDuration {
    match own_ms {
        Some(ms) => SignedDuration::from_millis(i64::from(ms)),
        None => SignedDuration::from_secs((FIRST_WAIT << tries.min(6)).min(LONGEST_WAIT)),
    }
}
