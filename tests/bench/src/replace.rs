//! The scenarios `replace` and `crowd`: one job, or a hundred at once, replace all pods of a set, beside a bare client that makes
//! the same writes.
//!
//! It measures both contenders, and their ratios. Both are separate processes with the same account. They run one after the other
//! on the same cluster, and their order alternates from round to round. Each gets a fresh namespace and a fresh simulated cluster,
//! and its remains are removed before the next one begins.

use std::path::Path;

use serde_json::{Map, Value, json};
use tokio::time::{Instant, sleep};

use crate::age;
use crate::arguments::{Mode, Modes, On, Operations, Scenario};
use crate::backend::Backend;
use crate::bench_cluster::{BenchCluster, ServingPods, longest, quick};
use crate::children::{BareProcess, Dropped, HostProcess};
use crate::contenders::{self, Contender};
use crate::crowd;
use crate::goals;
use crate::job_watch::{self, JobWatch, Version};
use crate::meter::Meter;
use crate::metrics;
use crate::requests::Request;
use crate::setup::figures_of;
use crate::spread::{self, as_f64, round};

/// How long the bench checks whether an idle host writes.
const IDLE: std::time::Duration = std::time::Duration::from_secs(10);

const NOTES: &str = "\
A figure of several rounds is its median, with the least and the most in brackets; a ratio is the host's figure to the bare
client's of the same round. Figures per target are of the contender's process alone and go until it last wrote.
- cpu: user and system time of all threads, in nanoseconds from schedstat; apiServerCpu is kube-apiserver's meanwhile, which
  the world (kubelets and controllers in the bench's own process) uses too.
- wakeUps: voluntary context switches of all threads. kibReceived: from all its TCP connections, by the kernel's socket
  diagnosis. requests: answered ones by the audit log, the lease's and open watches apart.
- writes: the lease's apart; acts: without statuses, records and events. conflictsPercent: of the writes but events.
- statusAgeMost: how long the first target that was replaced and not yet counted in the status had been so, at most;
  statusGapMost: between two versions of the status, at most. eventToActionP99: the upper edge of its bucket at /metrics.";

/// Runs each mode with this many targets.
///
/// # Errors
/// If a cluster cannot be started, or a contender does not finish.
pub(crate) async fn run(asked: &Operations, targets: usize, components: &Path) -> anyhow::Result<Value> {
    let rounds = asked.rounds_of(targets);
    let is_crowd = asked.scenario == Scenario::Crowd;
    let mut runs = Vec::new();
    for mode in asked.modes(Modes::Both) {
        let backend = Backend::for_contenders(asked.on).await?;
        let mut figures = Vec::new();
        for number in 1..=rounds {
            eprintln!("{} with {targets} targets: round {number} of {rounds}", mode.word());
            let place = Place { backend: &backend, mode, targets, number, components, is_crowd };
            figures.push(place.round(asked.on == On::Real).await?);
        }
        let spread = spread::of(&figures.iter().collect::<Vec<_>>());
        let run = json!({"mode": mode.word(), "targets": targets, "rounds": figures, "spread": spread});
        runs.push(if is_crowd { goals::beside(run, &crowd::GOALS) } else { run });
    }
    let notes = if is_crowd { format!("{NOTES}{}", crowd::NOTES) } else { NOTES.to_owned() };
    Ok(figures_of(asked, runs, &notes))
}

/// One round.
struct Place<'a> {
    backend: &'a Backend,
    mode: Mode,
    targets: usize,
    number: u32,
    components: &'a Path,
    /// True if there are many jobs.
    is_crowd: bool,
}

