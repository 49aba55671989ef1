//! One plugin call for one target: its input, and the reads that it may make.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use oarlock_contract::successors::MADE_BY_THEN_SECONDS;

use crate::object::time::{after, after_seconds, milliseconds, whole};
use crate::operation_job::round::context::Target;
use crate::operation_job::round::memory::StoredState;
use crate::operation_job::round::target_memory::TargetMemory;
use crate::operation_job::round::visit::{PlannedVisit, TargetUpdate};
use crate::operation_job::shared::reads::{Subject, VisitReads};
use crate::operation_job::shared::successors::RootController;
use crate::operation_job::shared::tables::{SharedTables, Tables};
use crate::operation_job::state::{TargetState, extras};
use crate::plugin::visit::{Answer, Call, JobFacts, TargetFacts, Visit};

/// A planned visit of one target, for the call of the plugin.
pub struct PlannedCall<'a> {
    /// The target of the visit.
    pub target: Target<'a>,
    /// The planned visit.
    pub planned: &'a PlannedVisit,
}

impl PlannedCall<'_> {
    /// Returns the input of the plugin, and the reads, which note the live reads that are missing.
    pub fn input(
        &self,
        facts: &Arc<JobFacts>,
        stored: &StoredState,
        known: &TargetMemory,
        tables: &SharedTables,
    ) -> (Visit, Arc<VisitReads>) {
        let mut reads = self.reads(stored, known, tables);
        let registration = self.target.round.serving().map(|plugin| &plugin.registration);
        reads.subject.parameters =
            registration.map(|own| own.named_by_parameters(&facts.parameters)).unwrap_or_default();
        let reads = Arc::new(reads);
        let target = self.facts(stored, known);
        (Visit { job: facts.clone(), target, call: self.planned.call, reads: reads.clone() }, reads)
    }

    /// Returns true if the host calls the plugin. A release continues without the plugin if the plugin refused it, or
    /// if its live reads keep failing.
    pub fn wants_plugin(&self, known: &TargetMemory) -> bool {
        let alone = known.releases_without_plugin || known.gives_up_reads(self.target.round.now);
        self.planned.call != Call::Release || !alone
    }

    /// Returns the outcome of the plugin's answer. `answer` is `None` if no plugin was there to answer.
    pub fn judge(
        &self,
        answer: Option<(Answer, &VisitReads)>,
        known: &mut TargetMemory,
        tables: &mut Tables,
    ) -> TargetUpdate {
        known.visited(self.target.round.now);
        match (answer, self.planned.call) {
            (Some((answer, reads)), _) => self.judge_answer(answer, reads.missing(), known, tables),
            (None, Call::Release) if known.gives_up_reads(self.target.round.now) => {
                known.live_reads.clear();
                self.release_without_plugin("its live reads keep failing", known)
            }
            (None, Call::Release) => self.release_without_plugin("no plugin serves the action", known),
            (None, _) => TargetUpdate::default(),
        }
    }

    /// Returns the extras that the plugin sees: the stored extras, without those that an earlier attempt left.
    fn extras(&self, stored: &TargetState) -> BTreeMap<String, String> {
        let begins_again = stored.between_attempts() && !self.planned.state.between_attempts();
        if begins_again { self.planned.state.extra.clone() } else { stored.extra.clone() }
    }

    fn facts(&self, stored: &StoredState, known: &TargetMemory) -> TargetFacts {
        let Target { index, name, .. } = self.target;
        let containers = stored.state.names.get(index as usize).and_then(|target| target.containers.clone());
        let state = &self.planned.state;
        TargetFacts {
            name: name.to_owned(),
            index,
            kind: self.target.round.kind.word().to_owned(),
            uid: state.uid.clone(),
            object: self.planned.object.clone(),
            containers: containers.unwrap_or_default(),
            extras: self.extras(self.target.stored),
            attempt: state.attempt,
            call_try: known.call_tries.saturating_add(1),
            started_ms: state.start.map_or(0, milliseconds),
            deadline_ms: self.target.round.deadline(state).map(milliseconds),
            tasks: self.target.task_statuses(state),
        }
    }

    fn reads(&self, stored: &StoredState, known: &TargetMemory, tables: &SharedTables) -> VisitReads {
        let (round, state) = (self.target.round, &self.planned.state);
        let since = whole(self.since(state, known));
        VisitReads {
            store: round.store.clone(),
            tables: tables.clone(),
            live: round.live.clone(),
            served: round.served.clone(),
            plugin: round.serving().cloned(),
            subject: Subject {
                kind: round.kind,
                surplus_since: surplus_since(stored.state.start, since, round.now),
                namespace: round.job.key.namespace.clone(),
                name: self.target.name.to_owned(),
                uid: state.uid.clone().unwrap_or_default(),
                extras: self.extras(self.target.stored),
                parameters: BTreeMap::new(),
                job_uid: round.job.uid.clone(),
                since,
                started: state.start.unwrap_or(round.now),
                controller: RootController::of(&round.job.key.namespace, state),
            },
            all_live: self.planned.final_check,
            given_up: known.gives_up_reads(round.now),
            missing: Mutex::default(),
        }
    }

    /// Returns the earliest creation time of an object that may be the target's successor.
    fn since(&self, state: &TargetState, known: &TargetMemory) -> Timestamp {
        let noted = state.extra(extras::EVICTED_AT).and_then(|text| text.parse().ok());
        let seen = || self.planned.object.as_deref().and_then(crate::object::api_object::Object::asked_to_go);
        noted.or_else(seen).or_else(|| known.expects.departure()).or(state.start).unwrap_or(self.target.round.now)
    }
}

/// Returns the earliest creation time of a successor that its controller made before the target was asked to terminate.
/// This is the first second in which every object is younger than the job's start. `None` until the controller has had
/// time to make a successor after the target was asked to terminate.
fn surplus_since(job_start: Option<Timestamp>, since: Timestamp, now: Timestamp) -> Option<Timestamp> {
    let first = after_seconds(job_start?, 1);
    let by_then = after(since, SignedDuration::from_secs(MADE_BY_THEN_SECONDS.into()));
    (first < since && by_then <= now).then_some(first)
}
