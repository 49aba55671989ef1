//! One pass over an OpsJob: what its status says next, and what is to be done. Source: spec of OpsJob 4.3 to 4.5.
//!
//! Takes what is stored and seen at one time; yields a status and effects. An effect is asked for until it is seen to be made, so a
//! pass that is lost costs nothing. May not start anything before the status says that the targets are resolved: it is the claim.

use std::collections::BTreeSet;

use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use crate::job::time::{after_seconds, earliest, read_time};
use crate::ops_job::child::{OPS_NAMESPACE, child_of};
use crate::ops_job::holders::{HeldPlace, Holders};
use crate::ops_job::phases::{OpsStatus, Phase, Why};
use crate::ops_job::spec::{OpsSpec, RuleBroken};
use crate::ops_job::targets::{Here, NodeFacts, Resolved, Selectors, resolve};
use crate::ops_job::told::{busy_words, outputs, unresolved_words};
use crate::ops_job::view::{OpsChild, OpsJobView, TargetCounts};

/// The finalizer of a job that may have targets.
pub const FINALIZER: &str = "oarlock.dev/opsjob";
/// The condition that says that the targets are known, and belong to the job.
pub const RESOLVED: &str = "TargetsResolved";
/// The condition that says that all targets have ended.
const ENDED: &str = "TargetsEnded";
/// The condition of a job that is ended by force.
const STOPPING: &str = "Stopping";
/// Seconds that the release of targets may take before a job that is ended by force has ended all the same.
const CANCEL_GRACE: i64 = 120;

/// What is to be done for a job.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Put [`FINALIZER`] on it.
    AddFinalizer,
    /// Store its targets in its spec.
    StoreTargets(Resolved),
    /// Create its child.
    CreateChild(Value),
    /// Let its child start nothing any more.
    PauseChild,
    /// Delete its child, which releases what it holds.
    DeleteChild,
    /// Take [`FINALIZER`] off it.
    DropFinalizer,
    /// Delete it: its time is over.
    DeleteSelf,
}

/// What a pass comes to.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OpsPlan {
    /// The status to be written, if it differs.
    pub status: Option<OpsStatus>,
    /// What is to be done now.
    pub effects: Vec<Effect>,
    /// When another pass is due though nothing happens.
    pub wake: Option<Timestamp>,
}

/// Everything that is known, at one time.
#[derive(Clone, Copy)]
pub struct OpsObservation<'a> {
    /// The job.
    pub job: &'a OpsJobView,
    /// Its spec with types.
    pub spec: Result<&'a OpsSpec, &'a RuleBroken>,
    /// Its child, where one is there.
    pub child: Option<&'a OpsChild>,
    /// All nodes.
    pub nodes: &'a [NodeFacts],
    /// The nodes of the workload that it names.
    pub of_workload: Option<&'a BTreeSet<String>>,
    /// This cluster.
    pub here: Here<'a>,
    /// The time.
    pub now: Timestamp,
}

/// Plans what is next for a job.
pub fn plan(observed: OpsObservation<'_>, holders: &mut Holders) -> OpsPlan {
    let mut pass = Pass { observed, status: observed.job.status.clone(), effects: Vec::new(), wake: None };
    if pass.status.has_ended() {
        pass.settle();
    } else if !observed.job.is_kept && !observed.job.deleting {
        pass.effects.push(Effect::AddFinalizer);
    } else {
        pass.status.enter(Phase::Pending, &Why::new("Created", ""), None, observed.now);
        pass.go_on(holders);
    }
    if !observed.job.is_kept && (observed.job.deleting || pass.status.has_ended()) {
        holders.give_back(&observed.job.uid);
    }
    OpsPlan { status: pass.status.changed_from(&observed.job.status), effects: pass.effects, wake: pass.wake }
}

struct Pass<'a> {
    observed: OpsObservation<'a>,
    status: OpsStatus,
    effects: Vec<Effect>,
    wake: Option<Timestamp>,
}

