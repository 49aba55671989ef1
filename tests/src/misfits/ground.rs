//! The ground of misfits: a host with three plugins, a good job that is measured, and bystanders that nobody may touch.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use k8s_openapi::api::coordination::v1::Lease;
use kube::ResourceExt as _;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{Misfit, at_most, told};
use crate::components::{GRANTS, component};
use crate::jobs::{Told as _, replace};
use crate::rig::{Rig, patiently};
use crate::scenarios::{names, settled_collaset};

/// Targets of the good job.
const TARGETS: usize = 3;
/// The action of the good job.
const GOOD: &str = "Good";
/// The label that its plugin sets.
const DONE: &str = "hostile.test/done";
/// Rounds that misfits may have while a good job runs, all together.
const ROUNDS: i64 = 100;
/// How much longer the good job may take where a host has just begun to lead and some jobs cannot be read.
const NEW_TERM: Duration = Duration::from_millis(1_500);

/// What a good job takes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cost {
    took: Duration,
    visits: i64,
    writes: usize,
    rounds: i64,
}

impl fmt::Display for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { took, visits, writes, rounds } = self;
        write!(f, "{took:.2?}, {visits} visits, {writes} writes, {rounds} rounds")
    }
}

impl Cost {
    fn max(self, other: Self) -> Self {
        Self {
            took: self.took.max(other.took),
            visits: self.visits.max(other.visits),
            writes: self.writes.max(other.writes),
            rounds: self.rounds.max(other.rounds),
        }
    }

    /// Fails if it is more than it may be beside a misfit, where `self` is what it is alone.
    fn check(self, beside: Self, longer: Duration) -> anyhow::Result<()> {
        ensure!(
            beside.took <= at_most(self.took) + longer,
            "the good job took {:?}, alone {:?}",
            beside.took,
            self.took
        );
        ensure!(beside.visits <= self.visits + 1, "the good job had {} visits, alone {}", beside.visits, self.visits);
        ensure!(beside.writes <= self.writes + 1, "the good job had {} writes, alone {}", beside.writes, self.writes);
        ensure!(beside.rounds <= self.rounds + ROUNDS, "there were {} rounds, alone {}", beside.rounds, self.rounds);
        Ok(())
    }
}

/// The ground.
pub(super) struct Ground {
    pub(super) rig: Rig,
    alone: Cost,
    /// Jobs of the good plugin so far.
    jobs: usize,
    /// What nobody may touch.
    bystanders: BTreeMap<&'static str, String>,
}

impl Ground {
    /// A host that leads, and bystanders that rest.
    pub(super) async fn stand() -> anyhow::Result<Self> {
        let mut rig = Rig::sim(1).await?;
        // Statuses and holds are written by others too: what the history shows of them proves nothing.
        rig.meddles();
        for number in 0..TARGETS {
            rig.seedbed.bare_pod(&format!("good-{number}")).await?;
        }
        rig.seedbed.bare_pod("bystander").await?;
        rig.until_pod("bystander", "running", |pod| pod.data.pointer("/status/phase") == Some(&json!("Running")))
            .await?;
        let mut ground = Self { rig, alone: Cost::default(), jobs: 0, bystanders: BTreeMap::new() };
        ground.host().await?;
        let resting = json!({"action": GOOD, "targets": [{"name": "bystander"}], "partition": 0});
        ground.rig.create_job("resting", resting).await?;
        ground.rig.until("resting", "at rest", |job| job.condition("Valid") == "True/Accepted").await?;
        ground.rig.lift_admission().await?;
        ground.rig.pass(Duration::from_secs(30)).await;
        ground.bystanders = ground.standing_by().await?;
        Ok(ground)
    }

    /// Starts a host with the shipped plugin, the good one and the hostile one.
    async fn host(&mut self) -> anyhow::Result<()> {
        let mut begin = self.rig.host_named("host");
        begin.plugins.push("hostile");
        begin.grants = grants(None);
        self.rig.start(begin).await?;
        let mut manifest: Value = serde_json::from_str(HOSTILE_MANIFEST)?;
        for (field, value) in [("name", "good"), ("action", GOOD)] {
            manifest.as_object_mut().context("a manifest is an object")?.insert(field.to_owned(), json!(value));
        }
        let good = oarlock_wasm::annotate(&component("hostile")?, &serde_json::to_vec(&manifest)?)?;
        let status = self.rig.running()?.host.plugins.publish("good.wasm", good).await;
        ensure!(status.as_ref().is_some_and(|status| status.reason == "Serving"), "{status:?}");
        patiently("the host leads", async || Ok(self.rig.running()?.leads())).await
    }

