//! The beginning of a round, and an open round. `Round::begin` builds the context of a round. [`OpenRound`] holds its
//! plan while the caller calls the plugin for one target after the other. The host, previews, the model and the tests
//! of rounds are such callers.

use std::sync::Arc;

use oarlock_api::OperationJob;

use crate::cache::store::Store;
use crate::object::key::{JobKey, JobRef};
use crate::operation_job::round::calls::PlannedCall;
use crate::operation_job::round::charge::{charge_answers, charge_writes, count_waiting};
use crate::operation_job::round::context::{Observed, Round};
use crate::operation_job::round::decide::{Decision, decide};
use crate::operation_job::round::events::new_events;
use crate::operation_job::round::exclusive::{give_back, note_holders, take_objects, wait_for_objects};
use crate::operation_job::round::fit::unlabelled;
use crate::operation_job::round::memory::{JobMemory, StoredState, Targets};
use crate::operation_job::round::plan::{Plan, note_in_flight, note_starts, outputs_left, plan, start_admission};
use crate::operation_job::round::refresh::{Refresh, holds_left, index_decided, reindex, task_pods_left};
use crate::operation_job::round::results::take_results;
use crate::operation_job::round::selection::select;
use crate::operation_job::round::starts::bounds::{note_ends, refresh_availability};
use crate::operation_job::round::starts::memory::PauseState;
use crate::operation_job::round::target_memory::TargetMemory;
use crate::operation_job::round::visit::TargetUpdate;
use crate::operation_job::shared::reads::VisitReads;
use crate::operation_job::shared::tables::{SharedTables, lock};
use crate::operation_job::write_queue::WriteQueue;
use crate::plugin::lookup::PluginLookup;
use crate::plugin::visit::{Answer, JobFacts, Visit};
use crate::requests::writes::EventNote;
use crate::status::policy::Policy;

impl<'a> Round<'a> {
    /// Builds the context of a round; `None` if the job is gone.
    pub fn begin(
        key: &JobKey,
        observed: &'a Observed,
        plugin: &'a PluginLookup,
        store: &'a Arc<Store>,
        memory: &mut JobMemory,
    ) -> Option<Self> {
        let object = observed.job.as_deref()?;
        let kind = memory.stored.state.kind;
        let unlabelled = unlabelled(key, kind, observed.node_operations);
        let spec = memory
            .housekeeping
            .check(key, object, plugin, &memory.stored)
            .map_err(|invalid| invalid.with(unlabelled.as_ref()));
        let spec = select(key, spec, observed, memory, plugin.serving().is_some() && unlabelled.is_none());
        let policy = spec.as_deref().map(|spec| spec.policy.clone()).unwrap_or_else(|_| stored_policy(object));
        let pause_state = PauseState::of(&policy, memory.decisions.counts());
        Some(Self {
            job: JobRef { key: key.clone(), uid: object.metadata.uid.clone().unwrap_or_default() },
            object,
            now: observed.now,
            kind,
            spec,
            unlabelled,
            policy,
            pause_state,
            plugin,
            store,
            live: Arc::new(observed.live.clone()),
            served: observed.served.clone(),
            namespace_terminating: observed.namespace_terminating,
            dry_run: memory.stored.state.dry_run,
            tasks: observed.tasks.clone(),
            target_count: memory.stored.state.targets.len(),
            began: *memory.stored.began.get_or_insert(observed.now),
        })
    }
}

/// Returns the policy of a job whose spec is invalid in another field.
fn stored_policy(job: &OperationJob) -> Policy {
    job.spec.as_ref().and_then(|spec| Policy::read(spec).ok()).unwrap_or_default()
}

/// A round between its plan and its decision.
pub struct OpenRound<'a> {
    round: &'a Round<'a>,
    tables: &'a SharedTables,
    plan: Plan,
    /// The facts of the job, from the first visit on. Most rounds of a job in flight have no visit.
    facts: Option<Arc<JobFacts>>,
    /// Position in the plan of the visit that comes next.
    next: usize,
    updates: Vec<(u32, TargetUpdate)>,
}

/// The visit that comes next. It holds the memory of its target until it is judged.
pub struct NextVisit {
    /// Index of the target.
    pub index: u32,
    /// The input of the plugin; `None` if the visit needs no plugin, or no plugin is there.
    pub visit: Option<Visit>,
    reads: Option<Arc<VisitReads>>,
    known: TargetMemory,
    position: usize,
}