impl Pass<'_> {
    fn wake_at(&mut self, time: Timestamp) {
        self.wake = earliest([self.wake, Some(time)]);
    }

    fn fail(&mut self, why: &Why) {
        let began = self.observed.child.and_then(|child| child.began);
        self.status.enter(Phase::Failed, why, began, self.observed.now);
    }

    /// What is left to do for a job that has ended.
    fn settle(&mut self) {
        let OpsObservation { job, child, now, .. } = self.observed;
        if let Some(child) = child {
            if !child.deleting {
                self.effects.push(Effect::DeleteChild);
            }
            return;
        }
        if job.is_kept {
            self.effects.push(Effect::DropFinalizer);
            return;
        }
        let ttl = self.observed.spec.ok().and_then(|spec| spec.ttl);
        let due = ttl.zip(self.status.finished).map(|(seconds, finished)| after_seconds(finished, seconds));
        match due.filter(|_| !job.deleting) {
            Some(due) if due <= now => self.effects.push(Effect::DeleteSelf),
            Some(due) => self.wake_at(due),
            None => {}
        }
    }

    fn go_on(&mut self, holders: &mut Holders) {
        let spec = match self.observed.spec {
            Ok(spec) => spec,
            Err(refusal) => return self.fail(&Why::new("Invalid", refusal.message.clone())),
        };
        let cancelled = self.cancelled(spec);
        if !self.observed.job.status.is(RESOLVED) {
            return match cancelled {
                Some(why) => self.fail(&why),
                None => self.resolve(spec, holders),
            };
        }
        // Whoever is told so by a status of another process holds as well.
        if let Err(busy) = holders.take(&self.observed.job.uid, &self.places()) {
            return self.fail(&busy_words(&busy));
        }
        match self.observed.child {
            Some(child) => self.follow(child, cancelled),
            None => self.without_child(spec, cancelled),
        }
    }

    /// Why it is ended by force, if it is.
    fn cancelled(&mut self, spec: &OpsSpec) -> Option<Why> {
        let OpsObservation { job, now, .. } = self.observed;
        if job.deleting {
            return Some(Why::new("Stopped", "the job was deleted, and so it was stopped"));
        }
        if spec.stops {
            return Some(Why::new("Stopped", "the job was stopped"));
        }
        let seconds = spec.timeout?;
        let due = after_seconds(job.created?, seconds);
        if due > now {
            self.wake_at(due);
            return None;
        }
        Some(Why::new("Timeout", format!("timed out after {seconds} s")))
    }

    fn places(&self) -> Vec<HeldPlace> {
        let targets = self.observed.job.targets.iter().flat_map(|resolved| &resolved.targets);
        targets.map(|(_, uid)| HeldPlace::Node(uid.clone())).collect()
    }

    fn resolve(&mut self, spec: &OpsSpec, holders: &mut Holders) {
        let OpsObservation { job, nodes, here, now, of_workload, .. } = self.observed;
        let Some(resolved) = &job.targets else {
            let selectors = Selectors {
                nodes: spec.scope.nodes.clone(),
                hosts: spec.scope.hosts.clone(),
                of_workload: of_workload.cloned(),
                workspace: spec.scope.workspace.clone(),
                cluster: spec.scope.cluster.clone(),
            };
            return match resolve(&selectors, &spec.filters, nodes, here) {
                Ok(resolved) => self.effects.push(Effect::StoreTargets(resolved)),
                Err(unresolved) => self.fail(&unresolved_words(&unresolved)),
            };
        };
        if let Err(busy) = holders.take(&job.uid, &self.places()) {
            return self.fail(&busy_words(&busy));
        }
        let skipped = resolved.skipped.len();
        let rest = if skipped == 0 { String::new() } else { format!(", {skipped} skipped") };
        let words = format!("{} targets{rest}", resolved.targets.len());
        self.status.say(RESOLVED, true, &Why::new("Resolved", words), now);
        self.status.rest.insert("outputs".to_owned(), outputs(&resolved.skipped));
        let counts = TargetCounts { total: resolved.targets.len(), ..TargetCounts::default() };
        self.status.rest.insert("progress".to_owned(), counts.write());
    }

    /// A job whose child is not there: it was not made yet, it has done its work, or somebody deleted it.
    fn without_child(&mut self, spec: &OpsSpec, cancelled: Option<Why>) {
        let job = self.observed.job;
        let was_there = self.status.rest.contains_key("operationJob");
        let has_ended = self.status.is(ENDED);
        let stopping = self.stopping();
        match (was_there, has_ended, stopping, cancelled) {
            (true, true, _, _) => self.conclude(spec),
            (true, false, Some(why), _) => self.fail(&why),
            (true, false, None, _) => {
                self.fail(&Why::new(
                    "ChildLost",
                    format!("OperationJob {OPS_NAMESPACE}/{} was deleted by somebody else", job.name),
                ));
            }
            (false, _, _, Some(why)) => self.fail(&why),
            (false, ..) => {
                let child = child_of(job, spec);
                self.effects.push(Effect::CreateChild(child));
                self.status.rest.insert("waitingFor".to_owned(), json!([]));
            }
        }
    }

    /// What the condition of a job that is ended by force says.
    fn stopping(&self) -> Option<Why> {
        let condition = self.status.conditions.iter().find(|one| one.kind == STOPPING && one.status == "True")?;
        let reason = if condition.reason == "Timeout" { "Timeout" } else { "Stopped" };
        Some(Why::new(reason, condition.message.clone()))
    }

    /// Mirrors a child, ends it by force, or takes what it came to.
    fn follow(&mut self, child: &OpsChild, cancelled: Option<Why>) {
        let now = self.observed.now;
        let recorded = json!({"name": self.observed.job.name, "uid": child.uid});
        self.status.rest.insert("operationJob".to_owned(), recorded);
        self.status.rest.insert("progress".to_owned(), child.counts.write());
        let waits: Vec<&String> = child.waits_for.iter().filter(|_| !child.has_ended).collect();
        self.status.rest.insert("waitingFor".to_owned(), json!(waits));
        if child.began.is_some() {
            self.status.enter(Phase::Running, &Why::new("Started", ""), child.began, now);
        }
        if child.has_ended && !self.status.is(ENDED) && self.stopping().is_none() {
            let TargetCounts { succeeded, failed, total, .. } = child.counts;
            let words = format!("{succeeded} of {total} succeeded, {failed} failed");
            self.status.say(ENDED, true, &Why::new("Ended", words), now);
            // It goes once that is stored: until then it is the record of what came to be.
            return;
        }
        if self.status.is(ENDED) {
            self.delete_child(child);
            return;
        }
        let Some(why) = self.stopping().or(cancelled) else { return };
        if !self.status.is(STOPPING) {
            self.status.say(STOPPING, true, &why, now);
        }
        match (child.deleting, child.paused) {
            (true, _) => {}
            (false, false) => self.effects.push(Effect::PauseChild),
            (false, true) => self.delete_child(child),
        }
        self.give_up_waiting(&why, child);
    }

    fn delete_child(&mut self, child: &OpsChild) {
        // What it says now is to be stored before: nothing else says it afterwards.
        let is_stored = self.observed.job.status.rest.get("progress") == self.status.rest.get("progress");
        if !child.deleting && is_stored {
            self.effects.push(Effect::DeleteChild);
        }
    }

    /// The release of targets goes on, and the job does not wait for it for ever.
    fn give_up_waiting(&mut self, why: &Why, child: &OpsChild) {
        let since = self.status.conditions.iter().find(|one| one.kind == STOPPING);
        let since = since.and_then(|condition| read_time(Some(&condition.last_transition_time)));
        let Some(due) = since.map(|since| after_seconds(since, CANCEL_GRACE)) else { return };
        if due > self.observed.now {
            return self.wake_at(due);
        }
        let held = child.counts.processing;
        let message =
            format!("{}; {held} targets are still held, and are released as soon as that can be", why.message);
        self.fail(&Why::new(why.reason, message));
    }

    /// The outcome, once all targets are released.
    fn conclude(&mut self, spec: &OpsSpec) {
        let now = self.observed.now;
        let TargetCounts { total, succeeded, failed, .. } = TargetCounts::read(self.status.rest.get("progress"));
        let tolerated = spec.ratio.tolerated(total);
        let began = self.status.started;
        if failed > tolerated {
            let words = format!("{failed} of {total} targets failed, and {tolerated} may");
            self.status.enter(Phase::Failed, &Why::new("ToleranceExceeded", words), began, now);
        } else {
            let words = format!("{succeeded} of {total} targets succeeded");
            self.status.enter(Phase::Succeeded, &Why::new("Succeed", words), began, now);
        }
    }
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
