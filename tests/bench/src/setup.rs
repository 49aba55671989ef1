//! A host at work in a fresh namespace, for the scenarios without a bare client.
//!
//! A setup has pods that serve, a host that leads, and a watch of its jobs.

use std::path::Path;
use std::time::Duration;

use oarlock_sim::world::{Effect, Entry, Timings};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::{Instant, interval};

use crate::arguments::{Mode, Operations};
use crate::backend::Backend;
use crate::bench_cluster::{BenchCluster, ServingPods, longest, quick};
use crate::children::{Dropped, HostProcess};
use crate::goals::{self, Goal};
use crate::job_watch::{self, JobWatch, Version, Versions};
use crate::spread;

/// A place where a host works.
pub(crate) struct HostSetup<'a> {
    pub(crate) backend: &'a Backend,
    pub(crate) cluster: BenchCluster,
    pub(crate) serving: ServingPods,
    pub(crate) host: HostProcess,
    pub(crate) watch: JobWatch,
}

/// The pods and plugins of a setup.
#[derive(Clone, Copy)]
pub(crate) struct SetupOptions<'a> {
    pub(crate) mode: Mode,
    pub(crate) pods: usize,
    pub(crate) components: &'a Path,
    pub(crate) dropped: Dropped,
    pub(crate) timings: Timings,
}

impl<'a> SetupOptions<'a> {
    /// Returns options with Replace alone, in a simulated cluster that reacts at once.
    pub(crate) fn new(mode: Mode, pods: usize, components: &'a Path) -> Self {
        Self { mode, pods, components, dropped: Dropped::Replace, timings: quick() }
    }
}

impl<'a> HostSetup<'a> {
    /// Prepares a setup in a fresh namespace with this name.
    ///
    /// # Errors
    /// If the pods never serve, or the host does not start.
    pub(crate) async fn set(backend: &'a Backend, namespace: &str, options: SetupOptions<'_>) -> anyhow::Result<Self> {
        let cluster = BenchCluster::fresh(backend, namespace, options.timings).await?;
        let serving = cluster.plant(options.mode, options.pods).await?;
        let host = HostProcess::start(&backend.kubeconfig()?, options.components, options.dropped).await?;
        let watch = JobWatch::start(cluster.client.clone(), namespace);
        Ok(Self { backend, cluster, serving, host, watch })
    }

    /// Creates jobs of one target each at an even pace, for the first `count` pods. A job has the name of its pod.
    ///
    /// # Errors
    /// If the server refuses a job.
    pub(crate) async fn create_jobs(&self, count: usize, each: Duration, further: &Value) -> anyhow::Result<()> {
        let mut ticks = interval(each);
        let mut creations = JoinSet::new();
        for target in self.serving.names().into_iter().take(count) {
            ticks.tick().await;
            let job = job_watch::replace(&target, std::slice::from_ref(&target), further.clone());
            let jobs = self.cluster.jobs();
            creations.spawn(async move { jobs.create(&kube::api::PostParams::default(), &job).await });
        }
        while let Some(created) = creations.join_next().await {
            created??;
        }
        Ok(())
    }

    /// Waits until this many jobs have ended, successfully or not.
    ///
    /// # Errors
    /// If the jobs do not end in time.
    pub(crate) async fn until_ended(&self, jobs: usize) -> anyhow::Result<()> {
        let ended = |all: &Versions| {
            all.values().filter(|versions| versions.last().is_some_and(Version::is_last)).count() >= jobs
        };
        self.watch.until(&format!("the end of {jobs} jobs"), longest(jobs), ended).await
    }

    /// Waits until this many pods are gone, or until `latest`. Returns false if a job ended before. The simulated cluster knows of
    /// deleted pods earlier than a status does.
    pub(crate) async fn until_gone(&self, count: usize, latest: Instant) -> bool {
        let gone = |entries: &[Entry]| entries.iter().filter(|entry| entry.effect == Effect::PodGone).count() >= count;
        let rest = latest.saturating_duration_since(Instant::now());
        tokio::select! {
            // The result does not matter: pods are gone, or the time is over.
            _ = self.cluster.world.ledger().until("pods to be gone", rest, gone) => true,
            _ = self.until_ended(1) => false,
        }
    }

    /// Returns only the first `count` pods, for a verdict on jobs that had no other targets.
    pub(crate) fn chosen(&self, count: usize) -> ServingPods {
        let targets = self.serving.targets.iter().take(count).cloned().collect();
        ServingPods { set: self.serving.set.clone(), targets }
    }

    /// Stops the host and removes everything.
    ///
    /// # Errors
    /// If the host does not stop, or the server refuses a deletion.
    pub(crate) async fn end(self) -> anyhow::Result<()> {
        drop(self.watch);
        self.host.stop().await?;
        self.cluster.remove().await
    }
}

/// Returns the results of one run's rounds, with their spread.
pub(crate) fn run_of(label: &str, targets: usize, rounds: Vec<Value>) -> Value {
    let rounds: Vec<Value> = rounds.into_iter().map(|host| json!({ "host": host })).collect();
    let spread = spread::of(&rounds.iter().collect::<Vec<_>>());
    json!({"mode": label, "targets": targets, "rounds": rounds, "spread": spread})
}

/// Returns the results of a bench's rounds, with each figure beside its goal. Prints the goals and the notes.
pub(crate) fn shown_beside(rounds: &[Value], goals: &[Goal], notes: &str) -> Value {
    let spread = spread::of(&rounds.iter().collect::<Vec<_>>());
    let whole = goals::beside(json!({"rounds": rounds, "spread": spread, "notes": notes}), goals);
    for row in whole.get("goals").and_then(Value::as_array).into_iter().flatten() {
        println!("{row}");
    }
    println!("{notes}");
    whole
}

/// Returns the figures of a scenario.
pub(crate) fn figures_of(asked: &Operations, runs: Vec<Value>, notes: &str) -> Value {
    json!({"bench": "operations", "scenario": asked.scenario.word(), "on": asked.on.word(), "runs": runs, "notes": notes})
}
