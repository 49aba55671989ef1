//! Promises that hold for every input: no target is forgotten, a deadline ends its target, a dry run changes nothing, and a deleted job leaves
//! nothing.

use std::collections::BTreeSet;

use k8s_openapi::jiff::Timestamp;
use oarlock_core::object::time::{after, after_seconds};
use oarlock_core::operation_job::state::{JobState, TargetState};
use proptest::prelude::*;
use serde_json::Value;

use crate::bad_input::GRACE;
use crate::bad_input::case::{Case, Event};
use crate::bad_input::case_run::CaseRun;

impl CaseRun {
    /// Checks that each active target has a due time, or waits for a record, a live read or an indexed object.
    pub(super) fn nobody_is_forgotten(&self) -> Result<(), TestCaseError> {
        let bench = &self.bench;
        let memory = &bench.memory;
        let due: BTreeSet<u32> = memory.work.due_times.clone().take_due(Timestamp::MAX).into_iter().collect();
        let mut queue = bench.queue.clone();
        let queued: BTreeSet<u32> =
            std::iter::from_fn(|| queue.take_next(|_| true)).filter_map(|entry| entry.index).collect();
        let serves = bench.found.serving().is_some();
        for index in memory.stored.durable.processing.iter().chain(&memory.targets.releasing) {
            let waits = due.contains(index)
                || queued.contains(index)
                || memory.work.dirty.contains(index)
                || memory.decisions.decided.contains_key(index);
            let result = memory.work.results.iter().any(|result| result.entry.index == Some(*index));
            let unread = !memory.stored.epoch_raised || memory.stored.reload || memory.stored.operation_records.wanted;
            let endless = memory.stored.state.target(*index).is_some_and(|target| target.start.is_none());
            if !waits && !result && !unread && (serves || !endless) {
                return Err(TestCaseError::fail(format!("target {index} is forgotten\n{}", self.shown())));
            }
        }
        let waits = !queued.is_empty()
            || memory.decisions.decided.is_empty() && memory.work.dirty.is_empty() && memory.work.results.is_empty();
        if bench.next.is_none() && !waits {
            return Err(TestCaseError::fail(format!("the job is forgotten\n{}", self.shown())));
        }
        Ok(())
    }

    /// L1: checks that no started target stays in flight long after its deadline.
    pub(super) fn deadlines_were_kept(&self) -> Result<(), TestCaseError> {
        if self.bench.job_is_gone {
            return Ok(());
        }
        let state = self.stored();
        let seconds =
            self.bench.job["spec"]["activeDeadlineSeconds"].as_i64().filter(|limit| *limit > 0).unwrap_or(10_800);
        let over = |target: &&TargetState| {
            let late = target.start.map(|start| after(after_seconds(start, seconds), GRACE));
            !target.progress.terminal() && target.started() && late.is_some_and(|time| time < self.bench.now)
        };
        match state.targets.iter().find(over) {
            Some(target) => Err(TestCaseError::fail(format!("its time is long over: {target:?}\n{}", self.shown()))),
            None => Ok(()),
        }
    }

    /// L3: checks that a deleted job leaves nothing.
    pub(super) fn nothing_is_left(&self) -> Result<(), TestCaseError> {
        let bench = &self.bench;
        let ours = "finalizer.operating.kusionstack.io/protected";
        let kept =
            bench.job["metadata"]["finalizers"].as_array().is_some_and(|list| list.iter().any(|name| name == ours));
        if !bench.job_is_gone && kept {
            return Err(TestCaseError::fail(format!("the deleted job stays\n{}", self.shown())));
        }
        Ok(())
    }

    /// Checks that a dry run has sent only its status, dry-run requests, and its own deletion after its time to live. Edited and deleted jobs are not
    /// checked.
    pub(super) fn a_dry_run_did_nothing(&self, case: &Case) -> Result<(), TestCaseError> {
        let Case { stored, later } = case;
        // A job that began in earnest must undo its changes.
        let began =
            stored.status.0.pointer("/selection/digest").and_then(Value::as_str).is_some_and(|text| !text.is_empty());
        let edited = later.events.iter().any(|(_, event)| matches!(event, Event::Edit(_)));
        // The host removes a forged finalizer once the job is deleted.
        let forged = !stored.finalizers.is_empty();
        if stored.spec.0["dryRun"] != true || began || edited || forged || later.deleted_at.is_some() {
            return Ok(());
        }
        let allowed = |sent: &&String| *sent == "status" || *sent == "delete j" || sent.starts_with("try to ");
        match self.bench.sent.iter().find(|sent| !allowed(sent)) {
            Some(sent) => Err(TestCaseError::fail(format!("a dry run sent {sent}\n{}", self.shown()))),
            None => Ok(()),
        }
    }

    fn stored(&self) -> JobState {
        let job = serde_json::from_value(self.bench.job.clone()).unwrap();
        let records = if self.bench.status()["records"].is_object() { self.bench.read_records() } else { vec![] };
        JobState::read(&job, &records, self.bench.now, None)
    }
}
