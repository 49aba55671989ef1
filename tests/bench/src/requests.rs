//! The requests of one contender, and counts of them per target.
//!
//! Requests for the leader's lease are never counted, because their number depends on time and not on work.

use std::collections::BTreeMap;

use k8s_openapi::jiff::Timestamp;
use oarlock_support::audit;
use serde_json::{Value, json};

use crate::spread::{as_f64, round};

/// One answered request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    /// The verb, as the audit log names it.
    pub(crate) verb: String,
    /// The plural name of the resource, with the subresource.
    pub(crate) resource: String,
    /// The HTTP status of the reply.
    pub(crate) code: u64,
    /// The time at which the server received the request, if known.
    pub(crate) received: Option<Timestamp>,
}

impl From<audit::Request> for Request {
    fn from(found: audit::Request) -> Self {
        let audit::Request { verb, resource, subresource, code, received, .. } = found;
        let resource = if subresource.is_empty() { resource } else { format!("{resource}/{subresource}") };
        Self { verb, resource, code, received: received.parse().ok() }
    }
}

impl Request {
    /// Returns true if the request is for the leader's lease.
    pub(crate) fn is_lease(&self) -> bool {
        self.resource == "leases"
    }

    /// Returns true if the request changes or evicts a pod.
    pub(crate) fn is_for_a_pod(&self) -> bool {
        self.is_write() && ["pods", "pods/eviction"].contains(&self.resource.as_str())
    }

    /// Returns true if the request changes an object other than the lease.
    pub(crate) fn is_write(&self) -> bool {
        !["get", "list", "watch"].contains(&self.verb.as_str()) && !self.is_lease()
    }
}

/// Returns the number of requests, without the lease's.
pub(crate) fn all(requests: &[Request]) -> usize {
    requests.iter().filter(|request| !request.is_lease()).count()
}

/// Returns the number of writes.
pub(crate) fn writes(requests: &[Request]) -> usize {
    requests.iter().filter(|request| request.is_write()).count()
}

/// Returns the number of writes that act. Writes of statuses, records and events do not act.
pub(crate) fn acts(requests: &[Request]) -> usize {
    let told = ["operationjobs/status", "operationrecords", "events"];
    requests.iter().filter(|request| request.is_write() && !told.contains(&request.resource.as_str())).count()
}

/// Returns the number of writes of each verb, resource and code, per target.
pub(crate) fn by_kind(requests: &[Request], targets: usize) -> Value {
    let mut counts = BTreeMap::<String, usize>::new();
    for Request { verb, resource, code, .. } in requests.iter().filter(|request| request.is_write()) {
        *counts.entry(format!("{verb} {resource} {code}")).or_default() += 1;
    }
    counts.into_iter().map(|(kind, n)| (kind, json!(round(as_f64(n) / as_f64(targets))))).collect()
}

/// Returns the number of requests of each verb and resource, per target. Reads count; watches and the lease do not.
pub(crate) fn by_verb(requests: &[Request], targets: usize) -> Value {
    let mut counts = BTreeMap::<String, usize>::new();
    for Request { verb, resource, .. } in requests.iter().filter(|one| !one.is_lease() && one.verb != "watch") {
        *counts.entry(format!("{verb} {resource}")).or_default() += 1;
    }
    counts.into_iter().map(|(kind, n)| (kind, json!(round(as_f64(n) / as_f64(targets))))).collect()
}

/// Returns the longest time between two writes, in seconds, and the seconds from the first write until this pause began. A long
/// pause shows a contender that stands still.
pub(crate) fn longest_pause(requests: &[Request]) -> Option<(f64, f64)> {
    let mut times: Vec<Timestamp> =
        requests.iter().filter(|one| one.is_write()).filter_map(|one| one.received).collect();
    times.sort_unstable();
    let first = *times.first()?;
    let seconds = |from: Timestamp, to: Timestamp| to.duration_since(from).as_secs_f64();
    let pauses = times.iter().zip(times.iter().skip(1)).map(|(a, b)| (seconds(*a, *b), seconds(first, *a)));
    pauses.max_by(|a, b| a.0.total_cmp(&b.0)).map(|(pause, after)| (round(pause), round(after)))
}

/// Returns the percentage of writes that were refused as conflicts. Events do not count.
pub(crate) fn conflicts_percent(requests: &[Request]) -> f64 {
    let checked = || requests.iter().filter(|request| request.is_write() && request.resource != "events");
    let refused = checked().filter(|request| request.code == 409).count();
    round(100.0 * as_f64(refused) / as_f64(checked().count().max(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(verb: &str, resource: &str, code: u64) -> Request {
        Request { verb: verb.into(), resource: resource.into(), code, received: None }
    }

    #[test]
    fn leases_are_never_counted_and_events_are_no_acts() {
        let requests = [
            request("update", "leases", 409),
            request("get", "pods", 200),
            request("create", "events", 201),
            request("patch", "operationjobs/status", 200),
            request("create", "pods/eviction", 201),
            request("patch", "pods", 409),
        ];
        assert_eq!((all(&requests), writes(&requests), acts(&requests)), (5, 4, 2));
        assert_eq!(requests.iter().filter(|request| request.is_for_a_pod()).count(), 2);
        assert!((conflicts_percent(&requests) - 33.333).abs() < 0.001);
        assert_eq!(by_kind(&requests, 2)["create pods/eviction 201"], json!(0.5));
        assert_eq!(longest_pause(&requests), None);
    }

    #[test]
    fn a_pause_is_between_two_writes_in_the_order_in_which_the_server_received_them() {
        let at = |verb: &str, second: u8| {
            let received = format!("2026-01-01T00:00:{second:02}.500000Z").parse().ok();
            Request { received, ..request(verb, "pods", 200) }
        };
        let requests = [at("patch", 9), at("patch", 2), at("get", 5), at("patch", 3), at("patch", 40)];
        assert_eq!(longest_pause(&requests), Some((31.0, 7.0)));
        assert_eq!(longest_pause(&requests[..1]), None);
    }
}
