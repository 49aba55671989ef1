//! The ledger of a model. It records what became durable and what physically happened, and judges both by the
//! properties of docs/operationjob.md 9. It does not know how the host decides.

use std::collections::BTreeMap;

use oarlock_api::{OperationJobStatus, TargetDetail};
use oarlock_core::object::api_object::Object;
use oarlock_core::operation_job::round::memory::JobMemory;
use oarlock_core::operation_job::state::{Progress, TargetState, extras};
use serde_json::Value;

use crate::api::{Api, StoredJob};
use crate::part::Part;
use crate::plugin::NEW_POD;
use crate::scenario::{GUARD, JOB_UID, MARK, Scenario, before_all};

/// A property that a model judges.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Property {
    /// No duplicate: each attempt of a target takes effect at most once, and no two targets take one new pod.
    S1,
    /// No loss: targets, outcomes and starts never disappear from a status.
    S2,
    /// Honesty: an outcome describes what really happened.
    S3,
    /// Budget: no more targets are in flight than the parallelism of the job.
    S4,
    /// Identity: writes reach only the selected pod.
    S5,
    /// Fencing: an earlier term changes nothing after a later term.
    S6,
    /// Order: the host records before it acts.
    S7,
    /// Once faults stop, the job ends, stays ended, and leaves nothing behind.
    Liveness,
}

/// The author of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Author {
    /// The number of the author's term.
    pub term: u8,
    /// The target, if the write is for a target.
    pub index: Option<u32>,
    /// The attempt of the target.
    pub attempt: u32,
}

/// History of a model run, and the properties that it broke.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Ledger {
    /// Number of evictions and marks of a target's pod, by target and attempt.
    effects: BTreeMap<(u32, u32), u8>,
    /// The newest term whose epoch is durable.
    term: u8,
    /// The properties that do not hold, with the reason.
    pub broken: BTreeMap<Property, &'static str>,
    /// Number of writes that changed an object.
    pub writes: u32,
}

impl Ledger {
    /// Records that a property does not hold.
    pub fn breaks(&mut self, property: Property, why: &'static str) {
        self.broken.entry(property).or_insert(why);
    }

    /// Judges an accepted write to a pod: `before` is the pod before the write, and `after` has the pod after it.
    pub fn pod_written(&mut self, by: Author, before: &Object, after: &Api, job: Option<&StoredJob>) {
        self.writes += 1;
        let Some(index) = by.index else { return };
        let detail = job.and_then(|job| detail(job, index));
        let now = after.pods.get(&before.key.name);
        let marks = |pod: &Object| pod.labels.contains_key(MARK);
        let evicts = !before.terminating() && now.is_some_and(|now| now.terminating());
        let effect = evicts || !marks(before) && now.is_some_and(|now| marks(now));
        if detail.and_then(|detail| detail.uid.as_ref()).is_some_and(|uid| *uid != before.uid) {
            self.breaks(Property::S5, "a write to a pod that is not the selected one");
        }
        if effect {
            self.effect(by, index, detail);
        }
        let guarded = |pod: &Object| pod.finalizers.iter().any(|name| name == GUARD);
        let lets_go = guarded(before) && !now.is_some_and(|now| guarded(now)) && before.terminating();
        let deleting = job.is_none_or(|job| job.job.metadata.deletion_timestamp.is_some());
        let known = detail.is_some_and(|detail| ended(detail) || extra(detail, NEW_POD).is_some());
        if lets_go && !deleting && !known {
            self.breaks(Property::S7, "a guard went before the new pod was recorded");
        }
    }

