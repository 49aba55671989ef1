//! Decides for the kubelet how the containers of pods that do not always restart end, and when failed containers run again.

use std::time::Duration;

use k8s_openapi::api::core::v1::{
    ContainerState, ContainerStateRunning, ContainerStateTerminated, ContainerStatus, Pod, PodStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::kubelet::running;

/// The longest wait of a container that crashes repeatedly.
const LONGEST_BACK_OFF: Duration = Duration::from_mins(5);

/// The end of a container: its exit code and termination message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ended {
    pub(crate) exit_code: i32,
    pub(crate) message: String,
}

/// Returns true if the pod does not always restart. The simulation evaluates only the commands of such pods. Other pods run on.
pub(crate) fn ends_by_itself(pod: &Pod) -> bool {
    restart_policy(pod) != "Always"
}

fn restart_policy(pod: &Pod) -> &str {
    pod.spec.as_ref().and_then(|spec| spec.restart_policy.as_deref()).unwrap_or("Always")
}

/// Returns the highest number of restarts among a pod's containers.
pub(crate) fn restarts(pod: &Pod) -> i32 {
    let containers = pod.status.as_ref().and_then(|status| status.container_statuses.as_deref()).unwrap_or_default();
    containers.iter().map(|status| status.restart_count).max().unwrap_or_default()
}

/// Returns the wait of a container before its next run: none for the first restarts, then 10 s, doubled each time up to 5 min.
pub(crate) fn crash_back_off(restarts: i32) -> Duration {
    let doublings = u32::try_from(restarts.saturating_sub(2)).ok();
    doublings.map_or(Duration::ZERO, |n| Duration::from_secs(10 << n.min(5)).min(LONGEST_BACK_OFF))
}

/// Returns the status of a pod whose containers have ended with these outcomes, in order. Under `OnFailure` the failed
/// containers run again, and the pod with them.
pub(crate) fn ended(pod: &Pod, outcomes: &[Ended], now: &Time) -> PodStatus {
    let began = |status: &ContainerStatus| status.state.as_ref()?.running.as_ref()?.started_at.clone();
    let failed = outcomes.iter().any(|one| one.exit_code != 0);
    let again = failed && restart_policy(pod) == "OnFailure";
    let mut status = running(pod, again, now.clone());
    for (container, outcome) in status.container_statuses.iter_mut().flatten().zip(outcomes) {
        let succeeded = outcome.exit_code == 0;
        let ended = ContainerStateTerminated {
            exit_code: outcome.exit_code,
            reason: Some(if succeeded { "Completed" } else { "Error" }.to_owned()),
            message: Some(outcome.message.clone()).filter(|text| !text.is_empty()),
            started_at: began(container).or_else(|| Some(now.clone())),
            finished_at: Some(now.clone()),
            ..ContainerStateTerminated::default()
        };
        let ended = ContainerState { terminated: Some(ended), ..ContainerState::default() };
        if again && !succeeded {
            let running = ContainerStateRunning { started_at: Some(now.clone()) };
            container.restart_count = container.restart_count.saturating_add(1);
            container.last_state = Some(ended);
            container.state = Some(ContainerState { running: Some(running), ..ContainerState::default() });
        } else if !again {
            container.state = Some(ended);
            container.started = Some(false);
        }
    }
    if !again {
        status.phase = Some(if failed { "Failed" } else { "Succeeded" }.to_owned());
    }
    status
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::world::samples::pod;
    use k8s_openapi::api::core::v1::Container;
    use k8s_openapi::jiff::Timestamp;

    fn subject(policy: &str) -> Pod {
        let mut subject = pod("a").node("node-0").0;
        let spec = subject.spec.get_or_insert_default();
        spec.restart_policy = Some(policy.to_owned());
        spec.containers = ["a", "b"].map(|name| Container { name: name.to_owned(), ..Container::default() }).to_vec();
        subject.status = Some(running(&subject, true, Time(Timestamp::UNIX_EPOCH)));
        subject
    }

    fn outcomes(codes: [i32; 2]) -> Vec<Ended> {
        codes.map(|exit_code| Ended { exit_code, message: String::new() }).to_vec()
    }

    #[test]
    fn a_pod_fails_with_any_of_its_containers_and_each_tells_how_it_ended() {
        let now = Time(Timestamp::MAX);
        let status = ended(&subject("Never"), &outcomes([0, 3]), &now);
        assert_eq!(status.phase.as_deref(), Some("Failed"));
        let states = status.container_statuses.unwrap().into_iter().map(|one| one.state.unwrap().terminated.unwrap());
        let told: Vec<_> = states.map(|one| (one.exit_code, one.reason.unwrap(), one.started_at.unwrap().0)).collect();
        let began = Timestamp::UNIX_EPOCH;
        assert_eq!(told, [(0, "Completed".to_owned(), began), (3, "Error".to_owned(), began)]);
        assert_eq!(ended(&subject("Never"), &outcomes([0, 0]), &now).phase.as_deref(), Some("Succeeded"));
    }

    #[test]
    fn a_container_that_fails_runs_again_under_on_failure_alone_and_waits_longer_each_time() {
        let again = ended(&subject("OnFailure"), &outcomes([1, 0]), &Time(Timestamp::MAX));
        let counts: Vec<_> = again.container_statuses.iter().flatten().map(|one| one.restart_count).collect();
        assert_eq!((again.phase.as_deref(), counts), (Some("Running"), vec![1, 0]));
        let waits = [0, 1, 2, 3, 6, 7, 99].map(|restarts| crash_back_off(restarts).as_secs());
        assert_eq!(waits, [0, 0, 10, 20, 160, 300, 300]);
        assert!(ends_by_itself(&subject("OnFailure")) && !ends_by_itself(&subject("Always")));
    }
}
