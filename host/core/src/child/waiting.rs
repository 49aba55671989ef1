//! What a Job waits for that has no pod at work: a pod that is refused, finds no node, or has no image. It decides nothing and is
//! told. Source: docs/jobflow.md 2.4.

use std::sync::Arc;

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use crate::child::fields::{list, text};
use crate::child::plan::{Memory, ParentPlan};
use crate::child::unit::MESSAGE_BYTES;
use crate::child::view::{ChildKind, ChildView};
use crate::job::bound::shown_cause;
use crate::job::time::{after, write_time};

/// First and longest wait between two looks at a Job, in seconds: most pods are at work before the first.
const WAITS: (i64, i64) = (10, 300);
/// Most Jobs of one object that are looked at: where thousands wait, the others wait for the same.
const LOOKED_AT: usize = 16;

/// What a container says until its image is there and its volumes are mounted.
const AT_FIRST: [&str; 2] = ["ContainerCreating", "PodInitializing"];

/// What was last seen of a Job that waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Look {
    /// What it waits for, in words; empty where nothing says so.
    pub told: String,
    /// When it is looked at again.
    pub until: Timestamp,
    /// How often it was looked at before.
    tries: u32,
}

impl Look {
    /// What was seen at `now`, after another look. Where it could not be seen, what was known stands.
    pub fn again(before: Option<&Self>, told: Option<String>, now: Timestamp) -> Self {
        let tries = before.map_or(0, |before| before.tries.saturating_add(1));
        let wait = WAITS.0.saturating_mul(1 << tries.min(10)).min(WAITS.1);
        let told = told.or_else(|| before.map(|before| before.told.clone())).unwrap_or_default();
        Self { told, until: after(now, SignedDuration::from_secs(wait)), tries }
    }
}

/// The looks at Jobs of one object in ten seconds. Without a bound each of a thousand Jobs that begin slowly would be looked at once, for
/// those that come to work make room for the next ones.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LookWindow {
    until: Option<Timestamp>,
    looks: usize,
}

impl LookWindow {
    fn is_open(&self, now: Timestamp) -> bool {
        self.until.is_some_and(|until| until > now)
    }

    /// The looks that may still be made at `now`.
    fn left(&self, now: Timestamp) -> usize {
        if self.is_open(now) { LOOKED_AT.saturating_sub(self.looks) } else { LOOKED_AT }
    }

    /// Counts looks that were made at `now`.
    pub fn count(&mut self, looks: usize, now: Timestamp) {
        if !self.is_open(now) {
            *self = Self { until: Some(after(now, SignedDuration::from_secs(WAITS.0))), looks: 0 };
        }
        self.looks += looks;
    }
}

/// What keeps a Job from having pods, as far as it says that itself.
pub(super) fn held(child: &ChildView) -> Option<String> {
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

/// True for a Job that was stopped before it had a pod.
pub(super) fn is_stopped_unstarted(child: &ChildView) -> bool {
    child.kind == ChildKind::Job && child.is_idle && !child.suspended && child.deadline == Some(1)
}

/// What a Job without a pod at work waits for, as far as that was seen. Asks for a look where one is due.
pub(super) fn waits_for<'a>(
    child: &Arc<ChildView>,
    memory: &'a Memory,
    (plan, now): (&mut ParentPlan, Timestamp),
) -> Option<&'a str> {
    let may_wait = child.kind == ChildKind::Job && !child.suspended && !child.terminating;
    let created = child.created.filter(|_| may_wait)?;
    let look = memory.looks.get(&child.uid);
    if child.progress.works {
        // It may wait again, and is not looked at anew each time.
        plan.waiting.extend(look.map(|_| child.uid.clone()));
        return None;
    }
    if plan.looked_at >= LOOKED_AT {
        return None;
    }
    plan.looked_at += 1;
    plan.waiting.insert(child.uid.clone());
    let told = look.map(|look| look.told.as_str()).filter(|told| !told.is_empty());
    if child.progress.announced.is_some() {
        // Its pods go. What it waited for is told until it has ended, and then once more.
        return told;
    }
    let due = look.map_or_else(|| after(created, SignedDuration::from_secs(WAITS.0)), |look| look.until);
    let window = &memory.look_window;
    match window.until.filter(|_| plan.looks.len() >= window.left(now)) {
        _ if due > now => plan.wake_at(due),
        Some(until) => plan.wake_at(until),
        None => plan.looks.push(child.clone()),
    }
    told
}

/// What the pods of a Job say of its waiting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen {
    /// A pod is at work, or tells itself what it waits for.
    Told(String),
    /// There is no pod: the events of the Job may tell.
    AskJob,
    /// A pod has a node and is not made yet: its events may tell. This is its UID.
    AskPod(String),
}

/// The fields by which the pods of a Job are listed that may tell: of one that runs pod after pod, most have ended.
pub const UNFINISHED: &str = "status.phase!=Succeeded,status.phase!=Failed";

/// Reads the pods of a Job that waits.
pub fn look_at(pods: &[Value]) -> Seen {
    let is_there = |pod: &&Value| !matches!(text(pod, "/status/phase"), Some("Succeeded" | "Failed"));
    let Some(pod) = pods.iter().find(is_there) else { return Seen::AskJob };
    if let Some(told) = told_by(pod) {
        let name = text(pod, "/metadata/name").unwrap_or("?");
        return Seen::Told(shown_cause(&format!("pod {name}{told}"), MESSAGE_BYTES));
    }
    let is_made =
        waiting(pod).any(|(_, state)| text(state, "/reason").is_some_and(|reason| AT_FIRST.contains(&reason)));
    match text(pod, "/metadata/uid") {
        Some(uid) if is_made => Seen::AskPod(uid.to_owned()),
        _ => Seen::Told(String::new()),
    }
}

