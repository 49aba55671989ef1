//! One reconcile of a DaemonJob: one Job for each node of its set. Source: docs/jobflow.md 4.

use std::cell::OnceCell;
use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;

use crate::attempts::build::{Cause, JobParts, NodeJobs};
use crate::attempts::children::Children;
use crate::attempts::failure::RetryRules;
use crate::attempts::follow::{FollowInput, StartInput, follow, is_first, start};
use crate::attempts::globals::Globals;
use crate::attempts::imported::{import, lift, take_up};
use crate::attempts::lost::{ListedUnits, give_up_lost};
use crate::attempts::owner_summary::{PlanResults, conclude};
use crate::attempts::plan::{Observation, ParentPlan};
use crate::attempts::retry_and_cleanup::{complete, finalize, new_retry, plan_invalid, retry_command, retry_now};
use crate::attempts::settings::FailurePolicyType;
use crate::attempts::unit::{CountsByState, JudgedBy, Unit, UnitState};
use crate::daemon_job::readiness::NOT_READY;
use crate::daemon_job::spec::{DaemonSpec, Taints};

/// The inputs of one reconcile of one DaemonJob.
pub(crate) struct DaemonRound<'a> {
    pub(crate) observed: Observation<'a>,
    pub(crate) spec: &'a DaemonSpec<'a>,
    pub(crate) children: Children<'a>,
    pub(crate) now: Timestamp,
    /// The Jobs of all nodes, which are built on the first comparison or start.
    jobs: OnceCell<Result<NodeJobs, Cause>>,
}

/// The failures of nodes, against the number that the DaemonJob tolerates.
struct Tolerance {
    /// Nodes that have, had or would have a run.
    desired: usize,
    /// The number of tolerated failures, which stop no other node.
    tolerated: usize,
    /// True if more failures stop other nodes.
    trips: bool,
}

/// The nodes that may start, and what keeps others from starting.
struct StartsOfNodes<'a> {
    /// For each node, true if it may start its next attempt.
    ready: &'a [bool],
    /// True if the nodes that were never started are omitted, because too many nodes have failed.
    fails_fast: bool,
    /// True if any node may start.
    may_start: bool,
}

/// Plans the next changes of a DaemonJob.
pub fn plan(observed: Observation<'_>, now: Timestamp) -> ParentPlan {
    let Observation { parent, memory, .. } = observed;
    let mut plan = ParentPlan { header: memory.header.clone(), ..ParentPlan::default() };
    let spec = match parent.readable_spec().and_then(DaemonSpec::read) {
        Ok(spec) => spec,
        Err(invalid) => return plan_invalid(observed, memory.units.to_vec(), plan, invalid, now),
    };
    let ignored = "spec.globalParams.nodeName has no effect: each Job runs on its own node";
    take_up(parent, &mut plan, Globals::of(&parent.spec).names_node().then(|| ignored.to_owned()));
    let children = Children::of(parent, observed.children);
    let round = DaemonRound { observed, spec: &spec, children, now, jobs: OnceCell::new() };
    let mut units = memory.units.to_vec();
    round.take_set(&mut units, &mut plan);
    let listed = ListedUnits { units: &mut units, known: &memory.units, is_closed: !spec.runs_new };
    give_up_lost(parent, &round.children, listed, &mut plan.header, now);
    import(parent, &round.children, &mut units, &mut plan.header);
    lift(parent, &mut units, &mut plan.header);
    if let Some(token) = new_retry(parent, &memory.header) {
        retry_now(parent, token, &mut units, &mut plan);
    }
    plan.header.start_time.get_or_insert(now);
    plan.header.suspend(spec.paused, now);
    let mut found = PlanResults { empty: "NoTargets", ..PlanResults::of(memory) };
    round.advance(&mut units, &mut plan, &mut found);
    plan.units = Arc::new(units);
    found.kept_state = plan.header.imported_generation.map(|_| plan.header.state.clone());
    found.starts = !plan.creates.is_empty();
    plan.summary = conclude(parent, &plan.units, &plan.header, &found, now);
    complete(&mut plan, now);
    finalize(observed, &round.children, spec.cleanup, &mut plan, now);
    plan
}

