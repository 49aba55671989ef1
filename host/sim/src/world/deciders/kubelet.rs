//! Decides for scheduler and kubelet: the stage of a pod, its time in the stage, and its next status.

use std::time::Duration;

use k8s_openapi::api::core::v1::{
    ContainerState, ContainerStateRunning, ContainerStateTerminated, ContainerStatus, Pod, PodCondition, PodIP,
    PodStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::lifecycle::{is_controlled, is_operated_on};
use crate::world::labels;
use crate::world::pod_facts::PodFacts;
use crate::world::random::{SeededRandom, Span};

/// The time after which a pod that is still there counts as stuck. A live server removes a pod right after marking it as done.
const LINGERS: Duration = Duration::from_secs(2);

/// Durations of the stages of a pod's lifecycle.
#[derive(Clone, Copy, Debug)]
pub struct Timings {
    /// From a change to the reaction of a workload's controller.
    pub react: Span,
    /// From being scheduled to running containers.
    pub start: Span,
    /// From running to ready.
    pub ready: Span,
    /// From ready to the label `service-available`, for KusionStack pods.
    pub available: Span,
    /// From the start of a deletion to its end, at most the pod's grace period.
    pub terminate: Span,
}

impl Default for Timings {
    fn default() -> Self {
        Self {
            react: Span::millis(10, 30),
            start: Span::millis(100, 400),
            ready: Span::millis(100, 600),
            available: Span::millis(10, 50),
            terminate: Span::millis(100, 500),
        }
    }
}

/// A stage of a pod's lifecycle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Stage {
    /// The pod has no node yet.
    Unscheduled,
    /// The pod's containers do not run yet.
    Starting,
    /// The pod runs and is not ready.
    Unready,
    /// The pod is ready, but a scenario wants it to fail.
    Failing,
    /// A ready KusionStack pod lacks the label `service-available`, although no operation removed it.
    Unavailable,
    /// The pod is being deleted.
    Terminating,
    /// The kubelet is done and no finalizer holds the pod, but the pod still exists. The server marks a pod as done with one
    /// write and removes it with another, and can die in between.
    Lingering,
    /// The pod needs nothing.
    Settled,
}

/// Returns the stage of a pod. `must_fail` means that a scenario wants the pod to be not ready.
pub(crate) fn stage(pod: &Pod, must_fail: bool) -> Stage {
    if pod.is_terminating() {
        // A grace period of zero means that the kubelet is done. Only finalizers can remain.
        let is_over = pod.metadata.deletion_grace_period_seconds == Some(0);
        let is_held = pod.metadata.finalizers.as_ref().is_some_and(|finalizers| !finalizers.is_empty());
        return match (is_over, is_held) {
            (false, _) => Stage::Terminating,
            (true, true) => Stage::Settled,
            (true, false) => Stage::Lingering,
        };
    }
    match (pod.is_finished(), pod.node(), pod.phase(), pod.is_ready()) {
        (true, ..) => Stage::Settled,
        (false, None, ..) => Stage::Unscheduled,
        (false, Some(_), "Running", true) if must_fail => Stage::Failing,
        (false, Some(_), "Running", true) if waits_for_label(pod) => Stage::Unavailable,
        (false, Some(_), "Running", true) => Stage::Settled,
        (false, Some(_), "Running", false) if must_fail => Stage::Settled,
        (false, Some(_), "Running", false) => Stage::Unready,
        (false, Some(_), ..) => Stage::Starting,
    }
}

fn waits_for_label(pod: &Pod) -> bool {
    let is_kusion = pod.bears(labels::INSTANCE_ID) || is_controlled(pod);
    let gets_traffic = pod.condition(labels::SERVICE_READY).is_none_or(|condition| condition.status == "True");
    is_kusion && gets_traffic && !pod.bears(labels::SERVICE_AVAILABLE) && !is_operated_on(pod)
}

/// Returns the time that a pod stays in a stage.
pub(crate) fn stay(pod: &Pod, stage: Stage, timings: &Timings, random: SeededRandom) -> Duration {
    let of = |span: Span, word: &str| random.between(span, &[word, pod.pod_namespace(), pod.pod_name()]);
    match stage {
        Stage::Unscheduled | Stage::Failing | Stage::Settled => Duration::ZERO,
        Stage::Starting => of(timings.start, "start"),
        Stage::Unready => of(timings.ready, "ready"),
        Stage::Unavailable => of(timings.available, "available"),
        Stage::Lingering => LINGERS,
        Stage::Terminating => {
            let grace = pod.metadata.deletion_grace_period_seconds.and_then(|seconds| u64::try_from(seconds).ok());
            of(timings.terminate, "terminate").min(Duration::from_secs(grace.unwrap_or(30)))
        }
    }
}

