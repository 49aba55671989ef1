//! One plugin call for one target: its input, and the reads it may make.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use oarlock_contract::successors::MADE_BY_THEN_SECONDS;

use crate::job::state::{TargetState, extras};
use crate::job::time::{after, after_seconds, milliseconds, whole};
use crate::plugin::visit::{Answer, Call, JobFacts, TargetFacts, Visit};
use crate::round::context::Target;
use crate::round::judge::Verdict;
use crate::round::memory::JobMemory;
use crate::round::target::PlannedVisit;
use crate::round::target_memory::TargetMemory;
use crate::shared::reads::{Subject, VisitReads};
use crate::shared::successors::RootController;
use crate::shared::tables::{SharedTables, Tables};

/// A planned visit of one target, on its way to the plugin and back.
pub struct PlannedCall<'a> {
    /// The target.
    pub target: Target<'a>,
    /// The visit.
    pub planned: &'a PlannedVisit,
}

impl PlannedCall<'_> {
    /// The input of the plugin, with the reads that note which live reads it lacks.
    pub fn input(
        &self,
        facts: &Arc<JobFacts>,
        memory: &JobMemory,
        known: &TargetMemory,
        tables: &SharedTables,
    ) -> (Visit, Arc<VisitReads>) {
        let mut reads = self.reads(memory, known, tables);
        let registration = self.target.round.serving().map(|plugin| &plugin.registration);
        reads.subject.parameters =
            registration.map(|own| own.named_by_parameters(&facts.parameters)).unwrap_or_default();
        let reads = Arc::new(reads);
        let target = self.facts(memory, known);
        (Visit { job: facts.clone(), target, call: self.planned.call, reads: reads.clone() }, reads)
    }

    /// True if the plugin is called at all: a release that it refused, or whose live reads keep failing, continues without
    /// it.
    pub fn wants_plugin(&self, known: &TargetMemory) -> bool {
        let alone = known.release_alone || known.gives_up_reads(self.target.round.now);
        self.planned.call != Call::Release || !alone
    }

    /// The meaning of the plugin's answer; `None` if no plugin was there to answer.
    pub fn judge(
        &self,
        answer: Option<(Answer, &VisitReads)>,
        known: &mut TargetMemory,
        tables: &mut Tables,
    ) -> Verdict {
        known.visited(self.target.round.now);
        match (answer, self.planned.call) {
            (Some((answer, reads)), _) => self.judge_answer(answer, reads.missing(), known, tables),
            (None, Call::Release) if known.gives_up_reads(self.target.round.now) => {
                known.live_reads.clear();
                self.released_alone("its live reads keep failing", known)
            }
            (None, Call::Release) => self.released_alone("no plugin serves the action", known),
            (None, _) => Verdict::default(),
        }
    }

    /// The extras that the plugin sees: those that are stored, without what an earlier attempt has left.
    fn extras(&self, stored: &TargetState) -> BTreeMap<String, String> {
        let begins_again = stored.between_attempts() && !self.planned.state.between_attempts();
        if begins_again { self.planned.state.extra.clone() } else { stored.extra.clone() }
    }

    fn facts(&self, memory: &JobMemory, known: &TargetMemory) -> TargetFacts {
        let Target { index, name, stored, .. } = self.target;
        let containers = memory.state.names.get(index as usize).and_then(|target| target.containers.clone());
        let state = &self.planned.state;
        TargetFacts {
            name: name.to_owned(),
            index,
            kind: self.target.round.kind.word().to_owned(),
            uid: state.uid.clone(),
            object: self.planned.object.clone(),
            containers: containers.unwrap_or_default(),
            extras: self.extras(stored),
            attempt: state.attempt,
            call_try: known.call_tries.saturating_add(1),
            started_ms: state.start.map_or(0, milliseconds),
            deadline_ms: self.target.round.deadline(state).map(milliseconds),
            tasks: self.target.task_statuses(state),
        }
    }

    fn reads(&self, memory: &JobMemory, known: &TargetMemory, tables: &SharedTables) -> VisitReads {
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
                surplus_since: surplus_since(memory.state.start, since, round.now),
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

    /// The earliest creation time of an object that may be the target's successor.
    fn since(&self, state: &TargetState, known: &TargetMemory) -> Timestamp {
        let noted = state.extra(extras::EVICTED_AT).and_then(|text| text.parse().ok());
        let seen = || self.planned.object.as_deref().and_then(crate::cluster::object::Object::asked_to_go);
        noted.or_else(seen).or_else(|| known.expects.departure()).or(state.start).unwrap_or(self.target.round.now)
    }
}

/// The earliest creation time of a successor that was made before the target was asked to go, once its controller has had
/// time to make one after that: the first second in which everything is younger than the job's start.
fn surplus_since(job_start: Option<Timestamp>, since: Timestamp, now: Timestamp) -> Option<Timestamp> {
    let first = after_seconds(job_start?, 1);
    let by_then = after(since, SignedDuration::from_secs(MADE_BY_THEN_SECONDS.into()));
    (first < since && by_then <= now).then_some(first)
}
