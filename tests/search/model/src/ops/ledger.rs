//! The ledger of a model of OpsJobs. It judges what becomes durable and what happens on the nodes by the promises of
//! docs/opsjob.md. It does not know how the host decides.

use std::collections::{BTreeMap, BTreeSet};

use oarlock_core::ops_job::names::FINALIZER;
use serde_json::Value;

use crate::ops::api::{ChildDocument, OpsApi, OpsDocument};
use crate::ops::host::Claims;
use crate::ops::round::OUTCOMES;

/// A property that a model of OpsJobs judges.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum OpsProperty {
    /// No two OpsJobs work on one node.
    OneJob,
    /// An OpsJob that a user stopped before the live read that precedes the start never takes its node.
    Stop,
    /// At most one OperationJob of an OpsJob takes a node.
    Once,
    /// The outcomes are stored before the host deletes an OperationJob that has taken its node. A release that takes
    /// longer than the grace period of an end by force is the only exception.
    Outcomes,
    /// The end of an OpsJob stays.
    End,
    /// Once faults stop, every OpsJob ends, nothing of it is left, and a lost claim names the holder.
    Liveness,
}

/// History of a model run, and the properties that it broke.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct OpsLedger {
    /// The OperationJobs that took a node, by the UID of their OpsJob.
    started: BTreeMap<String, BTreeSet<String>>,
    /// The OperationJobs that may begin, because a live read showed that nobody had stopped their OpsJob.
    allowed: BTreeSet<String>,
    /// The OpsJobs that the user created after the start, by name.
    pub created: BTreeSet<String>,
    /// The properties that do not hold, with the reason.
    pub broken: BTreeMap<OpsProperty, &'static str>,
}

impl OpsLedger {
    fn breaks(&mut self, property: OpsProperty, why: &'static str) {
        self.broken.entry(property).or_insert(why);
    }

    /// Judges a write of the host. `is_allowed` is true if nobody had stopped the OpsJob at the live read before it.
    pub fn written(&mut self, name: &str, before: &OpsApi, after: &OpsApi, is_allowed: bool) {
        if let (Some(old), Some(new)) = (before.jobs.get(name), after.jobs.get(name)) {
            self.job_written(old, new);
        }
        let (old, new) = (before.children.get(name), after.children.get(name));
        let starts = |child: &ChildDocument| !child.child.paused;
        if let Some(new) = new.filter(|new| is_allowed && starts(new) && !old.is_some_and(|old| starts(old))) {
            self.allowed.insert(new.child.uid.clone());
        }
        if let Some(old) = old.filter(|old| old.has_started() && !old.child.deleting)
            && new.is_none_or(|new| new.child.deleting)
        {
            self.child_deleted(old, after);
        }
    }

    fn job_written(&mut self, old: &OpsDocument, new: &OpsDocument) {
        let end = |job: &OpsDocument| {
            let of = |field: &str| job.document.pointer(field).cloned();
            (of("/status/phase"), of("/status/finishedAt"))
        };
        if old.job.view.status.has_ended() && end(old) != end(new) {
            self.breaks(OpsProperty::End, "a write changed the end of an OpsJob");
        }
    }

    fn child_deleted(&mut self, child: &ChildDocument, after: &OpsApi) {
        let Some(owner) = after.owner(&child.owner) else { return };
        let is_forced = owner.job.view.status.has_ended() && has_condition(owner, "Stopping");
        if !is_forced && !has_condition(owner, OUTCOMES) {
            self.breaks(OpsProperty::Outcomes, "the host deleted an OperationJob without its outcomes");
        }
    }

    /// Judges an OperationJob that takes its node.
    pub fn starts(&mut self, child: &ChildDocument, api: &OpsApi) {
        let others = api.children.values().filter(|other| other.owner != child.owner && other.has_started());
        if others.map(|other| &**other).any(|other| other.node() == child.node()) {
            self.breaks(OpsProperty::OneJob, "two OpsJobs work on one node");
        }
        let is_stopped = api.owner(&child.owner).is_none_or(|owner| owner.is_stopped());
        if is_stopped && !self.allowed.contains(&child.child.uid) {
            self.breaks(OpsProperty::Stop, "a stopped OpsJob began");
        }
        let started = self.started.entry(child.owner.clone()).or_default();
        started.insert(child.child.uid.clone());
        if started.len() > 1 {
            self.breaks(OpsProperty::Once, "an OpsJob began twice");
        }
    }

    /// Judges the objects and the claims that are left when no step is possible any more.
    pub fn is_idle(&mut self, api: &OpsApi, claims: &Claims) {
        if !api.jobs.values().all(|job| job.job.view.status.has_ended()) {
            self.breaks(OpsProperty::Liveness, "an OpsJob never ends");
        }
        let has_finalizer = |job: &OpsDocument| job.job.finalizers.is_some_and(|all| all.place(FINALIZER).is_some());
        if api.jobs.values().any(|job| has_finalizer(job)) || !api.children.is_empty() {
            self.breaks(OpsProperty::Liveness, "something of an OpsJob is left");
        }
        if claims.holders().any(|holder| holder.is_some()) {
            self.breaks(OpsProperty::Liveness, "a claim is left");
        }
        if api.jobs.values().any(|job| lost_silently(job)) {
            self.breaks(OpsProperty::Liveness, "a lost claim does not name the holder");
        }
    }
}

fn condition<'a>(job: &'a OpsDocument, kind: &str) -> Option<&'a Value> {
    let conditions = job.document.pointer("/status/conditions")?.as_array()?;
    conditions.iter().find(|condition| condition["type"] == kind)
}

fn has_condition(job: &OpsDocument, kind: &str) -> bool {
    condition(job, kind).is_some()
}

/// Returns true if an OpsJob failed because of a busy target and does not name another OpsJob.
fn lost_silently(job: &OpsDocument) -> bool {
    let Some(failed) = condition(job, "Failed").filter(|failed| failed["reason"] == "TargetBusy") else { return false };
    let message = failed["message"].as_str().unwrap_or_default();
    let holder = message.strip_prefix("OpsJob ").and_then(|rest| rest.split(' ').next());
    holder.is_none_or(|holder| holder == job.name() || holder.starts_with("uid-"))
}