/// Returns the status of a pod with running containers.
pub(crate) fn running(pod: &Pod, is_ready: bool, now: Time) -> PodStatus {
    let mut status = pod.status.clone().unwrap_or_default();
    let spec_containers = pod.spec.as_ref().map(|spec| spec.containers.as_slice()).unwrap_or_default();
    let known = status.container_statuses.take().unwrap_or_default();
    let containers = spec_containers.iter().map(|container| {
        // A restarted container keeps its restart time and its count.
        let known = known.iter().find(|status| status.name == container.name).cloned().unwrap_or_default();
        let running = ContainerStateRunning { started_at: status.start_time.clone().or(Some(now.clone())) };
        let state = ContainerState { running: Some(running), ..ContainerState::default() };
        ContainerStatus {
            name: container.name.clone(),
            image: container.image.clone().unwrap_or_default(),
            ready: is_ready,
            started: Some(true),
            state: Some(known.state.clone().filter(|state| state.running.is_some()).unwrap_or(state)),
            ..known
        }
    });
    let containers = containers.collect();
    status.container_statuses = Some(containers);
    status.phase = Some("Running".to_owned());
    status.start_time.get_or_insert_with(|| now.clone());
    let address = status.pod_ip.get_or_insert_with(|| address_of(pod)).clone();
    status.pod_ips.get_or_insert_with(|| vec![PodIP { ip: address }]);
    let readiness = if is_ready { "True" } else { "False" };
    let conditions = status.conditions.get_or_insert_default();
    for (kind, value) in
        [("PodScheduled", "True"), ("Initialized", "True"), ("ContainersReady", readiness), ("Ready", readiness)]
    {
        set_condition(conditions, kind, value, &now);
    }
    status
}

/// Returns the status of a pod whose containers restarted with their node. A pod with the policy `Never` fails.
pub(crate) fn restarted(pod: &Pod, now: Time) -> PodStatus {
    let mut status = running(pod, false, now.clone());
    let never = pod.spec.as_ref().is_some_and(|spec| spec.restart_policy.as_deref() == Some("Never"));
    for container in status.container_statuses.iter_mut().flatten() {
        if never {
            let reason = Some("Unknown".to_owned());
            let ended = ContainerStateTerminated { exit_code: 255, reason, ..ContainerStateTerminated::default() };
            container.state = Some(ContainerState { terminated: Some(ended), ..ContainerState::default() });
            continue;
        }
        container.restart_count = container.restart_count.saturating_add(1);
        let began = container.state.take().and_then(|state| state.running).and_then(|running| running.started_at);
        let ended = ContainerStateTerminated {
            exit_code: 255,
            reason: Some("Unknown".to_owned()),
            started_at: began,
            finished_at: Some(now.clone()),
            ..ContainerStateTerminated::default()
        };
        container.last_state = Some(ContainerState { terminated: Some(ended), ..ContainerState::default() });
        let running = ContainerStateRunning { started_at: Some(now.clone()) };
        container.state = Some(ContainerState { running: Some(running), ..ContainerState::default() });
    }
    if never {
        status.phase = Some("Failed".to_owned());
    }
    status
}

/// Sets a condition. Its transition time changes only if its status does.
fn set_condition(conditions: &mut Vec<PodCondition>, kind: &str, status: &str, now: &Time) {
    let (old, others): (Vec<_>, Vec<_>) = conditions.drain(..).partition(|condition| condition.type_ == kind);
    conditions.extend(others);
    let kept = old.into_iter().find(|condition| condition.status == status);
    conditions.push(kept.unwrap_or_else(|| PodCondition {
        type_: kind.to_owned(),
        status: status.to_owned(),
        last_transition_time: Some(now.clone()),
        ..PodCondition::default()
    }));
}

