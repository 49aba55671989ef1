//! Finds out why a Job has no running pod: its pod is refused, finds no node or has no image. The result is only a message and decides nothing.
//! Source: docs/jobflow.md 2.4.

use std::sync::Arc;

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use crate::attempts::plan::{ParentPlan, PlanMemory};
use crate::attempts::unit::MESSAGE_BYTES;
use crate::attempts::view::{ChildKind, ChildView};
use crate::object::bound::shown_cause;
use crate::object::fields::{list, text};
use crate::object::time::{after, write_time};
use crate::requests::backoff::Backoff;

/// The waits between two checks of a Job. Most pods run before the first check.
const WAITS: Backoff = Backoff::from_secs(10, 300);
/// The most Jobs of one object that the host checks. If thousands of Jobs wait, they wait for the same reason.
const LOOKED_AT: usize = 16;

/// The reasons of a container that waits for its image and its volumes.
const AT_FIRST: [&str; 2] = ["ContainerCreating", "PodInitializing"];

/// The result of the last check of a waiting Job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitCheck {
    /// The reason why the Job waits, in words. Empty if the cluster shows no reason.
    pub message: String,
    /// Time of the next check.
    pub until: Timestamp,
    /// The number of earlier checks.
    tries: u32,
}

impl WaitCheck {
    /// Returns the result of a check at `now`, after the check `before`. If the check failed, keeps the earlier result.
    pub fn again(before: Option<&Self>, message: Option<String>, now: Timestamp) -> Self {
        let tries = before.map_or(0, |before| before.tries.saturating_add(1));
        let message = message.or_else(|| before.map(|before| before.message.clone())).unwrap_or_default();
        Self { message, until: after(now, WAITS.signed_wait(tries)), tries }
    }
}

/// The checks of one object's Jobs in ten seconds. Without this limit, the host would check each of a thousand slow Jobs once, because each Job that
/// starts to run makes room for the next.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WaitCheckWindow {
    until: Option<Timestamp>,
    wait_checks: usize,
}

impl WaitCheckWindow {
    fn is_open(&self, now: Timestamp) -> bool {
        self.until.is_some_and(|until| until > now)
    }

    /// Returns the number of checks that may still start at `now`.
    fn left(&self, now: Timestamp) -> usize {
        if self.is_open(now) { LOOKED_AT.saturating_sub(self.wait_checks) } else { LOOKED_AT }
    }

    /// Counts checks that were made at `now`.
    pub fn count(&mut self, wait_checks: usize, now: Timestamp) {
        if !self.is_open(now) {
            *self = Self { until: Some(after(now, WAITS.signed_wait(0))), wait_checks: 0 };
        }
        self.wait_checks += wait_checks;
    }
}

/// Returns why a Job has no pods, as far as the Job itself shows it.
pub(crate) fn held(child: &ChildView) -> Option<String> {
    let ChildView { kind, suspended, held_by, is_idle, .. } = child;
    match held_by.as_ref() {
        _ if *kind == ChildKind::Operation || child.progress.runs || child.progress.announced.is_some() => None,
        _ if child.terminating => Some("its Job is being deleted".to_owned()),
        "" if *suspended => Some("its Job is suspended".to_owned()),
        "" if *is_idle => Some("its Job asks for no pods: its parallelism is 0".to_owned()),
        "" => None,
        queue if !suspended && queue.starts_with("queue ") => None,
        other => Some(format!("its Job waits for {other}")),
    }
}

/// Returns true if the Job was stopped before it had a pod.
pub(crate) fn is_stopped_unstarted(child: &ChildView) -> bool {
    child.kind == ChildKind::Job && child.is_idle && !child.suspended && child.deadline == Some(1)
}

