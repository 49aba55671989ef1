//! Restart: restarts the containers of a pod.
//!
//! There are two modes. The first `operate` of a target fixes its mode. If the cluster serves the ContainerRecreateRequest of
//! OpenKruise, the plugin creates one, and the containers restart within their pod ([`in_place`]). Otherwise, the plugin evicts
//! the pod, and its controller creates a new one ([`eviction`]). It does so only if the target means all containers and the job
//! allows it. A container counts as restarted only after the restart was seen. Source: docs/operationjob.md 7.

mod in_place;

use eviction::{Case, MODE, OWNER};
use oarlock_sdk::{
    Action, Failure, Job, Object, Proposal, Registration, Relation, Report, Result, Target, Value, export, serves,
};

/// The relation to the OpenKruise requests for a pod.
const REQUESTS: &str = "requests";
/// The event reason for released changes, and for changes that cannot be undone.
const RELEASED: &str = "RestartReleased";
/// The value of [`MODE`] for a target whose containers restart within their pod.
const IN_PLACE: &str = "InPlace";

/// The action of this plugin.
#[derive(Debug)]
pub struct Restart;

impl Action for Restart {
    fn setup() -> Result<Registration> {
        // The relation is by field, not by owner, so that a change wakes only its own target.
        let requests = Relation::objects(REQUESTS, in_place::API, in_place::KIND).by_field("/spec/podName");
        Ok(eviction::relations(Registration::new().relation(requests)))
    }

    fn operate(job: &Job, target: &Target) -> Result<Proposal> {
        let case = Case::of(job, target);
        match mode(&case)? {
            Mode::InPlace => in_place::operate(&case),
            Mode::Evict => evict(&case),
        }
    }

    fn progress(job: &Job, target: &Target) -> Result<Report> {
        let case = Case::of(job, target);
        match mode(&case)? {
            Mode::InPlace => in_place::progress(&case),
            Mode::Evict => eviction::progress(&case),
        }
    }

    fn release(job: &Job, target: &Target) -> Result<Proposal> {
        let case = Case::of(job, target);
        // The mode is stored before the plugin proposes any change.
        match case.extras.get(MODE) {
            None => Ok(Proposal::new()),
            Some(IN_PLACE) => in_place::release(&case),
            Some(_) => Ok(eviction::release(&case, RELEASED)),
        }
    }
}

export!(Restart, manifest = include_str!("../manifest.json"));

/// The mode of a restart.
enum Mode {
    InPlace,
    Evict,
}

/// Returns the mode of this target: the stored mode, or the mode that the plugin would choose now.
fn mode(case: &Case<'_>) -> Result<Mode> {
    Ok(match case.extras.get(MODE) {
        Some(IN_PLACE) => Mode::InPlace,
        Some(_) => Mode::Evict,
        None if serves(in_place::API, in_place::KIND)? => Mode::InPlace,
        None => Mode::Evict,
    })
}

/// Evicts the pod if the job allows it.
fn evict(case: &Case<'_>) -> Result<Proposal> {
    if !case.extras.has(MODE) {
        may_be_evicted(case)?;
    }
    eviction::operate(case)
}

/// Checks that the pod may be evicted. An eviction restarts every container, and only a controller creates another pod.
fn may_be_evicted(case: &Case<'_>) -> Result<()> {
    let may_fall_back = case.job.parameter::<String>("/fallback")?.as_deref() != Some("None");
    let Some(pod) = &case.pod else {
        // A pod that is gone by itself counts as an evicted pod.
        let is_made_anew = may_fall_back && case.extras.has(OWNER) && case.target.containers().is_empty();
        return if is_made_anew { Ok(()) } else { Err(not_found(&case.target.name())) };
    };
    let meant = wanted(case, pod)?;
    let why = if meant.len() < containers_of(pod, "/spec/containers")?.len() {
        "an eviction would restart the containers that the target does not list too"
    } else if !may_fall_back {
        "the job's parameter fallback is None"
    } else if pod.controller()?.is_none() {
        "the pod has no controller that would make a new one after an eviction"
    } else {
        return Ok(());
    };
    let message = format!(
        "Pod {}: the cluster serves no ContainerRecreateRequest (OpenKruise), and {why}; nothing was done.",
        pod.name()
    );
    Err(Failure::permanent("RestartUnsupported", message))
}

/// Returns the containers that the target lists, or all regular containers of the pod.
fn wanted(case: &Case<'_>, pod: &Object) -> Result<Vec<String>> {
    let (listed, all) = (case.target.containers(), containers_of(pod, "/spec/containers")?);
    if all.is_empty() {
        // Every pod has a container. With an empty list, the restart would succeed at once.
        let message = format!("The containers of pod {} cannot be read.", pod.name());
        return Err(Failure::retryable("GetObjectFailed", message));
    }
    if listed.is_empty() {
        return Ok(all);
    }
    let missing: Vec<&str> = listed.iter().filter(|name| !all.contains(name)).map(String::as_str).collect();
    if missing.is_empty() {
        return Ok(listed);
    }
    let message =
        format!("Pod {} has no container {}; it has {}.", pod.name(), missing.join(" and no "), all.join(", "));
    Err(Failure::permanent("ContainerNotFound", message))
}

/// Returns the names in a list of containers. It reads the whole list at once, because each read of a field costs the host a pass
/// over the whole object.
fn containers_of(object: &Object, list: &str) -> Result<Vec<String>> {
    let containers: Option<Vec<Value>> = object.field(list)?;
    Ok(containers.iter().flatten().filter_map(|container| text_of(container, "name")).collect())
}

fn text_of(value: &Value, field: &str) -> Option<String> {
    value.get(field).and_then(Value::as_str).map(str::to_owned)
}

fn not_found(name: &str) -> Failure {
    Failure::permanent("PodNotFound", format!("Pod {name} is gone, and with it the containers to restart."))
}
