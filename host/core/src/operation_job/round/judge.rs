//! The outcome of a plugin's answer for its target.
//!
//! Takes a planned visit and its [`Answer`]; yields a [`TargetUpdate`]: the state to record, the writes to make after the
//! record, and the events that follow. A denial, a trap or a failure affects only this target. The final check, at the
//! deadline or after a failed attempt, may not fail a target that has succeeded after all. Source:
//! docs/operationjob.md 3.7, 3.8, 3.10, 3.11.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::jiff::SignedDuration;
use oarlock_api::TargetError;

use crate::object::api_object::ObjectKey;
use crate::object::bound::shown_cause;
use crate::object::own::OPS_NAMESPACE;
use crate::object::time::after;
use crate::operation_job::round::calls::PlannedCall;
use crate::operation_job::round::pace::wait_after;
use crate::operation_job::round::target_memory::{PendingFailure, TargetMemory};
use crate::operation_job::round::visit::{TargetUpdate, unchanged};
use crate::operation_job::shared::tables::Tables;
use crate::operation_job::state::{Progress, ended};
use crate::operation_job::tasks::target_tasks::requests;
use crate::plugin::authorize::{Authority, authorize};
use crate::plugin::proposal::{CallFailure, PluginEvent, Proposal, Report, State};
use crate::plugin::task::{Task, TaskRequest};
use crate::plugin::visit::{Answer, Call, Trap};
use crate::requests::live_reads::LiveRead;

/// Number of traps in a row, each on a fresh instance, that ends a target's attempt.
pub(super) const TRAPS: u32 = 3;
/// Longest time between visits: a slow check for missed changes.
const SLOW_CHECK: SignedDuration = SignedDuration::from_secs(60);
/// Most live reads of one target in one round. A plugin that asks for more waits as after any failure.
const LIVE_READS: usize = 32;

