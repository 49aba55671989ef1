//! The scenarios `replace` and `crowd`: one job, or a hundred at once, replace all pods of a set, beside a bare client that makes
//! the same writes.
//!
//! Takes the number of targets and the cluster; yields figures, and ratios of the host's to the bare client's. Both are
//! processes of their own with the same account, on the same cluster, one after the other; which comes first alternates from
//! round to round. Each gets a fresh namespace and a fresh world, and what it leaves is removed before the next one begins.
//! May not judge.

use std::path::Path;

use serde_json::{Map, Value, json};
use tokio::time::{Instant, sleep};

use crate::age;
use crate::arguments::{Mode, Modes, On, Operations, Scenario};
use crate::children::{BareProcess, Dropped, HostProcess};
use crate::contenders::{self, Contender};
use crate::crowd;
use crate::goals;
use crate::ground::Ground;
use crate::job_watch::{self, JobWatch, Version};
use crate::meter::Meter;
use crate::metrics;
use crate::requests::Request;
use crate::scene::figures_of;
use crate::site::{Planted, Site, longest, quick};
use crate::spread::{self, as_f64, round};

/// How long is watched whether a host writes that has nothing to do.
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
/// If a cluster cannot be started or a contender does not come to its end.
pub(crate) async fn run(asked: &Operations, targets: usize, components: &Path) -> anyhow::Result<Value> {
    let rounds = asked.rounds_of(targets);
    let is_crowd = asked.scenario == Scenario::Crowd;
    let mut runs = Vec::new();
    for mode in asked.modes(Modes::Both) {
        let ground = Ground::for_contenders(asked.on).await?;
        let mut figures = Vec::new();
        for number in 1..=rounds {
            eprintln!("{} with {targets} targets: round {number} of {rounds}", mode.word());
            let place = Place { ground: &ground, mode, targets, number, components, is_crowd };
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
    ground: &'a Ground,
    mode: Mode,
    targets: usize,
    number: u32,
    components: &'a Path,
    /// Whether there are many jobs.
    is_crowd: bool,
}

impl Place<'_> {
    async fn round(&self, with_ratios: bool) -> anyhow::Result<Value> {
        let order = Contender::in_order(self.number);
        let mut figures = Map::new();
        for contender in order {
            let site = Site::fresh(self.ground, &self.namespace(contender), quick()).await?;
            let planted = site.plant(self.mode, self.targets).await?;
            let found = match contender {
                Contender::Bare => self.bare(&site, &planted).await?,
                Contender::Host => self.host(&site, &planted).await?,
            };
            figures.insert(contender.word().to_owned(), found);
            site.remove().await?;
        }
        Ok(contenders::figures_of_round(figures, order[0], with_ratios))
    }

    fn namespace(&self, contender: Contender) -> String {
        format!("{}-{}-{}", contender.word(), self.mode.word(), self.number)
    }

    async fn bare(&self, site: &Site, planted: &Planted) -> anyhow::Result<Value> {
        let mut process = BareProcess::start(&self.ground.kubeconfig()?, &site.namespace, self.mode).await?;
        let mut meter = Meter::start(self.ground, process.id()?)?;
        let begun = Instant::now();
        process.work(longest(self.targets)).await?;
        let mut figures = contenders::speed(self.targets, begun.elapsed());
        meter.until_quiet().await?;
        figures.extend(meter.figures(self.targets)?);
        process.stop().await?;
        figures.insert("verdict".to_owned(), site.verdict(planted).await?.into());
        Ok(figures.into())
    }

    async fn host(&self, site: &Site, planted: &Planted) -> anyhow::Result<Value> {
        let process = HostProcess::start(&self.ground.kubeconfig()?, self.components, Dropped::Replace).await?;
        let watch = JobWatch::start(site.client.clone(), &site.namespace);
        let before = process.metrics().await?;
        let mut meter = Meter::start(self.ground, process.id())?;
        let begun = Instant::now();
        if self.is_crowd {
            self.create_crowd(site, &planted.names()).await?;
            watch.until_all_succeeded(crowd::dealt_out(&planted.names()).count(), longest(self.targets)).await?;
        } else {
            site.create(&job_watch::replace("bench", &planted.names(), json!({}))).await?;
            watch.until_succeeded("bench", longest(self.targets)).await?;
        }
        let mut figures = contenders::speed(self.targets, begun.elapsed());
        meter.until_quiet().await?;
        figures.extend(meter.figures(self.targets)?);
        self.told_by_host(&mut figures, &before, &process.metrics().await?);
        figures.insert("writesInTenIdleSeconds".to_owned(), idle_writes(self.ground).await?.into());
        process.stop().await?;
        figures.insert("verdict".to_owned(), site.verdict(planted).await?.into());
        if self.is_crowd {
            figures.insert("slowestToMedianJob".to_owned(), json!(crowd::slowest_to_median(&watch.all())));
        } else {
            let (age, gap) = ages(site, planted, &watch.of("bench"));
            figures.insert("statusAgeMillisecondsMost".to_owned(), age);
            figures.insert("statusGapMillisecondsMost".to_owned(), gap);
        }
        Ok(figures.into())
    }

    /// Creates the jobs beside one another, as many users would.
    async fn create_crowd(&self, site: &Site, names: &[String]) -> anyhow::Result<()> {
        let jobs: Vec<_> =
            crowd::dealt_out(names).map(|(name, targets)| job_watch::replace(&name, targets, json!({}))).collect();
        futures::future::try_join_all(jobs.iter().map(|job| site.create(job))).await.map(drop)
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

/// How old the status became, and the longest time between two versions of it, in milliseconds.
fn ages(site: &Site, planted: &Planted, versions: &[Version]) -> (Value, Value) {
    let ledger = site.world.ledger();
    let replaced = age::replaced(&ledger.entries(), ledger.opened(), &planted.targets);
    let versions: Vec<(Instant, usize)> = versions.iter().map(|version| (version.at, version.ended())).collect();
    let milliseconds = |time: Option<std::time::Duration>| json!(time.map(|time| round(time.as_secs_f64() * 1000.0)));
    (milliseconds(age::greatest(&versions, &replaced)), milliseconds(age::longest_gap(&versions)))
}

/// Writes but those for the lease within ten seconds, of a host that is quiet.
async fn idle_writes(ground: &Ground) -> anyhow::Result<usize> {
    let mut tail = ground.tail()?;
    sleep(IDLE).await;
    Ok(ground.more(&mut tail)?.iter().filter(|request| Request::is_write(request)).count())
}
