//! Counts and latencies of the requests to the API server, by resource, verb and code.
//!
//! No label contains a job, target or name, so kinds, verbs and codes limit the number of series. Plugins choose kinds, so the number of
//! kinds has its own limit.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

/// The upper bounds of the latency buckets, in seconds. They range from a local reply to the request timeout.
pub const LATENCY_BOUNDS: [f64; 9] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.3, 1.0, 3.0, 10.0];

/// The number of resources that are counted by name. All further resources count as `Other`.
const RESOURCES: usize = 64;

/// The labels of a count.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RequestLabels {
    /// The resource with its subresource, such as `pods/eviction`.
    pub resource: String,
    /// The verb: `get`, `list`, `watch`, `create`, `update`, `patch` or `delete`.
    pub verb: &'static str,
    /// The HTTP status, `timeout`, `broken`, or `unconnected` if no connection could be opened.
    pub code: String,
}

/// The counts of the requests with one set of labels.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RequestCounts {
    /// The number of requests.
    pub count: u64,
    /// The total time of the requests, in seconds.
    pub seconds: f64,
    /// The number of requests in each bucket of [`LATENCY_BOUNDS`]. The counts are not cumulative.
    pub buckets: [u64; LATENCY_BOUNDS.len()],
}

impl RequestCounts {
    fn add(&mut self, other: &Self) {
        self.count += other.count;
        self.seconds += other.seconds;
        self.buckets.iter_mut().zip(other.buckets).for_each(|(bucket, more)| *bucket += more);
    }
}

/// The counts of requests, shared by all senders.
#[derive(Default)]
pub struct Requests {
    tallies: Mutex<BTreeMap<RequestLabels, RequestCounts>>,
    resources: Mutex<BTreeSet<String>>,
    /// Requests that are also counted separately, such as the requests for one kind of objects.
    parts: Mutex<Vec<Arc<Requests>>>,
}

impl Requests {
    /// Returns a separate part of these counts. The whole includes its requests.
    pub(crate) fn part(&self) -> Arc<Self> {
        let part = Arc::<Self>::default();
        self.parts.lock().push(part.clone());
        part
    }

    /// Returns all counts so far, including the counts of the parts.
    pub fn snapshot(&self) -> Vec<(RequestLabels, RequestCounts)> {
        let mut all = self.tallies.lock().clone();
        for (labels, tally) in self.parts.lock().iter().flat_map(|part| part.own()) {
            all.entry(labels).or_default().add(&tally);
        }
        all.into_iter().collect()
    }

    /// Returns the counts so far without the counts of the parts.
    pub fn own(&self) -> Vec<(RequestLabels, RequestCounts)> {
        self.tallies.lock().iter().map(|(labels, tally)| (labels.clone(), tally.clone())).collect()
    }

    /// Returns the number of requests of `verb` to `resource`, with any result.
    pub fn count(&self, resource: &str, verb: &str) -> u64 {
        let all = self.snapshot();
        all.iter().filter(|(l, _)| l.resource == resource && l.verb == verb).map(|(_, t)| t.count).sum()
    }

    pub(crate) fn note(&self, mut labels: RequestLabels, took: Duration) {
        if !self.is_named(&labels.resource) {
            "Other".clone_into(&mut labels.resource);
        }
        let seconds = took.as_secs_f64();
        let mut tallies = self.tallies.lock();
        let tally = tallies.entry(labels).or_default();
        tally.count += 1;
        tally.seconds += seconds;
        let bucket = LATENCY_BOUNDS.iter().position(|bound| seconds <= *bound);
        if let Some(count) = bucket.and_then(|at| tally.buckets.get_mut(at)) {
            *count += 1;
        }
    }

    fn is_named(&self, resource: &str) -> bool {
        let mut resources = self.resources.lock();
        if resources.contains(resource) {
            return true;
        }
        let has_room = resources.len() < RESOURCES;
        if has_room {
            resources.insert(resource.to_owned());
        }
        has_room
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_counted_by_what_came_of_them() {
        let requests = Requests::default();
        let labels = |code: &str| RequestLabels { resource: "pods".into(), verb: "patch", code: code.into() };
        requests.note(labels("200"), Duration::from_millis(7));
        requests.note(labels("409"), Duration::from_secs(60));
        let snapshot = requests.snapshot();
        assert_eq!(requests.count("pods", "patch"), 2);
        assert_eq!(snapshot[0].1.buckets[1], 1);
        assert_eq!(snapshot[1].1.buckets.iter().sum::<u64>(), 0);
    }

    #[test]
    fn a_part_is_counted_by_itself_and_in_the_whole() {
        let (requests, labels) =
            (Requests::default(), |verb| RequestLabels { resource: "jobs".into(), verb, code: "201".into() });
        let part = requests.part();
        part.note(labels("create"), Duration::from_millis(1));
        requests.note(labels("create"), Duration::from_millis(1));
        requests.note(labels("delete"), Duration::from_millis(1));
        assert_eq!((requests.count("jobs", "create"), part.count("jobs", "create")), (2, 1));
        assert_eq!(requests.own().iter().map(|(_, tally)| tally.count).collect::<Vec<_>>(), [1, 1]);
        assert_eq!(requests.snapshot()[0].1.buckets[0], 2);
    }

    #[test]
    fn resources_that_plugins_choose_make_no_series_without_end() {
        let requests = Requests::default();
        for number in 0..1_000 {
            let labels = RequestLabels { resource: format!("kind-{number}"), verb: "get", code: "200".into() };
            requests.note(labels, Duration::from_millis(1));
        }
        assert_eq!(requests.snapshot().len(), 65);
        assert_eq!((requests.count("kind-63", "get"), requests.count("Other", "get")), (1, 936));
    }
}