impl PlannedCall<'_> {
    /// Returns the outcome of `answer`. `missing` are the live reads that the plugin lacked. The next target sees the
    /// claims of this target.
    pub(crate) fn judge_answer(
        &self,
        answer: Answer,
        missing: BTreeSet<LiveRead>,
        known: &mut TargetMemory,
        tables: &mut Tables,
    ) -> TargetUpdate {
        // A plugin discovers its live reads one at a time. An answer is valid for one round only, so the next round
        // repeats all reads of the visit together.
        let mut reads = std::mem::take(&mut known.live_reads);
        reads.extend(missing.iter().cloned());
        match (self.planned.call, answer) {
            (_, Answer::Failed(failure)) if failure.retryable && !missing.is_empty() && reads.len() <= LIVE_READS => {
                known.live_reads.clone_from(&reads);
                let mut update = self.with_read_failures(&reads, known);
                update.live_reads = reads;
                update
            }
            (Call::Release, answer) => self.released(answer, known),
            (_, answer) if self.planned.final_check => {
                let update = self.final_check(answer, known, tables);
                if update.state.as_ref().is_some_and(|state| !state.progress.terminal()) {
                    // The host repeats the check, so it keeps the reads that the check and the proposed changes need.
                    known.live_reads = reads;
                }
                update
            }
            (_, Answer::Proposed(proposal)) if self.target.round.dry_run => {
                self.dry_run_update([&proposal, &Proposal::default()], State::Processing, known)
            }
            (_, Answer::Reported { operate, report }) if self.target.round.dry_run => {
                self.dry_run_update([&operate, &report.proposal], report.state, known)
            }
            (_, Answer::Proposed(proposal)) => {
                let update = self.proposed([&Proposal::default(), &proposal], State::Processing, known, tables);
                // Without this time, no visit might follow, because the proposal may have changed nothing.
                known.check_at.get_or_insert(after(self.target.round.now, SLOW_CHECK));
                update
            }
            (_, Answer::Reported { operate, report }) => self.reported(&operate, report, known, tables),
            (_, Answer::Failed(failure)) => self.failed(failure, known),
            (_, Answer::Trapped(trap)) => self.trapped(trap, known),
        }
    }

    /// Sets the target's error if the API server keeps refusing one of its live reads.
    fn with_read_failures(&self, reads: &BTreeSet<LiveRead>, known: &mut TargetMemory) -> TargetUpdate {
        let refused = reads.iter().find_map(|read| self.target.round.live.failed.get(read));
        match refused.filter(|failure| failure.refused) {
            Some(failure) => {
                let message = shown_cause(&failure.message, 256);
                self.troubled(TargetError { reason: "GetObjectFailed".into(), message }, known)
            }
            None => unchanged(self.planned),
        }
    }

    fn reported(
        &self,
        operate: &Proposal,
        report: Report,
        known: &mut TargetMemory,
        tables: &mut Tables,
    ) -> TargetUpdate {
        let wait = report.check_after_ms.map_or(SLOW_CHECK, |ms| SignedDuration::from_millis(i64::from(ms)));
        let processing = report.state == State::Processing;
        let update = self.proposed([operate, &report.proposal], report.state, known, tables);
        if processing && known.check_at.is_none() {
            known.check_after(self.target.round.now, wait);
        }
        update
    }

    /// Returns true if the grant was narrowed, so that the plugin may change nothing in the job's namespace.
    pub(super) fn is_out_of_bounds(&self) -> bool {
        let namespace = &self.target.round.job.key.namespace;
        self.target.round.serving().is_some_and(|plugin| !plugin.grant.allows_namespace(namespace))
    }

    /// Returns the outcome of proposed changes under a narrowed grant, which fails no target. The changes wait until
    /// the grant is widened. At the target's deadline, the host drops them.
    pub(super) fn out_of_bounds(
        &self,
        parts: [&Proposal; 2],
        state: State,
        known: &mut TargetMemory,
        tables: &mut Tables,
    ) -> TargetUpdate {
        if self.planned.final_check {
            let [operate, proposal] = parts.map(|part| Proposal { mutations: Vec::new(), ..part.clone() });
            return self.proposed([&operate, &proposal], state, known, tables);
        }
        self.waits_for_grant(known)
    }

    pub(super) fn waits_for_grant(&self, known: &mut TargetMemory) -> TargetUpdate {
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

    /// Returns the outcome of a failure. The host records the failure at once if no write of this job can still take
    /// effect.
    pub(super) fn failing(&self, reason: &str, message: String, known: &mut TargetMemory) -> TargetUpdate {
        let error = TargetError { reason: reason.to_owned(), message };
        let first_round = self.target.stored.progress == Progress::Pending;
        if first_round || self.target.round.dry_run || known.expects.no_late_effect() {
            return self.lost(error);
        }
        known.failure = Some(PendingFailure { of_attempt: true, ..PendingFailure::new(error) });
        known.retry_at = None;
        unchanged(self.planned)
    }

    /// Returns the end of the attempt, which also ends the target unless another attempt follows.
    fn lost(&self, error: TargetError) -> TargetUpdate {
        let next = self.target.after_attempt(&self.planned.state, error);
        TargetUpdate { state: Some(next), ..TargetUpdate::default() }
    }

    fn failed(&self, failure: CallFailure, known: &mut TargetMemory) -> TargetUpdate {
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

    /// Sets the error of a target in flight to a problem that may pass, once the problem has lasted two rounds.
    fn troubled(&self, trouble: TargetError, known: &mut TargetMemory) -> TargetUpdate {
        let mut update = unchanged(self.planned);
        if known.trouble_lasts(&trouble)
            && let Some(state) = update.state.as_mut().filter(|state| !state.progress.terminal())
        {
            state.error = Some(trouble);
        }
        update
    }

    fn trapped(&self, trap: Trap, known: &mut TargetMemory) -> TargetUpdate {
        known.traps = known.traps.saturating_add(1);
        if known.traps < TRAPS {
            known.check_at = Some(self.target.round.now);
            return unchanged(self.planned);
        }
        known.traps = 0;
        let message = format!("{} ({TRAPS} times in a row)", trap.message);
        self.failing(trap.reason, message, known)
    }

    /// Returns the outcome of the final check of a target with a pending failure: its deadline has passed or its attempt
    /// has failed. Only `succeeded` counts.
    fn final_check(&self, answer: Answer, known: &mut TargetMemory, tables: &mut Tables) -> TargetUpdate {
        let Some(failure) = known.failure.clone() else { return unchanged(self.planned) };
        match answer {
            Answer::Reported { operate, report } if report.state == State::Succeeded => {
                let update = self.proposed([&operate, &report.proposal], State::Succeeded, known, tables);
                // The grant denied the proposal, or another target has claimed the object. The target's time is over
                // all the same.
                let succeeded = update.state.as_ref().is_some_and(|state| state.progress == Progress::Succeeded);
                if succeeded { update } else { self.lost_for_good(failure) }
            }
            Answer::Trapped(_) if known.traps.saturating_add(1) < TRAPS => {
                known.traps = known.traps.saturating_add(1);
                known.retry_at = Some(self.target.round.now);
                unchanged(self.planned)
            }
            _ => self.lost_for_good(failure),
        }
    }

    /// Returns the end of a target whose final check did not show success. The writes that were proposed with its
    /// failure are computed again, because an invalidation has changed its object since.
    fn lost_for_good(&self, failure: PendingFailure) -> TargetUpdate {
        let follows = &failure.follows;
        let (writes, events) = match self.authorized(follows, &self.planned.state.extra) {
            Err(why) if !follows.mutations.is_empty() => (Vec::new(), vec![not_made(self.target.name, &why)]),
            _ => (self.target.writes(self.planned, follows), follows.events.clone()),
        };
        let (planned, error) = (&self.planned.state, failure.error.clone());
        let state = match failure.of_attempt {
            true => self.target.after_attempt(planned, error),
            false => ended(planned, Progress::Failed, self.target.round.second(), Some(error)),
        };
        let of_plugin = self.target.of_plugin(&writes);
        TargetUpdate { state: Some(failure.ended(state)), writes, of_plugin, events, ..TargetUpdate::default() }
    }
}

/// Returns the name of the task that runs a stored script on a node, named by its digest. Only the host itself can say
/// where such a script comes from, in the OperationJob of an OpsJob. In another OperationJob, a user could pass off any
/// script as that of a template.
fn script_by_digest(proposal: &Proposal) -> Option<&str> {
    let named = |request: &&TaskRequest| match request.task() {
        Ok(Task::RunOnNode(run)) => run.script.is_some_and(|script| script.sha256.is_some()),
        _ => false,
    };
    requests(proposal).find(named).map(|request| request.name.as_str())
}

/// Returns the event about writes that were proposed with the end of a target and are not made. No plugin proposes
/// these writes again.
pub fn not_made(target: &str, why: &str) -> PluginEvent {
    let message =
        format!("{target}: the host did not make a write that the plugin proposed with the end of the target: {why}");
    PluginEvent { warning: true, reason: "UpdateObjectFailed".into(), message }
}
