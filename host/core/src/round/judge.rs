//! The meaning of a plugin's answer for its target.
//!
//! Takes a planned visit and its [`Answer`]; yields a [`Verdict`]: the state to record, the writes to make after that and
//! the events that follow. A denial, a trap or a failure is an outcome of this target and of nothing else. Source:
//! docs/operationjob.md 3.7, 3.8, 3.10, 3.11.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::jiff::SignedDuration;
use oarlock_api::TargetError;

use crate::cluster::live_reads::LiveRead;
use crate::cluster::object::ObjectKey;
use crate::cluster::own::OPS_NAMESPACE;
use crate::cluster::writes::Write;
use crate::job::bound::shown_cause;
use crate::job::state::{Progress, TargetState};
use crate::job::time::after;
use crate::plugin::authorize::{Authority, authorize};
use crate::plugin::proposal::{CallFailure, PluginEvent, Proposal, Report, State};
use crate::plugin::task::{Task, TaskRequest};
use crate::plugin::visit::{Answer, Call, Trap};
use crate::round::calls::PlannedCall;
use crate::round::pace::wait_after;
use crate::round::target::PlannedVisit;
use crate::round::target_memory::{PendingFailure, TargetMemory};
use crate::round::tasks::requests;
use crate::shared::tables::Tables;

/// Traps in a row, each on a fresh instance, that end a target's attempt.
pub(super) const TRAPS: u32 = 3;
/// Longest time between visits: a slow check that no change was missed.
const SLOW_CHECK: SignedDuration = SignedDuration::from_secs(60);
/// Most live reads of one target in one round: a plugin that asks for more waits as after any failure.
const LIVE_READS: usize = 32;

/// The meaning of an answer.
#[derive(Debug, Default)]
pub struct Verdict {
    /// The state to record, equal to the stored one if nothing changed; `None` if nothing is to be decided.
    pub state: Option<TargetState>,
    /// The writes that follow the record, in order.
    pub writes: Vec<Write>,
    /// The events to emit.
    pub events: Vec<PluginEvent>,
    /// The events to emit on the target's object.
    pub pod_events: Vec<PluginEvent>,
    /// The live reads that the call lacked.
    pub live_reads: BTreeSet<LiveRead>,
    /// What the proposal asked for without being granted it; none of it is done.
    pub denied: Option<String>,
}

pub(super) fn unchanged(planned: &PlannedVisit) -> Verdict {
    Verdict { state: Some(planned.state.clone()), ..Verdict::default() }
}

