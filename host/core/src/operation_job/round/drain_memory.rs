//! The evictions of a drain that the memory of its node keeps. Source: docs/operationjob.md 3.16.

use std::collections::BTreeMap;

use k8s_openapi::jiff::{SignedDuration, Timestamp};

use crate::object::api_object::Object;
use crate::object::time::after;
use crate::requests::backoff::Backoff;
use crate::requests::writes::{BatchResult, Stopped, Write};

/// Waits after refused evictions.
const REFUSED: Backoff = Backoff::from_secs(5, 60);
/// Time for the cache to show the effect of an accepted eviction. After that time, the host evicts the pod again.
const UNSEEN: SignedDuration = SignedDuration::from_secs(10);
/// Time for the cache to show the change that made an eviction fail.
const OUTDATED: SignedDuration = SignedDuration::from_millis(500);
/// Number of evicted pods of one controller after which its pods stay. Only pods that the controller made for the
/// cordoned node count.
const COMES_BACK: u32 = 3;

/// The evictions of one drain, by UID of the pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct DrainMemory {
    /// The evictions by UID of the pod.
    pub(super) evicted: BTreeMap<String, Evicted>,
    /// UID of the pod whose eviction was decided last. The second UID is that of its controller, if the controller made
    /// the pod after the cordon.
    pub(super) next: Option<(String, Option<String>)>,
    /// Time since which the host sees the node cordoned.
    pub(super) since: Option<Timestamp>,
    /// Number of evicted pods that their controller made after the cordon, by UID of the controller.
    came_back: BTreeMap<String, u32>,
}

/// The eviction of one pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Evicted {
    /// Number of refusals in a row.
    refusals: u32,
    /// Earliest time of the next try.
    pub(super) not_before: Option<Timestamp>,
    /// Message of the last refusal.
    pub(super) refused: Option<String>,
}

impl DrainMemory {
    /// Takes the result of an eviction of this drain. Returns false if the result is of another write, or tells nothing
    /// about the pod.
    pub fn takes(&mut self, result: &BatchResult) -> bool {
        let [Write::Evict { uid, .. }] = result.entry.writes.as_slice() else { return false };
        let Some((_, maker)) = self.next.as_ref().filter(|(next, _)| next == uid) else { return false };
        if let (None, Some(maker)) = (&result.stopped, maker) {
            *self.came_back.entry(maker.clone()).or_default() += 1;
        }
        let evicted = self.evicted.entry(uid.clone()).or_default();
        match &result.stopped {
            None | Some(Stopped::Gone) => {
                *evicted = Evicted { not_before: Some(after(result.at, UNSEEN)), ..Evicted::default() };
            }
            Some(Stopped::Blocked { message, retry_after }) => evicted.refuse(result.at, message, *retry_after),
            // An eviction without an answer may have taken effect. The pod shows whether it did.
            Some(Stopped::Refused { message } | Stopped::Forbidden { message, .. } | Stopped::Unknown { message }) => {
                evicted.refuse(result.at, message, None);
            }
            Some(Stopped::Conflict | Stopped::NotSent) => evicted.not_before = Some(after(result.at, OUTDATED)),
            Some(Stopped::Throttled { .. } | Stopped::LostLease) => return false,
        }
        true
    }

    /// Returns true if the pod's controller keeps making pods for this node although it is cordoned. The node would
    /// never become empty.
    pub(super) fn comes_back(&self, pod: &Object, began: Option<Timestamp>) -> bool {
        let maker = maker(pod, began);
        maker.is_some_and(|maker| self.came_back.get(maker).is_some_and(|evicted| *evicted >= COMES_BACK))
    }
}

/// Returns the UID of the pod's controller, if the controller made the pod after `began`.
pub(super) fn maker(pod: &Object, began: Option<Timestamp>) -> Option<&str> {
    let is_new = pod.created.zip(began).is_some_and(|(created, began)| created > began);
    pod.controller().filter(|_| is_new).map(|owner| owner.uid.as_str())
}

impl Evicted {
    fn refuse(&mut self, at: Timestamp, message: &str, asked: Option<u32>) {
        let asked = asked.map(|seconds| SignedDuration::from_secs(i64::from(seconds.max(1))));
        let wait =
            asked.map_or_else(|| REFUSED.signed_wait(self.refusals), |asked| asked.min(REFUSED.signed_longest()));
        self.refusals = self.refusals.saturating_add(1);
        self.not_before = Some(after(at, wait));
        self.refused = Some(message.to_owned());
    }

    pub(super) fn may_be_tried(&self, now: Timestamp) -> bool {
        self.not_before.is_none_or(|time| time <= now)
    }
}
