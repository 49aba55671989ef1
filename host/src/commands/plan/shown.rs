//! Converts a preview into the plan to show.

use oarlock_core::object::api_object::Object;
use oarlock_core::operation_job::progress::targets;
use oarlock_core::operation_job::round::planned::{Planned, PlannedChange, PossibleChange};
use oarlock_core::operation_job::round::starts::bounds::StartBound;
use oarlock_core::operation_job::state::Progress;
use oarlock_core::plugin::manifest::Manifest;
use oarlock_core::plugin::proposal::Mutation;
use oarlock_view::{JobPlan, PlanChange, PlanOutcome, PlanPlugin, PlanTarget};

use super::job_file::PlannedJob;
use super::local_plugin::LocalPlugin;
use crate::preview::{PreviewSetup, PreviewedTarget};

/// The host's step before a plugin changes a pod that takes part in the PodOpsLifecycle.
const BEGIN_LIFECYCLE: &str = "begin the PodOpsLifecycle and wait for its permission";

/// Returns the plan: for each target, the first changes, and the limit that makes it wait now.
pub(super) fn plan(
    job: &PlannedJob,
    plugin: &LocalPlugin,
    first: &[PreviewedTarget],
    later: &[PreviewedTarget],
) -> JobPlan {
    let info = &plugin.info;
    JobPlan {
        namespace: job.namespace().to_owned(),
        name: job.name().to_owned(),
        action: job.action().to_owned(),
        plugin: PlanPlugin {
            name: info.manifest.name.clone(),
            version: info.manifest.version.to_string(),
            digest: info.digest.clone(),
            file: plugin.file.display().to_string(),
        },
        grants: plugin.grants.display().to_string(),
        possible: Planned::of([], &info.manifest, &info.grant).possible.iter().map(PossibleChange::describe).collect(),
        targets: first
            .iter()
            .zip(later)
            .enumerate()
            .map(|(index, (first, later))| target(index, first, later))
            .collect(),
        ..JobPlan::default()
    }
}

fn target(index: usize, first: &PreviewedTarget, later: &PreviewedTarget) -> PlanTarget {
    let waits_for = first.bound.map(word).or_else(|| waits_for_delay(first).then_some("Delay"));
    let shown = PlanTarget {
        index,
        name: first.name.clone(),
        waits_for: waits_for.map(str::to_owned),
        before: if later.begins_lifecycle { vec![BEGIN_LIFECYCLE.to_owned()] } else { Vec::new() },
        first: later.mutations.iter().map(change).collect(),
        ..PlanTarget::default()
    };
    let failed = later.state.progress == Progress::Failed || later.state.next_attempt.is_some();
    let outcome = match later.state.progress {
        _ if failed => PlanOutcome::Failed,
        _ if !later.writes.is_empty() && waits_for.is_some() => PlanOutcome::Waiting,
        _ if !later.writes.is_empty() => PlanOutcome::Changed,
        Progress::Succeeded => PlanOutcome::Succeeded,
        _ => PlanOutcome::Waiting,
    };
    let (reason, message) = match outcome {
        PlanOutcome::Failed => later.state.error.clone().map(|error| (error.reason, error.message)),
        PlanOutcome::Waiting if later.writes.is_empty() => Some(why_nothing(later)),
        PlanOutcome::Changed | PlanOutcome::Waiting | PlanOutcome::Succeeded => None,
    }
    .unzip();
    PlanTarget { outcome, reason, message, ..shown }
}

/// Returns the reason why a target without a failure gets no change at first.
fn why_nothing(target: &PreviewedTarget) -> (String, String) {
    if let Some(trouble) = &target.trouble {
        return (trouble.reason.clone(), trouble.message.clone());
    }
    match target.bound {
        Some(bound) => (word(bound).to_owned(), sentence(bound).to_owned()),
        None if target.answered => ("NoProposal".to_owned(), "the plugin proposes no change at first".to_owned()),
        None => ("NotVisited".to_owned(), "the plugin was not asked yet".to_owned()),
    }
}

/// Returns true for a target that starts now but waits for `spec.operationDelaySeconds`.
fn waits_for_delay(target: &PreviewedTarget) -> bool {
    target.state.progress == Progress::Processing && !target.answered && target.writes.is_empty()
}

