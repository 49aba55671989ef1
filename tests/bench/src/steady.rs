//! The scenario `steady`: how long the host takes from a change to the write that it calls for, while little happens.
//!
//! It creates ten jobs of one target a second for a minute. So every second about ten jobs begin and, in a CollaSet, ten pods are
//! asked to go. It measures percentiles of the time between a change and the host's write for this change.
//!
//! Both moments come from the API server's audit log, with microseconds. A change counts from the server's answer, when its watch
//! event is already on the way. A write counts from the moment when the server received it. So the figure contains the watch, the
//! host's round with the plugin, and the network. It does not contain the server's time to store the write. If the event arrives
//! before the answer to the change, the time counts as 0. The log of all writes slows the server a little, which is not noticeable
//! at this rate.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use oarlock_support::accounts::Account;
use oarlock_support::audit::{Audit, Request};
use serde_json::{Map, Value, json};

use crate::arguments::{Modes, Operations};
use crate::backend::Backend;
use crate::meter::Meter;
use crate::metrics;
use crate::requests;
use crate::setup::{HostSetup, SetupOptions, figures_of, run_of};
use crate::spread::{as_f64, quantile, round};

/// The time between two creations of jobs.
const EACH: Duration = Duration::from_millis(100);
/// The maximum number of jobs, enough for a minute.
const JOBS: usize = 600;

const NOTES: &str = "\
Times are the API server's, by its audit log: from its answer to the change to its receipt of the host's write.
- jobToTold: from a job's creation to the first write on the job. jobToAct: to the first write on its target, an eviction or
  a mark; the job's status is written before that. goingToRelease: from the deletion of an origin to the release of its
  finalizer. all: of these three together.
- cpuPercent: of one core, from the first job until the host last wrote.";

/// Runs the scenario.
///
/// # Errors
/// If a job does not end.
pub(crate) async fn run(asked: &Operations, pods: usize, components: &Path) -> anyhow::Result<Value> {
    let backend = Backend::start(asked.on, Audit::Writes).await?;
    let mut runs = Vec::new();
    for mode in asked.modes(Modes::CollaSet) {
        let mut rounds = Vec::new();
        for number in 1..=asked.rounds(1) {
            let namespace = format!("steady-{}-{number}", mode.word());
            let setup = HostSetup::set(&backend, &namespace, SetupOptions::new(mode, pods, components)).await?;
            rounds.push(once(setup, pods.min(JOBS)).await?);
        }
        runs.push(run_of(mode.word(), pods, rounds));
    }
    Ok(figures_of(asked, runs, NOTES))
}

async fn once(setup: HostSetup<'_>, jobs: usize) -> anyhow::Result<Value> {
    let mut tail = setup.backend.plane()?.audit_tail()?;
    let mut meter = Meter::start(setup.backend, setup.host.id())?;
    setup.create_jobs(jobs, EACH, &json!({})).await?;
    setup.until_ended(jobs).await?;
    meter.until_quiet().await?;
    let mut figures = percentiles(&tail.more()?)?;
    let cpu = meter.spent().cpu;
    figures.insert("cpuPercent".to_owned(), round(100.0 * cpu.as_secs_f64() / meter.took().as_secs_f64()).into());
    figures.insert("cpuMillisecondsPerJob".to_owned(), round(cpu.as_secs_f64() * 1000.0 / as_f64(jobs)).into());
    let writes = requests::writes(meter.requests());
    figures.insert("writesPerJob".to_owned(), round(as_f64(writes) / as_f64(jobs)).into());
    let p99 = metrics::event_to_action_p99(&setup.host.metrics().await?);
    figures.insert("eventToActionP99Milliseconds".to_owned(), p99);
    figures.insert("verdict".to_owned(), setup.cluster.verdict(&setup.chosen(jobs)).await?.into());
    setup.end().await?;
    Ok(figures.into())
}

/// Returns percentiles of each kind of change, in milliseconds.
fn percentiles(requests: &[Request]) -> anyhow::Result<Map<String, Value>> {
    let mut figures = Map::new();
    let mut all = Vec::new();
    for (name, change, write) in KINDS {
        let times = waits(requests, change, write)?;
        all.extend(times.iter().copied());
        tell(&mut figures, name, &times);
    }
    tell(&mut figures, "all", &all);
    Ok(figures)
}

