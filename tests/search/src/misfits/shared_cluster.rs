//! The cluster of misfits: a host with three plugins, a good job that is measured, and bystanders that must not change.

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
use oarlock_scenarios::components::{GRANTS, component};
use oarlock_scenarios::jobs::{Told as _, replace};
use oarlock_scenarios::scenarios::{names, settled_collaset};
use oarlock_scenarios::test_cluster::{TestCluster, patiently};

/// The number of targets of the good job.
const TARGETS: usize = 3;
/// The action of the good job.
const GOOD: &str = "Good";
/// The label that the good plugin sets on its targets.
const DONE: &str = "hostile.test/done";
/// The largest number of rounds that misfits may have while a good job runs.
const ROUNDS: i64 = 100;
/// The extra time of the good job after a host has begun to lead while some jobs cannot be read.
const NEW_TERM: Duration = Duration::from_millis(1_500);

/// The cost of a good job.
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

    /// Fails if the cost `beside` a misfit is too high, compared with `self`, the cost alone.
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

/// The cluster of misfits and the measurements of the good job.
pub(super) struct SharedCluster {
    pub(super) cluster: TestCluster,
    alone: Cost,
    /// The number of jobs of the good plugin so far.
    jobs: usize,
    /// The objects that must not change, as JSON.
    bystanders: BTreeMap<&'static str, String>,
}

impl SharedCluster {
    /// Starts a host and waits until it leads and the bystanders rest.
    pub(super) async fn stand() -> anyhow::Result<Self> {
        let mut cluster = TestCluster::sim(1).await?;
        // Misfits overwrite statuses and holds, so rules about them cannot be checked.
        cluster.meddles();
        for number in 0..TARGETS {
            cluster.seedbed.bare_pod(&format!("good-{number}")).await?;
        }
        cluster.seedbed.bare_pod("bystander").await?;
        cluster
            .until_pod("bystander", "running", |pod| pod.data.pointer("/status/phase") == Some(&json!("Running")))
            .await?;
        let mut shared = Self { cluster, alone: Cost::default(), jobs: 0, bystanders: BTreeMap::new() };
        shared.host().await?;
        let resting = json!({"action": GOOD, "targets": [{"name": "bystander"}], "partition": 0});
        shared.cluster.create_job("resting", resting).await?;
        shared.cluster.until("resting", "at rest", |job| job.condition("Valid") == "True/Accepted").await?;
        shared.cluster.lift_admission().await?;
        shared.cluster.pass(Duration::from_secs(30)).await;
        shared.bystanders = shared.standing_by().await?;
        Ok(shared)
    }

    /// Starts a host with the shipped plugin, the good plugin and the hostile plugin.
    async fn host(&mut self) -> anyhow::Result<()> {
        let mut begin = self.cluster.host_named("host");
        begin.plugins.push("hostile");
        begin.grants = grants(None);
        self.cluster.start(begin).await?;
        let mut manifest: Value = serde_json::from_str(HOSTILE_MANIFEST)?;
        for (field, value) in [("name", "good"), ("action", GOOD)] {
            manifest.as_object_mut().context("a manifest is an object")?.insert(field.to_owned(), json!(value));
        }
        let good = oarlock_wasm::annotate(&component("hostile")?, &serde_json::to_vec(&manifest)?)?;
        let status = self.cluster.running()?.host.plugins.publish("good.wasm", good).await;
        ensure!(status.as_ref().is_some_and(|status| status.reason == "Serving"), "{status:?}");
        patiently("the host leads", async || Ok(self.cluster.running()?.leads())).await
    }

    /// Measures the cost of the good job alone.
    pub(super) async fn calm(&mut self) -> anyhow::Result<Cost> {
        for _ in 0..3 {
            self.alone = self.alone.max(self.good().await?);
        }
        let counts = self.alone.visits >= TARGETS as i64 && self.alone.rounds > 0 && self.alone.writes > 0;
        ensure!(counts, "what the good job costs is not counted: {:?}", self.alone);
        Ok(self.alone)
    }

    /// Runs the good job once and returns its cost.
    async fn good(&mut self) -> anyhow::Result<Cost> {
        let names: Vec<String> = (0..TARGETS).map(|number| format!("good-{number}")).collect();
        for name in &names {
            let body = json!({"metadata": {"labels": {DONE: null}}});
            self.cluster.pods().patch(name, &PatchParams::default(), &Patch::Merge(body)).await?;
        }
        self.jobs += 1;
        let job = format!("good-job-{}", self.jobs);
        let (begun, before) = (Instant::now(), self.cost(&job)?);
        self.cluster.create_job(&job, replace(&names, json!({ "action": GOOD }))).await?;
        self.cluster.until_progress(&job, "Succeeded").await?;
        let (took, after) = (begun.elapsed(), self.cost(&job)?);
        for name in &names {
            let pod = self.cluster.pods().get(name).await?;
            ensure!(pod.labels().contains_key(DONE), "{name} has not its label");
        }
        self.cluster.delete_job(&job).await?;
        self.cluster.until_gone(&job).await?;
        Ok(Cost {
            took,
            visits: after.visits - before.visits,
            writes: after.writes - before.writes,
            rounds: after.rounds - before.rounds,
        })
    }

