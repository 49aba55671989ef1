//! One pass over a DaemonJob: one Job for each node of its set. Source: docs/jobflow.md 4.

use std::cell::OnceCell;
use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;

use crate::child::build::{Cause, JobParts, NodeJobs};
use crate::child::children::Children;
use crate::child::closing::{complete, new_retry, plan_invalid, retry_command, retry_now, settle};
use crate::child::course::{follow, is_first, start};
use crate::child::failure::RetryRules;
use crate::child::globals::Globals;
use crate::child::imported::{import, lift, take_up};
use crate::child::lost::give_up_lost;
use crate::child::plan::{Observation, ParentPlan};
use crate::child::settings::FailurePolicyType;
use crate::child::unit::{CountsByState, JudgedBy, Unit, UnitState};
use crate::child::verdict::{Findings, conclude};
use crate::daemon::readiness::NOT_READY;
use crate::daemon::spec::{DaemonSpec, Taints};

/// What one round knows of one DaemonJob.
pub(super) struct Round<'a> {
    pub(super) observed: Observation<'a>,
    pub(super) spec: &'a DaemonSpec<'a>,
    pub(super) children: Children<'a>,
    pub(super) now: Timestamp,
    /// What the Jobs of all nodes are built from, once one is compared or started.
    jobs: OnceCell<Result<NodeJobs, Cause>>,
}

/// The failures of nodes against those that are tolerated.
struct Tolerance {
    /// Nodes that have, had or would have a run.
    desired: usize,
    /// Failures among them that stop nothing.
    tolerated: usize,
    /// There are more that stop others.
    trips: bool,
}

/// Plans the next step of a DaemonJob.
pub fn plan(observed: Observation<'_>, now: Timestamp) -> ParentPlan {
    let Observation { parent, memory, .. } = observed;
    let mut plan = ParentPlan { header: memory.header.clone(), ..ParentPlan::default() };
    let spec = match parent.readable_spec().and_then(DaemonSpec::read) {
        Ok(spec) => spec,
        Err(invalid) => return plan_invalid(observed, (memory.units.to_vec(), plan), invalid, now),
    };
    let ignored = "spec.globalParams.nodeName has no effect: each Job runs on its own node";
    take_up(parent, &mut plan, Globals::of(&parent.spec).names_node().then(|| ignored.to_owned()));
    let children = Children::of(parent, observed.children);
    let round = Round { observed, spec: &spec, children, now, jobs: OnceCell::new() };
    let mut units = memory.units.to_vec();
    round.take_set(&mut units, &mut plan);
    let set = (&mut plan.header, !spec.runs_new);
    give_up_lost(parent, &round.children, (&mut units, &memory.units), set, now);
    import(parent, &round.children, &mut units, &mut plan.header);
    lift(parent, &mut units, &mut plan.header);
    if let Some(token) = new_retry(parent, &memory.header) {
        retry_now(parent, token, &mut units, &mut plan);
    }
    plan.header.start_time.get_or_insert(now);
    plan.header.suspend(spec.paused, now);
    let mut found = Findings { empty: "NoTargets", ..Findings::of(memory) };
    round.advance(&mut units, &mut plan, &mut found);
    plan.units = Arc::new(units);
    found.kept_state = plan.header.imported_generation.map(|_| plan.header.state.clone());
    found.starts = !plan.creates.is_empty();
    plan.verdict = conclude(parent, &plan.units, &plan.header, &found, now);
    complete(&mut plan, now);
    settle(observed, &round.children, spec.cleanup, &mut plan, now);
    plan
}

