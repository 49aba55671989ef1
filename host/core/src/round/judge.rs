//! The meaning of a plugin's answer for its target.
//!
//! Takes a planned visit and its [`Answer`]; yields a [`Verdict`]: the state to record, the writes to make after that and
//! the events that follow. A denial, a trap or a failure is an outcome of this target and of nothing else. Source:
//! docs/operationjob.md 3.7, 3.8, 3.10, 3.11.

use std::collections::BTreeSet;

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use oarlock_api::TargetError;

use crate::cluster::live_reads::LiveRead;
use crate::cluster::object::ObjectKey;
use crate::cluster::writes::Write;
use crate::job::state::{Progress, TargetState, cut, ended, extras};
use crate::job::time::after;
use crate::plugin::authorize::{Authority, authorize};
use crate::plugin::proposal::{CallFailure, PluginEvent, Proposal, Report, State};
use crate::plugin::visit::{Answer, Call, Trap};
use crate::round::context::Target;
use crate::round::refresh::{note_claims, stored_claims};
use crate::round::target::PlannedVisit;
use crate::round::target_memory::{PendingFailure, TargetMemory};
use crate::shared::claims::Claim;
use crate::shared::holds;
use crate::shared::tables::Tables;

/// Traps in a row, each on a fresh instance, that cost a target its attempt.
const TRAPS: u32 = 3;
/// First wait after a retryable failure, in seconds; doubles.
const FIRST_WAIT: i64 = 1;
/// Longest wait after a retryable failure, in seconds.
const LONGEST_WAIT: i64 = 60;
/// Visits nothing brought forward: a slow check that nothing was missed.
const SLOW_CHECK: SignedDuration = SignedDuration::from_secs(60);
/// Most live reads of one target in one round: a plugin that goes on to ask for more waits as after any failure.
const LIVE_READS: usize = 32;

/// The meaning of an answer.
#[derive(Debug, Default)]
pub struct Verdict {
    /// The state to record, equal to the stored one where nothing changed; `None` where nothing is to be decided.
    pub state: Option<TargetState>,
    /// The writes to make after that, in order.
    pub writes: Vec<Write>,
    /// The events to emit.
    pub events: Vec<PluginEvent>,
    /// The live reads that the call lacked.
    pub live_reads: BTreeSet<LiveRead>,
}

fn unchanged(planned: &PlannedVisit) -> Verdict {
    Verdict { state: Some(planned.state.clone()), ..Verdict::default() }
}

