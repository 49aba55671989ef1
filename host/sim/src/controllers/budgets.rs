//! The disruption controller: keeps the status of PodDisruptionBudgets up to date.

use std::collections::BTreeSet;

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use crate::{
    controllers::edit,
    kinds::pods,
    object::{self, at, map_at, str_at},
    selectors::LabelSelector,
    server::cluster::State,
    storage::{Key, LogEntry, ObjectVersion},
};

/// Time for which an accepted eviction counts as a disruption while the pod shows no deletion.
const DELETION_TIMEOUT: SignedDuration = SignedDuration::from_mins(2);

/// Marks the namespace of a write dirty if the write may change a budget.
pub(crate) fn observe(state: &State, entry: &LogEntry, dirty: &mut BTreeSet<String>) {
    let table = |group: &str, plural: &str| state.kinds.by_path(group, "v1", plural).map(|kind| kind.table);
    let concerns = if Some(entry.table) == table("", "pods") {
        entry.previous.as_ref().is_none_or(|previous| standing(&previous.value) != standing(&entry.object.value))
            || entry.change == crate::storage::Change::Deleted
    } else {
        Some(entry.table) == table("policy", "poddisruptionbudgets")
            || (["deployments", "replicasets", "statefulsets"]
                .iter()
                .any(|one| Some(entry.table) == table("apps", one)))
    };
    if concerns {
        dirty.insert(entry.key.namespace.clone());
    }
}

/// Returns the properties of a pod that a budget depends on.
fn standing(pod: &Value) -> (bool, bool, Option<&Value>) {
    (pods::is_ready(pod), object::is_deleting(pod), object::meta(pod, "labels"))
}

/// Updates the status of a namespace's budgets.
pub(crate) fn update(state: &mut State, namespace: &str) {
    let Some(kind) = state.kinds.by_path("policy", "v1", "poddisruptionbudgets").cloned() else { return };
    let keys = state.store.scan(kind.table, Some(namespace)).map(|(key, _)| key.clone()).collect::<Vec<_>>();
    for key in keys {
        let Some(budget) = state.store.get(kind.table, &key).cloned() else { continue };
        let count = Count::of(state, &budget.value);
        let time = state.time();
        edit::edit(state, &kind, &key, |budget| count.write(budget, &time));
    }
}

/// Recounts a namespace's budgets if one of them lists a disruption whose deletion did not happen in time. The real
/// controller recounts after the timeout. Here only an eviction depends on the count, so an eviction calls this function.
pub(crate) fn expire(state: &mut State, namespace: &str) {
    let Some(kind) = state.kinds.by_path("policy", "v1", "poddisruptionbudgets") else { return };
    let stale = |time: &Value| {
        let since = time.as_str().and_then(|time| time.parse::<Timestamp>().ok());
        since.is_none_or(|since| state.now.duration_since(since) >= DELETION_TIMEOUT)
    };
    let disrupted = |budget: &ObjectVersion| {
        let noted = at(&budget.value, &["status", "disruptedPods"]).and_then(Value::as_object);
        noted.is_some_and(|noted| noted.values().any(stale))
    };
    if state.store.scan(kind.table, Some(namespace)).any(|(_, budget)| disrupted(budget)) {
        update(state, namespace);
    }
}

/// The computed status of a budget.
struct Count {
    expected: i64,
    healthy: i64,
    desired: i64,
    disrupted: Value,
    failure: Option<String>,
}

impl Count {
    fn of(state: &State, budget: &Value) -> Self {
        let covered = covered(state, budget);
        let disrupted = still_disrupted(budget, &covered, state.now);
        let healthy = covered
            .iter()
            .filter(|pod| !object::is_deleting(&pod.value) && pods::is_ready(&pod.value))
            .filter(|pod| disrupted.get(object::name(&pod.value)).is_none())
            .count();
        let (expected, desired, failure) = match expectation(state, budget, &covered) {
            Ok((expected, desired)) => (expected, desired, None),
            Err(failure) => (0, 0, Some(failure)),
        };
        Self { expected, healthy: healthy as i64, desired, disrupted, failure }
    }

    fn write(&self, budget: &mut Value, time: &str) {
        let generation = object::generation(budget);
        let allowed =
            if self.failure.is_some() || self.expected <= 0 { 0 } else { (self.healthy - self.desired).max(0) };
        let status = map_at(budget, "status");
        status.insert("disruptionsAllowed".into(), json!(allowed));
        if self.failure.is_none() {
            status.insert("currentHealthy".into(), json!(self.healthy));
            status.insert("desiredHealthy".into(), json!(self.desired));
            status.insert("expectedPods".into(), json!(self.expected));
        }
        status.insert("observedGeneration".into(), json!(generation));
        if self.disrupted.as_object().is_none_or(serde_json::Map::is_empty) {
            status.shift_remove("disruptedPods");
        } else {
            status.insert("disruptedPods".into(), self.disrupted.clone());
        }
        match &self.failure {
            None => set_condition(budget, time),
            Some(message) => put_condition(budget, ("False", "SyncFailed", message), time),
        }
    }
}