    /// Returns the cost so far. Visits and writes are those of the good plugin or this job; rounds are those of all jobs.
    fn cost(&self, job: &str) -> anyhow::Result<Cost> {
        let visits = |outcome: &str| {
            let name = format!("plugin_visits_total{{plugin=\"good\",outcome=\"{outcome}\"}}");
            self.cluster.figure(&name).unwrap_or_default()
        };
        let of_good = |path: &str| path.contains("/pods/good-") || path.contains(job);
        let writes = self.cluster.running()?.interceptor.records();
        Ok(Cost {
            took: Duration::ZERO,
            visits: ["Answered", "Deferred", "Failed", "Denied", "Trapped", "LimitExceeded"]
                .into_iter()
                .map(visits)
                .sum(),
            writes: writes.iter().filter(|sent| of_good(&sent.path)).count(),
            rounds: self.cluster.figure("operationjob_rounds_total").unwrap_or_default(),
        })
    }

    /// Returns the bystanders with their whole content.
    async fn standing_by(&self) -> anyhow::Result<BTreeMap<&'static str, String>> {
        let pod = serde_json::to_string(&self.cluster.pods().get("bystander").await?)?;
        let job = serde_json::to_string(&self.cluster.jobs().get("resting").await?)?;
        let leases: Api<Lease> = Api::namespaced(self.cluster.client.clone(), "oarlock-system");
        let lease = leases.get(&format!("oarlock-{}", self.cluster.namespace)).await?.spec.unwrap_or_default();
        let term = lease.lease_transitions.unwrap_or_default().to_string();
        Ok(BTreeMap::from([("the pod bystander", pod), ("the job resting", job), ("the term", term)]))
    }

    /// Runs a misfit beside the good job. Returns the effects on others.
    pub(super) async fn beside(&mut self, misfit: &Misfit, number: usize, most: &mut Cost) -> Vec<String> {
        let name = format!("bad-{number}");
        let mut noticed = Vec::new();
        let mut note = |result: anyhow::Result<()>| noticed.extend(result.err().map(|error| format!("{error:#}")));
        let begun = told::begin(&mut self.cluster, misfit, &name).await;
        match self.good().await {
            Ok(cost) => {
                *most = most.max(cost);
                note(self.alone.check(cost, Duration::ZERO));
            }
            Err(error) => note(Err(error.context("the good job"))),
        }
        match begun {
            Ok(refusal) => note(told::check(&self.cluster, misfit, &name, refusal.as_deref()).await),
            Err(error) => note(Err(error.context("it did not come about"))),
        }
        note(self.untouched().await);
        note(told::end(&mut self.cluster, misfit, &name).await);
        note(self.cluster.until_nothing_is_left().await);
        noticed
    }

    /// Fails if a bystander changed, if the host lost its lease, or if a round panicked.
    async fn untouched(&mut self) -> anyhow::Result<()> {
        let now = self.standing_by().await?;
        let before = std::mem::replace(&mut self.bystanders, now);
        for (who, now) in &self.bystanders {
            let before = before.get(who).map(String::as_str).unwrap_or_default();
            ensure!(before == now, "{who} was touched: from\n{before}\nto\n{now}");
        }
        ensure!(self.cluster.running()?.leads(), "the host leads no more");
        let panics = self.cluster.figure("operationjob_round_panics_total").unwrap_or_default();
        ensure!(panics == 0, "{panics} rounds panicked");
        Ok(())
    }

    /// Restarts the host with the misfits that stay, and fails if the good job costs more than before.
    pub(super) async fn again(&mut self) -> anyhow::Result<()> {
        self.cluster.kill_host("host").await?;
        self.host().await?;
        let cost = self.good().await?;
        self.bystanders = self.standing_by().await?;
        self.alone.check(cost, NEW_TERM)
    }

    /// Fails if the shipped plugin can no longer replace its pods, or if anything is left behind. Then stops the host.
    pub(super) async fn end(mut self) -> anyhow::Result<()> {
        for job in self.cluster.jobs().list(&ListParams::default()).await? {
            let name = job.name_any();
            self.cluster.jobs().delete(&name, &DeleteParams::default()).await?;
            // A stranger's finalizer remains after the host's own. The test removes it in the stranger's place.
            let left =
                async || anyhow::Ok(self.cluster.jobs().get_opt(&name).await?.map(|job| job.finalizers().to_vec()));
            let only_strangers =
                |left: &Option<Vec<String>>| left.iter().flatten().all(|name| name.starts_with("stranger."));
            patiently("the host releases it", async || anyhow::Ok(only_strangers(&left().await?))).await?;
            if left().await?.is_some() {
                let body = Patch::Merge(json!({"metadata": {"finalizers": null}}));
                self.cluster.jobs().patch(&name, &PatchParams::default(), &body).await?;
            }
            self.cluster.until_gone(&name).await?;
        }
        let pods = settled_collaset(&self.cluster, 2).await?;
        self.cluster.create_job("last", replace(&names(&pods), json!({}))).await?;
        self.cluster.until_progress("last", "Succeeded").await?;
        for (name, _) in &pods {
            ensure!(self.cluster.pods().get_opt(name).await?.is_none(), "{name} was not replaced");
        }
        self.cluster.until_nothing_is_left().await?;
        self.cluster.stop_host().await?;
        self.cluster.finish().await
    }
}

/// The manifest of the hostile plugin.
pub(super) const HOSTILE_MANIFEST: &str = include_str!("../../../plugins/hostile/manifest.json");
/// The spec of the hostile plugin's grant.
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

/// Returns the grants of the three plugins. The hostile plugin gets this `spec`, or the usual one.
pub(super) fn grants(hostile: Option<&str>) -> String {
    let document = |name: &str, spec: &str| {
        format!("---\napiVersion: oarlock.dev/v1alpha1\nkind: ActionPlugin\nmetadata: {{name: {name}}}\nspec:\n{spec}")
    };
    let hostile = hostile.unwrap_or(HOSTILE_SPEC);
    format!("{GRANTS}\n{}{}", document("good", HOSTILE_SPEC), document("hostile", hostile))
}
