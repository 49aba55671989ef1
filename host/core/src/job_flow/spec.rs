//! Reads and checks the spec of a JobFlow. Source: docs/jobflow.md 1, 2.3.

use std::collections::{BTreeSet, HashMap};

use serde_json::Value;

use crate::attempts::build::{Cause, has_containers};
use crate::attempts::settings::{Cleanup, FailurePolicyType, UnitRetry, cleanup, failure_policy, retry_policy, whole};
use crate::job_flow::graph::{cycles, order};
use crate::job_flow::handled::Handlers;
use crate::object::bound::shown;
use crate::object::fields::{at, flag, list, text};
use crate::object::own::OPS_POD_ACTIONS;

/// The most steps, including the steps of `finally`.
const STEPS: usize = 500;
/// The most dependencies of a step.
const DEPENDENCIES: usize = 100;

/// The condition for the start of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum When {
    /// The step starts once all dependencies have succeeded.
    #[default]
    Success,
    /// The step starts once all dependencies have ended and at least one failed.
    Failure,
    /// The step starts once all dependencies have ended.
    Finished,
}

/// The work of a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Work<'a> {
    /// An inline JobSpec.
    Job(&'a Value),
    /// A JobTemplate, and the overrides of the step.
    Template(&'a str, Option<&'a Value>),
    /// The spec of an OperationJob.
    Operation(&'a Value),
}

/// A checked step of a flow.
#[derive(Clone, Debug)]
pub struct Step<'a> {
    /// Name of the step.
    pub name: &'a str,
    /// Indexes of the dependencies, without duplicates.
    pub dependencies: Vec<usize>,
    /// The condition for the start.
    pub when: When,
    /// The work of the step.
    pub work: Work<'a>,
    /// The step's mounts of the shared volumes.
    pub mounts: &'a [Value],
    /// Retries of the step.
    pub retry: UnitRetry,
    /// Time limit of each attempt, in seconds.
    pub timeout: Option<i64>,
    /// True if a failure of the step does not fail the flow.
    pub tolerated: bool,
    /// True if a success of the step makes up for the failures of its dependencies.
    pub handles_failure: bool,
    /// True if the step is in `finally`.
    pub is_final: bool,
}

/// The checked spec of a JobFlow.
#[derive(Clone, Debug)]
pub struct FlowSpec<'a> {
    /// The steps. The steps of `finally` are last.
    pub steps: Vec<Step<'a>>,
    /// The indexes of the steps, each after its dependencies.
    pub order: Vec<usize>,
    /// The steps that make up for failures.
    pub(crate) handlers: Handlers,
    /// Shared volumes of the steps.
    pub volumes: &'a [Value],
    /// The reaction to a failure.
    pub failure_policy: FailurePolicyType,
    /// Time limit of `flows`, in seconds.
    pub timeout: Option<i64>,
    /// True if nothing new starts.
    pub suspend: bool,
    /// The clean-up after the end.
    pub cleanup: Cleanup,
}

impl<'a> FlowSpec<'a> {
    /// Reads and checks a spec.
    ///
    /// # Errors
    /// If the spec breaks a rule. The error has the reason of the condition `Valid`, and a sentence that names the step.
    pub fn read(spec: &'a Value) -> Result<Self, Cause> {
        let (flows, last) = (list(spec, "/flows"), list(spec, "/finally"));
        if flows.len() + last.len() > STEPS {
            return Err(Cause::new(
                "InvalidValue",
                format!("spec: {} steps, and at most {STEPS} are allowed", flows.len() + last.len()),
            ));
        }
        let names = names(flows, last)?;
        let mut steps = Vec::with_capacity(flows.len() + last.len());
        for (index, step) in flows.iter().chain(last).enumerate() {
            steps.push(read_step(step, index >= flows.len(), flows.len(), &names)?);
        }
        let edges: Vec<Vec<usize>> = steps.iter().map(|step| step.dependencies.clone()).collect();
        let Some(order) = order(&edges) else {
            let named: Vec<&str> = steps.iter().map(|step| step.name).collect();
            return Err(Cause::new(
                "Cycle",
                format!("these steps wait for each other: {}", cycles(&edges, &named).join("; ")),
            ));
        };
        Ok(Self {
            handlers: Handlers::of(&steps, &order),
            steps,
            order,
            volumes: list(spec, "/shareVolumes"),
            failure_policy: failure_policy(spec, "spec.")?,
            timeout: whole(spec, "timeoutSeconds", "spec.", 1)?,
            suspend: flag(spec, "/suspend"),
            cleanup: cleanup(spec)?,
        })
    }
}