/// Returns the reason why a Job without a running pod waits, from its last check. Asks for a check if one is due.
pub(crate) fn waits_for<'a>(
    child: &Arc<ChildView>,
    memory: &'a PlanMemory,
    plan: &mut ParentPlan,
    now: Timestamp,
) -> Option<&'a str> {
    let may_wait = child.kind == ChildKind::Job && !child.suspended && !child.terminating;
    let created = child.created.filter(|_| may_wait)?;
    let look = memory.wait_checks.get(&child.uid);
    if child.progress.works {
        // The Job may wait again. The host keeps its earlier check, so that the waits between checks go on.
        plan.waiting.extend(look.map(|_| child.uid.clone()));
        return None;
    }
    if plan.checked_jobs >= LOOKED_AT {
        return None;
    }
    plan.checked_jobs += 1;
    plan.waiting.insert(child.uid.clone());
    let message = look.map(|look| look.message.as_str()).filter(|message| !message.is_empty());
    if child.progress.announced.is_some() {
        // The pods are about to go. The unit keeps the last reason in its message until the Job ends, and in the final message.
        return message;
    }
    let due = look.map_or_else(|| after(created, WAITS.signed_wait(0)), |look| look.until);
    let window = &memory.wait_check_window;
    match window.until.filter(|_| plan.wait_checks.len() >= window.left(now)) {
        _ if due > now => plan.requeue_by(due),
        Some(until) => plan.requeue_by(until),
        None => plan.wait_checks.push(child.clone()),
    }
    message
}

/// The result of reading a waiting Job's pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WaitLookup {
    /// A pod runs, or shows its reason to wait. The text is the reason, or empty.
    Reason(String),
    /// There is no pod. The events of the Job may show the reason.
    ReadJobEvents,
    /// A pod has a node, but its containers are not made yet. The events of the pod with this UID may show the reason.
    ReadPodEvents(String),
}

/// The field selector for the unfinished pods of a Job. A Job that runs one pod after another has mostly finished pods.
pub const UNFINISHED: &str = "status.phase!=Succeeded,status.phase!=Failed";

/// Reads the pods of a waiting Job.
pub fn read_waiting_pods(pods: &[Value]) -> WaitLookup {
    let is_there = |pod: &&Value| !matches!(text(pod, "/status/phase"), Some("Succeeded" | "Failed"));
    let Some(pod) = pods.iter().find(is_there) else { return WaitLookup::ReadJobEvents };
    if let Some(told) = waiting_reason(pod) {
        let name = text(pod, "/metadata/name").unwrap_or("?");
        return WaitLookup::Reason(shown_cause(&format!("pod {name}{told}"), MESSAGE_BYTES));
    }
    let is_made =
        waiting(pod).any(|(_, state)| text(state, "/reason").is_some_and(|reason| AT_FIRST.contains(&reason)));
    match text(pod, "/metadata/uid") {
        Some(uid) if is_made => WaitLookup::ReadPodEvents(uid.to_owned()),
        _ => WaitLookup::Reason(String::new()),
    }
}

/// Returns the reason of a pod without a node, or of a waiting container.
fn waiting_reason(pod: &Value) -> Option<String> {
    let is_placed = |c: &&Value| text(c, "/type") == Some("PodScheduled") && text(c, "/status") == Some("False");
    if let Some(condition) = list(pod, "/status/conditions").iter().find(is_placed) {
        let words = [text(condition, "/reason"), text(condition, "/message")];
        return Some(format!(" has no node: {}", words.into_iter().flatten().collect::<Vec<_>>().join(": ")));
    }
    let (name, state) =
        waiting(pod).find(|(_, state)| text(state, "/reason").is_some_and(|it| !AT_FIRST.contains(&it)))?;
    let words = [text(state, "/reason"), text(state, "/message")];
    Some(format!(", container {name}: {}", words.into_iter().flatten().collect::<Vec<_>>().join(": ")))
}

/// Returns the waiting containers of a pod, with their names.
fn waiting(pod: &Value) -> impl Iterator<Item = (&str, &Value)> {
    let statuses = ["/status/initContainerStatuses", "/status/containerStatuses"];
    let all = statuses.into_iter().flat_map(|field| list(pod, field));
    all.filter_map(|status| Some((text(status, "/name").unwrap_or("?"), status.pointer("/state/waiting")?)))
}

