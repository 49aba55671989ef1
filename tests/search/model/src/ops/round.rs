//! One round of an OpsJob up to its first request: the plan, with the live reads that it asks for. This module does what
//! `host/src/engine.rs` does.

use std::collections::VecDeque;
use std::sync::Arc;

use oarlock_core::kind::locks::TargetLocks;
use oarlock_core::kind::plan::KindPlan;
use oarlock_core::kind::plan_kind::{PlanKind as _, Seen};
use oarlock_core::object::api_object::Kind;
use oarlock_core::ops_job::facts::{FACTS, OpsFacts};
use oarlock_core::ops_job::kind::OpsJobs;
use oarlock_core::ops_job::names::ops_kind;
use oarlock_core::ops_job::spec::Defaults;
use oarlock_core::ops_job::stored::StoredOps;
use oarlock_core::requests::reads::{Answers, KeptObjects, Pending, Read, Selected};
use oarlock_core::requests::writes::{FailedWrite, Write};
use serde_json::{Value, json};

use crate::ops::api::{ChildDocument, OpsDocument};
use crate::ops::requests::{hasty_write, rewritten, status_write};
use crate::ops::scenario::OpsScenario;
use crate::ops::state::OpsState;
use crate::ops::switch::OpsSwitch;
use crate::part::Part;
use crate::scenario::{at, second};

/// One request of a round.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct OpsRequest {
    /// The request.
    pub write: Write,
    /// True if nobody had stopped the OpsJob at the live reads of the round.
    pub is_allowed: bool,
}

impl OpsRequest {
    /// Returns true if the request stores the status.
    pub fn is_of_status(&self) -> bool {
        matches!(&self.write, Write::Patch { subresource: Some(_), .. })
    }
}

/// A round between two of its requests.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct OpsRound {
    /// The OpsJob, as the round observed it.
    pub job: Part<OpsDocument>,
    /// The requests that are left. The status is the last one.
    pub requests: VecDeque<OpsRequest>,
    /// True if a request failed, so that the host repeats the round.
    pub is_in_trouble: bool,
    /// The time at which the next round is due.
    pub requeue_at: Option<u32>,
}

/// The field of a status that names the OperationJob.
pub const RECORDED: &str = "operationJob";
/// The condition of a status with the outcomes of the targets.
pub const OUTCOMES: &str = "TargetsEnded";

impl OpsState {
    /// Makes a round of an OpsJob, up to its first request.
    pub fn round(&mut self, scenario: &OpsScenario, h: usize, name: &str) {
        let Some(term) = &mut self.hosts[h].term else { return };
        term.dirty.remove(name);
        term.due.remove(name);
        if self.hosts[h].view.is_uncertain(name) {
            self.read_again(h, name);
        }
        let Some(job) = self.hosts[h].view.jobs.get(name).cloned() else {
            return self.release(scenario, h, name);
        };
        let round = match self.plan(scenario, h, &job, &[]) {
            Ok(plan) => self.round_of(scenario, h, job, plan),
            Err(_) => OpsRound { job, requests: VecDeque::new(), is_in_trouble: true, requeue_at: None },
        };
        self.go_on_with(h, name, round);
    }

    fn round_of(&self, scenario: &OpsScenario, h: usize, job: Part<OpsDocument>, plan: KindPlan<()>) -> OpsRound {
        let mut writes = plan.writes.clone();
        let child = self.hosts[h].view.child(&job).map(|child| &**child);
        writes.extend(child.and_then(|child| hasty_write(scenario, &job, child, &plan)));
        writes.extend(plan.status.map(|status| status_write(&job, &status)));
        let is_allowed = self.api.jobs.get(job.name()).is_some_and(|job| !job.is_stopped());
        let requests = writes.into_iter().map(|write| OpsRequest { write: rewritten(scenario, write), is_allowed });
        let is_in_trouble = plan.trouble.is_some();
        OpsRound { requests: requests.collect(), job, is_in_trouble, requeue_at: plan.again.map(second) }
    }

    /// Keeps a round that has requests left, or ends it.
    pub fn go_on_with(&mut self, h: usize, name: &str, round: OpsRound) {
        let Some(term) = &mut self.hosts[h].term else { return };
        if !round.requests.is_empty() {
            term.rounds.insert(name.to_owned(), Part::new(round));
        } else if round.is_in_trouble {
            term.dirty.insert(name.to_owned());
        } else {
            term.due.extend(round.requeue_at.map(|due| (name.to_owned(), due)));
        }
    }

    /// Reads an OpsJob live.
    fn read_again(&mut self, h: usize, name: &str) {
        let stored = self.api.jobs.get(name).cloned();
        self.hosts[h].cache(|view| view.confirm(name, stored.as_ref()));
    }