/// Draws a private address from the pod's uid. Nothing connects to this address.
fn address_of(pod: &Pod) -> String {
    let [a, b, c, ..] = SeededRandom::new(0).draw(&[pod.uid()]).to_le_bytes();
    format!("10.{a}.{b}.{c}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::world::samples::pod;
    use k8s_openapi::jiff::Timestamp;

    fn scheduled(name: &str) -> Pod {
        let mut pod = pod(name).0;
        pod.spec.get_or_insert_default().node_name = Some("node-0".to_owned());
        pod
    }

    #[test]
    fn a_pod_passes_through_its_stages_in_order() {
        let mut subject = pod("a").phase("Pending").condition("Ready", "False", None).0;
        assert_eq!(stage(&subject, false), Stage::Unscheduled);
        subject.spec.get_or_insert_default().node_name = Some("node-0".to_owned());
        assert_eq!(stage(&subject, false), Stage::Starting);
        subject.status = Some(running(&subject, false, Time(Timestamp::UNIX_EPOCH)));
        assert_eq!(stage(&subject, false), Stage::Unready);
        subject.status = Some(running(&subject, true, Time(Timestamp::UNIX_EPOCH)));
        assert_eq!(stage(&subject, false), Stage::Settled);
        subject.metadata.labels.get_or_insert_default().insert(labels::INSTANCE_ID.to_owned(), "1".to_owned());
        assert_eq!(stage(&subject, false), Stage::Unavailable);
        subject.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
        assert_eq!(stage(&subject, false), Stage::Terminating);
        subject.metadata.deletion_grace_period_seconds = Some(0);
        subject.metadata.finalizers = Some(vec!["a.test/held".to_owned()]);
        assert_eq!(stage(&subject, false), Stage::Settled);
    }

    #[test]
    fn pod_that_is_over_and_still_there_is_deleted_again_after_a_while() {
        let mut subject = pod("a").terminating().0;
        subject.metadata.deletion_grace_period_seconds = Some(0);
        assert_eq!(stage(&subject, false), Stage::Lingering);
        assert_eq!(stay(&subject, Stage::Lingering, &Timings::default(), SeededRandom::new(1)), LINGERS);
    }

    #[test]
    fn a_pod_that_must_fail_loses_readiness_and_does_not_regain_it() {
        let mut subject = scheduled("a");
        assert_eq!(stage(&subject, true), Stage::Failing);
        subject.status = Some(running(&subject, false, Time(Timestamp::UNIX_EPOCH)));
        assert_eq!(stage(&subject, true), Stage::Settled);
    }

    #[test]
    fn foreign_conditions_and_old_transition_times_survive_a_status_write() {
        let mut subject = pod("a").condition(labels::DISRUPTION_TARGET, "True", Some("x")).0;
        let early = Time(Timestamp::UNIX_EPOCH);
        subject.status = Some(running(&subject, true, early.clone()));
        let late = Time(Timestamp::MAX);
        let status = running(&subject, true, late);
        subject.status = Some(status);
        assert_eq!(subject.condition("PodScheduled").unwrap().last_transition_time, Some(early));
        assert!(subject.condition(labels::DISRUPTION_TARGET).is_some());
    }

    #[test]
    fn containers_of_a_node_that_restarts_run_again_unless_they_never_restart() {
        let mut subject = scheduled("a");
        let spec = subject.spec.get_or_insert_default();
        spec.containers.push(k8s_openapi::api::core::v1::Container { name: "c".to_owned(), ..Default::default() });
        subject.status = Some(running(&subject, true, Time(Timestamp::UNIX_EPOCH)));
        let again = restarted(&subject, Time(Timestamp::MAX));
        let count = |status: &PodStatus| status.container_statuses.as_ref().unwrap().first().unwrap().restart_count;
        assert_eq!((again.phase.as_deref(), count(&again)), (Some("Running"), 1));
        subject.spec.get_or_insert_default().restart_policy = Some("Never".to_owned());
        let lost = restarted(&subject, Time(Timestamp::MAX));
        assert_eq!((lost.phase.as_deref(), count(&lost)), (Some("Failed"), 0));
    }

    #[test]
    fn a_short_grace_period_cuts_the_time_to_terminate() {
        let mut subject = pod("a").terminating().0;
        subject.metadata.deletion_grace_period_seconds = Some(1);
        let timings = Timings { terminate: Span::millis(60_000, 90_000), ..Timings::default() };
        assert_eq!(stay(&subject, Stage::Terminating, &timings, SeededRandom::new(1)), Duration::from_secs(1));
    }
}