impl<'a> OpenRound<'a> {
    /// Takes the results of the last rounds and makes the plan. Also returns the events that follow from the results.
    pub fn open(
        round: &'a Round<'a>,
        memory: &mut JobMemory,
        refreshed: Refresh,
        tables: &'a SharedTables,
        queue: &mut WriteQueue,
    ) -> (Self, Vec<EventNote>) {
        lock(tables).note_owner(&round.job.key, round.owner());
        charge_writes(round, &memory.stored, &mut memory.work, &mut lock(tables));
        let events = take_results(memory, round.events());
        let mut guard = lock(tables);
        let own = &mut *guard;
        let before = std::mem::replace(&mut memory.work.pause_state, round.pause_state);
        if std::mem::take(&mut memory.work.edited) || round.pause_state.stops_more_than(before) {
            let starts = memory.decisions.withdraw_starts(&memory.stored, &mut memory.work, &mut memory.targets);
            let woken = give_back(round, &starts, memory.states(), own);
            memory.targets.woken.extend(woken);
            memory.targets.woken.extend(note_ends(round, &starts, &memory.stored, &memory.decisions, own));
        }
        let digest = round.serving().map(|plugin| &plugin.digest);
        if matches!(refreshed, Refresh::Reloaded | Refresh::Overtaken) || memory.targets.indexed_for.as_ref() != digest
        {
            memory.targets.still_held(holds_left(&round.job, &memory.stored, round.store), &mut memory.work);
            memory.targets.still_held(task_pods_left(round, &memory.stored), &mut memory.work);
            reindex(round, &memory.stored, &memory.decisions, &mut memory.targets, own);
            memory.requeue_all();
        }
        if std::mem::take(&mut memory.work.looks_for_task_pods) {
            memory.targets.still_held(task_pods_left(round, &memory.stored), &mut memory.work);
        }
        if round.deleting() && !std::mem::replace(&mut memory.housekeeping.outputs_go, true) {
            memory.targets.still_held(outputs_left(&memory.stored), &mut memory.work);
        }
        let admission = start_admission(round, &memory.stored, &memory.decisions, own);
        refresh_availability(round, &memory.stored, &memory.decisions, &mut memory.targets, own);
        // With `maxUnavailable`, this round keeps the tables locked until they have its starts. So another job cannot use
        // the same capacity.
        let held = memory.targets.availability.is_tracked().then_some(guard);
        let mut plan = plan(round, memory, admission, queue);
        let own = &mut *held.unwrap_or_else(|| lock(tables));
        count_waiting(round, plan.over_budget_targets, &memory.stored, &memory.work, own);
        if round.is_exclusive() {
            let waiting = take_objects(round, &plan, &memory.stored, &memory.decisions, own);
            wait_for_objects(waiting, &mut plan, &memory.stored, &mut memory.decisions, &mut memory.targets);
            note_holders(round, &plan, &memory.stored, &mut memory.targets, own);
        }
        note_starts(round, &plan, &memory.stored, &memory.decisions, own);
        note_in_flight(round, &plan, &memory.stored, &memory.decisions, own);
        let open = Self { round, tables, plan, facts: None, next: 0, updates: Vec::new() };
        (open, new_events(events, &memory.stored, &mut memory.reports))
    }

    /// Returns true if the plan has visits.
    pub fn has_visits(&self) -> bool {
        !self.plan.visits.is_empty()
    }

    /// Returns the next planned visit. `serves` says whether a plugin is there to answer.
    pub fn next_visit(&mut self, stored: &StoredState, targets: &mut Targets, serves: bool) -> Option<NextVisit> {
        loop {
            let position = self.next;
            let (index, planned) = self.plan.visits.get(position)?;
            self.next = position.saturating_add(1);
            let known = targets.known.remove(index).unwrap_or_default();
            let Some(target) = self.round.target(*index, stored) else { continue };
            let call = PlannedCall { target, planned };
            let input = (serves && call.wants_plugin(&known)).then(|| {
                let facts = self.facts.get_or_insert_with(|| self.round.job_facts(stored));
                call.input(facts, stored, &known, self.tables)
            });
            let (visit, reads) = input.unzip();
            return Some(NextVisit { index: *index, visit, reads, known, position });
        }
    }

    /// Judges the plugin's answer to a visit. `answer` is `None` if no plugin was called.
    pub fn judge(
        &mut self,
        next: NextVisit,
        answer: Option<Answer>,
        stored: &StoredState,
        targets: &mut Targets,
    ) -> Option<&TargetUpdate> {
        let NextVisit { index, reads, mut known, position, visit: _ } = next;
        let (_, planned) = self.plan.visits.get(position)?;
        let call = PlannedCall { target: self.round.target(index, stored)?, planned };
        let update = call.judge(answer.zip(reads.as_deref()), &mut known, &mut lock(self.tables));
        targets.known.insert(index, known);
        self.updates.push((index, update));
        self.updates.last().map(|(_, update)| update)
    }

    /// Returns the targets that were visited, with their verdicts.
    pub fn updates(&self) -> &[(u32, TargetUpdate)] {
        &self.updates
    }

    /// Decides, and updates the shared tables. The next rounds make the visits that were not made.
    pub fn conclude(self, memory: &mut JobMemory) -> Decision {
        let Self { round, tables, mut plan, mut updates, .. } = self;
        plan.visits_made(updates.len(), &mut memory.work);
        let tables = &mut lock(tables);
        updates.extend(std::mem::take(&mut plan.updates_without_call));
        charge_answers(round, &mut updates, &memory.stored, &memory.reports, tables);
        let decision = decide(round, plan, updates, memory, tables);
        let woken = index_decided(round, memory.states(), &decision.commit.worked_on, tables);
        memory.targets.woken.extend(woken);
        decision
    }
}