impl Round<'_> {
    fn advance(&self, units: &mut [Unit], plan: &mut ParentPlan, found: &mut Findings) {
        self.take_back(units, plan.header.retry_token != self.observed.memory.header.retry_token);
        let mut ready = self.follow_all(units, plan, false);
        let policy = self.spec.failure_policy;
        let Tolerance { desired, tolerated, trips } = self.tolerance(units);
        if trips && policy != FailurePolicyType::Continue {
            ready = self.follow_all(units, plan, policy == FailurePolicyType::FailFast);
        }
        let failed = units.iter().filter(|unit| unit.has_failed()).count();
        let told = format!("{failed} of {desired} nodes failed, and {tolerated} are tolerated");
        match policy {
            _ if failed > tolerated && units.iter().all(|unit| unit.state.is_terminal()) => {
                found.failure = Some(Cause::new("NodesFailed", told));
            }
            _ if !trips => {}
            FailurePolicyType::FailFast => found.failure = Some(Cause::new("NodesFailed", told)),
            FailurePolicyType::Pause => {
                let message = format!(
                    "{told}; mend the cause and run {}, or raise maxFailures",
                    retry_command(self.observed.parent)
                );
                found.paused = Some(Cause::new("FailurePolicy", message));
            }
            FailurePolicyType::Continue => {}
        }
        if self.spec.paused {
            found.paused = Some(Cause::new("BySpec", "spec.rollout.paused is true: set it to false to go on"));
        }
        if self.spec.slots(desired) == 0 {
            found.held = Some("spec.rollout.concurrency is 0: raise it to go on");
        }
        let fails_fast = trips && policy == FailurePolicyType::FailFast;
        let may_start =
            found.paused.is_none() && plan.header.imported_generation.is_none() && !self.observed.parent.terminating;
        self.start_all(units, plan, (&ready, fails_fast, may_start));
    }

    /// An edit that tolerates the failures there are gives those their run that were omitted because of them, and so does a
    /// retry that leaves no more than are tolerated.
    fn take_back(&self, units: &mut [Unit], is_retry: bool) {
        let Observation { parent, memory, .. } = self.observed;
        let is_edit = memory.header.observed_generation != Some(parent.generation);
        let Tolerance { tolerated, trips, .. } = self.tolerance(units);
        let failed = units.iter().filter(|unit| unit.has_failed()).count();
        let edited = is_edit && (!trips || self.spec.failure_policy != FailurePolicyType::FailFast);
        if edited || is_retry && failed <= tolerated {
            units.iter_mut().filter(|unit| unit.reason == TOO_MANY_FAILURES).for_each(Unit::start_over);
        }
    }

    /// How many failures are tolerated, and whether there are more.
    fn tolerance(&self, units: &[Unit]) -> Tolerance {
        // Those that a failure omitted count on: else the share would shrink with them.
        let omitted = units.iter().filter(|unit| unit.reason == TOO_MANY_FAILURES).count();
        let desired = CountsByState::of(units).desired + omitted;
        let tolerated = self.spec.max_failures.rounded_down(desired);
        let trips = units.iter().filter(|unit| unit.stops_others()).count() > tolerated;
        Tolerance { desired, tolerated, trips }
    }

    /// Brings every node up to its child; true for each that may start its next attempt.
    fn follow_all(&self, units: &mut [Unit], plan: &mut ParentPlan, given_up: bool) -> Vec<bool> {
        let Observation { parent, memory, .. } = self.observed;
        plan.forget_reads();
        let rules = RetryRules {
            own: self.spec.retry.own,
            infra: self.spec.retry.infra,
            tolerated: false,
            given_up,
            unknown: false,
            timeout: self.spec.node_timeout,
        };
        let is_edited = memory.header.observed_generation != Some(parent.generation);
        let mut follow_one = |unit: &mut Unit| {
            let reads = plan.reads.len();
            let ready = follow(unit, (parent, &self.children), memory, &rules, (plan, self.now));
            if unit.has_child() && (is_edited || !unit.is_judged_by("")) && !unit.revision.is_empty() {
                unit.outdated =
                    self.jobs().as_ref().map_or(unit.outdated, |jobs| jobs.revision(&unit.name) != unit.revision);
                unit.judged_by = JudgedBy::Version("".into());
            }
            let node = self.observed.nodes.get(&unit.name);
            // A child that failed is decided, though its pods are still to be listed.
            let is_open = !unit.state.is_terminal() && plan.reads.len() == reads;
            if is_open && node.is_none_or(|node| node.uid != unit.node_uid) {
                unit.not_ready_since = None;
                unit.set(UnitState::Omitted, "NodeGone", "the node is gone, or another one has its name");
                return false;
            }
            let retries = unit.state == UnitState::Retrying;
            if ready && retries && node.is_some_and(|node| node.not_ready) {
                self.await_retry(unit, plan);
            } else {
                unit.not_ready_since = None;
            }
            if ready && !retries {
                self.await_node(unit, plan);
            }
            ready && !unit.state.is_terminal()
        };
        units.iter_mut().map(&mut follow_one).collect()
    }

    /// Starts as many as there are slots, in the order of their names.
    fn start_all(
        &self,
        units: &mut [Unit],
        plan: &mut ParentPlan,
        (ready, fails_fast, may_start): (&[bool], bool, bool),
    ) {
        let counts = CountsByState::of(&*units);
        let slots = self.spec.slots(counts.desired);
        // A create without answer may have been made.
        let refused = &self.observed.memory.refused;
        let may_have_child = |unit: &Unit| refused.get(&unit.name).is_some_and(|refused| refused.may_exist);
        let holds_slot = |unit: &Unit| unit.state == UnitState::Retrying || may_have_child(unit);
        // A slot is held from the creation until the outcome, a back-off included.
        let holds = |unit: &&Unit| !unit.state.is_terminal() && (unit.has_child() || holds_slot(unit));
        let mut used = units.iter().filter(holds).count();
        // All slots were taken once: from then on a node waits for another one.
        let has_begun = |unit: &&Unit| !unit.job.is_empty() || unit.attempt > unit.counted_from;
        let were_full = units.iter().filter(has_begun).count() >= slots;
        for (unit, _) in units.iter_mut().zip(ready).filter(|(_, ready)| **ready) {
            let (retries, has_slot) = (unit.state == UnitState::Retrying, holds_slot(unit));
            if fails_fast && !retries {
                unit.set(
                    UnitState::Omitted,
                    TOO_MANY_FAILURES,
                    "more nodes failed than are tolerated, and failurePolicy is FailFast",
                );
                continue;
            }
            let waits = unit.reason == NOT_READY || unit.not_ready_since.is_some() || !may_start;
            if waits || !has_slot && used >= slots {
                continue;
            }
            if plan.is_full() {
                plan.more = true;
                break;
            }
            let built = self.jobs().as_ref().map(|jobs| jobs.of(&unit.name)).map_err(Cause::clone);
            let creates = plan.creates.len();
            // No retry takes the name of another node's Job.
            let is_node = |name: &str| self.observed.nodes.contains_key(name);
            let of = (self.observed.parent, self.observed.memory);
            start(unit, built, of, (plan, self.now), is_node);
            let created = plan.creates.get_mut(creates..).unwrap_or_default();
            // One that cannot be created holds no slot.
            used += usize::from(!has_slot && !created.is_empty());
            let follows = were_full && is_first(unit, self.observed.memory);
            created.iter_mut().for_each(|create| create.follows = follows);
        }
    }

    fn jobs(&self) -> &Result<NodeJobs, Cause> {
        self.jobs.get_or_init(|| self.build_jobs())
    }

    fn build_jobs(&self) -> Result<NodeJobs, Cause> {
        let parent = self.observed.parent;
        let parts = JobParts {
            base: &self.spec.job,
            template: None,
            overrides: None,
            volumes: &[],
            mounts: &[],
            globals: Globals::of(&parent.spec),
            backoff_limit: self.spec.retry.pod_backoff_limit,
            timeout: self.spec.node_timeout,
            tolerates_all: self.spec.taints == Taints::TolerateAll,
        };
        NodeJobs::build(parent, parts)
    }
}

/// The reason of a node that has no run because others failed.
const TOO_MANY_FAILURES: &str = "TooManyFailures";
