//! What a child's status says. Counters are never compared. Source: docs/jobflow.md 2.4, 2.7.

use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use crate::child::fields::{list, number, text};
use crate::job::time::{after_seconds, read_time};

/// Time for which `FailureTarget` or `SuccessCriteriaMet` has to stand until it decides, in seconds, beyond the time in which
/// pods terminate: a dead node never confirms the end of a pod.
const PRESUMED_AFTER: i64 = 30;
/// Seconds that pods have to terminate which do not say it, and most of those that count where they do.
const GRACE: (i64, i64) = (30, 3_600);

/// What every Job says that ended well without a policy of its own: kept, it would be said of each of thousands of units.
const ENDED_AS_ALL: &str = "Reached expected number of succeeded pods";

/// The end of a child.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// It ended well.
    pub well: bool,
    /// Why, for programs.
    pub reason: String,
    /// Why, for people.
    pub message: String,
    /// When.
    pub at: Option<Timestamp>,
}

/// How far a child is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChildProgress {
    /// It has active pods, or targets in flight.
    pub runs: bool,
    /// It has a pod that is Ready, or one that has succeeded: it waits for nothing.
    pub works: bool,
    /// What people are told of it while it is undecided.
    pub message: Box<str>,
    /// It cannot go on, for this reason: an operation whose spec or action is refused.
    pub blocked: Option<Box<str>>,
    /// Its end.
    pub ended: Option<Box<Ended>>,
    /// An end that it has announced and not confirmed.
    pub announced: Option<Box<Ended>>,
    /// Seconds that its pods have to terminate.
    pub grace: i64,
    /// The targets that did not succeed, where the status lists all.
    pub targets_left: Vec<String>,
}

impl ChildProgress {
    /// The end, or the time at which an announced one counts.
    pub fn end(&self, now: Timestamp) -> Result<&Ended, Option<Timestamp>> {
        if let Some(ended) = self.ended.as_deref() {
            return Ok(ended);
        }
        let Some(announced) = &self.announced else { return Err(None) };
        // Without a time, or with one to come, it is not known for how long it stands.
        let due = announced.at.map(|since| after_seconds(since, PRESUMED_AFTER + self.grace.clamp(0, GRACE.1)));
        match due {
            Some(due) if due <= now => Ok(announced),
            due => Err(due),
        }
    }
}

/// Reads the status of a Job.
pub(crate) fn of_job(status: &Value) -> ChildProgress {
    let standing = |kind: &str, well: bool| {
        let conditions = list(status, "/conditions").iter();
        let mut found = conditions.filter(|c| text(c, "/type") == Some(kind) && text(c, "/status") == Some("True"));
        let ended = found.next().map(|condition| Ended {
            well,
            reason: text(condition, "/reason").unwrap_or(if well { "Succeeded" } else { "JobFailed" }).to_owned(),
            message: text(condition, "/message").filter(|said| *said != ENDED_AS_ALL).unwrap_or_default().to_owned(),
            at: read_time(text(condition, "/lastTransitionTime")),
        });
        ended.map(Box::new)
    };
    let ended = standing("Complete", true).or_else(|| standing("Failed", false));
    let announced = standing("FailureTarget", false).or_else(|| standing("SuccessCriteriaMet", true));
    // A pod that has ended and is not counted yet is no longer active, and the Job has not gone back to Pending.
    let uncounted = |field: &str| !list(status, &format!("/uncountedTerminatedPods/{field}")).is_empty();
    let is_counted = uncounted("succeeded") || uncounted("failed");
    ChildProgress {
        runs: number(status, "/active").unwrap_or(0) > 0 || announced.is_some() || is_counted,
        works: number(status, "/ready").unwrap_or(0) > 0 || uncounted("succeeded"),
        // Of thousands of children most have ended: what they announced before is of no use.
        announced: announced.filter(|_| ended.is_none()),
        ended,
        grace: GRACE.0,
        ..ChildProgress::default()
    }
}

/// What the conditions of an OperationJob say where its spec or its action is refused.
fn blocks(status: &Value) -> Option<&str> {
    let (_, message) = block(status, "Valid").or_else(|| block(status, "ActionAvailable"))?;
    Some(message)
}

/// Reason and message of the condition of this type of an OperationJob for which it is False.
pub(crate) fn block<'a>(status: &'a Value, kind: &str) -> Option<(&'a str, &'a str)> {
    let mut conditions = list(status, "/conditions").iter();
    let condition = conditions.find(|one| text(one, "/type") == Some(kind) && text(one, "/status") == Some("False"))?;
    Some((text(condition, "/reason").unwrap_or_default(), text(condition, "/message").unwrap_or("it is not ready")))
}