/// The oldest warning that counts, in seconds. A controller repeats a warning that still applies.
const STANDS: i64 = 900;
/// The reason of the scheduler's warnings before it finds a node.
const BEFORE_A_NODE: &str = "FailedScheduling";

/// Returns the latest warning among the events of a Job, or of a pod that has a node. Returns an empty text if there is none.
pub fn last_warning(events: &[Value], now: Timestamp) -> String {
    let oldest = write_time(after(now, SignedDuration::from_secs(-STANDS)));
    let time = |event: &Value| {
        let fields = ["/series/lastObservedTime", "/deprecatedLastTimestamp", "/eventTime"];
        // All times have one format, so that their order as text is their order in time.
        let times = fields.into_iter().filter_map(|field| text(event, field));
        times.max().unwrap_or_default().to_owned()
    };
    let tells = |event: &&Value| {
        text(event, "/type") == Some("Warning")
            && text(event, "/reason") != Some(BEFORE_A_NODE)
            && *time(event) >= *oldest
    };
    let last = events.iter().filter(tells).max_by_key(|event| time(event));
    let words = last.map(|event| [text(event, "/reason"), text(event, "/note")].into_iter().flatten());
    shown_cause(&words.into_iter().flatten().collect::<Vec<_>>().join(": "), MESSAGE_BYTES)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn job() -> ChildView {
        let object = json!({"metadata": {"namespace": "n", "name": "j", "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z"}});
        ChildView::read(ChildKind::Job, &object).unwrap()
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_767_225_600 + second).unwrap()
    }

    fn pod(status: Value) -> Value {
        json!({"metadata": {"name": "p", "uid": "of-pod"}, "status": status})
    }

    #[test]
    fn a_job_is_first_looked_at_after_ten_seconds_and_then_ever_less_often() {
        let (child, mut memory) = (Arc::new(job()), PlanMemory::default());
        let asked = |memory: &PlanMemory, now| {
            let mut plan = ParentPlan::default();
            let told = waits_for(&child, memory, &mut plan, now).map(str::to_owned);
            (told, plan.wait_checks.len(), plan.due)
        };
        assert_eq!(asked(&memory, at(9)), (None, 0, Some(at(10))));
        assert_eq!(asked(&memory, at(10)), (None, 1, None));
        memory.wait_checks.insert("u".into(), WaitCheck::again(None, Some("no image".into()), at(10)));
        assert_eq!(asked(&memory, at(11)), (Some("no image".into()), 0, Some(at(20))));
        let mut look = memory.wait_checks["u"].clone();
        let waits: Vec<i64> = (0..6)
            .map(|_| {
                look = WaitCheck::again(Some(&look), None, at(0));
                look.until.duration_since(at(0)).as_secs()
            })
            .collect();
        assert_eq!(waits, [20, 40, 80, 160, 300, 300]);
        assert_eq!(look.message, "no image", "what could not be seen anew stands");
        let works =
            ChildView { progress: crate::attempts::progress::of_job(&json!({"active": 1, "ready": 1})), ..job() };
        let mut plan = ParentPlan::default();
        assert_eq!(waits_for(&Arc::new(works), &memory, &mut plan, at(12)), None);
        assert!(plan.waiting.contains("u"), "where it waits again, the next look comes no sooner");
    }

    #[test]
    fn a_job_at_work_suspended_or_beyond_the_sixteenth_is_not_looked_at() {
        let mut plan = ParentPlan::default();
        let mut look = |child: ChildView, memory: &PlanMemory| {
            waits_for(&Arc::new(child), memory, &mut plan, at(60));
            plan.wait_checks.len()
        };
        let works =
            ChildView { progress: crate::attempts::progress::of_job(&json!({"active": 1, "ready": 1})), ..job() };
        assert_eq!(look(works, &PlanMemory::default()), 0);
        assert_eq!(look(ChildView { suspended: true, ..job() }, &PlanMemory::default()), 0);
        for number in 1..=LOOKED_AT + 3 {
            assert_eq!(look(job(), &PlanMemory::default()), number.min(LOOKED_AT));
        }
    }

    #[test]
    fn sixteen_jobs_of_an_object_are_looked_at_in_ten_seconds_however_many_begin_slowly() {
        let mut memory = PlanMemory::default();
        let mut checked_jobs = 0;
        for second in 60..80 {
            let mut plan = ParentPlan::default();
            for number in 0..LOOKED_AT {
                let child = ChildView { uid: format!("{second}-{number}"), ..job() };
                waits_for(&Arc::new(child), &memory, &mut plan, at(second));
            }
            let is_full = plan.wait_checks.is_empty();
            assert_eq!(plan.due, is_full.then(|| at(if second < 70 { 70 } else { 80 })));
            memory.wait_check_window.count(plan.wait_checks.len(), at(second));
            checked_jobs += plan.wait_checks.len();
        }
        assert_eq!(checked_jobs, 2 * LOOKED_AT);
    }

    #[test]
    fn a_pod_tells_itself_where_it_finds_no_node_or_has_no_image() {
        let unplaced =
            json!({"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes"});
        let told = read_waiting_pods(&[pod(json!({"phase": "Pending", "conditions": [unplaced]}))]);
        assert_eq!(told, WaitLookup::Reason("pod p has no node: Unschedulable: 0/3 nodes".into()));
        let waits = json!({"name": "c", "state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such"}}});
        let told = read_waiting_pods(&[pod(json!({"phase": "Pending", "containerStatuses": [waits]}))]);
        assert_eq!(told, WaitLookup::Reason("pod p, container c: ImagePullBackOff: no such".into()));
        let runs = json!({"name": "c", "state": {"running": {}}});
        assert_eq!(read_waiting_pods(&[pod(json!({"containerStatuses": [runs]}))]), WaitLookup::Reason(String::new()));
    }

    #[test]
    fn events_are_asked_where_there_is_no_pod_or_one_that_is_still_made() {
        assert_eq!(read_waiting_pods(&[]), WaitLookup::ReadJobEvents);
        assert_eq!(read_waiting_pods(&[pod(json!({"phase": "Failed"}))]), WaitLookup::ReadJobEvents);
        let made = json!({"name": "c", "state": {"waiting": {"reason": "ContainerCreating"}}});
        assert_eq!(
            read_waiting_pods(&[pod(json!({"containerStatuses": [made]}))]),
            WaitLookup::ReadPodEvents("of-pod".into())
        );
    }

    #[test]
    fn the_latest_warning_is_told_and_bounded() {
        let event = |kind: &str, time: &str, note: &str| json!({"type": kind, "reason": "FailedCreate", "note": note, "deprecatedLastTimestamp": time});
        let events = [
            event("Warning", "2026-01-01T00:00:02Z", "exceeded quota"),
            event("Warning", "2026-01-01T00:00:01Z", "old"),
            event("Normal", "2026-01-01T00:00:03Z", "fine"),
        ];
        assert_eq!(last_warning(&events, at(60)), "FailedCreate: exceeded quota");
        assert_eq!(last_warning(&events, at(3_600)), "", "a controller would have repeated it");
        let mut unplaced = event("Warning", "2026-01-01T00:00:02Z", "no node yet");
        unplaced["reason"] = json!("FailedScheduling");
        assert_eq!((last_warning(&[unplaced], at(60)), last_warning(&[], at(60))), (String::new(), String::new()));
        let long = event("Warning", "2026-01-01T00:00:02Z", &"x".repeat(9_000));
        assert!(last_warning(&[long], at(60)).len() <= MESSAGE_BYTES);
    }
}