fn covered(state: &State, budget: &Value) -> Vec<std::sync::Arc<ObjectVersion>> {
    let selector = LabelSelector::from_object(at(budget, &["spec", "selector"]));
    let (Some(selector), Some(pods)) = (selector, state.kinds.by_path("", "v1", "pods")) else { return Vec::new() };
    let all = state.store.scan(pods.table, Some(object::namespace(budget)));
    all.filter(|(_, pod)| selector.matches(&pod.value)).map(|(_, pod)| pod.clone()).collect()
}

fn still_disrupted(budget: &Value, covered: &[std::sync::Arc<ObjectVersion>], now: Timestamp) -> Value {
    let noted = at(budget, &["status", "disruptedPods"]).and_then(Value::as_object).into_iter().flatten();
    let counts = |(name, time): &(&String, &Value)| {
        let since = time.as_str().and_then(|time| time.parse::<Timestamp>().ok());
        let fresh = since.is_some_and(|since| now.duration_since(since) < DELETION_TIMEOUT);
        let pod = covered.iter().find(|pod| object::name(&pod.value) == *name);
        fresh && pod.is_some_and(|pod| !object::is_deleting(&pod.value))
    };
    Value::Object(noted.filter(counts).map(|(name, time)| (name.clone(), time.clone())).collect())
}

/// Returns the numbers of expected and of desired healthy pods.
fn expectation(state: &State, budget: &Value, covered: &[std::sync::Arc<ObjectVersion>]) -> Result<(i64, i64), String> {
    if let Some(bound) = at(budget, &["spec", "maxUnavailable"]) {
        let expected = scale(state, covered)?;
        return Ok((expected, (expected - scaled(bound, expected)).max(0)));
    }
    match at(budget, &["spec", "minAvailable"]) {
        Some(Value::String(percent)) => {
            let expected = scale(state, covered)?;
            Ok((expected, scaled(&json!(percent), expected)))
        }
        Some(number) => Ok((covered.len() as i64, number.as_i64().unwrap_or_default())),
        None => Ok((covered.len() as i64, 0)),
    }
}

/// Returns a bound as a number. A percentage applies to `whole` and is rounded up.
fn scaled(bound: &Value, whole: i64) -> i64 {
    match bound {
        Value::String(text) => {
            let percent = text.trim_end_matches('%').parse::<i64>().unwrap_or_default();
            (whole * percent + 99) / 100
        }
        number => number.as_i64().unwrap_or_default(),
    }
}

/// Returns the sum of the desired replicas of all controllers of the pods.
fn scale(state: &State, covered: &[std::sync::Arc<ObjectVersion>]) -> Result<i64, String> {
    let mut seen = BTreeSet::new();
    let mut total = 0;
    for pod in covered {
        let Some(owner) = object::owners(&pod.value).find(|one| one.get("controller") == Some(&json!(true))) else {
            continue;
        };
        if seen.insert(str_at(owner, &["uid"]).to_owned()) {
            let found = replicas(state, owner, object::namespace(&pod.value));
            total += found.ok_or_else(|| format!("found no controllers for pod {:?}", object::name(&pod.value)))?;
        }
    }
    Ok(total)
}

fn replicas(state: &State, owner: &Value, namespace: &str) -> Option<i64> {
    let kind = state.kinds.by_name(str_at(owner, &["apiVersion"]), str_at(owner, &["kind"]))?;
    let key = Key::new(if kind.namespaced { namespace } else { "" }, str_at(owner, &["name"]));
    let found = state.store.get(kind.table, &key)?;
    if kind.is("apps", "ReplicaSet")
        && let Some(deployment) = object::owners(&found.value).find(|one| str_at(one, &["kind"]) == "Deployment")
    {
        return replicas(state, deployment, namespace);
    }
    if !kind.traits.scale {
        return None;
    }
    let path = kind.custom.as_ref().map_or(".spec.replicas", |custom| str_at(&custom.scale, &["specReplicasPath"]));
    let path = path.split('.').filter(|part| !part.is_empty()).collect::<Vec<_>>();
    at(&found.value, &path).and_then(Value::as_i64)
}

/// Writes the condition `DisruptionAllowed` from `disruptionsAllowed`.
pub(crate) fn set_condition(budget: &mut Value, time: &str) {
    let allowed = at(budget, &["status", "disruptionsAllowed"]).and_then(Value::as_i64).unwrap_or_default();
    let (status, reason) = if allowed > 0 { ("True", "SufficientPods") } else { ("False", "InsufficientPods") };
    put_condition(budget, (status, reason, ""), time);
}

fn put_condition(budget: &mut Value, what: (&str, &str, &str), time: &str) {
    let generation = object::generation(budget);
    let old = at(budget, &["status", "conditions"]).and_then(Value::as_array).and_then(|all| all.first());
    let since =
        old.filter(|old| str_at(old, &["status"]) == what.0).map_or(time, |old| str_at(old, &["lastTransitionTime"]));
    let condition = json!([{
        "type": "DisruptionAllowed", "status": what.0, "observedGeneration": generation,
        "lastTransitionTime": since, "reason": what.1, "message": what.2,
    }]);
    map_at(budget, "status").insert("conditions".into(), condition);
}