/// Reads the status of an OperationJob, with the value that `jobStatusList` gets.
pub(crate) fn of_operation(status: &Value) -> (ChildProgress, Value) {
    let count = |field: &str| number(status, &format!("/{field}PodCount")).unwrap_or(0);
    let (total, succeeded, failed) = (count("total"), count("succeeded"), count("failed"));
    let blocked = blocks(status).map(Into::into);
    let progress = text(status, "/progress").unwrap_or_default();
    let at = read_time(text(status, "/endTime"));
    let end = |well, reason: &str, message| Some(Box::new(Ended { well, reason: reason.to_owned(), message, at }));
    let counted = format!("{succeeded}/{total}");
    let ended = match progress {
        "Succeeded" => end(true, "Succeeded", counted.clone()),
        "Failed" => {
            end(false, "OperationFailed", format!("{counted} succeeded, {failed} failed{}", first_failed(status)))
        }
        _ => None,
    };
    let all = list(status, "/targetDetails");
    let unfinished = all.iter().filter(|target| text(target, "/progress") != Some("Succeeded"));
    let left = unfinished.filter_map(|target| text(target, "/name").map(str::to_owned));
    let is_whole = usize::try_from(total).is_ok_and(|total| total == all.len());
    let read = ChildProgress {
        runs: progress == "Processing",
        works: true,
        message: if progress == "Processing" { counted.into() } else { Box::default() },
        blocked: blocked.filter(|_| ended.is_none() && progress != "Processing"),
        ended,
        announced: None,
        grace: 0,
        targets_left: if is_whole && progress == "Failed" { left.collect() } else { Vec::new() },
    };
    let mut shown = json!({"active": count("processing"), "succeeded": succeeded, "failed": failed});
    for (field, of) in [("startTime", "/startTime"), ("completionTime", "/endTime")] {
        if let (Some(time), Some(fields)) = (text(status, of), shown.as_object_mut()) {
            fields.insert(field.to_owned(), time.into());
        }
    }
    (read, if status.is_null() { Value::Null } else { shown })
}

fn first_failed(status: &Value) -> String {
    let details = list(status, "/targetDetails").iter().filter(|target| text(target, "/progress") == Some("Failed"));
    let of_details =
        details.map(|target| (target, text(target, "/error/message").or_else(|| text(target, "/error/reason"))));
    let summary = list(status, "/failures")
        .iter()
        .map(|failure| (failure, text(failure, "/message").or_else(|| text(failure, "/reason"))));
    let named: Vec<String> = of_details
        .chain(summary)
        .take(3)
        .map(|(target, error)| format!("{} ({})", text(target, "/name").unwrap_or("?"), error.unwrap_or("failed")))
        .collect();
    if named.is_empty() { String::new() } else { format!(": {}", named.join(", ")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn condition(kind: &str) -> Value {
        json!({"type": kind, "status": "True", "reason": "R", "message": "m", "lastTransitionTime": "2026-01-01T00:00:00Z"})
    }

    #[test]
    fn a_job_whose_last_pod_is_being_counted_still_runs() {
        assert!(of_job(&json!({"active": 0, "uncountedTerminatedPods": {"succeeded": ["u"]}})).runs);
        assert!(of_job(&json!({"conditions": [condition("SuccessCriteriaMet")]})).runs);
        assert!(!of_job(&json!({"active": 0, "uncountedTerminatedPods": {}})).runs);
    }

    #[test]
    fn conditions_decide_and_counters_do_not() {
        let now = "2026-01-01T00:00:30Z".parse().unwrap();
        let counted = of_job(&json!({"succeeded": 3, "failed": 9, "active": 1}));
        assert!(counted.end(now).is_err() && counted.runs);
        assert!(
            of_job(&json!({"conditions": [condition("SuccessCriteriaMet"), condition("Complete")]}))
                .end(now)
                .unwrap()
                .well
        );
        assert!(!of_job(&json!({"conditions": [condition("Failed")]})).end(now).unwrap().well);
    }

    #[test]
    fn an_announced_end_counts_half_a_minute_after_the_time_in_which_pods_terminate() {
        let job = of_job(&json!({"conditions": [condition("FailureTarget")]}));
        let due: Timestamp = "2026-01-01T00:01:00Z".parse().unwrap();
        assert_eq!(job.end("2026-01-01T00:00:59Z".parse().unwrap()), Err(Some(due)));
        assert!(!job.end(due).unwrap().well);
        // https://github.com/kubernetes/kubernetes/issues/123775
        let slow = ChildProgress { grace: 300, ..job.clone() };
        assert_eq!(slow.end(due), Err(Some("2026-01-01T00:05:30Z".parse().unwrap())));
        let endless = ChildProgress { grace: i64::MAX, ..job };
        assert_eq!(endless.end(due), Err(Some("2026-01-01T01:00:30Z".parse().unwrap())));
    }

    #[test]
    fn a_failed_operation_names_its_failed_targets_and_those_left() {
        let status = json!({"progress": "Failed", "totalPodCount": 3, "succeededPodCount": 2, "failedPodCount": 1, "targetDetails": [
            {"name": "a", "progress": "Succeeded"}, {"name": "b", "progress": "Failed", "error": {"reason": "X", "message": "no"}},
            {"name": "c", "progress": "Succeeded"}]});
        let (progress, shown) = of_operation(&status);
        assert_eq!(progress.ended.unwrap().message, "2/3 succeeded, 1 failed: b (no)");
        assert_eq!(progress.targets_left, ["b"]);
        assert_eq!(shown, json!({"active": 0, "succeeded": 2, "failed": 1}));
    }

    #[test]
    fn an_operation_whose_action_is_unknown_is_blocked_with_its_message() {
        let condition = json!({"type": "ActionAvailable", "status": "False", "message": "no plugin"});
        let (progress, _) = of_operation(&json!({"progress": "Pending", "conditions": [condition]}));
        assert_eq!(progress.blocked.as_deref(), Some("no plugin"));
    }
}
