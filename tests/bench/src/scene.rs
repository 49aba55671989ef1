//! A host at work in a fresh namespace: what the scenarios without a bare client begin and end with.
//!
//! Takes a cluster and a number of pods; yields them planted, a host that leads and a watch of its jobs.

use std::path::Path;
use std::time::Duration;

use oarlock_sim::world::{Effect, Entry, Timings};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::{Instant, interval};

use crate::arguments::{Mode, Operations};
use crate::children::{Dropped, HostProcess};
use crate::goals::{self, Goal};
use crate::ground::Ground;
use crate::job_watch::{self, JobWatch, Version, Versions};
use crate::site::{Planted, Site, longest, quick};
use crate::spread;

/// Where a host works.
pub(crate) struct Scene<'a> {
    pub(crate) ground: &'a Ground,
    pub(crate) site: Site,
    pub(crate) planted: Planted,
    pub(crate) host: HostProcess,
    pub(crate) watch: JobWatch,
}

/// Which pods and plugins a scene has.
#[derive(Clone, Copy)]
pub(crate) struct Cast<'a> {
    pub(crate) mode: Mode,
    pub(crate) pods: usize,
    pub(crate) components: &'a Path,
    pub(crate) dropped: Dropped,
    pub(crate) timings: Timings,
}

impl<'a> Cast<'a> {
    /// Pods of a world that reacts at once, and Replace alone.
    pub(crate) fn new(mode: Mode, pods: usize, components: &'a Path) -> Self {
        Self { mode, pods, components, dropped: Dropped::Replace, timings: quick() }
    }
}

impl<'a> Scene<'a> {
    /// Sets one in a fresh namespace of this name.
    ///
    /// # Errors
    /// If the pods never serve or the host does not start.
    pub(crate) async fn set(ground: &'a Ground, namespace: &str, cast: Cast<'_>) -> anyhow::Result<Self> {
        let site = Site::fresh(ground, namespace, cast.timings).await?;
        let planted = site.plant(cast.mode, cast.pods).await?;
        let host = HostProcess::start(&ground.kubeconfig()?, cast.components, cast.dropped).await?;
        let watch = JobWatch::start(site.client.clone(), namespace);
        Ok(Self { ground, site, planted, host, watch })
    }

    /// Creates jobs of one target each at an even pace: for the first `count` pods, and named after them.
    ///
    /// # Errors
    /// If the server refuses one.
    pub(crate) async fn create_jobs(&self, count: usize, each: Duration, further: &Value) -> anyhow::Result<()> {
        let mut ticks = interval(each);
        let mut creations = JoinSet::new();
        for target in self.planted.names().into_iter().take(count) {
            ticks.tick().await;
            let job = job_watch::replace(&target, std::slice::from_ref(&target), further.clone());
            let jobs = self.site.jobs();
            creations.spawn(async move { jobs.create(&kube::api::PostParams::default(), &job).await });
        }
        while let Some(created) = creations.join_next().await {
            created??;
        }
        Ok(())
    }

    /// Waits until as many jobs have ended, well or badly.
    ///
    /// # Errors
    /// If they do not.
    pub(crate) async fn until_ended(&self, jobs: usize) -> anyhow::Result<()> {
        let ended = |all: &Versions| {
            all.values().filter(|versions| versions.last().is_some_and(Version::is_last)).count() >= jobs
        };
        self.watch.until(&format!("the end of {jobs} jobs"), longest(jobs), ended).await
    }

    /// Waits until so many pods are gone, which the world knows earlier than a status tells, or until `latest`; says whether no job
    /// has ended before.
    pub(crate) async fn until_gone(&self, count: usize, latest: Instant) -> bool {
        let gone = |entries: &[Entry]| entries.iter().filter(|entry| entry.effect == Effect::PodGone).count() >= count;
        let rest = latest.saturating_duration_since(Instant::now());
        tokio::select! {
            // Either way it is time.
            _ = self.site.world.ledger().until("pods to be gone", rest, gone) => true,
            _ = self.until_ended(1) => false,
        }
    }

    /// The first `count` pods alone, for a verdict on jobs that had no other targets.
    pub(crate) fn chosen(&self, count: usize) -> Planted {
        let targets = self.planted.targets.iter().take(count).cloned().collect();
        Planted { set: self.planted.set.clone(), targets }
    }

    /// Stops the host and removes everything.
    ///
    /// # Errors
    /// If the host does not stop or the server refuses.
    pub(crate) async fn end(self) -> anyhow::Result<()> {
        drop(self.watch);
        self.host.stop().await?;
        self.site.remove().await
    }
}

/// What the rounds of one run found, with the spread of it.
pub(crate) fn run_of(label: &str, targets: usize, rounds: Vec<Value>) -> Value {
    let rounds: Vec<Value> = rounds.into_iter().map(|host| json!({ "host": host })).collect();
    let spread = spread::of(&rounds.iter().collect::<Vec<_>>());
    json!({"mode": label, "targets": targets, "rounds": rounds, "spread": spread})
}

/// What the rounds of a bench found, each figure beside its goal. The goals are printed, with what the figures are.
pub(crate) fn shown_beside(rounds: &[Value], goals: &[Goal], notes: &str) -> Value {
    let spread = spread::of(&rounds.iter().collect::<Vec<_>>());
    let whole = goals::beside(json!({"rounds": rounds, "spread": spread, "notes": notes}), goals);
    for row in whole.get("goals").and_then(Value::as_array).into_iter().flatten() {
        println!("{row}");
    }
    println!("{notes}");
    whole
}

/// The figures of a scenario.
pub(crate) fn figures_of(asked: &Operations, runs: Vec<Value>, notes: &str) -> Value {
    json!({"bench": "operations", "scenario": asked.scenario.word(), "on": asked.on.word(), "runs": runs, "notes": notes})
}
