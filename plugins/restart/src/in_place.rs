//! Restarts containers with OpenKruise. Creates one ContainerRecreateRequest for each attempt, and waits until it has restarted
//! each container.
//!
//! The name of the request follows from the job, the target and the attempt. So the request is created once, however often the
//! plugin proposes it. After the request was seen, the plugin must not propose it again. Somebody may have deleted it after it
//! restarted the containers.

use eviction::{Case, MODE, PATIENCE, remaining};
use oarlock_sdk::{Freshness, Object, Proposal, ReadError, Report, Result, Value, get, json};

use crate::{IN_PLACE, RELEASED, REQUESTS, containers_of, not_found, text_of, wanted};

/// The `apiVersion` of the request.
pub(crate) const API: &str = "apps.kruise.io/v1alpha1";
/// The `kind` of the request.
pub(crate) const KIND: &str = "ContainerRecreateRequest";

/// The extra with the name of the last request that was seen.
const REQUEST: &str = "Request";
/// The label of OpenKruise with the UID of the pod at the time of the request.
const POD_UID: &str = "crr.apps.kruise.io/pod-uid";
/// The label of OpenKruise with the node of the pod. The daemon of that node restarts the containers.
const NODE: &str = "crr.apps.kruise.io/node-name";
const CREATED: &str = "/metadata/creationTimestamp";
/// The word for targets that wait for OpenKruise.
const AWAITED: &str = "Kruise";
/// The most characters of the job's name in the name of the request. The name of the request becomes a label value.
const JOB_NAME: usize = 35;

/// Creates the request of this attempt.
pub(crate) fn operate(case: &Case<'_>) -> Result<Proposal> {
    let proposal = match case.extras.has(MODE) {
        true => Proposal::new(),
        false => Proposal::new().extra(MODE, IN_PLACE),
    };
    let name = name_of(case);
    let Some(pod) = case.pod.as_ref().filter(|pod| !pod.is_terminating()) else { return Ok(proposal) };
    if case.extras.get(REQUEST) == Some(&name) || request(case, &name, Freshness::Watched)?.is_some() {
        return Ok(proposal);
    }
    let containers: Vec<_> = wanted(case, pod)?.into_iter().map(|name| json!({"name": name})).collect();
    let mut strategy = json!({
        "failurePolicy": "Fail",
        "minStartedSeconds": case.job.parameter::<u32>("/minStartedSeconds")?,
        "terminationGracePeriodSeconds": case.job.parameter::<u32>("/terminationGracePeriodSeconds")?,
    });
    if let Some(fields) = strategy.as_object_mut() {
        fields.retain(|_, value| !value.is_null());
    }
    let request = json!({
        "apiVersion": API,
        "kind": KIND,
        "metadata": {"name": name, "namespace": case.job.namespace()},
        "spec": {"podName": pod.name(), "containers": containers, "strategy": strategy},
    });
    Ok(proposal.create(request.to_string()))
}

/// Waits until the request has ended, and reports its result.
pub(crate) fn progress(case: &Case<'_>) -> Result<Report> {
    let name = name_of(case);
    let was_seen = case.extras.get(REQUEST) == Some(&name);
    let request = match request(case, &name, Freshness::Watched)? {
        // Only a live read can show that the request does not exist.
        Some(request) if case.pod.is_some() => Some(request),
        None if case.pod.is_some() && !was_seen => None,
        _ => request(case, &name, Freshness::Live)?,
    };
    let Some(request) = request else {
        return match &case.pod {
            None => Err(not_found(&case.target.name())),
            Some(_) if was_seen => {
                let message =
                    format!("ContainerRecreateRequest {name} was deleted; it is unknown what it has restarted.");
                Ok(Report::failed("RestartFailed", message))
            }
            Some(_) => Ok(Report::processing()),
        };
    };
    let report = judge(case, &request)?;
    Ok(if was_seen { report } else { report.with(Proposal::new().extra(REQUEST, name)) })
}

/// Judges the result in the request's status.
fn judge(case: &Case<'_>, request: &Object) -> Result<Report> {
    let failed = |why: String| Ok(Report::failed("RestartFailed", why));
    let name = case.target.name();
    if let (Some(meant), Some(uid)) = (request.label(POD_UID), case.target.uid())
        && meant != uid
    {
        return failed(format!("Pod {name} was replaced by another of its name before OpenKruise saw the request."));
    }
    let phase = phase_of(request)?;
    let is_over = is_end(&phase);
    let states: Vec<Value> = request.field("/status/containerRecreateStates")?.unwrap_or_default();
    let (containers, mut unfinished) = (containers_of(request, "/spec/containers")?, Vec::new());
    let is_about_any = !containers.is_empty();
    for container in containers {
        match state_of(&states, &container) {
            (state, _) if state == "Succeeded" => {}
            (state, message) => unfinished.push((container, state, message)),
        }
    }
    if is_over && phase != "Failed" && is_about_any && unfinished.is_empty() {
        return Ok(Report::succeeded());
    }
    if case.pod.is_none() {
        return Err(not_found(&name));
    }
    if let Some((container, _, message)) = unfinished.iter().find(|(_, state, _)| state == "Failed") {
        return failed(format!("Container {container} of pod {name} was not restarted: {message}"));
    }
    // A pod that is being deleted is gone soon. That is a better reason than the failure of its request.
    let goes = case.pod.as_ref().is_some_and(Object::is_terminating);
    let left: Vec<&str> = unfinished.iter().map(|(container, ..)| container.as_str()).collect();
    if !is_over || goes && phase != "Failed" {
        return wait(case, request, &left);
    }
    let said: String = request.field("/status/message")?.unwrap_or_default();
    failed(format!("OpenKruise gave up on pod {name}, with {} not restarted: {said}", left.join(", ")))
}

