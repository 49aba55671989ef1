//! Reads the status of a child. It never compares counters. Source: docs/jobflow.md 2.4, 2.7.

use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use crate::object::bound::shown_cause;
use crate::object::fields::{list, number, text};
use crate::object::time::{after_seconds, read_time};

/// Seconds after which `FailureTarget` or `SuccessCriteriaMet` decides, in addition to the grace period of the pods. A dead node never confirms the
/// end of a pod.
const PRESUMED_AFTER: i64 = 30;
/// The grace period of pods that name none, and the longest grace period that counts, in seconds.
const GRACE: (i64, i64) = (30, 3_600);

/// The message of every Job that succeeds without a policy of its own. The host drops it, because it would repeat for thousands of units.
const ENDED_AS_ALL: &str = "Reached expected number of succeeded pods";

/// The longest text of what an OperationJob waits for, in bytes.
const MOST_WAITS: usize = 80;

/// End of a child.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// True if the child succeeded.
    pub well: bool,
    /// The reason for programs.
    pub reason: String,
    /// The message for people.
    pub message: String,
    /// Time of the end.
    pub at: Option<Timestamp>,
}

/// State of a child.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChildProgress {
    /// True if the child has active pods or targets in flight.
    pub runs: bool,
    /// True if the child has a Ready pod or a succeeded pod. It waits for nothing then.
    pub works: bool,
    /// The message for people while the child has no outcome.
    pub message: Box<str>,
    /// The message about an operation that cannot go on, because its spec or action is refused.
    pub blocked: Option<Box<str>>,
    /// End of the child.
    pub ended: Option<Box<Ended>>,
    /// An end that the child has announced and not confirmed.
    pub announced: Option<Box<Ended>>,
    /// Grace period of the pods, in seconds.
    pub grace: i64,
    /// The targets that did not succeed. Empty unless the status lists all targets.
    pub targets_left: Vec<String>,
}

impl ChildProgress {
    /// Returns the end. Otherwise returns the time at which an announced end counts.
    pub fn end(&self, now: Timestamp) -> Result<&Ended, Option<Timestamp>> {
        if let Some(ended) = self.ended.as_deref() {
            return Ok(ended);
        }
        let Some(announced) = &self.announced else { return Err(None) };
        // Without a time, the host does not know how long the announcement has existed.
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
    // A pod that has ended but is not yet counted is no longer active. The Job has not gone back to Pending.
    let uncounted = |field: &str| !list(status, &format!("/uncountedTerminatedPods/{field}")).is_empty();
    let is_counted = uncounted("succeeded") || uncounted("failed");
    ChildProgress {
        runs: number(status, "/active").unwrap_or(0) > 0 || announced.is_some() || is_counted,
        works: number(status, "/ready").unwrap_or(0) > 0 || uncounted("succeeded"),
        // Most of thousands of children have ended. Their earlier announcements would only cost memory.
        announced: announced.filter(|_| ended.is_none()),
        ended,
        grace: GRACE.0,
        ..ChildProgress::default()
    }
}

/// Returns the message of an OperationJob's condition if its spec or its action is refused.
fn blocks(status: &Value) -> Option<&str> {
    let (_, message) = block(status, "Valid").or_else(|| block(status, "ActionAvailable"))?;
    Some(message)
}

/// Returns reason and message of an OperationJob's condition of this type, if it is False.
pub(crate) fn block<'a>(status: &'a Value, kind: &str) -> Option<(&'a str, &'a str)> {
    let mut conditions = list(status, "/conditions").iter();
    let condition = conditions.find(|one| text(one, "/type") == Some(kind) && text(one, "/status") == Some("False"))?;
    Some((text(condition, "/reason").unwrap_or_default(), text(condition, "/message").unwrap_or("it is not ready")))
}

/// Reads the status of an OperationJob. Also returns its value for `jobStatusList`.
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
    let waits = text(status, "/waitsFor").filter(|word| !word.is_empty() && ended.is_none());
    let waits = waits.map(|word| format!("waits for {}", shown_cause(word, MOST_WAITS)));
    let message = [Some(counted).filter(|_| progress == "Processing"), waits];
    let message = message.into_iter().flatten().collect::<Vec<_>>().join(", ");
    let all = list(status, "/targetDetails");
    let unfinished = all.iter().filter(|target| text(target, "/progress") != Some("Succeeded"));
    let left = unfinished.filter_map(|target| text(target, "/name").map(str::to_owned));
    let is_whole = usize::try_from(total).is_ok_and(|total| total == all.len());
    let read = ChildProgress {
        runs: progress == "Processing",
        works: true,
        message: message.into(),
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
    fn the_message_of_an_operation_that_runs_names_its_wait() {
        let message = |status: Value| of_operation(&status).0.message;
        let counts = json!({"progress": "Processing", "totalPodCount": 4, "succeededPodCount": 1});
        let waits = |progress: &str| json!({"progress": progress, "totalPodCount": 4, "succeededPodCount": 1, "waitsFor": "Partition"});
        assert_eq!(&*message(counts), "1/4");
        assert_eq!(&*message(waits("Processing")), "1/4, waits for Partition");
        assert_eq!(&*message(waits("Pending")), "waits for Partition");
        assert_eq!(&*message(waits("Succeeded")), "");
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
}
