//! The JobFlow and the DaemonJob of a run, and the expected outcome of their units in an undisturbed run.
//!
//! Takes a test cluster; yields the object and its expected outcome. May not know what goes wrong.

use std::time::Duration;

use k8s_openapi::api::batch::v1::Job;
use kube::api::ApiResource;
use oarlock_sim::world::{LedgerCheck, SetKey, TargetOutcome, Version};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::judge::{Expected, ExpectedUnit, finished};
use oarlock_scenarios::flows::{resource, step, work};
use oarlock_scenarios::jobs;
use oarlock_scenarios::scenarios::{identities, on_nodes};
use oarlock_scenarios::test_cluster::TestCluster;

/// The object of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Subject {
    /// A JobFlow of ten steps. Most steps wait for others.
    Flow,
    /// A DaemonJob on twenty nodes, four at a time. One node fails.
    Daemon,
}

/// The number of nodes of the DaemonJob.
const NODES: usize = 20;
/// The number of nodes that have a Job at the same time.
const AT_ONCE: usize = 4;
/// The number of the node on which the Job fails.
const BAD: usize = 7;
/// The workload whose pod the operation replaces.
const APP: &str = "web";
/// The template whose Job is deleted as soon as its outcome is stored.
const BRIEF: &str = "brief";
/// The template that fails until the test mends it.
const FLAKY: &str = "flaky";
/// The step that uses the flaky template.
const MENDED: &str = "test";
/// The time limit for the workload. One pod takes far less.
const SETTLED: Duration = Duration::from_secs(60);
/// The outcome of a Job that failed and creates no further pod.
const FAILED: &str = "Failed/BackoffLimitExceeded";

/// Returns the kinds whose versions are recorded.
#[must_use]
pub fn recorded() -> Vec<ApiResource> {
    let kinds = ["JobFlow", "DaemonJob", "JobTemplate"].map(resource);
    kinds.into_iter().chain([jobs::resource(), ApiResource::erase::<Job>(&())]).collect()
}

/// Returns true once the first attempt of the step with the flaky template in this namespace has ended.
#[must_use]
pub fn wants_mending(namespace: &str, versions: &[Version]) -> bool {
    let name = format!("f-{MENDED}");
    let is_it = |version: &&Version| version.plural == "jobs" && version.namespace == namespace && version.name == name;
    versions.iter().filter(is_it).any(|version| finished(version).is_some())
}

/// Mends the flaky template.
///
/// # Errors
/// If the API server refuses a request.
pub async fn mend(cluster: &TestCluster) -> anyhow::Result<()> {
    cluster.patch_flow("JobTemplate", FLAKY, json!({"spec": {"jobTemplate": work("sleep 1")}})).await
}

/// Returns true if an operation had the right effects. The pods of Jobs that expire may go too.
#[must_use]
pub fn is_right(verdict: &LedgerCheck) -> bool {
    let of_a_job = |(name, _): &(String, String)| name.starts_with("f-");
    verdict.targets.iter().all(TargetOutcome::is_right) && verdict.others_lost.iter().all(of_a_job)
}

impl Subject {
    /// All subjects.
    pub const ALL: [Self; 2] = [Self::Flow, Self::Daemon];

    /// Creates the objects that the subject works on: a workload, whose pods are returned as names and UIDs, or nodes.
    ///
    /// # Errors
    /// If the API server refuses a request.
    pub async fn plant(self, cluster: &TestCluster) -> anyhow::Result<(Option<SetKey>, Vec<(String, String)>)> {
        match self {
            Self::Flow => {
                let set = cluster.seedbed.deployment(APP, 1).await?;
                cluster.world.settled(&set, SETTLED).await?;
                let targets = identities(cluster, &cluster.pod_names(APP).await?).await?;
                let mut brief = work("sleep 2");
                on_top(&mut brief, &json!({"ttlSecondsAfterFinished": 0}));
                cluster.create_flow("JobTemplate", BRIEF, json!({ "jobTemplate": brief })).await?;
                cluster.create_flow("JobTemplate", FLAKY, json!({"jobTemplate": work("sleep 1; exit 1")})).await?;
                Ok((Some(set), targets))
            }
            Self::Daemon => {
                for number in 0..NODES {
                    on_nodes::node(cluster, &suffix(number), true).await?;
                }
                cluster.world.fail_checks(&node(&cluster.namespace, BAD), 4);
                Ok((None, Vec::new()))
            }
        }
    }

