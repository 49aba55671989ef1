//! The job's part in KusionStack's PodOpsLifecycle: begin, wait, finish and cancel.
//!
//! Takes a target in flight and the labels of its pod; yields the step before a call of the plugin, or after its
//! success. May not operate on the pod, because only the plugin does. Source: docs/operationjob.md 5.

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use oarlock_api::TargetError;

use crate::object::api_object::Object;
use crate::object::time::{after, after_seconds, read_time, write_time};
use crate::operation_job::lifecycle::{Awaited, PodOperation, controlled, service_available};
use crate::operation_job::round::context::{Round, Target};
use crate::operation_job::round::target_memory::{LifecycleWait, TargetMemory};
use crate::operation_job::round::visit::TargetUpdate;
use crate::operation_job::state::{Progress, TargetState, extras};
use crate::plugin::manifest::{Lifecycle, TargetKind};
use crate::plugin::proposal::PluginEvent;
use crate::requests::writes::Write;

/// Time after which an operation that has begun, or is finished, counts as blocked.
const PATIENCE: SignedDuration = SignedDuration::from_secs(60);

/// The steps that the lifecycle allows to a target in flight.
pub(super) enum LifecycleGate {
    /// All steps are allowed.
    Open,
    /// Only `progress` is allowed.
    Watch,
    /// No step is allowed before the pod changes.
    Wait,
    /// This outcome, which begins the operation, comes first.
    Begin(Box<TargetUpdate>),
    /// Another operation came in between, with this error.
    Busy(TargetError),
}

impl Round<'_> {
    /// Returns the operation of this job, whether or not a pod takes part.
    pub(super) fn operation(&self) -> PodOperation {
        PodOperation::of(&self.job.key, self.action())
    }

    /// Returns true if the pod takes part in the lifecycle. A dry run begins no operation.
    pub(super) fn takes_part(&self, pod: &Object) -> bool {
        !self.dry_run && self.would_take_part(pod)
    }

    /// Returns true if the pod would take part in a real run. No node takes part.
    pub(super) fn would_take_part(&self, pod: &Object) -> bool {
        let serving = self.serving().filter(|_| self.kind == TargetKind::Pod);
        serving.is_some_and(|plugin| match plugin.manifest.lifecycle {
            Lifecycle::Off => false,
            Lifecycle::On => true,
            // A client that takes the pod out of control midway does not end an operation that has begun.
            Lifecycle::Controlled => controlled(pod) || self.operation().shows(pod),
        })
    }
}

