//! Reads from the API server's own metrics how often it evaluates admission policies for writes of pods.
//!
//! A figure that the server does not count is absent. The API server counts no policy that admits a request:
//! `apiserver_validating_admission_policy_check_total` has only denials and errors. It does count how often the match conditions of
//! a policy exclude a request, which is the result for nearly all writes. So the figure is a little less than the evaluations: it
//! lacks the writes by which the host begins to hold a pod.

use std::time::Duration;

use anyhow::Context as _;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt as _};
use serde_json::{Map, Value, json};
use tokio::time::sleep;

use crate::spread::round;

/// The metric of match conditions that excluded a request, by policy.
const MATCH_CONDITIONS: &str = "apiserver_admission_match_condition_evaluation_seconds_count";
/// The metric of denials and errors of policies.
const CHECKS: &str = "apiserver_validating_admission_policy_check_total";
/// The metric of answered requests.
const REQUESTS: &str = "apiserver_request_total";
/// The verbs of requests that write.
const WRITES: [&str; 5] = ["POST", "PUT", "PATCH", "APPLY", "DELETE"];

/// The label of pods that the host holds.
const HELD: &str = "oarlock.dev/held";
/// How long a policy may take until it is in force. It usually takes a second or two.
const IN_FORCE_WITHIN: Duration = Duration::from_secs(20);
const ASK_EVERY: Duration = Duration::from_millis(500);

/// The names of the policies that have match conditions for writes of pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PolicyNames(Vec<String>);

impl PolicyNames {
    /// Returns the names of such policies among the documents that `oarlock manifests` prints.
    pub(crate) fn of(documents: &[Value]) -> Self {
        let list = |document: &Value, pointer: &str| document.pointer(pointer).and_then(Value::as_array).cloned();
        let is_for_pods = |document: &Value| {
            let rules = list(document, "/spec/matchConstraints/resourceRules").unwrap_or_default();
            rules.iter().filter_map(|rule| list(rule, "/resources")).flatten().any(|resource| resource == "pods")
        };
        let wanted = documents.iter().filter(|document| {
            document.get("kind").is_some_and(|kind| kind == "ValidatingAdmissionPolicy")
                && list(document, "/spec/matchConditions").is_some_and(|conditions| !conditions.is_empty())
                && is_for_pods(document)
        });
        Self(wanted.filter_map(|policy| policy.pointer("/metadata/name")?.as_str().map(str::to_owned)).collect())
    }

    /// Reads the API server's counts.
    ///
    /// # Errors
    /// If the API server does not answer.
    pub(crate) async fn ask(&self, client: &Client) -> anyhow::Result<AdmissionCounts> {
        Ok(self.counts(&metrics(client).await?))
    }

    fn counts(&self, metrics: &str) -> AdmissionCounts {
        let is_pod_write =
            |labels: &str| has(labels, "resource", "pods") && WRITES.iter().any(|verb| has(labels, "verb", verb));
        AdmissionCounts {
            excluded: total(metrics, MATCH_CONDITIONS, |labels| self.0.iter().any(|name| has(labels, "name", name))),
            failures: total(metrics, CHECKS, |_| true),
            pod_writes: total(metrics, REQUESTS, is_pod_write),
        }
    }

    /// Waits until the API server evaluates each policy. A new server begins to do so some time after the policies were applied,
    /// and the figures must not depend on this time. A policy that the probe cannot show gets the same time.
    ///
    /// # Errors
    /// If the API server refuses the probe.
    pub(crate) async fn until_in_force(&self, client: &Client, mut probe: Pod) -> anyhow::Result<()> {
        let labels = probe.metadata.labels.get_or_insert_default();
        labels.insert(HELD.to_owned(), "true".to_owned());
        let namespace = probe.namespace().context("the probe is in no namespace")?;
        let (pods, name) = (Api::<Pod>::namespaced(client.clone(), &namespace), probe.name_any());
        pods.create(&PostParams::default(), &probe).await.context("cannot create a pod to try the policies with")?;
        match tokio::time::timeout(IN_FORCE_WITHIN, self.until_counted(client, &pods, &name)).await {
            Ok(counted) => counted?,
            Err(_) => eprintln!("after {IN_FORCE_WITHIN:?} the API server does not count all of {:?}", self.0),
        }
        pods.delete(&name, &DeleteParams::default()).await.map(drop).context("cannot delete that pod")
    }

    /// Repeats a dry run that the match conditions of each policy exclude: an admin removes the label of holds.
    async fn until_counted(&self, client: &Client, pods: &Api<Pod>, probe: &str) -> anyhow::Result<()> {
        let tried = PatchParams { dry_run: true, ..PatchParams::default() };
        let release = Patch::Merge(json!({"metadata": {"labels": {HELD: null}}}));
        loop {
            pods.patch(probe, &tried, &release).await.context("cannot try a write of a pod")?;
            let metrics = metrics(client).await?;
            let is_counted =
                |name: &String| total(&metrics, MATCH_CONDITIONS, |labels| has(labels, "name", name)).is_some();
            if self.0.iter().all(is_counted) {
                return Ok(());
            }
            sleep(ASK_EVERY).await;
        }
    }
}

/// The API server's counts since its start.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct AdmissionCounts {
    /// How often a policy of pods excluded a request.
    excluded: Option<f64>,
    /// How often any policy denied a request or failed.
    failures: Option<f64>,
    /// Writes of pods and their subresources.
    pod_writes: Option<f64>,
}