    /// Releases the targets of an OpsJob that the cache lacks, after a live read shows that it is gone.
    fn release(&mut self, scenario: &OpsScenario, h: usize, name: &str) {
        if scenario.lacks(OpsSwitch::KeepsClaimsOfTheGone) {
            return;
        }
        self.read_again(h, name);
        let is_stored = self.api.jobs.contains_key(name);
        let Some(term) = self.hosts[h].term.as_mut().filter(|_| !is_stored) else { return };
        for other in term.claims.locks.others(name, "") {
            term.claims.edit(|claims| claims.locks.release(&other));
        }
    }

    /// Plans, after the live reads that the plan asks for, and changes the locks as the plan says.
    ///
    /// # Errors
    /// If the plan cannot go on with what the reads have shown.
    pub fn plan(
        &mut self,
        scenario: &OpsScenario,
        h: usize,
        job: &Part<OpsDocument>,
        failed: &[FailedWrite],
    ) -> Result<KindPlan<()>, Pending> {
        let kind = OpsJobs { defaults: Defaults::default(), shipped: Arc::new([]), system: &[] };
        let mut answers = Answers::default();
        loop {
            let child = self.hosts[h].view.child(job).cloned();
            let object = job_as_seen(scenario, job, child.as_deref());
            let children: Vec<_> = child.iter().map(|child| child.child.clone()).collect();
            let now = at(self.now);
            let Some(term) = &mut self.hosts[h].term else { return Ok(KindPlan::default()) };
            let is_blind = object.view.status.has_locked_targets() && scenario.lacks(OpsSwitch::ClaimsOnce);
            let none = TargetLocks::default();
            let locks = if is_blind { &none } else { &term.claims.locks };
            let seen =
                Seen { object: &*object, children: &children, memory: &(), answers: &answers, failed, locks, now };
            match kind.plan(&seen) {
                Ok(plan) => {
                    let (uid, name) = (&job.job.view.uid, job.name());
                    // A plan that saw no locks may take one of another job, and gets nothing.
                    let _ = term.claims.edit(|claims| claims.locks.apply(uid, name, &plan.locks));
                    return Ok(plan);
                }
                Err(Pending::Reads(reads)) => {
                    for read in reads {
                        let answer = KeptObjects::of(&read, self.answer(scenario, h, job, &read));
                        answers.insert(read, Ok(answer));
                    }
                }
                Err(failed) => return Err(failed),
            }
        }
    }

    /// Answers a live read. The cache takes the answers about OperationJobs.
    fn answer(&mut self, scenario: &OpsScenario, h: usize, job: &Part<OpsDocument>, read: &Read) -> Vec<Value> {
        let Selected::One { name, .. } = &read.selected else { return scenario.nodes(self.has_moved) };
        self.answer_one(scenario, h, job, &NamedRead { read, name }).into_iter().collect()
    }

    fn answer_one(&mut self, scenario: &OpsScenario, h: usize, job: &OpsDocument, of: &NamedRead<'_>) -> Option<Value> {
        let NamedRead { read, name } = *of;
        if read.is_of_host() {
            assert_eq!(read.kind.kind, FACTS, "no scenario has files");
            return Some(json!(OpsFacts { cluster: "local".to_owned(), ..OpsFacts::default() }));
        }
        if read.kind == ops_kind() {
            let is_live = !scenario.lacks(OpsSwitch::UnpausesWithoutLiveRead);
            let jobs = if is_live { &self.api.jobs } else { &self.hosts[h].view.jobs };
            return jobs.get(name).map(|job| job.document.clone());
        }
        if read.kind == Kind::job() {
            let rule = match job.job.view.status.has_ended() {
                true => OpsSwitch::TrustsTheCacheAtTheEnd,
                false => OpsSwitch::ReadsNoRecordedChild,
            };
            if scenario.lacks(rule) && self.hosts[h].view.child(job).is_none() {
                return None;
            }
            let stored = self.api.children.get(name).cloned();
            self.hosts[h].cache(|view| view.confirm_child(name, stored.as_ref()));
            return stored.map(|stored| stored.document.clone());
        }
        if read.kind == Kind::node() {
            return Some(scenario.node(name, self.has_moved));
        }
        // The admission policies are as they were shipped.
        Some(json!({"kind": read.kind.kind, "metadata": {"name": name}}))
    }
}

/// A read of one object, and the name of the object.
struct NamedRead<'a> {
    read: &'a Read,
    name: &'a str,
}

/// Returns the OpsJob as the plan sees it.
fn job_as_seen(scenario: &OpsScenario, job: &OpsDocument, child: Option<&ChildDocument>) -> Arc<StoredOps> {
    let mut stored = job.job.clone();
    if scenario.lacks(OpsSwitch::FollowsAnyChild)
        && let Some(child) = child
        && let Some(recorded) = Arc::make_mut(&mut stored).view.status.other_fields.get_mut(RECORDED)
    {
        recorded["uid"] = json!(child.child.uid);
    }
    stored
}