    /// What the good job takes alone.
    pub(super) async fn calm(&mut self) -> anyhow::Result<Cost> {
        for _ in 0..3 {
            self.alone = self.alone.max(self.good().await?);
        }
        let counts = self.alone.visits >= TARGETS as i64 && self.alone.rounds > 0 && self.alone.writes > 0;
        ensure!(counts, "what the good job costs is not counted: {:?}", self.alone);
        Ok(self.alone)
    }

    /// Runs the good job once.
    async fn good(&mut self) -> anyhow::Result<Cost> {
        let names: Vec<String> = (0..TARGETS).map(|number| format!("good-{number}")).collect();
        for name in &names {
            let body = json!({"metadata": {"labels": {DONE: null}}});
            self.rig.pods().patch(name, &PatchParams::default(), &Patch::Merge(body)).await?;
        }
        self.jobs += 1;
        let job = format!("good-job-{}", self.jobs);
        let (begun, before) = (Instant::now(), self.cost(&job)?);
        self.rig.create_job(&job, replace(&names, json!({ "action": GOOD }))).await?;
        self.rig.until_progress(&job, "Succeeded").await?;
        let (took, after) = (begun.elapsed(), self.cost(&job)?);
        for name in &names {
            let pod = self.rig.pods().get(name).await?;
            ensure!(pod.labels().contains_key(DONE), "{name} has not its label");
        }
        self.rig.delete_job(&job).await?;
        self.rig.until_gone(&job).await?;
        Ok(Cost {
            took,
            visits: after.visits - before.visits,
            writes: after.writes - before.writes,
            rounds: after.rounds - before.rounds,
        })
    }

    /// What the host has done so far, of this job where that can be told apart.
    fn cost(&self, job: &str) -> anyhow::Result<Cost> {
        let visits = |outcome: &str| {
            let name = format!("plugin_visits_total{{plugin=\"good\",outcome=\"{outcome}\"}}");
            self.rig.figure(&name).unwrap_or_default()
        };
        let of_good = |path: &str| path.contains("/pods/good-") || path.contains(job);
        let writes = self.rig.running()?.wire.records();
        Ok(Cost {
            took: Duration::ZERO,
            visits: ["Answered", "Deferred", "Failed", "Denied", "Trapped", "LimitExceeded"]
                .into_iter()
                .map(visits)
                .sum(),
            writes: writes.iter().filter(|sent| of_good(&sent.path)).count(),
            rounds: self.rig.figure("operationjob_rounds_total").unwrap_or_default(),
        })
    }