/// Returns the index of each name.
fn names<'a>(flows: &'a [Value], last: &'a [Value]) -> Result<HashMap<&'a str, usize>, Cause> {
    let mut names = HashMap::new();
    for (index, step) in flows.iter().chain(last).enumerate() {
        let name = text(step, "/name").unwrap_or_default();
        if !is_step_name(name) {
            let rule = "must have 1 to 63 of a-z, 0-9, '-' and '.', and begin and end with a letter or digit";
            return Err(Cause::new("BadName", format!("step {index}: the name {:?} {rule}", shown(name, 80))));
        }
        if names.insert(name, index).is_some() {
            return Err(Cause::new(
                "DuplicateStep",
                format!("step {name}: there are two steps of this name; rename one"),
            ));
        }
    }
    Ok(names)
}

fn is_step_name(name: &str) -> bool {
    let is_end = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    (1..=63).contains(&name.len())
        && name.chars().all(|c| is_end(c) || c == '-' || c == '.')
        && name.starts_with(is_end)
        && name.ends_with(is_end)
}

fn read_step<'a>(
    step: &'a Value,
    is_final: bool,
    flows: usize,
    names: &HashMap<&'a str, usize>,
) -> Result<Step<'a>, Cause> {
    let name = text(step, "/name").unwrap_or_default();
    let place = format!("step {name}: ");
    let invalid = |rule: &str| Cause::new("InvalidValue", format!("{place}{rule}"));
    let dependencies = dependencies(step, name, flows, names)?;
    if is_final && !dependencies.is_empty() {
        return Err(invalid("steps of finally take no dependencies"));
    }
    let when = match text(step, "/when") {
        None if is_final => When::Finished,
        None | Some("success") => When::Success,
        Some("failure") if dependencies.is_empty() && !is_final => {
            return Err(invalid("when: failure needs dependencies"));
        }
        Some("failure") => When::Failure,
        Some("finished") => When::Finished,
        Some(_) => return Err(invalid("when must be success, failure or finished")),
    };
    let handles_failure = flag(step, "/handlesFailure");
    if handles_failure && (when != When::Failure || is_final) {
        return Err(invalid("handlesFailure needs when: failure, and is not for steps of finally"));
    }
    let mounts = list(step, "/shareVolumeMounts");
    let work = work(step, name)?;
    if matches!(work, Work::Operation(_)) && !mounts.is_empty() {
        return Err(invalid("an operation has no containers for shareVolumeMounts; take them out"));
    }
    Ok(Step {
        name,
        dependencies,
        when,
        work,
        mounts,
        retry: retry_policy(step, &place)?,
        timeout: whole(step, "timeoutSeconds", &place, 1)?,
        tolerated: flag(step, "/continueOnFailure"),
        handles_failure,
        is_final,
    })
}

fn dependencies(step: &Value, name: &str, flows: usize, names: &HashMap<&str, usize>) -> Result<Vec<usize>, Cause> {
    let named: BTreeSet<&str> = list(step, "/dependencies").iter().filter_map(Value::as_str).collect();
    if named.len() > DEPENDENCIES {
        let rule = format!("step {name}: {} dependencies, and at most {DEPENDENCIES} are allowed", named.len());
        return Err(Cause::new("InvalidValue", rule));
    }
    let mut found = Vec::with_capacity(named.len());
    for dependency in named {
        match names.get(dependency) {
            Some(index) if *index < flows => found.push(*index),
            Some(_) => {
                return Err(Cause::new(
                    "UnknownDependency",
                    format!("step {name}: depends on {dependency}, a step of finally"),
                ));
            }
            None => {
                let unknown = shown(dependency, 80);
                return Err(Cause::new(
                    "UnknownDependency",
                    format!("step {name}: depends on {unknown:?}, and no step has this name"),
                ));
            }
        }
    }
    Ok(found)
}

fn work<'a>(step: &'a Value, name: &str) -> Result<Work<'a>, Cause> {
    let reference = text(step, "/jobTemplateRef").filter(|name| !name.is_empty());
    let inline = at(step, "/jobTemplate").filter(|job| has_containers(job));
    let operation = at(step, "/operation").filter(|operation| operation.is_object());
    let overrides = at(step, "/overrides");
    match (reference, inline, operation) {
        (None, None, None) => {
            let rule = format!("step {name}: give jobTemplate with a container, jobTemplateRef or operation");
            Err(Cause::new("NoWork", rule))
        }
        (Some(_), _, Some(_)) | (_, Some(_), Some(_)) => {
            Err(Cause::new("InvalidValue", format!("step {name}: give an operation or a Job, not both")))
        }
        (Some(template), ..) => Ok(Work::Template(template, overrides)),
        _ if overrides.is_some() => {
            Err(Cause::new("InvalidValue", format!("step {name}: overrides only change a jobTemplateRef")))
        }
        (None, Some(job), None) => Ok(Work::Job(job)),
        (None, None, Some(operation)) => {
            // The host creates the OperationJob, so admission would not check that the flow's author may use this action.
            let action = text(operation, "/action").unwrap_or_default();
            if OPS_POD_ACTIONS.contains(&action) {
                let rule = format!("step {name}: only an OpsJob can run {action}; create an OpsJob");
                return Err(Cause::new("InvalidValue", rule));
            }
            Ok(Work::Operation(operation))
        }
    }
}