impl Place<'_> {
    async fn round(&self, with_ratios: bool) -> anyhow::Result<Value> {
        let order = Contender::in_order(self.number);
        let mut figures = Map::new();
        for contender in order {
            let cluster = BenchCluster::fresh(self.backend, &self.namespace(contender), quick()).await?;
            let serving = cluster.plant(self.mode, self.targets).await?;
            let found = match contender {
                Contender::Bare => self.bare(&cluster, &serving).await?,
                Contender::Host => self.host(&cluster, &serving).await?,
            };
            figures.insert(contender.word().to_owned(), found);
            cluster.remove().await?;
        }
        Ok(contenders::figures_of_round(figures, order[0], with_ratios))
    }

    fn namespace(&self, contender: Contender) -> String {
        format!("{}-{}-{}", contender.word(), self.mode.word(), self.number)
    }

    async fn bare(&self, cluster: &BenchCluster, serving: &ServingPods) -> anyhow::Result<Value> {
        let mut process = BareProcess::start(&self.backend.kubeconfig()?, &cluster.namespace, self.mode).await?;
        let mut meter = Meter::start(self.backend, process.id()?)?;
        let begun = Instant::now();
        process.work(longest(self.targets)).await?;
        let mut figures = contenders::speed(self.targets, begun.elapsed());
        meter.until_quiet().await?;
        figures.extend(meter.figures(self.targets)?);
        process.stop().await?;
        figures.insert("verdict".to_owned(), cluster.verdict(serving).await?.into());
        Ok(figures.into())
    }

    async fn host(&self, cluster: &BenchCluster, serving: &ServingPods) -> anyhow::Result<Value> {
        let process = HostProcess::start(&self.backend.kubeconfig()?, self.components, Dropped::Replace).await?;
        let watch = JobWatch::start(cluster.client.clone(), &cluster.namespace);
        let before = process.metrics().await?;
        let mut meter = Meter::start(self.backend, process.id())?;
        let begun = Instant::now();
        if self.is_crowd {
            self.create_crowd(cluster, &serving.names()).await?;
            watch.until_all_succeeded(crowd::dealt_out(&serving.names()).count(), longest(self.targets)).await?;
        } else {
            cluster.create(&job_watch::replace("bench", &serving.names(), json!({}))).await?;
            watch.until_succeeded("bench", longest(self.targets)).await?;
        }
        let mut figures = contenders::speed(self.targets, begun.elapsed());
        meter.until_quiet().await?;
        figures.extend(meter.figures(self.targets)?);
        self.told_by_host(&mut figures, &before, &process.metrics().await?);
        figures.insert("writesInTenIdleSeconds".to_owned(), idle_writes(self.backend).await?.into());
        process.stop().await?;
        figures.insert("verdict".to_owned(), cluster.verdict(serving).await?.into());
        if self.is_crowd {
            figures.insert("slowestToMedianJob".to_owned(), json!(crowd::slowest_to_median(&watch.all())));
        } else {
            let (age, gap) = ages(cluster, serving, &watch.of("bench"));
            figures.insert("statusAgeMillisecondsMost".to_owned(), age);
            figures.insert("statusGapMillisecondsMost".to_owned(), gap);
        }
        Ok(figures.into())
    }

    /// Creates the jobs concurrently, as many users would.
    async fn create_crowd(&self, cluster: &BenchCluster, names: &[String]) -> anyhow::Result<()> {
        let jobs: Vec<_> =
            crowd::dealt_out(names).map(|(name, targets)| job_watch::replace(&name, targets, json!({}))).collect();
        futures::future::try_join_all(jobs.iter().map(|job| cluster.create(job))).await.map(drop)
    }

    fn told_by_host(&self, figures: &mut Map<String, Value>, before: &str, after: &str) {
        let per_target = |count: fn(&str) -> Option<f64>| {
            let more = count(after).map(|all| all - count(before).unwrap_or(0.0));
            more.map(|more| round(more / as_f64(self.targets)))
        };
        figures.insert("roundsPerTarget".to_owned(), json!(per_target(metrics::rounds)));
        figures.insert("visitsPerTarget".to_owned(), json!(per_target(metrics::visits)));
        figures.insert("eventToActionP99Milliseconds".to_owned(), metrics::event_to_action_p99(after));
    }
}

/// Returns the greatest age of the status, and the longest time between two versions of the status, in milliseconds.
fn ages(cluster: &BenchCluster, serving: &ServingPods, versions: &[Version]) -> (Value, Value) {
    let ledger = cluster.world.ledger();
    let replaced = age::replaced(&ledger.entries(), ledger.opened(), &serving.targets);
    let versions: Vec<(Instant, usize)> = versions.iter().map(|version| (version.at, version.ended())).collect();
    let milliseconds = |time: Option<std::time::Duration>| json!(time.map(|time| round(time.as_secs_f64() * 1000.0)));
    (milliseconds(age::greatest(&versions, &replaced)), milliseconds(age::longest_gap(&versions)))
}

/// Returns the number of writes of a quiet host in ten seconds, without writes of the lease.
async fn idle_writes(backend: &Backend) -> anyhow::Result<usize> {
    let mut tail = backend.tail()?;
    sleep(IDLE).await;
    Ok(backend.more(&mut tail)?.iter().filter(|request| Request::is_write(request)).count())
}