    fn effect(&mut self, by: Author, index: u32, detail: Option<&TargetDetail>) {
        let count = self.effects.entry((index, by.attempt)).or_default();
        *count += 1;
        if *count > 1 {
            self.breaks(Property::S1, "an attempt took effect twice");
        }
        if by.term > self.term {
            self.breaks(Property::S6, "an effect before the term has raised the epoch");
        }
        let Some(detail) = detail else {
            return self.breaks(Property::S3, "an effect of a job that is gone");
        };
        let attempt = detail.attempt.map_or(1, |attempt| u32::try_from(attempt).unwrap_or(0));
        let over = ended(detail) || detail.next_attempt_time.is_some() || attempt > by.attempt;
        if over && by.term < self.term {
            self.breaks(Property::S6, "an effect of an earlier term on a target that has ended");
        } else if over {
            self.breaks(Property::S3, "an effect after the outcome");
        } else if detail.progress.as_deref() != Some("Processing") || attempt < by.attempt {
            self.breaks(Property::S7, "an effect before its intent was durable");
        }
    }

    /// Judges a write to the job that was accepted.
    pub fn job_written(&mut self, scenario: &Scenario, by: Author, before: &StoredJob, after: &Api) {
        self.writes += 1;
        let Some(job) = &after.job else { return self.gone(before) };
        let (old, new) = (status(before), status(job));
        if before.document.get("status") != job.document.get("status") && by.term < self.term {
            self.breaks(Property::S6, "a record of an earlier term");
        }
        let (old_epoch, epoch) = (old.and_then(|old| old.epoch), new.and_then(|new| new.epoch));
        if epoch < old_epoch {
            self.breaks(Property::S6, "an epoch fell");
        }
        if epoch > old_epoch {
            self.term = self.term.max(by.term);
        }
        let Some(new) = new else { return };
        self.outcomes(scenario, old, new);
        for (index, detail) in new.target_details.iter().flatten().enumerate() {
            let known = old.and_then(|old| old.target_details.as_ref()?.get(index));
            if ended(detail) && !known.is_some_and(ended) {
                self.ends(detail, after);
            }
        }
    }

    /// Judges the removal of the job. No target may be in flight.
    pub fn gone(&mut self, before: &StoredJob) {
        let owes = |detail: &TargetDetail| detail.progress.as_deref() == Some("Processing");
        if status(before).is_some_and(|status| status.target_details.iter().flatten().any(owes)) {
            self.breaks(Property::S2, "the job went while a target was in flight");
        }
    }

    fn outcomes(&mut self, scenario: &Scenario, old: Option<&OperationJobStatus>, new: &OperationJobStatus) {
        let details = |status: &OperationJobStatus| status.target_details.clone().unwrap_or_default();
        let (before, now) = (old.map(details).unwrap_or_default(), details(new));
        if now.len() != scenario.targets.len() {
            self.breaks(Property::S2, "a status without all targets");
        }
        for (old, new) in before.iter().zip(&now) {
            if ended(old) && (&old.progress, &old.end_time) != (&new.progress, &new.end_time) {
                self.breaks(Property::S2, "an outcome was changed");
            }
            if old.progress.as_deref() == Some("Processing") && new.progress.as_deref() == Some("Pending") {
                self.breaks(Property::S2, "a start was taken back");
            }
        }
        let over = matches!(new.progress.as_deref(), Some("Succeeded" | "Failed"));
        if over && !now.iter().all(ended) {
            self.breaks(Property::S2, "a job ended before its targets");
        }
        let in_flight = now.iter().filter(|detail| detail.progress.as_deref() == Some("Processing")).count();
        let most = scenario.spec.get("parallelism").and_then(Value::as_u64);
        if most.is_some_and(|most| in_flight as u64 > most) {
            self.breaks(Property::S4, "more targets in flight than parallelism allows");
        }
        let shares = now.iter().filter_map(|detail| extra(detail, NEW_POD));
        let mut names: Vec<_> = shares.collect();
        let all = names.len();
        names.sort();
        names.dedup();
        if names.len() < all {
            self.breaks(Property::S1, "two targets took one new pod");
        }
    }