impl DaemonRound<'_> {
    fn advance(&self, units: &mut [Unit], plan: &mut ParentPlan, found: &mut PlanResults) {
        self.start_over_omitted(units, plan.header.retry_token != self.observed.memory.header.retry_token);
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
        self.start_all(units, plan, StartsOfNodes { ready: &ready, fails_fast, may_start });
    }

    /// Starts over the nodes that were omitted because of too many failures. This follows an edit that tolerates the failures, or a retry after which
    /// no more than the tolerated failures are left.
    fn start_over_omitted(&self, units: &mut [Unit], is_retry: bool) {
        let Observation { parent, memory, .. } = self.observed;
        let is_edit = memory.header.observed_generation != Some(parent.generation);
        let Tolerance { tolerated, trips, .. } = self.tolerance(units);
        let failed = units.iter().filter(|unit| unit.has_failed()).count();
        let edited = is_edit && (!trips || self.spec.failure_policy != FailurePolicyType::FailFast);
        if edited || is_retry && failed <= tolerated {
            units.iter_mut().filter(|unit| unit.reason == TOO_MANY_FAILURES).for_each(Unit::start_over);
        }
    }

    /// Returns the number of tolerated failures, and whether there are more.
    fn tolerance(&self, units: &[Unit]) -> Tolerance {
        // Nodes that a failure omitted still count. Otherwise the number behind the percentage would shrink with them.
        let omitted = units.iter().filter(|unit| unit.reason == TOO_MANY_FAILURES).count();
        let desired = CountsByState::of(units).desired + omitted;
        let tolerated = self.spec.max_failures.rounded_down(desired);
        let trips = units.iter().filter(|unit| unit.stops_others()).count() > tolerated;
        Tolerance { desired, tolerated, trips }
    }

    /// Updates every node from its child. Returns true for each node that may start its next attempt.
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
            let input = FollowInput { parent, children: &self.children, memory, rules: &rules, now: self.now };
            let ready = follow(unit, input, plan);
            if unit.has_child() && (is_edited || !unit.is_judged_by("")) && !unit.revision.is_empty() {
                unit.outdated =
                    self.jobs().as_ref().map_or(unit.outdated, |jobs| jobs.revision(&unit.name) != unit.revision);
                unit.judged_by = JudgedBy::Version("".into());
            }
            let node = self.observed.nodes.get(&unit.name);
            // A failed child has its outcome, even if the host still has to list its pods.
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

    /// Starts as many nodes as there are free slots, in the order of their names.
    fn start_all(&self, units: &mut [Unit], plan: &mut ParentPlan, starts: StartsOfNodes<'_>) {
        let StartsOfNodes { ready, fails_fast, may_start } = starts;
        let counts = CountsByState::of(&*units);
        let slots = self.spec.slots(counts.desired);
        // A create without an answer may have made a child.
        let refused = &self.observed.memory.refused;
        let may_have_child = |unit: &Unit| refused.get(&unit.name).is_some_and(|refused| refused.may_exist);
        let holds_slot = |unit: &Unit| unit.state == UnitState::Retrying || may_have_child(unit);
        // A node holds its slot from the creation of its child until the outcome, backoffs included.
        let holds = |unit: &&Unit| !unit.state.is_terminal() && (unit.has_child() || holds_slot(unit));
        let mut used = units.iter().filter(holds).count();
        // All slots were taken once. From then on, a node that starts has waited for another node.
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
            // A retry must not take the name of another node's Job.
            let is_node = |name: &str| self.observed.nodes.contains_key(name);
            let Observation { parent, memory, .. } = self.observed;
            start(unit, built, StartInput { parent, memory, now: self.now }, plan, is_node);
            let created = plan.creates.get_mut(creates..).unwrap_or_default();
            // A node whose child cannot be created holds no slot.
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

/// The reason of a node that is omitted because too many other nodes failed.
const TOO_MANY_FAILURES: &str = "TooManyFailures";