impl AdmissionCounts {
    /// Returns the counts since `earlier`, per write of a pod.
    pub(crate) fn per_pod_write_since(&self, earlier: &Self) -> Map<String, Value> {
        let since = |now: Option<f64>, then: Option<f64>| now.map(|now| now - then.unwrap_or(0.0));
        let writes = since(self.pod_writes, earlier.pod_writes).filter(|writes| *writes > 0.0);
        let per_write = |count: Option<f64>| json!(count.zip(writes).map(|(count, writes)| round(count / writes)));
        let mut figures = Map::new();
        figures.insert("policyExclusionsPerPodWrite".to_owned(), per_write(since(self.excluded, earlier.excluded)));
        figures.insert("policyFailuresPerPodWrite".to_owned(), per_write(since(self.failures, earlier.failures)));
        figures
    }
}

async fn metrics(client: &Client) -> anyhow::Result<String> {
    let request = http::Request::get("/metrics").body(Vec::new())?;
    client.request_text(request).await.context("cannot read the API server's metrics")
}

/// Returns the sum of a metric's series with the wanted labels. Returns `None` if there is no such series.
fn total(metrics: &str, name: &str, is_wanted: impl Fn(&str) -> bool) -> Option<f64> {
    let series = metrics.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix('{')?.split_once("} "));
    let wanted = series.filter(|(labels, _)| is_wanted(labels));
    wanted.filter_map(|(_, count)| count.trim().parse::<f64>().ok()).reduce(|sum, count| sum + count)
}

/// Returns true if one of the labels has this value. The values here contain neither commas nor quotes.
fn has(labels: &str, name: &str, value: &str) -> bool {
    labels
        .split(',')
        .filter_map(|pair| pair.split_once('='))
        .any(|(key, found)| key == name && found.trim_matches('"') == value)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOLDS: &str = "pod-holds.oarlock.dev";

    fn metrics(excluded: [u32; 2], writes: u32, failures: &str) -> String {
        let [holds, other] = excluded;
        format!(
            "# TYPE {MATCH_CONDITIONS} counter\n\
             {MATCH_CONDITIONS}{{kind=\"policy\",name=\"{HOLDS}\",operation=\"UPDATE\",type=\"validate\"}} {holds}\n\
             {MATCH_CONDITIONS}{{kind=\"policy\",name=\"{HOLDS}\",operation=\"CREATE\",type=\"validate\"}} {holds}\n\
             {MATCH_CONDITIONS}{{kind=\"policy\",name=\"of-jobs\",operation=\"UPDATE\",type=\"validate\"}} {other}\n\
             {REQUESTS}{{code=\"200\",resource=\"pods\",subresource=\"\",verb=\"PATCH\"}} {writes}\n\
             {REQUESTS}{{code=\"201\",resource=\"pods\",subresource=\"\",verb=\"POST\"}} {writes}\n\
             {REQUESTS}{{code=\"200\",resource=\"pods\",subresource=\"\",verb=\"LIST\"}} 700\n\
             {REQUESTS}{{code=\"200\",resource=\"nodes\",subresource=\"\",verb=\"PATCH\"}} 800\n{failures}"
        )
    }

    #[test]
    fn policies_are_counted_per_write_of_a_pod_since_the_begin() {
        let names = PolicyNames(vec![HOLDS.to_owned()]);
        let (before, after) =
            (metrics([1, 2], 10, ""), metrics([31, 82], 60, &format!("{CHECKS}{{policy=\"x\"}} 5\n")));
        let figures = names.counts(&after).per_pod_write_since(&names.counts(&before));
        assert_eq!(json!(figures), json!({"policyExclusionsPerPodWrite": 0.6, "policyFailuresPerPodWrite": 0.05}));
    }

    #[test]
    fn figure_that_the_server_does_not_count_is_absent() {
        let counts = PolicyNames(vec![HOLDS.to_owned()]).counts("");
        let figures = counts.per_pod_write_since(&counts);
        assert_eq!(json!(figures), json!({"policyExclusionsPerPodWrite": null, "policyFailuresPerPodWrite": null}));
    }

    #[test]
    fn policies_of_pods_are_those_with_conditions_and_a_rule_for_pods() {
        let policy = |name: &str, resource: &str, conditions: Value| {
            json!({"kind": "ValidatingAdmissionPolicy", "metadata": {"name": name}, "spec": {
                "matchConstraints": {"resourceRules": [{"resources": ["bindings"]}, {"resources": [resource]}]},
                "matchConditions": conditions}})
        };
        let condition = json!([{"name": "a", "expression": "true"}]);
        let documents = [
            policy("of-pods", "pods", condition.clone()),
            policy("of-jobs", "operationjobs", condition),
            policy("of-all-pods", "pods", json!([])),
            json!({"kind": "ValidatingAdmissionPolicyBinding", "metadata": {"name": "of-pods"}}),
        ];
        assert_eq!(PolicyNames::of(&documents), PolicyNames(vec!["of-pods".to_owned()]));
    }

    #[test]
    fn printed_manifests_have_policies_of_pods() {
        let documents = oarlock_support::install::documents(oarlock_api::POD_ADMISSION).unwrap();
        assert!(!PolicyNames::of(&documents).0.is_empty());
    }
}
