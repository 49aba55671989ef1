//! Decides for a batch Job as kube-controller-manager does: which pods are created and deleted, and whether the Job is settled.
//! The condition SuccessCriteriaMet or FailureTarget reports the outcome first. Complete or Failed follows once no pod runs or
//! terminates. `podFailurePolicy` and limits per index are not supported.

use std::collections::BTreeSet;
use std::time::Duration;

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::jiff::Timestamp;
use serde_json::Value;

use super::job_status::{
    PodCounts, Verdict, completions, finished_at, indexes_of, is_indexed, is_suspended, spec, start_time, status,
    stored_verdict,
};
use super::job_tally::{Tally, index_of};
use crate::world::action::{Member, PodName};
use crate::world::pod_facts::PodFacts;

/// The controller of a Job whose spec names no other one.
const BUILT_IN: &str = "kubernetes.io/job-controller";

/// The inputs of a decision on a Job.
#[derive(Clone, Copy)]
pub(crate) struct JobView<'a> {
    pub(crate) job: &'a Job,
    pub(crate) pods: &'a [Member],
    pub(crate) tally: &'a Tally,
    pub(crate) now: Timestamp,
    /// Whether the scenario currently forbids new pods.
    pub(crate) creation_held: bool,
}

/// One step of a Job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum JobStep {
    /// Creates a pod, for an index if the Job is Indexed.
    CreatePod { index: Option<i32> },
    /// Deletes a pod. The pod counts as failed unless it is released.
    DeletePod { pod: PodName, released: bool },
    /// Deletes the Job because its TTL is over.
    Expire,
}

/// A decision: the steps, the status after them, and the delay before the next decision.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct JobPlan {
    pub(crate) steps: Vec<JobStep>,
    pub(crate) status: Option<Value>,
    pub(crate) again: Option<Duration>,
}

/// Steps on the pods, and the counts of pods after them.
struct Staffing {
    steps: Vec<JobStep>,
    counts: PodCounts,
    again: Option<Duration>,
}

/// Decides for a Job.
pub(crate) fn plan(view: &JobView<'_>) -> JobPlan {
    if let Some(at) = finished_at(view.job) {
        return expiry(view, at);
    }
    let manager = view.job.spec.as_ref().and_then(|spec| spec.managed_by.as_deref());
    if manager.is_some_and(|manager| manager != BUILT_IN) {
        return JobPlan::default();
    }
    let settled = stored_verdict(view.job).or_else(|| failure(view)).or_else(|| met_policy(view));
    let (staffing, verdict) = match settled {
        Some(verdict) => (dismiss(view, verdict.succeeded), Some(verdict)),
        None => {
            let staffing = staff(view);
            let verdict = met_completions(view, staffing.counts.active);
            (staffing, verdict)
        }
    };
    let again = staffing.again.into_iter().chain(deadline(view)).filter(|wait| !wait.is_zero()).min();
    let status = Some(status(view, verdict.as_ref(), staffing.counts));
    JobPlan { steps: staffing.steps, status, again }
}

/// Deletes a finished Job once its TTL is over.
fn expiry(view: &JobView<'_>, finished: Timestamp) -> JobPlan {
    let Some(seconds) = view.job.spec.as_ref().and_then(|spec| spec.ttl_seconds_after_finished) else {
        return JobPlan::default();
    };
    let left = left_of(seconds.into(), finished, view.now);
    if left.is_zero() {
        return JobPlan { steps: vec![JobStep::Expire], ..JobPlan::default() };
    }
    JobPlan { again: Some(left), ..JobPlan::default() }
}

/// Returns the part of a number of seconds that is left now.
fn left_of(seconds: i64, since: Timestamp, now: Timestamp) -> Duration {
    let passed = Duration::try_from(now.duration_since(since)).unwrap_or_default();
    Duration::from_secs(u64::try_from(seconds).unwrap_or(0)).saturating_sub(passed)
}

/// Returns the time until the Job's deadline.
fn deadline(view: &JobView<'_>) -> Option<Duration> {
    let seconds = view.job.spec.as_ref()?.active_deadline_seconds.filter(|_| !is_suspended(view.job))?;
    Some(left_of(seconds, start_time(view)?.0, view.now))
}

fn failure(view: &JobView<'_>) -> Option<Verdict> {
    let limit = view.job.spec.as_ref().and_then(|spec| spec.backoff_limit).unwrap_or(6);
    if view.tally.failed() > limit || restarts_exceed(view, limit) {
        return Some(Verdict::new(false, "BackoffLimitExceeded", "Job has reached the specified backoff limit"));
    }
    let is_late = deadline(view).is_some_and(|left| left.is_zero());
    is_late.then(|| Verdict::new(false, "DeadlineExceeded", "Job was active longer than specified deadline"))
}

/// Returns true if the restarts of containers exceed the limit. Only these restarts count under `OnFailure`.
fn restarts_exceed(view: &JobView<'_>, limit: i32) -> bool {
    let template = spec(view.job).template.spec.unwrap_or_default();
    if template.restart_policy.as_deref() != Some("OnFailure") {
        return false;
    }
    let running = view.pods.iter().filter(|member| !member.pod.is_finished());
    let statuses = running.filter_map(|member| member.pod.status.as_ref()?.container_statuses.as_ref());
    let restarts: i32 = statuses.flatten().map(|status| status.restart_count).sum();
    restarts > 0 && restarts >= limit
}