    /// Creates the JobFlow or the DaemonJob.
    ///
    /// # Errors
    /// If the API server refuses a request.
    pub async fn begin(self, cluster: &TestCluster, targets: &[(String, String)]) -> anyhow::Result<()> {
        let (kind, name, spec) = match self {
            Self::Flow => ("JobFlow", "f", flow(targets)),
            Self::Daemon => ("DaemonJob", "d", daemon(&cluster.namespace)),
        };
        cluster.create_flow(kind, name, spec).await?;
        Ok(())
    }

    /// Returns the expected outcome in this namespace.
    #[must_use]
    pub fn expected(self, namespace: &str) -> Expected {
        let (plural, name, table, at_once, units) = match self {
            Self::Flow => ("jobflows", "f", "steps", usize::MAX, steps()),
            Self::Daemon => ("daemonjobs", "d", "nodes", AT_ONCE, nodes(namespace)),
        };
        let (plural, name, table) = (plural.to_owned(), name.to_owned(), table.to_owned());
        Expected { namespace: namespace.to_owned(), plural, name, table, at_once, units }
    }
}

fn suffix(number: usize) -> String {
    format!("n{number:02}")
}

fn node(namespace: &str, number: usize) -> String {
    format!("{namespace}-{}", suffix(number))
}

fn on_top(value: &mut Value, more: &Value) {
    if let (Some(value), Some(more)) = (value.as_object_mut(), more.as_object()) {
        value.extend(more.clone());
    }
}

/// Returns the spec of the JobFlow: three roots, a join of two, a step with a retry, two branches for failures, an
/// operation, a join and a last step. One of the branches runs and the other does not.
fn flow(targets: &[(String, String)]) -> Value {
    let with = |mut step: Value, more: &Value| {
        on_top(&mut step, more);
        step
    };
    let targets: Vec<Value> = targets.iter().map(|(name, _)| json!({ "name": name })).collect();
    let again = json!({"limit": 1, "backoffSeconds": 3});
    json!({
        "flows": [
            step("fetch", "sleep 1", &[]),
            {"name": "early", "jobTemplateRef": BRIEF},
            step("build", "sleep 1", &["fetch", "early"]),
            {"name": MENDED, "dependencies": ["build"], "jobTemplateRef": FLAKY, "retryPolicy": again},
            with(step("probe", "exit 3", &[]), &json!({"continueOnFailure": true})),
            with(step("mend", "sleep 1", &["probe"]), &json!({"when": "failure"})),
            with(step("skip", "sleep 1", &["fetch"]), &json!({"when": "failure"})),
            {"name": "replace", "dependencies": ["fetch"], "operation": {"action": "Replace", "targets": targets}},
            step("join", "true", &[MENDED, "mend", "skip", "replace"]),
        ],
        "finally": [{"name": "tidy", "jobTemplate": work("sleep 1")}],
    })
}

fn steps() -> Vec<ExpectedUnit> {
    let unit = |name: &str, needs: &[&str], outcome: &str, attempts| ExpectedUnit {
        name: name.to_owned(),
        needs: needs.iter().map(ToString::to_string).collect(),
        outcome: outcome.to_owned(),
        attempts,
        expires: name == "early",
    };
    let all = ["fetch", "early", "build", MENDED, "probe", "mend", "skip", "replace", "join"];
    vec![
        unit("fetch", &[], "Succeed", 1),
        unit("early", &[], "Succeed", 1),
        unit("build", &["fetch", "early"], "Succeed", 1),
        unit(MENDED, &["build"], "Succeed", 2),
        unit("probe", &[], FAILED, 1),
        unit("mend", &["probe"], "Succeed", 1),
        unit("skip", &["fetch"], "Omitted/NotNeeded", 0),
        unit("replace", &["fetch"], "Succeed", 1),
        unit("join", &[MENDED, "mend", "skip", "replace"], "Succeed", 1),
        unit("tidy", &all, "Succeed", 1),
    ]
}

fn daemon(namespace: &str) -> Value {
    let mut spec = work("sleep 1");
    on_top(
        &mut spec,
        &json!({"rollout": {
            "nodeSelector": {"matchLabels": {"scenario": namespace}},
            "concurrency": AT_ONCE,
            "failurePolicy": {"type": "FailFast", "maxFailures": 1},
        }}),
    );
    spec
}

fn nodes(namespace: &str) -> Vec<ExpectedUnit> {
    let unit = |number| ExpectedUnit {
        name: node(namespace, number),
        needs: Vec::new(),
        outcome: if number == BAD { FAILED } else { "Succeed" }.to_owned(),
        attempts: 1,
        expires: false,
    };
    (0..NODES).map(unit).collect()
}
