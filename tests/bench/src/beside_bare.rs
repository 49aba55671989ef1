//! The scenario `beside-bare`: what the host costs an API server, beside a bare client that makes the same writes.
//!
//! It measures both contenders, and their ratios. It differs from `replace` in the surroundings of the contenders:
//!
//! - Each contender of each round has a new etcd and API server, so neither is affected by what the other left behind.
//! - The pods have a usual size. A controller makes the five writes for each replacement that a CollaSet's controller makes, and no
//!   kubelet runs.
//! - The bench watches no job while the host works, because the API server would send each status twice.

mod admission;
mod controller;
mod pods;
mod prepared;
mod protocol;
mod verdict;

use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use kube::api::{Api, DynamicObject, PostParams};
use serde_json::{Map, Value, json};
use tokio::time::Instant;

use self::admission::AdmissionCounts;
use self::prepared::{NAMESPACE, PreparedCluster};
use crate::arguments::{Mode, On, Operations};
use crate::bench_cluster::longest;
use crate::children::{BareProcess, Dropped, HostProcess};
use crate::contenders::{self, Contender};
use crate::goals::{self, Goal};
use crate::job_watch::{self, JobWatch};
use crate::meter::Meter;
use crate::setup::figures_of;
use crate::spread::{self, as_f64, round};

/// The name of the job.
const JOB: &str = "bench";
/// The name of the figure: the host's CPU time beyond the bare client's.
const CPU_OVER_BARE: &str = "cpuMillisecondsPerTargetOverBare";

const GOALS: [Goal; 6] = [
    Goal {
        figure: "/ratios/apiServerCpuMillisecondsPerTarget",
        name: "the API server's CPU to that with the bare client",
        goal: "at most 1.04",
    },
    Goal {
        figure: "/host/cpuMillisecondsPerTargetOverBare",
        name: "CPU per target beyond the bare client's, ms",
        goal: "at most 0.6",
    },
    Goal { figure: "/ratios/targetsPerSecond", name: "rate to the bare client's", goal: "at least 0.95" },
    Goal { figure: "/host/peakRssMib", name: "peak memory, MiB", goal: "at most 48 at 1,000 targets, 70 at 5,000" },
    Goal { figure: "/host/wrong", name: "wrong outcomes of the host", goal: "0" },
    Goal { figure: "/bare/wrong", name: "wrong outcomes of the bare client", goal: "0" },
];

const NOTES: &str = "\
Each contender of each round has an etcd and an API server of its own, with what `oarlock manifests` prints; the store waits for
the disk. A figure of several rounds is its median, with the least and the most in brackets; a ratio is the host's figure to the
bare client's of the same round.
- apiServerCpu: user and system time of kube-apiserver until the contender last wrote and the controller had finished. It includes
  the five writes for each target of the controller, which is a part of the bench. apiServerIdle: what it used in the second before,
  per second, with the contender connected and nothing to do.
- seconds, targetsPerSecond: until the bare client saw every target gone and as many others serve, or the job had succeeded.
- cpu, wakeUps, kibReceived, requests, writes: of the contender's process alone, as for `replace`.
- longestPauseSeconds: between two writes of the contender, and how long after its first one it began.
- controllerWrites: requests of the controller. podKib: an origin as the API server shows it; 8 KB of it were sent.
- policyExclusions: how often the match conditions of a policy of pods excluded a write of a pod, by anybody, per such write. The API
  server does not count what a policy admits, such as the write by which the host begins to hold a pod.
  policyFailures: apiserver_validating_admission_policy_check_total, which counts denials and errors.
- wrong: targets that are not gone or have not exactly one pod that serves in their place, and other pods.";

/// Runs all rounds.
///
/// # Errors
/// If a cluster cannot be started, or a contender does not finish.
pub(crate) async fn run(asked: &Operations, targets: usize, components: &Path) -> anyhow::Result<Value> {
    let rounds = asked.rounds(3);
    let mut figures = Vec::new();
    for number in 1..=rounds {
        let contest = Contest { on: asked.on, targets, components };
        figures.push(contest.round(number, rounds).await?);
    }
    let spread = spread::of(&figures.iter().collect::<Vec<_>>());
    let run = json!({"mode": Mode::CollaSet.word(), "targets": targets, "rounds": figures, "spread": spread});
    Ok(figures_of(asked, vec![goals::beside(run, &GOALS)], NOTES))
}

/// The parameters that are equal in all rounds.
struct Contest<'a> {
    on: On,
    targets: usize,
    components: &'a Path,
}