impl Target<'_> {
    /// The meaning of `answer`. `missing` are the live reads that the plugin lacked; a claim of this target is visible to
    /// the next.
    pub(crate) fn judge(
        &self,
        planned: &PlannedVisit,
        answer: Answer,
        missing: BTreeSet<LiveRead>,
        known: &mut TargetMemory,
        tables: &mut Tables,
    ) -> Verdict {
        // One visit may need several live reads, and learns of them one after the other: all are made again together,
        // for an answer counts in its own round alone.
        let mut reads = std::mem::take(&mut known.live_reads);
        reads.extend(missing.iter().cloned());
        match (planned.call, answer) {
            (_, Answer::Failed(failure)) if failure.retryable && !missing.is_empty() && reads.len() <= LIVE_READS => {
                known.live_reads.clone_from(&reads);
                let mut verdict = self.with_read_failures(planned, &reads, known);
                verdict.live_reads = reads;
                verdict
            }
            (Call::Release, answer) => self.released(planned, answer, known),
            (_, answer) if planned.final_check => self.final_check(planned, answer, known, tables),
            (_, Answer::Proposed(proposal)) => {
                let verdict = self.proposed(planned, [&Proposal::default(), &proposal], State::Processing, known, tables);
                // Nothing else may bring a visit: the proposal may have changed nothing.
                known.check_at.get_or_insert(after(self.round.now, SLOW_CHECK));
                verdict
            }
            (_, Answer::Reported { operate, report }) => self.reported(planned, &operate, report, known, tables),
            (_, Answer::Failed(failure)) => self.failed(planned, failure, known),
            (_, Answer::Trapped(trap)) => self.trapped(planned, trap, known),
        }
    }

    /// Shows a live read that the API server keeps refusing as the target's error.
    fn with_read_failures(&self, planned: &PlannedVisit, reads: &BTreeSet<LiveRead>, known: &mut TargetMemory) -> Verdict {
        let refused = reads.iter().find_map(|read| self.round.live.failed.get(read));
        match refused.filter(|failure| failure.refused) {
            Some(failure) => {
                let message = cut(&failure.message, 256);
                self.troubled(planned, TargetError { reason: "GetObjectFailed".into(), message }, known)
            }
            None => unchanged(planned),
        }
    }

    fn reported(
        &self,
        planned: &PlannedVisit,
        operate: &Proposal,
        report: Report,
        known: &mut TargetMemory,
        tables: &mut Tables,
    ) -> Verdict {
        let wait = report.check_after_ms.map_or(SLOW_CHECK, |ms| SignedDuration::from_millis(i64::from(ms)));
        let processing = report.state == State::Processing;
        let verdict = self.proposed(planned, [operate, &report.proposal], report.state, known, tables);
        if processing && known.check_at.is_none() {
            known.check_after(self.round.now, wait);
        }
        verdict
    }

    /// `operate`'s proposal beside mutations, the proposal itself, and the target's state with it.
    fn proposed(
        &self,
        planned: &PlannedVisit,
        parts: [&Proposal; 2],
        state: State,
        known: &mut TargetMemory,
        tables: &mut Tables,
    ) -> Verdict {
        known.call_tries = 0;
        known.traps = 0;
        let [operate, proposal] = parts;
        for part in parts {
            if let Err(denied) = self.authorized(planned, part) {
                return self.failing(planned, "MutationDenied", denied, known);
            }
        }
        let writes = self.writes(planned, proposal);
        let mut next = planned.state.clone();
        if writes.is_empty() && known.write_tries == 0 && known.blocked == 0 {
            // The reason for which it waited is over; while a write is tried again, it is not.
            known.trouble = None;
            next.error = None;
        }
        for part in parts {
            part.remove_extra.iter().for_each(|key| drop(next.extra.remove(key)));
            next.extra.extend(part.set_extra.iter().cloned());
        }
        if !self.claim(&mut next, tables) {
            // Another target was quicker: the call is repeated, and no longer sees the object.
            known.check(self.round.now);
            return unchanged(planned);
        }
        known.operated |= !writes.is_empty();
        let events = operate.events.iter().chain(&proposal.events).cloned().collect();
        match state {
            State::Processing => Verdict { state: Some(next), writes, events, ..Verdict::default() },
            State::Succeeded => {
                let held = planned.object.as_ref().filter(|object| holds::held(object, &self.round.job.uid));
                known.held = held.map(|object| object.uid.clone());
                let next = ended(&next, Progress::Succeeded, self.round.second(), None);
                Verdict { state: Some(next), writes, events, ..Verdict::default() }
            }
            State::Failed(error) => {
                let planned = PlannedVisit { state: next, object: planned.object.clone(), ..*planned };
                let mut verdict = self.failing(&planned, &error.reason, error.message, known);
                verdict.writes = writes;
                verdict.events = events;
                verdict
            }
        }
    }

    fn authorized(&self, planned: &PlannedVisit, proposal: &Proposal) -> Result<(), String> {
        let Some(plugin) = self.round.serving() else { return Err("no plugin answers for it".to_owned()) };
        let seen = |key: &ObjectKey| self.round.store.get(key);
        let authority = Authority {
            manifest: &plugin.manifest,
            grant: &plugin.grant,
            namespace: &self.round.job.key.namespace,
            job_uid: &self.round.job.uid,
            target: &self.key,
            target_uid: planned.state.uid.as_deref(),
            extras: &planned.state.extra,
            seen: &seen,
        };
        authorize(proposal, &authority).map_err(|denied| denied.sentence)
    }

    /// Claims the objects that the state's exclusive extras name, and gives up the claims that it no longer names.
    fn claim(&self, next: &mut TargetState, tables: &mut Tables) -> bool {
        let Some(plugin) = self.round.serving().filter(|plugin| !plugin.registration.exclusive_extras.is_empty()) else {
            return true;
        };
        let namespace = &self.round.job.key.namespace;
        let seen = |kind: &crate::cluster::object::Kind, name: &str| {
            let key = ObjectKey { kind: kind.clone(), namespace: Some(namespace.clone()), name: name.to_owned() };
            self.round.store.get(&key).map(|object| object.uid.clone())
        };
        match note_claims(next, &plugin.registration, seen) {
            Some(noted) => drop(next.extra.insert(extras::CLAIMED_UID.to_owned(), noted)),
            None => drop(next.extra.remove(extras::CLAIMED_UID)),
        }
        let wanted = stored_claims(next, Some(&plugin.registration));
        let target_uid = next.uid.clone().unwrap_or_default();
        if wanted.iter().any(|object| tables.claims.taken(namespace, object, &target_uid)) {
            return false;
        }
        for object in &wanted {
            let job = self.round.job.key.clone();
            tables.claims.claim(object, Claim { job, index: self.index, target_uid: target_uid.clone() });
        }
        // A durable claim is given up only once the newer state is durable too.
        let kept: Vec<_> = wanted.into_iter().chain(stored_claims(self.stored, Some(&plugin.registration))).collect();
        tables.claims.release_except(&self.round.job.key, self.index, &kept);
        true
    }

    /// An end other than Succeeded. It is recorded at once where no write of ours can still take effect.
    fn failing(&self, planned: &PlannedVisit, reason: &str, message: String, known: &mut TargetMemory) -> Verdict {
        let error = TargetError { reason: reason.to_owned(), message };
        let first_round = self.stored.progress == Progress::Pending;
        if first_round || known.expects.no_late_effect() {
            return self.lost(planned, error);
        }
        known.failure =
            Some(PendingFailure { error, no_late_effect: false, skip_final_check: false, give_up_at: None });
        known.retry_at = None;
        unchanged(planned)
    }

    fn lost(&self, planned: &PlannedVisit, error: TargetError) -> Verdict {
        let next = ended(&planned.state, Progress::Failed, self.round.second(), Some(error));
        Verdict { state: Some(next), ..Verdict::default() }
    }

    fn failed(&self, planned: &PlannedVisit, failure: CallFailure, known: &mut TargetMemory) -> Verdict {
        if !failure.retryable {
            return self.failing(planned, &failure.reason, failure.message, known);
        }
        let wait = wait_after(known.call_tries, failure.retry_after_ms);
        known.call_tries = known.call_tries.saturating_add(1);
        known.check(after(self.round.now, wait));
        known.retry_at = known.check_at;
        let message = cut(&failure.message, 256);
        self.troubled(planned, TargetError { reason: failure.reason, message }, known)
    }

    /// A trouble that may pass is written once it has lasted two rounds.
    fn troubled(&self, planned: &PlannedVisit, trouble: TargetError, known: &mut TargetMemory) -> Verdict {
        let rounds = known.trouble.as_ref().map_or(1, |(_, rounds)| rounds.saturating_add(1));
        let mut verdict = unchanged(planned);
        if rounds >= 2
            && let Some(state) = verdict.state.as_mut()
        {
            state.error = Some(trouble.clone());
        }
        known.trouble = Some((trouble, rounds));
        verdict
    }

    fn trapped(&self, planned: &PlannedVisit, trap: Trap, known: &mut TargetMemory) -> Verdict {
        known.traps = known.traps.saturating_add(1);
        if known.traps < TRAPS {
            known.check_at = Some(self.round.now);
            return unchanged(planned);
        }
        known.traps = 0;
        let message = format!("{} ({TRAPS} times in a row)", trap.message);
        self.failing(planned, trap.reason, message, known)
    }

    /// The final check of a target whose time is over: only `succeeded` counts.
    fn final_check(
        &self,
        planned: &PlannedVisit,
        answer: Answer,
        known: &mut TargetMemory,
        tables: &mut Tables,
    ) -> Verdict {
        let Some(failure) = known.failure.clone() else { return unchanged(planned) };
        match answer {
            Answer::Reported { operate, report } if report.state == State::Succeeded => {
                self.proposed(planned, [&operate, &report.proposal], State::Succeeded, known, tables)
            }
            Answer::Trapped(_) if known.traps.saturating_add(1) < TRAPS => {
                known.traps = known.traps.saturating_add(1);
                known.retry_at = Some(self.round.now);
                unchanged(planned)
            }
            _ => self.lost(planned, failure.error),
        }
    }

    /// An answer to `release`. The host lets go of the target, with the plugin or without.
    fn released(&self, planned: &PlannedVisit, answer: Answer, known: &mut TargetMemory) -> Verdict {
        match answer {
            Answer::Proposed(proposal) => match self.authorized(planned, &proposal) {
                Ok(()) => {
                    let mut verdict = self.let_go(planned, &proposal);
                    verdict.events.extend(proposal.events);
                    verdict
                }
                Err(denied) => self.released_alone(planned, &denied, known),
            },
            Answer::Failed(failure) if failure.retryable && known.release_tries < 5 => {
                let wait = wait_after(known.release_tries, failure.retry_after_ms);
                known.release_tries = known.release_tries.saturating_add(1);
                known.check(after(self.round.now, wait));
                known.retry_at = known.check_at;
                unchanged(planned)
            }
            Answer::Failed(failure) => {
                self.released_alone(planned, &format!("{}: {}", failure.reason, failure.message), known)
            }
            Answer::Trapped(_) if known.traps.saturating_add(1) < TRAPS => {
                known.traps = known.traps.saturating_add(1);
                known.check_at = Some(self.round.now);
                unchanged(planned)
            }
            Answer::Trapped(trap) => self.released_alone(planned, &trap.message, known),
            Answer::Reported { .. } => self.let_go(planned, &Proposal::default()),
        }
    }

    /// The release of a target without its plugin, which is told once.
    pub(crate) fn released_alone(&self, planned: &PlannedVisit, why: &str, known: &mut TargetMemory) -> Verdict {
        let mut verdict = self.let_go(planned, &Proposal::default());
        if !std::mem::replace(&mut known.release_alone, true) {
            let message = format!("{}: released without the plugin: {why}", self.name);
            verdict.events.push(PluginEvent { warning: true, reason: "ReleaseTargetFailed".into(), message });
        }
        verdict
    }

    /// Takes away the changes that the proposal and the job's hold name. `Released` is recorded once nothing is left.
    fn let_go(&self, planned: &PlannedVisit, proposal: &Proposal) -> Verdict {
        let held = planned.object.as_ref().and_then(|object| holds::let_go(object, &self.round.job.uid));
        let mut writes = self.writes(planned, proposal);
        // A proposal that changes the target's metadata goes by the same hold: one patch does both.
        writes.retain(|write| held.is_none() || !matches!(write, Write::Patch { object, .. } if *object == self.key));
        writes.extend(held.map(|body| Write::patch(&self.key, body)));
        if !writes.is_empty() {
            return Verdict { writes, ..unchanged(planned) };
        }
        let mut state = planned.state.clone();
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

/// A time by which no request that was sent at `sent` can take effect any more: an API server gives up a request of its
/// own accord after a minute.
pub fn too_late_for(sent: Timestamp) -> Timestamp {
    after(sent, SignedDuration::from_secs(65))
}