    /// Judges the recorded outcome of a target.
    fn ends(&mut self, detail: &TargetDetail, after: &Api) {
        let origin = after.pods.get(&detail.name).filter(|pod| Some(&pod.uid) == detail.uid.as_ref());
        let new_pod = extra(detail, NEW_POD).and_then(|name| after.pods.get(name));
        match (detail.progress.as_deref(), detail.error.as_ref().map(|error| error.reason.as_str())) {
            (Some("Succeeded"), _) => {
                if origin.is_some() {
                    self.breaks(Property::S3, "Succeeded, and the pod is still there");
                }
                let made = extra(detail, NEW_POD).is_some_and(|name| after.knew(name));
                if !made || new_pod.is_some_and(|pod| Some(&pod.uid) == detail.uid.as_ref()) {
                    self.breaks(Property::S3, "Succeeded without a new pod");
                }
            }
            (Some("Failed"), Some("PodNotFound")) if detail.uid.is_none() => {
                let always = after.pods.get(&detail.name).is_some_and(|pod| pod.created == Some(before_all()));
                if always {
                    self.breaks(Property::S3, "PodNotFound, and the pod was always there");
                }
            }
            _ => {}
        }
    }

    /// Judges the objects that are left when no step is possible any more.
    pub fn is_idle(&mut self, api: &Api) {
        let hold = format!("hold.oarlock.dev/{JOB_UID}");
        if api.job.is_some() {
            self.breaks(Property::Liveness, "the job never ends");
        }
        let ours =
            |pod: &Object| pod.annotations.contains_key(&hold) || pod.finalizers.iter().any(|name| name == GUARD);
        if api.pods.values().any(|pod| ours(pod)) {
            self.breaks(Property::Liveness, "a hold of the job is left");
        }
    }
}

fn status(job: &StoredJob) -> Option<&OperationJobStatus> {
    job.job.status.as_ref()
}

/// Returns the durable state of a target.
pub fn detail(job: &StoredJob, index: u32) -> Option<&TargetDetail> {
    status(job)?.target_details.as_ref()?.get(index as usize)
}

fn extra<'a>(detail: &'a TargetDetail, key: &str) -> Option<&'a String> {
    detail.extra_info.as_ref()?.get(key)
}

/// Returns true if the outcome of a target is durable.
pub fn ended(detail: &TargetDetail) -> bool {
    matches!(detail.progress.as_deref(), Some("Succeeded" | "Failed"))
}

/// Returns true if the round between these memories fails a target for its deadline, although the target's new pod
/// exists and no other target claims it.
pub fn gives_up_too_early(api: &Api, before: &JobMemory, memory: &JobMemory) -> bool {
    let late = |(index, state): (&u32, &TargetState)| {
        let over = state.progress == Progress::Failed
            && state.error.as_ref().is_some_and(|error| error.reason == "DeadlineExceeded");
        let stored = api.job.as_ref().and_then(|job| detail(job, *index));
        let fresh = before.decisions.latest(&before.stored, *index).is_some_and(|target| !target.progress.terminal())
            && !stored.is_some_and(ended);
        let origin = api.pods.get(memory.stored.state.name(*index)).filter(|pod| Some(&pod.uid) == state.uid.as_ref());
        let taken = |name: &str| {
            (0..memory.stored.state.targets.len() as u32).filter(|other| other != index).any(|other| {
                memory
                    .decisions
                    .latest(&memory.stored, other)
                    .and_then(|target| target.extra(NEW_POD))
                    .is_some_and(|own| own == name)
            })
        };
        let asked = state.extra(extras::EVICTED_AT).and_then(|text| text.parse().ok());
        let since = asked.or(state.start);
        let made = |pod: &Object| pod.created > Some(before_all()) && pod.created >= since;
        let new = |pod: &Part<Object>| made(pod) && !pod.terminating() && !taken(&pod.key.name);
        over && fresh && origin.is_none() && api.pods.values().any(new)
    };
    memory.decisions.decided.iter().map(|(index, decided)| (index, &decided.state)).any(late)
}

#[cfg(test)]
#[path = "ledger_tests.rs"]
mod tests;