fn word(bound: StartBound) -> &'static str {
    match bound {
        StartBound::Paused => "Paused",
        StartBound::Failures => "Failures",
        StartBound::Partition => "Partition",
        StartBound::TargetBusy => "TargetBusy",
        StartBound::Parallelism => "Parallelism",
        StartBound::TargetsInFlight => "TargetsInFlight",
        StartBound::MaxUnavailable => "MaxUnavailable",
        StartBound::Unread => "Unread",
    }
}

fn sentence(bound: StartBound) -> &'static str {
    match bound {
        StartBound::Paused => "spec.paused is true",
        StartBound::Failures => "more targets fail than spec.failurePolicy.maxFailures tolerates",
        StartBound::Partition => "spec.partition lets no more start",
        StartBound::TargetBusy => "another job, or an operation of the PodOpsLifecycle, is at work on it",
        StartBound::Parallelism => "spec.parallelism lets no more be in flight",
        StartBound::TargetsInFlight => "the plugin has as many targets in flight as it may",
        StartBound::MaxUnavailable => "spec.maxUnavailable lets no more be unavailable",
        StartBound::Unread => "what it needs could not be read",
    }
}

fn change(mutation: &Mutation) -> PlanChange {
    let PlannedChange { verb, api_version, kind, name, what } = PlannedChange::of(mutation);
    PlanChange { verb, api_version, kind, name, what }
}

/// Returns warnings about the targets that the user should know before creating the job.
pub(super) fn warnings(stage: &PreviewSetup, first: &[PreviewedTarget], later: &[PreviewedTarget]) -> Vec<String> {
    let mut warnings: Vec<String> = of_tasks(&stage.plugin.manifest).into_iter().collect();
    let begin = later.iter().filter(|target| target.begins_lifecycle).count();
    if begin > 0 {
        warnings.push(format!(
            "{} whose pods take part in the PodOpsLifecycle: that begins first, and the changes follow once it permits them",
            targets(begin)
        ));
    }
    let alone =
        later.iter().filter(|target| leaving(stage, target).is_some_and(|pod| pod.controller().is_none())).count();
    if alone > 0 {
        warnings
            .push(format!("{} without a controller: nothing makes a new pod once that one is gone", targets(alone)));
    }
    let skipped =
        first.iter().filter(|target| target.state.error.as_ref().is_some_and(|error| error.reason == "Skipped"));
    let skipped = skipped.count();
    if skipped > 0 {
        warnings.push(format!(
            "{} skipped at once: more fail than spec.failurePolicy.maxFailures tolerates",
            targets(skipped)
        ));
    }
    warnings
}

/// Returns a note if the plugin requests tasks, which a plan does not run.
fn of_tasks(manifest: &Manifest) -> Option<String> {
    let names: Vec<&str> = manifest.tasks.iter().map(|task| task.name.as_str()).collect();
    let (plugin, names) = (&manifest.name, names.join(", "));
    (!names.is_empty()).then(|| {
        format!(
            "plugin {plugin} asks for the tasks {names}: a plan does not run them, so what follows them is not shown"
        )
    })
}

/// Returns the target's pod if the first changes evict or delete it.
pub(super) fn leaving(stage: &PreviewSetup, target: &PreviewedTarget) -> Option<std::sync::Arc<Object>> {
    let goes = target.mutations.iter().find_map(|mutation| match mutation {
        Mutation::Evict { pod, .. } => Some(pod),
        Mutation::Delete { object, .. } => Some(object),
        _ => None,
    })?;
    stage.cluster.store().get(&goes.key).filter(|pod| Some(&pod.uid) == target.state.uid.as_ref())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tasks_of_a_plugin_are_named_since_a_plan_runs_none() {
        let manifest = |tasks: &str| {
            let text = format!(
                r#"{{"schema": 1, "name": "x", "version": "1.0.0", "action": "X", "target": ["Pod"], "tasks": [{tasks}]}}"#
            );
            Manifest::parse(text.as_bytes()).unwrap()
        };
        let both = r#"{"name": "copy", "reason": "r"}, {"name": "check", "reason": "r"}"#;
        let said = of_tasks(&manifest(both)).unwrap();
        assert!(said.starts_with("plugin x asks for the tasks copy, check: a plan does not run them"), "{said}");
        assert_eq!(of_tasks(&manifest("")), None);
    }
}