/// Goes on waiting. After some time, it tells people what the target waits for.
fn wait(case: &Case<'_>, request: &Object, left: &[&str]) -> Result<Report> {
    if let Some(rest) = remaining(case.job, case.target.started_ms(), PATIENCE) {
        return Ok(Report::processing().check_after(rest));
    }
    let name = request.name();
    let awaited = if case.pod.as_ref().is_some_and(Object::is_terminating) {
        format!("pod {} is being deleted", case.target.name())
    } else if phase_of(request)? == "Recreating" {
        match left {
            [] => format!("ContainerRecreateRequest {name} has restarted all containers, and has not ended"),
            _ => format!("ContainerRecreateRequest {name} restarts {}, which is not ready yet", left.join(", ")),
        }
    } else if let Some(earlier) = earlier(case, request)? {
        format!("ContainerRecreateRequest {name} waits for the end of {earlier}, which is about the same pod")
    } else {
        let node = request.label(NODE).map(|node| format!(" of node {node}")).unwrap_or_default();
        format!("the kruise-daemon{node} has not begun with ContainerRecreateRequest {name}; look whether it runs")
    };
    Ok(Report::processing().with(Proposal::new().waits_for(AWAITED, &awaited)))
}

/// Returns the name of a request for the same pod that OpenKruise finishes first. OpenKruise handles one request at a time, the
/// oldest first.
fn earlier(case: &Case<'_>, own: &Object) -> Result<Option<String>> {
    // Times of the API server sort as text.
    let age = |request: &Object| Ok::<_, ReadError>((request.field::<String>(CREATED)?, request.name()));
    let own = age(own)?;
    for request in case.target.related(REQUESTS, Freshness::Watched)? {
        let (age, phase) = (age(&request)?, phase_of(&request)?);
        let is_first = age < own || age != own && phase == "Recreating";
        if is_first && !request.is_terminating() && !is_end(&phase) {
            return Ok(Some(request.name()));
        }
    }
    Ok(None)
}

fn phase_of(request: &Object) -> Result<String> {
    Ok(request.field("/status/phase")?.unwrap_or_default())
}

fn is_end(phase: &str) -> bool {
    ["Succeeded", "Completed", "Failed"].contains(&phase)
}

/// Returns the phase and the message of one container.
fn state_of(states: &[Value], container: &str) -> (String, String) {
    let state = states.iter().find(|state| text_of(state, "name").as_deref() == Some(container));
    let text = |field: &str| state.and_then(|state| text_of(state, field)).unwrap_or_default();
    (text("phase"), text("message"))
}

/// Deletes the request of this attempt.
pub(crate) fn release(case: &Case<'_>) -> Result<Proposal> {
    let name = name_of(case);
    let request = match request(case, &name, Freshness::Watched)? {
        // The API server may have created the request without a reply that arrived.
        None => request(case, &name, Freshness::Live)?,
        found => found,
    };
    let Some(request) = request.filter(|request| !request.is_terminating()) else { return Ok(Proposal::new()) };
    let message = format!(
        "ContainerRecreateRequest {name} is deleted; a container of pod {} that it has stopped restarts nevertheless.",
        case.target.name()
    );
    Ok(Proposal::new().delete(&request).event(RELEASED, message))
}

fn request(case: &Case<'_>, name: &str, freshness: Freshness) -> Result<Option<Object>, ReadError> {
    get(&case.job.local(API, KIND, name), freshness)
}

fn name_of(case: &Case<'_>) -> String {
    request_name(&case.job.name(), &case.job.uid(), case.target.index(), case.target.attempt())
}

/// Returns the name of the request for one attempt at one target.
fn request_name(job: &str, uid: &str, index: u32, attempt: u32) -> String {
    let job: String = job.chars().take(JOB_NAME).collect();
    // A name part must end with a letter or a digit, but the cut may leave another character at its end.
    let job = job.trim_end_matches(|c: char| !c.is_ascii_alphanumeric());
    let uid: String = uid.chars().take(8).collect();
    format!("{job}-{uid}-{index}-{attempt}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_attempt_at_each_target_has_a_request_of_its_own_name() {
        let name = |index, attempt| request_name("opj-web", "0123456789abcdef", index, attempt);
        assert_eq!(name(7, 1), "opj-web-01234567-7-1");
        assert_eq!(name(7, 2), "opj-web-01234567-7-2");
        assert_eq!(name(8, 1), "opj-web-01234567-8-1");
    }

    #[test]
    fn a_long_name_of_a_job_is_cut_to_what_can_be_part_of_a_name() {
        let long = format!("{}.-b", "a".repeat(34));
        let name = request_name(&long, "0123456789abcdef", 9_999, 10);
        assert_eq!(name, format!("{}-01234567-9999-10", "a".repeat(34)));
        assert!(request_name(&"a".repeat(253), "0123456789", 9_999, u32::MAX).len() <= 63);
    }
}