impl Target<'_> {
    /// Returns why no operation of this job can begin on the pod: another client has begun an operation, or the
    /// operation of the last attempt is still being cancelled. A change of the pod ends this wait.
    pub(super) fn busy(&self, pod: Option<&Object>) -> Option<String> {
        self.round.operation().busy(pod.filter(|pod| self.round.takes_part(pod))?)
    }

    /// Returns the outcome that records `state` and begins the operation on a pod.
    pub(super) fn begin(&self, state: TargetState, pod: &Object) -> TargetUpdate {
        let body = self.round.operation().begin(pod, self.round.now);
        let message =
            format!("{} begins on this pod for OperationJob {}", self.round.action(), self.round.job.key.name);
        TargetUpdate {
            state: Some(state),
            writes: vec![Write::patch(&self.key, body)],
            pod_events: vec![PluginEvent { warning: false, reason: "PodOpsLifecycle".into(), message }],
            ..TargetUpdate::default()
        }
    }

    /// Returns the steps that the lifecycle allows to the target. `operated` says that the plugin has had an effect
    /// already.
    pub(super) fn lifecycle_gate(
        &self,
        known: &mut TargetMemory,
        pod: Option<&Object>,
        operated: bool,
    ) -> LifecycleGate {
        known.lifecycle = None;
        known.lifecycle_at = None;
        let Some(pod) = pod.filter(|pod| self.round.takes_part(pod)) else { return LifecycleGate::Open };
        if self.stored.extra(extras::FINISHED).is_some() {
            return LifecycleGate::Watch;
        }
        let operation = self.round.operation();
        if operation.allowed_since(pod).is_some() {
            return LifecycleGate::Open;
        }
        if operated {
            return LifecycleGate::Watch;
        }
        if operation.begun(pod) {
            let since = operation.begun_at(pod).unwrap_or(self.round.now);
            self.waits_in_lifecycle(known, since, || operation.awaited(pod));
            return LifecycleGate::Wait;
        }
        match operation.busy(pod) {
            Some(message) => LifecycleGate::Busy(TargetError { reason: "LifecycleBusy".into(), message }),
            None if self.round.pause_state.pause() || self.round.valid().is_none() => LifecycleGate::Wait,
            None => LifecycleGate::Begin(Box::new(self.begin(self.stored.clone(), pod))),
        }
    }

    /// Stores the reason why the lifecycle holds the target back, once the wait has lasted. Before, stores the time to
    /// look again.
    fn waits_in_lifecycle(
        &self,
        known: &mut TargetMemory,
        since: Timestamp,
        awaited: impl FnOnce() -> (Awaited, String),
    ) {
        let lasts = after(since, PATIENCE);
        known.lifecycle_at = (lasts > self.round.now).then_some(lasts);
        if known.lifecycle_at.is_none() {
            let (awaited, message) = awaited();
            known.lifecycle = Some(LifecycleWait { awaited, message });
        }
    }

    /// Returns the earliest time of the first visit of a target that was not operated yet. With the lifecycle, the
    /// delay counts from the permission.
    pub(super) fn begin_after(&self, state: &TargetState, pod: Option<&Object>) -> Option<Timestamp> {
        let delay = self.round.valid().map_or(0, |spec| spec.delay_seconds);
        let takes_part = pod.filter(|pod| self.round.takes_part(pod));
        let from = match takes_part {
            Some(pod) => self.round.operation().allowed_since(pod),
            None => state.start,
        };
        from.filter(|_| delay > 0).map(|from| after_seconds(from, delay))
    }

    /// Returns the step that is left after a plugin has reported success: the host finishes the operation, and the pod
    /// must serve again. `None` if no step is left.
    pub(super) fn finish(&self, next: &mut TargetState, known: &mut TargetMemory, pod: &Object) -> Option<Finish> {
        let operation = self.round.operation();
        let write = operation.finish(pod).map(|body| Write::patch(&self.key, body));
        let Some(since) = next.extra(extras::FINISHED).map(|text| read_time(Some(text)).unwrap_or(self.round.now))
        else {
            if !operation.shows(pod) {
                return None;
            }
            next.extra.insert(extras::FINISHED.to_owned(), write_time(self.round.now));
            let reason = format!("{}OpsLifecycleFinished", self.round.action());
            let message =
                format!("{} is done on this pod for OperationJob {}", self.round.action(), self.round.job.key.name);
            let event = PluginEvent { warning: false, reason, message };
            return Some(Finish { write, event: Some(event) });
        };
        if write.is_none() && service_available(pod) {
            return None;
        }
        let awaited = || (Awaited::NotServiceAvailable, "the pod is not service-available again".to_owned());
        self.waits_in_lifecycle(known, since, awaited);
        Some(Finish { write, event: None })
    }

    /// Returns true if the operation on the pod of a succeeded target is not finished. The release of the target then
    /// finishes it.
    pub(super) fn is_unfinished(&self, pod: &Object) -> bool {
        self.round.takes_part(pod) && self.round.operation().finish(pod).is_some()
    }

    /// Returns the write that ends the operation of a target that is released, and the event that follows the write.
    /// The write finishes the operation if the target has succeeded, and cancels it otherwise.
    pub(super) fn end_operation(&self, pod: &Object) -> Option<(Write, PluginEvent)> {
        let succeeded = self.stored.progress == Progress::Succeeded;
        let operation = self.round.operation();
        let body = if succeeded { operation.finish(pod) } else { operation.cancel(pod) }?;
        let (action, job) = (self.round.action(), &self.round.job.key.name);
        let (word, done) = if succeeded { ("Finished", "done") } else { ("Canceled", "cancelled") };
        let reason = format!("{action}OpsLifecycle{word}");
        let message = format!("{action} is {done} on this pod for OperationJob {job}");
        Some((Write::patch(&self.key, body), PluginEvent { warning: false, reason, message }))
    }
}

/// A step of the lifecycle that a success waits for.
pub(super) struct Finish {
    /// The write that finishes the operation, if the host has not made it yet.
    pub(super) write: Option<Write>,
    /// The event on the pod that follows the write.
    pub(super) event: Option<PluginEvent>,
}