impl PlannedCall<'_> {
    /// The meaning of `answer`. `missing` are the live reads that the plugin lacked; a claim of this target is visible to
    /// the next.
    pub(crate) fn judge_answer(
        &self,
        answer: Answer,
        missing: BTreeSet<LiveRead>,
        known: &mut TargetMemory,
        tables: &mut Tables,
    ) -> Verdict {
        // One visit may need several live reads, and learns of them one after the other: the next round makes all of
        // them again together, since an answer counts in its own round alone.
        let mut reads = std::mem::take(&mut known.live_reads);
        reads.extend(missing.iter().cloned());
        match (self.planned.call, answer) {
            (_, Answer::Failed(failure)) if failure.retryable && !missing.is_empty() && reads.len() <= LIVE_READS => {
                known.live_reads.clone_from(&reads);
                let mut verdict = self.with_read_failures(&reads, known);
                verdict.live_reads = reads;
                verdict
            }
            (Call::Release, answer) => self.released(answer, known),
            (_, answer) if self.planned.final_check => {
                let verdict = self.final_check(answer, known, tables);
                if verdict.state.as_ref().is_some_and(|state| !state.progress.terminal()) {
                    // It is made again, and what was proposed with the failure still needs them.
                    known.live_reads = reads;
                }
                verdict
            }
            (_, Answer::Proposed(proposal)) if self.target.round.dry_run => {
                self.tried([&proposal, &Proposal::default()], State::Processing, known)
            }
            (_, Answer::Reported { operate, report }) if self.target.round.dry_run => {
                self.tried([&operate, &report.proposal], report.state, known)
            }
            (_, Answer::Proposed(proposal)) => {
                let verdict = self.proposed([&Proposal::default(), &proposal], State::Processing, known, tables);
                // Nothing else may cause a visit: the proposal may have changed nothing.
                known.check_at.get_or_insert(after(self.target.round.now, SLOW_CHECK));
                verdict
            }
            (_, Answer::Reported { operate, report }) => self.reported(&operate, report, known, tables),
            (_, Answer::Failed(failure)) => self.failed(failure, known),
            (_, Answer::Trapped(trap)) => self.trapped(trap, known),
        }
    }

    /// Sets the target's error to a live read that the API server keeps refusing.
    fn with_read_failures(&self, reads: &BTreeSet<LiveRead>, known: &mut TargetMemory) -> Verdict {
        let refused = reads.iter().find_map(|read| self.target.round.live.failed.get(read));
        match refused.filter(|failure| failure.refused) {
            Some(failure) => {
                let message = shown_cause(&failure.message, 256);
                self.troubled(TargetError { reason: "GetObjectFailed".into(), message }, known)
            }
            None => unchanged(self.planned),
        }
    }

    fn reported(&self, operate: &Proposal, report: Report, known: &mut TargetMemory, tables: &mut Tables) -> Verdict {
        let wait = report.check_after_ms.map_or(SLOW_CHECK, |ms| SignedDuration::from_millis(i64::from(ms)));
        let processing = report.state == State::Processing;
        let verdict = self.proposed([operate, &report.proposal], report.state, known, tables);
        if processing && known.check_at.is_none() {
            known.check_after(self.target.round.now, wait);
        }
        verdict
    }

    /// True if the grant was narrowed, so that nothing may be changed in the job's namespace.
    pub(super) fn is_out_of_bounds(&self) -> bool {
        let namespace = &self.target.round.job.key.namespace;
        self.target.round.serving().is_some_and(|plugin| !plugin.grant.allows_namespace(namespace))
    }

    /// A narrowed grant fails nothing: the changes that were proposed wait until it is widened, or are left out where the
    /// target's time is over.
    pub(super) fn out_of_bounds(
        &self,
        parts: [&Proposal; 2],
        state: State,
        known: &mut TargetMemory,
        tables: &mut Tables,
    ) -> Verdict {
        if self.planned.final_check {
            let [operate, proposal] = parts.map(|part| Proposal { mutations: Vec::new(), ..part.clone() });
            return self.proposed([&operate, &proposal], state, known, tables);
        }
        self.waits_for_grant(known)
    }

    pub(super) fn waits_for_grant(&self, known: &mut TargetMemory) -> Verdict {
        known.check(after(self.target.round.now, SLOW_CHECK));
        let namespace = &self.target.round.job.key.namespace;
        let message = format!("the plugin is not granted namespace {namespace} any more");
        self.troubled(TargetError { reason: "NamespaceNotAllowed".into(), message }, known)
    }

    /// Authorizes a proposal for a target with these extras.
    pub(super) fn authorized(&self, proposal: &Proposal, extras: &BTreeMap<String, String>) -> Result<(), String> {
        let Some(plugin) = self.target.round.serving() else { return Err("no plugin serves the action".to_owned()) };
        let seen = |key: &ObjectKey| self.target.round.sighting(key).map(|object| object.owners.clone());
        let authority = Authority {
            manifest: &plugin.manifest,
            grant: &plugin.grant,
            namespace: &self.target.round.job.key.namespace,
            job_uid: &self.target.round.job.uid,
            target: &self.target.key,
            target_uid: self.planned.state.uid.as_deref(),
            extras,
            seen: &seen,
        };
        if self.planned.call == Call::Release && requests(proposal).next().is_some() {
            return Err("a task cannot begin while its target is released".to_owned());
        }
        if authority.namespace != OPS_NAMESPACE
            && let Some(task) = script_by_digest(proposal)
        {
            return Err(format!(
                "task {task}: a script that is named by its digest runs on nodes for OpsJobs alone, whose OperationJobs are in {OPS_NAMESPACE}"
            ));
        }
        authorize(proposal, &authority).map_err(|denied| denied.sentence)
    }

    /// An end other than Succeeded. It is recorded at once if no write of this job can still take effect.
    pub(super) fn failing(&self, reason: &str, message: String, known: &mut TargetMemory) -> Verdict {
        let error = TargetError { reason: reason.to_owned(), message };
        let first_round = self.target.stored.progress == Progress::Pending;
        if first_round || self.target.round.dry_run || known.expects.no_late_effect() {
            return self.lost(error);
        }
        known.failure = Some(PendingFailure { of_attempt: true, ..PendingFailure::new(error) });
        known.retry_at = None;
        unchanged(self.planned)
    }

    /// The attempt is lost, and with it the target unless another attempt follows.
    fn lost(&self, error: TargetError) -> Verdict {
        let next = self.target.after_attempt(&self.planned.state, error);
        Verdict { state: Some(next), ..Verdict::default() }
    }

    fn failed(&self, failure: CallFailure, known: &mut TargetMemory) -> Verdict {
        if !failure.retryable {
            return self.failing(&failure.reason, failure.message, known);
        }
        let wait = wait_after(known.call_tries, failure.retry_after_ms);
        known.call_tries = known.call_tries.saturating_add(1);
        known.check(after(self.target.round.now, wait));
        known.retry_at = known.check_at;
        let message = shown_cause(&failure.message, 256);
        self.troubled(TargetError { reason: failure.reason, message }, known)
    }

    /// Sets the error of a target in flight to a trouble that may pass, once it has lasted two rounds.
    fn troubled(&self, trouble: TargetError, known: &mut TargetMemory) -> Verdict {
        let mut verdict = unchanged(self.planned);
        if known.trouble_lasts(&trouble)
            && let Some(state) = verdict.state.as_mut().filter(|state| !state.progress.terminal())
        {
            state.error = Some(trouble);
        }
        verdict
    }

    fn trapped(&self, trap: Trap, known: &mut TargetMemory) -> Verdict {
        known.traps = known.traps.saturating_add(1);
        if known.traps < TRAPS {
            known.check_at = Some(self.target.round.now);
            return unchanged(self.planned);
        }
        known.traps = 0;
        let message = format!("{} ({TRAPS} times in a row)", trap.message);
        self.failing(trap.reason, message, known)
    }
}

/// The task that runs a script on a node which somebody else has stored. Where that came from, only the host itself says, in the
/// OperationJob of an OpsJob: whoever makes another one could name any script as that of a template.
fn script_by_digest(proposal: &Proposal) -> Option<&str> {
    let named = |request: &&TaskRequest| match request.task() {
        Ok(Task::RunOnNode(run)) => run.script.is_some_and(|script| script.sha256.is_some()),
        _ => false,
    };
    requests(proposal).find(named).map(|request| request.name.as_str())
}

/// What is said of the writes that were proposed with the end of a target and are not made: nobody proposes them again.
pub fn not_made(target: &str, why: &str) -> PluginEvent {
    let message = format!("{target}: a write that was proposed with the end of the target was not made: {why}");
    PluginEvent { warning: true, reason: "UpdateObjectFailed".into(), message }
}