    /// The bystanders, each with all that it says.
    async fn standing_by(&self) -> anyhow::Result<BTreeMap<&'static str, String>> {
        let pod = serde_json::to_string(&self.rig.pods().get("bystander").await?)?;
        let job = serde_json::to_string(&self.rig.jobs().get("resting").await?)?;
        let leases: Api<Lease> = Api::namespaced(self.rig.client.clone(), "oarlock-system");
        let lease = leases.get(&format!("oarlock-{}", self.rig.namespace)).await?.spec.unwrap_or_default();
        let term = lease.lease_transitions.unwrap_or_default().to_string();
        Ok(BTreeMap::from([("the pod bystander", pod), ("the job resting", job), ("the term", term)]))
    }

    /// Lets a misfit be beside the good job. Yields who noticed.
    pub(super) async fn beside(&mut self, misfit: &Misfit, number: usize, most: &mut Cost) -> Vec<String> {
        let name = format!("bad-{number}");
        let mut noticed = Vec::new();
        let mut note = |result: anyhow::Result<()>| noticed.extend(result.err().map(|error| format!("{error:#}")));
        let begun = told::begin(&mut self.rig, misfit, &name).await;
        match self.good().await {
            Ok(cost) => {
                *most = most.max(cost);
                note(self.alone.check(cost, Duration::ZERO));
            }
            Err(error) => note(Err(error.context("the good job"))),
        }
        match begun {
            Ok(refusal) => note(told::check(&self.rig, misfit, &name, refusal.as_deref()).await),
            Err(error) => note(Err(error.context("it did not come about"))),
        }
        note(self.untouched().await);
        note(told::end(&mut self.rig, misfit, &name).await);
        note(self.rig.until_nothing_is_left().await);
        noticed
    }

    /// Fails if a bystander was touched, or the host stumbled.
    async fn untouched(&mut self) -> anyhow::Result<()> {
        let now = self.standing_by().await?;
        let before = std::mem::replace(&mut self.bystanders, now);
        for (who, now) in &self.bystanders {
            let before = before.get(who).map(String::as_str).unwrap_or_default();
            ensure!(before == now, "{who} was touched: from\n{before}\nto\n{now}");
        }
        ensure!(self.rig.running()?.leads(), "the host leads no more");
        let panics = self.rig.figure("operationjob_round_panics_total").unwrap_or_default();
        ensure!(panics == 0, "{panics} rounds panicked");
        Ok(())
    }

    /// Leaves what may stay of each misfit, and starts the host anew: the good job goes on as before.
    pub(super) async fn again(&mut self) -> anyhow::Result<()> {
        self.rig.kill_host("host").await?;
        self.host().await?;
        let cost = self.good().await?;
        self.bystanders = self.standing_by().await?;
        self.alone.check(cost, NEW_TERM)
    }

    /// The shipped plugin replaces its pods as ever, and nothing is left.
    pub(super) async fn end(mut self) -> anyhow::Result<()> {
        for job in self.rig.jobs().list(&ListParams::default()).await? {
            let name = job.name_any();
            self.rig.jobs().delete(&name, &DeleteParams::default()).await?;
            // A stranger's finalizer is the last one, and its stranger takes it off.
            let left = async || anyhow::Ok(self.rig.jobs().get_opt(&name).await?.map(|job| job.finalizers().to_vec()));
            let only_strangers =
                |left: &Option<Vec<String>>| left.iter().flatten().all(|name| name.starts_with("stranger."));
            patiently("the host lets go of it", async || anyhow::Ok(only_strangers(&left().await?))).await?;
            if left().await?.is_some() {
                let body = Patch::Merge(json!({"metadata": {"finalizers": null}}));
                self.rig.jobs().patch(&name, &PatchParams::default(), &body).await?;
            }
            self.rig.until_gone(&name).await?;
        }
        let pods = settled_collaset(&self.rig, 2).await?;
        self.rig.create_job("last", replace(&names(&pods), json!({}))).await?;
        self.rig.until_progress("last", "Succeeded").await?;
        for (name, _) in &pods {
            ensure!(self.rig.pods().get_opt(name).await?.is_none(), "{name} was not replaced");
        }
        self.rig.until_nothing_is_left().await?;
        self.rig.stop_host().await?;
        self.rig.finish().await
    }
}

/// The manifest of the hostile plugin.
pub(super) const HOSTILE_MANIFEST: &str = include_str!("../../hostile/manifest.json");
/// What it is granted.
const HOSTILE_SPEC: &str = "  anyVersion: true
  namespaces: [\"*\"]
  reads:
    - {apiVersion: v1, kind: Pod}
  writes:
    - {verb: metadata, apiVersion: v1, kind: Pod, labels: [\"hostile.test/*\"]}
    - {verb: evict, apiVersion: v1, kind: Pod}
    - {verb: patch, apiVersion: v1, kind: Pod}
    - {verb: create, apiVersion: v1, kind: ConfigMap}
";

/// The grants of the three plugins, that of the hostile one with this `spec`.
pub(super) fn grants(hostile: Option<&str>) -> String {
    let document = |name: &str, spec: &str| {
        format!("---\napiVersion: oarlock.dev/v1alpha1\nkind: ActionPlugin\nmetadata: {{name: {name}}}\nspec:\n{spec}")
    };
    let hostile = hostile.unwrap_or(HOSTILE_SPEC);
    format!("{GRANTS}\n{}{}", document("good", HOSTILE_SPEC), document("hostile", hostile))
}
