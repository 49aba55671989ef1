//! Decides for OpenKruise, its webhook and its node daemon: the next step of a ContainerRecreateRequest.
//!
//! Source: `pkg/daemon/containerrecreate` of OpenKruise. The request has the restart counts at its acceptance, so a container is
//! never restarted twice for one request, even if the simulation forgets it.

use std::time::Duration;

use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use crate::clock;
use crate::world::pod_facts::PodFacts;
use crate::world::recreate_requests::{
    COMPLETED, FAILED, PENDING, POD_UID, RECREATING, RecreateContainer, RecreateRequest, RecreateState, SUCCEEDED,
};

/// The next step of a request.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum RecreateStep {
    /// Does nothing until something changes.
    Rest,
    /// Decides again after this time.
    Wait(Duration),
    /// Writes the pod's labels and the state of the containers to the request.
    Accept { labels: Value, containers: Value },
    /// Writes the status as the daemon that starts to work on the request.
    Begin(Value),
    /// Restarts these containers of the pod.
    Restart(Vec<String>),
    /// Writes the status of the request.
    Say(Value),
}

/// Returns the message of a container that the scenario does not let restart.
pub(crate) type Fault<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Returns the step that a request needs now. `pod` is the current pod with the request's pod name.
pub(crate) fn recreate(request: &RecreateRequest, pod: Option<&Pod>, fault: Fault<'_>, now: Timestamp) -> RecreateStep {
    if request.is_over() {
        return RecreateStep::Rest;
    }
    let known = &request.status.container_recreate_states;
    let is_meant = |pod: &&Pod| request.pod_uid.as_deref().is_none_or(|uid| uid == pod.uid()) && !pod.is_terminating();
    let Some(pod) = pod.filter(is_meant) else { return RecreateStep::Say(completed(known, "pod has gone", now)) };
    let is_noted = |container: &RecreateContainer| container.status_context.is_some();
    if request.pod_uid.is_none() || !request.spec.containers.iter().all(is_noted) {
        return accept(request, pod);
    }
    if request.status.phase.is_empty() {
        return RecreateStep::Say(status(PENDING, &states_of(request, pod, now)));
    }
    let states = states_of(request, pod, now);
    if request.status.phase == PENDING {
        return RecreateStep::Begin(status(RECREATING, &states));
    }
    let fails_fast = request.spec.strategy.failure_policy.as_deref() != Some("Ignore");
    if states.iter().all(is_terminal) || fails_fast && states.iter().any(|state| state.phase == FAILED) {
        return RecreateStep::Say(completed(&states, "", now));
    }
    match restart(request, pod, &states, fault) {
        Some(step) => step,
        None if states != *known => RecreateStep::Say(status(RECREATING, &states)),
        None => wait(request, pod, now),
    }
}

fn accept(request: &RecreateRequest, pod: &Pod) -> RecreateStep {
    let containers = request.spec.containers.iter().map(|container| {
        let count = status_in(pod, &container.name).map_or(0, |status| status.restart_count);
        json!({ "name": container.name, "statusContext": { "containerID": "", "restartCount": count } })
    });
    let labels = json!({ POD_UID: pod.uid(), "crr.apps.kruise.io/pod-name": pod.pod_name(),
        "crr.apps.kruise.io/node-name": pod.node().unwrap_or_default() });
    RecreateStep::Accept { labels, containers: containers.collect() }
}

/// Returns the state of each container as the pod shows it. A final state stays.
fn states_of(request: &RecreateRequest, pod: &Pod, now: Timestamp) -> Vec<RecreateState> {
    let state = |container: &RecreateContainer| {
        let known = request.status.container_recreate_states.iter().find(|state| state.name == container.name);
        if let Some(ended) = known.filter(|state| is_terminal(state)) {
            return ended.clone();
        }
        let (phase, message) = match status_in(pod, &container.name) {
            _ if !has_container(pod, &container.name) => (FAILED, "not found container in Pod spec"),
            Some(status) if was_restarted(container, status) && serves(request, status, now) => (SUCCEEDED, ""),
            Some(status) if was_restarted(container, status) => (RECREATING, ""),
            _ => (PENDING, ""),
        };
        RecreateState { name: container.name.clone(), phase: phase.to_owned(), message: message.to_owned() }
    };
    request.spec.containers.iter().map(state).collect()
}