impl Contest<'_> {
    async fn round(&self, number: u32, rounds: u32) -> anyhow::Result<Value> {
        let order = Contender::in_order(number);
        let mut figures = Map::new();
        for contender in order {
            eprintln!("{} with {} targets: round {number} of {rounds}", contender.word(), self.targets);
            let cluster = PreparedCluster::start(self.on, self.targets).await?;
            let found = match contender {
                Contender::Bare => self.bare(cluster).await?,
                Contender::Host => self.host(cluster).await?,
            };
            figures.insert(contender.word().to_owned(), found.into());
        }
        let has_ratios = self.on == On::Real;
        if has_ratios {
            add_difference(&mut figures);
        }
        Ok(contenders::figures_of_round(figures, order[0], has_ratios))
    }

    async fn bare(&self, mut cluster: PreparedCluster) -> anyhow::Result<Map<String, Value>> {
        let mut process = BareProcess::start(&cluster.backend.kubeconfig()?, NAMESPACE, Mode::CollaSet).await?;
        let before = Before::read(&cluster).await?;
        let mut meter = Meter::start(&cluster.backend, process.id()?)?;
        let begun = Instant::now();
        let work = async {
            process.work(longest(self.targets)).await?;
            Ok::<Duration, anyhow::Error>(begun.elapsed())
        };
        // If the controller fails, the wait for the contender ends too.
        let (took, ()) = tokio::try_join!(work, cluster.controller.until_gone(self.targets, longest(self.targets)))?;
        cluster.controller.until_finished(self.targets, longest(self.targets)).await?;
        meter.until_quiet().await?;
        let figures = self.figures(&cluster, &before, (&meter, took)).await?;
        process.stop().await?;
        Ok(figures)
    }

    async fn host(&self, mut cluster: PreparedCluster) -> anyhow::Result<Map<String, Value>> {
        let kubeconfig = cluster.backend.kubeconfig()?;
        let process = HostProcess::start(&kubeconfig, self.components, Dropped::Replace).await?;
        let before = Before::read(&cluster).await?;
        let mut meter = Meter::start(&cluster.backend, process.id())?;
        let begun = Instant::now();
        let jobs: Api<DynamicObject> = Api::namespaced_with(cluster.client.clone(), NAMESPACE, &job_watch::resource());
        let job = job_watch::replace(JOB, &cluster.names(), json!({}));
        jobs.create(&PostParams::default(), &job).await.context("cannot create the job")?;
        cluster.controller.until_gone(self.targets, longest(self.targets)).await?;
        // The job succeeds after its last target is gone, so a watch that begins now misses nothing.
        let watch = JobWatch::start(cluster.client.clone(), NAMESPACE);
        watch.until_succeeded(JOB, longest(self.targets)).await?;
        let took = begun.elapsed();
        drop(watch);
        cluster.controller.until_finished(self.targets, longest(self.targets)).await?;
        meter.until_quiet().await?;
        let figures = self.figures(&cluster, &before, (&meter, took)).await?;
        process.stop().await?;
        Ok(figures)
    }

    /// Returns the figures of a contender. Its process must still live.
    async fn figures(
        &self,
        cluster: &PreparedCluster,
        before: &Before,
        (meter, took): (&Meter<'_>, Duration),
    ) -> anyhow::Result<Map<String, Value>> {
        let mut figures = contenders::speed(self.targets, took);
        figures.extend(meter.figures(self.targets)?);
        let writes = as_f64(cluster.controller.done().writes) / as_f64(self.targets);
        figures.insert("controllerWritesPerTarget".to_owned(), round(writes).into());
        figures.insert("podKib".to_owned(), round(as_f64(cluster.pod_bytes) / 1024.0).into());
        let idle = before.idle.map(|used| round(used.as_secs_f64() * 1000.0));
        figures.insert("apiServerIdleMillisecondsPerSecond".to_owned(), json!(idle));
        if let Some(counts) = &before.counts {
            figures.extend(cluster.policies.ask(&cluster.client).await?.per_pod_write_since(counts));
        }
        let verdict = cluster.verdict().await?;
        figures.insert("wrong".to_owned(), verdict.wrong.len().into());
        figures.insert("verdict".to_owned(), verdict.to_string().into());
        Ok(figures)
    }
}

/// The state before a contender begins.
struct Before {
    /// The API server's counts. `None` if there is no real API server.
    counts: Option<AdmissionCounts>,
    /// The CPU time that the API server used in the last second.
    idle: Option<Duration>,
}

impl Before {
    /// Reads the state once the API server is quiet.
    async fn read(cluster: &PreparedCluster) -> anyhow::Result<Self> {
        let counts = match cluster.backend.api_server() {
            Some(_) => Some(cluster.policies.ask(&cluster.client).await?),
            None => None,
        };
        Ok(Self { counts, idle: cluster.until_quiet().await? })
    }
}

/// Adds the host's CPU time beyond the bare client's to the host's figures.
fn add_difference(figures: &mut Map<String, Value>) {
    let cpu = |figures: &Map<String, Value>, who: &str| figures.get(who)?.get("cpuMillisecondsPerTarget")?.as_f64();
    let over = cpu(figures, "host").zip(cpu(figures, "bare")).map(|(host, bare)| round(host - bare));
    if let Some(host) = figures.get_mut("host").and_then(Value::as_object_mut) {
        host.insert(CPU_OVER_BARE.to_owned(), json!(over));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_is_told_by_how_much_it_exceeds_the_bare_client() {
        let mut figures = json!({"host": {"cpuMillisecondsPerTarget": 1.5}, "bare": {"cpuMillisecondsPerTarget": 1.0}})
            .as_object()
            .cloned()
            .unwrap();
        add_difference(&mut figures);
        assert_eq!(figures["host"][CPU_OVER_BARE], json!(0.5));
        let goal = GOALS.iter().find(|goal| goal.figure.ends_with("OverBare")).unwrap();
        assert!(json!(figures).pointer(goal.figure).is_some());
    }
}
