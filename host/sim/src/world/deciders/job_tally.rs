//! Counts each ended pod of a Job exactly once. The real controller keeps pods with a finalizer until it has counted them. The
//! simulation remembers them instead.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;

use super::job_status::{completions, indexes_of, is_indexed};
use crate::world::action::Member;
use crate::world::labels;
use crate::world::pod_facts::PodFacts;

/// Wait after the first failure in a row. Each further failure doubles it.
const BACK_OFF: Duration = Duration::from_secs(10);
/// The longest wait after failures in a row.
const LONGEST_BACK_OFF: Duration = Duration::from_mins(10);

/// The counted pods of a Job.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    /// The counts in the Job's first observed status, without the pods that still existed: succeeded and failed.
    before: Option<(i32, i32)>,
    pods: HashMap<String, Fate>,
    succeeded: i32,
    failed: i32,
    indexes: BTreeSet<i32>,
    /// The number of failures since the last success. The time of the last failure is in `last_failure`.
    in_a_row: u32,
    last_failure: Option<Timestamp>,
    drawn: u64,
}

/// The outcome of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Active,
    Succeeded,
    Failed,
    /// The controller deleted the pod for a reason that is not the pod's.
    Released,
}

impl Tally {
    /// Counts the pods that have ended. A pod that was present and is gone counts as failed.
    pub(crate) fn note(&mut self, job: &Job, pods: &[Member], now: Timestamp) {
        self.begin(job, pods);
        let mut ended: Vec<(Timestamp, bool, &Pod)> = Vec::new();
        for member in pods {
            if self.pods.get(member.pod.uid()).is_some_and(|fate| *fate != Fate::Active) {
                continue;
            }
            match fate(job, member) {
                Fate::Succeeded => ended.push((ended_at(&member.pod, now), true, &member.pod)),
                Fate::Failed => ended.push((ended_at(&member.pod, now), false, &member.pod)),
                fate => drop(self.pods.insert(member.pod.uid().to_owned(), fate)),
            }
        }
        // If two pods ended in the same second, the successful one counts as the later one.
        ended.sort_by_key(|(at, succeeded, _)| (*at, *succeeded));
        for (at, succeeded, pod) in ended {
            self.count(pod.uid(), succeeded, at);
            if let Some(index) = index_of(pod).filter(|index| succeeded && *index < completions(job).unwrap_or(0)) {
                self.indexes.insert(index);
            }
        }
        let present: BTreeSet<&str> = pods.iter().map(|member| member.pod.uid()).collect();
        let gone = self.pods.iter().filter(|(uid, fate)| **fate == Fate::Active && !present.contains(uid.as_str()));
        for uid in gone.map(|(uid, _)| uid.clone()).collect::<Vec<_>>() {
            self.count(&uid, false, now);
        }
    }

    /// Starts with the counts that the status already has.
    fn begin(&mut self, job: &Job, pods: &[Member]) {
        if self.before.is_some() {
            return;
        }
        let Some(status) = &job.status else {
            self.before = Some((0, 0));
            return;
        };
        let of = |wanted: Fate| pods.iter().filter(|member| fate(job, member) == wanted).count();
        let without = |count: Option<i32>, wanted: Fate| {
            count.unwrap_or(0).saturating_sub(i32::try_from(of(wanted)).unwrap_or(i32::MAX)).max(0)
        };
        self.before = Some((without(status.succeeded, Fate::Succeeded), without(status.failed, Fate::Failed)));
        self.indexes =
            indexes_of(status.completed_indexes.as_deref().unwrap_or_default(), completions(job).unwrap_or(0));
    }

    fn count(&mut self, uid: &str, succeeded: bool, at: Timestamp) {
        if succeeded {
            self.pods.insert(uid.to_owned(), Fate::Succeeded);
            self.succeeded += 1;
            self.in_a_row = 0;
        } else {
            self.pods.insert(uid.to_owned(), Fate::Failed);
            self.failed += 1;
            self.in_a_row += 1;
            self.last_failure = self.last_failure.max(Some(at));
        }
    }

    /// Records that a pod was deleted and does not count.
    pub(crate) fn release(&mut self, uid: &str) {
        self.pods.insert(uid.to_owned(), Fate::Released);
    }

    /// Draws a new number for a name.
    pub(crate) fn draw(&mut self) -> u64 {
        self.drawn += 1;
        self.drawn
    }

    /// Returns the number of successful pods, or of successful indexes for an Indexed Job.
    pub(crate) fn succeeded(&self, job: &Job) -> i32 {
        if is_indexed(job) {
            return i32::try_from(self.indexes.len()).unwrap_or(i32::MAX);
        }
        self.succeeded + self.before.map_or(0, |before| before.0)
    }

    /// Returns the number of failed pods.
    pub(crate) fn failed(&self) -> i32 {
        self.failed + self.before.map_or(0, |before| before.1)
    }

    /// Returns the successful indexes.
    pub(crate) fn indexes(&self) -> &BTreeSet<i32> {
        &self.indexes
    }

    /// Returns the time until pods may be created again.
    pub(crate) fn back_off(&self, now: Timestamp) -> Duration {
        let (Some(doublings), Some(last)) = (self.in_a_row.checked_sub(1), self.last_failure) else {
            return Duration::ZERO;
        };
        let wait = BACK_OFF.saturating_mul(1 << doublings.min(10)).min(LONGEST_BACK_OFF);
        wait.saturating_sub(Duration::try_from(now.duration_since(last)).unwrap_or_default())
    }
}

fn fate(job: &Job, member: &Member) -> Fate {
    let only_failed = job.spec.as_ref().and_then(|spec| spec.pod_replacement_policy.as_deref()) == Some("Failed");
    match member.pod.phase() {
        "Succeeded" => Fate::Succeeded,
        "Failed" => Fate::Failed,
        _ if member.is_leaving && !only_failed => Fate::Failed,
        _ => Fate::Active,
    }
}

/// Returns the completion index of a pod.
pub(crate) fn index_of(pod: &Pod) -> Option<i32> {
    let index: i32 = pod.metadata.annotations.as_ref()?.get(labels::COMPLETION_INDEX)?.parse().ok()?;
    (index >= 0).then_some(index)
}

/// Returns the end of a pod's last container, else the start of its deletion, else now.
fn ended_at(pod: &Pod, now: Timestamp) -> Timestamp {
    let containers = pod.status.as_ref().and_then(|status| status.container_statuses.as_deref()).unwrap_or_default();
    let ends = containers.iter().filter_map(|one| one.state.as_ref()?.terminated.as_ref()?.finished_at.as_ref());
    let deleted = || pod.metadata.deletion_timestamp.as_ref().map(|time| time.0);
    ends.map(|time| time.0).max().or_else(deleted).map_or(now, |at| at.min(now))
}