/// The words of a pod that has no node, or a container that waits.
fn told_by(pod: &Value) -> Option<String> {
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

/// The containers of a pod that wait, by name.
fn waiting(pod: &Value) -> impl Iterator<Item = (&str, &Value)> {
    let statuses = ["/status/initContainerStatuses", "/status/containerStatuses"];
    let all = statuses.into_iter().flat_map(|field| list(pod, field));
    all.filter_map(|status| Some((text(status, "/name").unwrap_or("?"), status.pointer("/state/waiting")?)))
}

/// How old a warning may be that is told, in seconds: a controller repeats those that still stand.
const STANDS: i64 = 900;
/// What the scheduler said before it found a node.
const BEFORE_A_NODE: &str = "FailedScheduling";

/// The words of the latest warning among the events of a Job or of a pod that has a node, empty where there is none.
pub fn last_warning(events: &[Value], now: Timestamp) -> String {
    let oldest = write_time(after(now, SignedDuration::from_secs(-STANDS)));
    let time = |event: &Value| {
        let fields = ["/series/lastObservedTime", "/deprecatedLastTimestamp", "/eventTime"];
        // All of one format, whose order as text is that in time to the second.
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
        let (child, mut memory) = (Arc::new(job()), Memory::default());
        let asked = |memory: &Memory, now| {
            let mut plan = ParentPlan::default();
            let told = waits_for(&child, memory, (&mut plan, now)).map(str::to_owned);
            (told, plan.looks.len(), plan.due)
        };
        assert_eq!(asked(&memory, at(9)), (None, 0, Some(at(10))));
        assert_eq!(asked(&memory, at(10)), (None, 1, None));
        memory.looks.insert("u".into(), Look::again(None, Some("no image".into()), at(10)));
        assert_eq!(asked(&memory, at(11)), (Some("no image".into()), 0, Some(at(20))));
        let mut look = memory.looks["u"].clone();
        let waits: Vec<i64> = (0..6)
            .map(|_| {
                look = Look::again(Some(&look), None, at(0));
                look.until.duration_since(at(0)).as_secs()
            })
            .collect();
        assert_eq!(waits, [20, 40, 80, 160, 300, 300]);
        assert_eq!(look.told, "no image", "what could not be seen anew stands");
        let works = ChildView { progress: crate::child::progress::of_job(&json!({"active": 1, "ready": 1})), ..job() };
        let mut plan = ParentPlan::default();
        assert_eq!(waits_for(&Arc::new(works), &memory, (&mut plan, at(12))), None);
        assert!(plan.waiting.contains("u"), "where it waits again, the next look comes no sooner");
    }

    #[test]
    fn a_job_at_work_suspended_or_beyond_the_sixteenth_is_not_looked_at() {
        let mut plan = ParentPlan::default();
        let mut look = |child: ChildView, memory: &Memory| {
            waits_for(&Arc::new(child), memory, (&mut plan, at(60)));
            plan.looks.len()
        };
        let works = ChildView { progress: crate::child::progress::of_job(&json!({"active": 1, "ready": 1})), ..job() };
        assert_eq!(look(works, &Memory::default()), 0);
        assert_eq!(look(ChildView { suspended: true, ..job() }, &Memory::default()), 0);
        for number in 1..=LOOKED_AT + 3 {
            assert_eq!(look(job(), &Memory::default()), number.min(LOOKED_AT));
        }
    }

    #[test]
    fn sixteen_jobs_of_an_object_are_looked_at_in_ten_seconds_however_many_begin_slowly() {
        let mut memory = Memory::default();
        let mut looked_at = 0;
        for second in 60..80 {
            let mut plan = ParentPlan::default();
            for number in 0..LOOKED_AT {
                let child = ChildView { uid: format!("{second}-{number}"), ..job() };
                waits_for(&Arc::new(child), &memory, (&mut plan, at(second)));
            }
            let is_full = plan.looks.is_empty();
            assert_eq!(plan.due, is_full.then(|| at(if second < 70 { 70 } else { 80 })));
            memory.look_window.count(plan.looks.len(), at(second));
            looked_at += plan.looks.len();
        }
        assert_eq!(looked_at, 2 * LOOKED_AT);
    }

    #[test]
    fn a_pod_tells_itself_where_it_finds_no_node_or_has_no_image() {
        let unplaced =
            json!({"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes"});
        let told = look_at(&[pod(json!({"phase": "Pending", "conditions": [unplaced]}))]);
        assert_eq!(told, Seen::Told("pod p has no node: Unschedulable: 0/3 nodes".into()));
        let waits = json!({"name": "c", "state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such"}}});
        let told = look_at(&[pod(json!({"phase": "Pending", "containerStatuses": [waits]}))]);
        assert_eq!(told, Seen::Told("pod p, container c: ImagePullBackOff: no such".into()));
        let runs = json!({"name": "c", "state": {"running": {}}});
        assert_eq!(look_at(&[pod(json!({"containerStatuses": [runs]}))]), Seen::Told(String::new()));
    }

    #[test]
    fn events_are_asked_where_there_is_no_pod_or_one_that_is_still_made() {
        assert_eq!(look_at(&[]), Seen::AskJob);
        assert_eq!(look_at(&[pod(json!({"phase": "Failed"}))]), Seen::AskJob);
        let made = json!({"name": "c", "state": {"waiting": {"reason": "ContainerCreating"}}});
        assert_eq!(look_at(&[pod(json!({"containerStatuses": [made]}))]), Seen::AskPod("of-pod".into()));
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