/// Returns success by the success policy: the first rule that enough indexes satisfy.
fn met_policy(view: &JobView<'_>) -> Option<Verdict> {
    let (rules, done) = (spec(view.job).success_policy?.rules, view.tally.indexes());
    let met = rules.iter().position(|rule| {
        let count = rule.succeeded_count.map(|count| usize::try_from(count).unwrap_or(usize::MAX));
        match &rule.succeeded_indexes {
            None => count.is_some_and(|count| done.len() >= count),
            Some(text) => {
                let wanted = indexes_of(text, completions(view.job).unwrap_or(0));
                let met = wanted.intersection(done).count();
                !wanted.is_empty() && met >= count.unwrap_or(wanted.len())
            }
        }
    })?;
    Some(Verdict::new(true, "SuccessPolicy", format!("Matched rules at index {met}")))
}

fn met_completions(view: &JobView<'_>, active: usize) -> Option<Verdict> {
    let succeeded = view.tally.succeeded(view.job);
    let enough = completions(view.job).map_or(succeeded > 0, |wanted| succeeded >= wanted);
    let message = "Reached expected number of succeeded pods";
    (enough && active == 0).then(|| Verdict::new(true, "CompletionsReached", message))
}

fn active<'a>(view: &JobView<'a>) -> Vec<&'a Member> {
    view.pods.iter().filter(|member| !member.is_leaving && !member.pod.is_finished()).collect()
}

fn terminating(view: &JobView<'_>) -> usize {
    view.pods.iter().filter(|member| member.is_leaving && !member.pod.is_finished()).count()
}

/// Returns the steps that delete the `leaving` pods and create the `made` pods in the same round.
fn staffing(view: &JobView<'_>, leaving: &[&Member], released: bool, made: &[Option<i32>]) -> Staffing {
    let (active, names) = (active(view), leaving.iter().map(|member| PodName::of(&member.pod)));
    let ready = |members: &[&Member]| members.iter().filter(|member| member.pod.is_ready()).count();
    let counts = PodCounts {
        active: (active.len() + made.len()).saturating_sub(leaving.len()),
        ready: ready(&active).saturating_sub(ready(leaving)),
        terminating: terminating(view) + leaving.len(),
    };
    let mut steps: Vec<JobStep> = names.map(|pod| JobStep::DeletePod { pod, released }).collect();
    steps.extend(made.iter().map(|index| JobStep::CreatePod { index: *index }));
    Staffing { steps, counts, again: None }
}

/// Deletes the active pods of a settled Job. They count as failed if the Job failed.
fn dismiss(view: &JobView<'_>, succeeded: bool) -> Staffing {
    staffing(view, &active(view), succeeded, &[])
}

/// Creates and deletes pods of a running Job.
fn staff(view: &JobView<'_>) -> Staffing {
    let mut active = active(view);
    if is_suspended(view.job) {
        return staffing(view, &active, true, &[]);
    }
    let wanted = wanted(view, active.len());
    // Pods with a wrong or duplicate index go first, then pods that are not ready, then the youngest pods.
    let mut seen = BTreeSet::new();
    let limit = completions(view.job).unwrap_or(0);
    let misplaced = |member: &Member, seen: &mut BTreeSet<i32>| {
        is_indexed(view.job) && index_of(&member.pod).is_none_or(|index| index >= limit || !seen.insert(index))
    };
    let mut ranked: Vec<(bool, &Member)> = active.drain(..).map(|one| (!misplaced(one, &mut seen), one)).collect();
    ranked.sort_by_key(|(fits, member)| {
        let age = member.pod.meta().creation_timestamp.as_ref().map(|time| time.0);
        (*fits, member.pod.is_ready(), std::cmp::Reverse(age), member.pod.pod_name().to_owned())
    });
    let misfits = ranked.iter().filter(|(fits, _)| !fits).count();
    let surplus = ranked.len().saturating_sub(wanted).max(misfits);
    if surplus > 0 {
        let leaving: Vec<&Member> = ranked.iter().take(surplus).map(|(_, member)| *member).collect();
        return staffing(view, &leaving, true, &[]);
    }
    let missing = wanted.saturating_sub(ranked.len() + waited_for(view));
    let wait = view.tally.back_off(view.now);
    if missing == 0 || view.creation_held || !wait.is_zero() {
        let again = Some(wait).filter(|_| missing > 0);
        return Staffing { again, ..staffing(view, &[], true, &[]) };
    }
    staffing(view, &[], true, &openings(view, missing))
}

/// Returns the desired number of active pods.
fn wanted(view: &JobView<'_>, active: usize) -> usize {
    let parallelism = usize::try_from(spec(view.job).parallelism.unwrap_or(1)).unwrap_or(0);
    let succeeded = view.tally.succeeded(view.job);
    match completions(view.job) {
        None if succeeded > 0 => active,
        None => parallelism,
        Some(completions) => usize::try_from(completions - succeeded).unwrap_or(0).min(parallelism),
    }
}

/// Returns the number of terminating pods that must end before their replacements are created.
fn waited_for(view: &JobView<'_>) -> usize {
    let policy = spec(view.job).pod_replacement_policy;
    if policy.as_deref() == Some("Failed") { terminating(view) } else { 0 }
}

/// Returns the indexes of the missing pods: the lowest that have neither succeeded nor an active pod.
fn openings(view: &JobView<'_>, missing: usize) -> Vec<Option<i32>> {
    if !is_indexed(view.job) {
        return vec![None; missing];
    }
    let waits = waited_for(view) > 0;
    let is_taken = |member: &&Member| !member.pod.is_finished() && (waits || !member.is_leaving);
    let taken: BTreeSet<i32> = view.pods.iter().filter(is_taken).filter_map(|one| index_of(&one.pod)).collect();
    let open = |index: &i32| !taken.contains(index) && !view.tally.indexes().contains(index);
    (0..completions(view.job).unwrap_or(0)).filter(open).map(Some).take(missing).collect()
}
