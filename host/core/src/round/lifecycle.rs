//! The job's part in KusionStack's PodOpsLifecycle: begin, wait, finish and cancel.
//!
//! Takes a target in flight and the labels of its pod; yields the step that comes before a call of the plugin, or follows
//! its success. May not operate: that is the plugin's. Source: docs/operationjob.md 5.

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use oarlock_api::TargetError;

use crate::cluster::lifecycle::{Awaited, PodOperation, controlled, service_available};
use crate::cluster::object::Object;
use crate::cluster::writes::Write;
use crate::job::state::{Progress, TargetState, extras};
use crate::job::time::{after, after_seconds, read_time, write_time};
use crate::plugin::manifest::{Lifecycle, TargetKind};
use crate::plugin::proposal::PluginEvent;
use crate::round::context::{Round, Target};
use crate::round::judge::Verdict;
use crate::round::target_memory::{LifecycleWait, TargetMemory};

/// Time after which an operation that has begun, or is finished, counts as blocked.
const PATIENCE: SignedDuration = SignedDuration::from_secs(60);

/// What the lifecycle lets a target in flight do.
pub(super) enum Gate {
    /// All.
    Open,
    /// Only `progress`.
    Watch,
    /// Nothing before its pod changes.
    Wait,
    /// This first.
    Begin(Box<Verdict>),
    /// Another operation came in between.
    Busy(TargetError),
}

impl Round<'_> {
    /// The operation of this job, whether or not a pod takes part.
    pub(super) fn operation(&self) -> PodOperation {
        PodOperation::of(&self.job.key, self.action())
    }

    /// True if the pod takes part in the lifecycle. Nothing is begun in a dry run.
    pub(super) fn takes_part(&self, pod: &Object) -> bool {
        !self.dry_run && self.would_take_part(pod)
    }

    /// The same, of a job in earnest. No node takes part.
    pub(super) fn would_take_part(&self, pod: &Object) -> bool {
        let serving = self.serving().filter(|_| self.kind == TargetKind::Pod);
        serving.is_some_and(|plugin| match plugin.manifest.lifecycle {
            Lifecycle::Off => false,
            Lifecycle::On => true,
            // Whoever takes the pod out of control in the middle does not end what has begun.
            Lifecycle::Controlled => controlled(pod) || self.operation().shows(pod),
        })
    }
}

impl Target<'_> {
    /// Why no operation of this job can begin on the pod: somebody else has begun one, or the last attempt's is still being
    /// cancelled. A change of the pod ends that.
    pub(super) fn busy(&self, pod: Option<&Object>) -> Option<String> {
        self.round.operation().busy(pod.filter(|pod| self.round.takes_part(pod))?)
    }

    /// The verdict that records `state` and begins the operation on a pod.
    pub(super) fn begin(&self, state: TargetState, pod: &Object) -> Verdict {
        let body = self.round.operation().begin(pod, self.round.now);
        let message =
            format!("{} begins on this pod for OperationJob {}", self.round.action(), self.round.job.key.name);
        Verdict {
            state: Some(state),
            writes: vec![Write::patch(&self.key, body)],
            pod_events: vec![PluginEvent { warning: false, reason: "PodOpsLifecycle".into(), message }],
            ..Verdict::default()
        }
    }

    /// What the lifecycle lets the target do. `operated`: its plugin has had an effect already.
    pub(super) fn gate(&self, known: &mut TargetMemory, pod: Option<&Object>, operated: bool) -> Gate {
        known.lifecycle = None;
        known.lifecycle_at = None;
        let Some(pod) = pod.filter(|pod| self.round.takes_part(pod)) else { return Gate::Open };
        if self.stored.extra(extras::FINISHED).is_some() {
            return Gate::Watch;
        }
        let operation = self.round.operation();
        if operation.allowed_since(pod).is_some() {
            return Gate::Open;
        }
        if operated {
            return Gate::Watch;
        }
        if operation.begun(pod) {
            let since = operation.begun_at(pod).unwrap_or(self.round.now);
            self.waits_in_lifecycle(known, since, || operation.awaited(pod));
            return Gate::Wait;
        }
        match operation.busy(pod) {
            Some(message) => Gate::Busy(TargetError { reason: "LifecycleBusy".into(), message }),
            None if self.round.brakes.pause() || self.round.valid().is_none() => Gate::Wait,
            None => Gate::Begin(Box::new(self.begin(self.stored.clone(), pod))),
        }
    }

    /// Notes what the lifecycle keeps the target from, once it has lasted, and when to look again.
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

    /// The time before which a target that was not operated yet is not visited: the delay counts from the permission.
    pub(super) fn begin_after(&self, state: &TargetState, pod: Option<&Object>) -> Option<Timestamp> {
        let delay = self.round.valid().map_or(0, |spec| spec.delay_seconds);
        let takes_part = pod.filter(|pod| self.round.takes_part(pod));
        let from = match takes_part {
            Some(pod) => self.round.operation().allowed_since(pod),
            None => state.start,
        };
        from.filter(|_| delay > 0).map(|from| after_seconds(from, delay))
    }

    /// What is left to do before a target whose plugin has seen its success has succeeded: its operation is finished, and
    /// its pod serves. `None` if nothing is.
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

    /// True if the operation on the pod of a target that has succeeded was not finished: then its release does that.
    pub(super) fn is_unfinished(&self, pod: &Object) -> bool {
        self.round.takes_part(pod) && self.round.operation().finish(pod).is_some()
    }

    /// The write that ends the operation of a target which is released, and the event that follows it: it is cancelled,
    /// or finished if the target has succeeded.
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
    /// The write that finishes the operation, if it is not made yet.
    pub(super) write: Option<Write>,
    /// The event on the pod that follows it.
    pub(super) event: Option<PluginEvent>,
}