/// Restarts the pending containers in the order of the request. A container that cannot be restarted fails at its turn.
fn restart(request: &RecreateRequest, pod: &Pod, states: &[RecreateState], fault: Fault<'_>) -> Option<RecreateStep> {
    let is_ordered = request.spec.strategy.ordered_recreate;
    if is_ordered && states.iter().any(|state| state.phase == RECREATING) {
        return None;
    }
    let waiting = states.iter().filter(|state| state.phase == PENDING && status_in(pod, &state.name).is_some());
    let turn: Vec<&RecreateState> = waiting.take(if is_ordered { 1 } else { usize::MAX }).collect();
    let able: Vec<String> =
        turn.iter().take_while(|state| fault(&state.name).is_none()).map(|state| state.name.clone()).collect();
    if !able.is_empty() {
        return Some(RecreateStep::Restart(able));
    }
    let failing = turn.first()?;
    let message = fault(&failing.name)?;
    let failed = |state: &RecreateState| match state.name == failing.name {
        true => RecreateState { phase: FAILED.to_owned(), message: message.clone(), ..state.clone() },
        false => state.clone(),
    };
    Some(RecreateStep::Say(status(RECREATING, &states.iter().map(failed).collect::<Vec<_>>())))
}

/// Returns the wait until a ready container has run long enough.
fn wait(request: &RecreateRequest, pod: &Pod, now: Timestamp) -> RecreateStep {
    let ready = request.spec.containers.iter().filter_map(|container| {
        let status = status_in(pod, &container.name).filter(|status| status.ready)?;
        let left = left_to_run(request, status, now);
        (was_restarted(container, status) && !left.is_zero()).then_some(left)
    });
    ready.min().map_or(RecreateStep::Rest, RecreateStep::Wait)
}

fn serves(request: &RecreateRequest, status: &ContainerStatus, now: Timestamp) -> bool {
    status.ready && left_to_run(request, status, now).is_zero()
}

fn left_to_run(request: &RecreateRequest, status: &ContainerStatus, now: Timestamp) -> Duration {
    let needed = Duration::from_secs(request.spec.strategy.min_started_seconds.into());
    let running = status.state.as_ref().and_then(|state| state.running.as_ref());
    let began = running.and_then(|running| running.started_at.as_ref()).map_or(now, |time| time.0);
    needed.saturating_sub(Duration::try_from(now.duration_since(began)).unwrap_or_default())
}

fn was_restarted(container: &RecreateContainer, status: &ContainerStatus) -> bool {
    container.status_context.as_ref().is_some_and(|before| status.restart_count > before.restart_count)
}

fn has_container(pod: &Pod, name: &str) -> bool {
    pod.spec.iter().flat_map(|spec| &spec.containers).any(|container| container.name == name)
}

fn status_in<'a>(pod: &'a Pod, name: &str) -> Option<&'a ContainerStatus> {
    pod.status.as_ref()?.container_statuses.as_ref()?.iter().find(|status| status.name == name)
}

fn is_terminal(state: &RecreateState) -> bool {
    [SUCCEEDED, FAILED].contains(&state.phase.as_str())
}

/// Returns the final status. OpenKruise ends each request as `Completed`, whatever happened to its containers.
fn completed(states: &[RecreateState], message: &str, now: Timestamp) -> Value {
    let mut status = status(COMPLETED, states);
    let fields = crate::object::as_map(&mut status);
    fields.insert("completionTime".to_owned(), clock::seconds(now).into());
    if !message.is_empty() {
        fields.insert("message".to_owned(), message.into());
    }
    status
}

fn status(phase: &str, states: &[RecreateState]) -> Value {
    let state = |state: &RecreateState| match state.message.as_str() {
        "" => json!({ "name": state.name, "phase": state.phase }),
        message => json!({ "name": state.name, "phase": state.phase, "message": message }),
    };
    json!({ "phase": phase, "containerRecreateStates": states.iter().map(state).collect::<Vec<_>>() })
}

#[cfg(test)]
#[path = "recreate_tests.rs"]
mod tests;