fn tell(figures: &mut Map<String, Value>, name: &str, times: &[f64]) {
    for (word, share) in [("P50", 0.5), ("P99", 0.99), ("Most", 1.0)] {
        figures.insert(format!("{name}{word}Milliseconds"), json!(quantile(times, share).map(round)));
    }
    figures.insert(format!("{name}Count"), times.len().into());
}

/// A function that names the object of a change or a write, if the request is of one kind.
type Kind = fn(&Request) -> Option<&str>;

/// Changes, and the writes that they call for. A job has the name of its target, so that both share one name.
const KINDS: [(&str, Kind, Kind); 3] = [
    ("jobToTold", created_job, |request| host_write(request, "operationjobs")),
    ("jobToAct", created_job, |request| host_write(request, "pods")),
    ("goingToRelease", asked_to_go, |request| host_write(request, "pods")),
];

fn created_job(request: &Request) -> Option<&str> {
    let fits = request.verb == "create" && request.resource == "operationjobs" && request.code == 201;
    fits.then_some(&request.name)
}

fn asked_to_go(request: &Request) -> Option<&str> {
    let fits = request.user == Account::World.user() && request.verb == "delete" && request.resource == "pods";
    (fits && request.code == 200).then_some(&request.name)
}

fn host_write<'a>(request: &'a Request, resource: &str) -> Option<&'a str> {
    (request.user == Account::Host.user() && request.resource == resource).then_some(&request.name)
}

/// Returns the milliseconds from each object's first change to the first write after it. Objects without such a write are omitted.
fn waits(requests: &[Request], change: Kind, write: Kind) -> anyhow::Result<Vec<f64>> {
    let mut changes = BTreeMap::<&str, (Timestamp, Timestamp)>::new();
    let mut writes = BTreeMap::<&str, Vec<Timestamp>>::new();
    for request in requests {
        if let Some(name) = change(request) {
            let times = (request.received.parse()?, request.answered.parse()?);
            let first = changes.entry(name).or_insert(times);
            *first = times.min(*first);
        }
        if let Some(name) = write(request) {
            writes.entry(name).or_default().push(request.received.parse()?);
        }
    }
    let wait = |(name, (received, answered)): (&&str, &(Timestamp, Timestamp))| {
        let first = writes.get(*name)?.iter().filter(|write| *write >= received).min()?;
        Some(Duration::try_from(first.duration_since(*answered)).unwrap_or_default().as_secs_f64() * 1000.0)
    };
    Ok(changes.iter().filter_map(wait).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(user: Account, what: (&str, &str, u64), received: u32, answered: u32) -> Request {
        let time = |ms: u32| format!("2026-01-01T00:00:00.{ms:03}000Z");
        Request {
            as_user: String::new(),
            user: user.user().into(),
            verb: what.0.into(),
            resource: what.1.into(),
            subresource: String::new(),
            namespace: "shop".into(),
            name: "a".into(),
            code: what.2,
            received: time(received),
            dry_run: false,
            answered: time(answered),
        }
    }

    #[test]
    fn time_is_from_the_first_change_to_the_first_write_after_it() {
        let requests = [
            request(Account::Host, ("patch", "pods", 200), 5, 6),
            request(Account::World, ("delete", "pods", 200), 10, 12),
            request(Account::World, ("delete", "pods", 200), 15, 16),
            request(Account::Host, ("patch", "pods", 200), 20, 21),
            request(Account::Host, ("patch", "pods", 200), 30, 31),
        ];
        let write: Kind = |request| host_write(request, "pods");
        assert_eq!(waits(&requests, asked_to_go, write).unwrap(), [8.0]);
        assert!(waits(&requests, created_job, write).unwrap().is_empty());
    }

    #[test]
    fn event_that_overtakes_the_answer_counts_as_no_time() {
        let requests = [
            request(Account::Admin, ("create", "operationjobs", 201), 10, 20),
            request(Account::Host, ("patch", "operationjobs", 200), 15, 25),
        ];
        assert_eq!(waits(&requests, created_job, |request| host_write(request, "operationjobs")).unwrap(), [0.0]);
    }
}
