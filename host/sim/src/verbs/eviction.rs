//! Answers a POST to `pods/x/eviction`: a deletion that respects disruption budgets. It keeps the real server's order,
//! including its trap: it spends the budget first and checks UID and resourceVersion afterwards.

use http::StatusCode;
use serde_json::{Value, json};

use crate::{
    controllers::{budgets, edit},
    kinds::{pods, registry::Kind},
    object::{self, at, str_at},
    selectors::LabelSelector,
    server::{cluster::State, decode, handle::key, reply::Reply, routing::Call, status::Refusal},
    storage::{Key, ObjectVersion},
    verbs::{
        create,
        delete::{self, DeleteOptions},
    },
};

/// The most evictions that may wait for the disruption controller.
const MAX_DISRUPTED: usize = 2000;
const CANNOT: &str = "Cannot evict pod as it would violate the pod's disruption budget.";

/// Answers a POST with an eviction.
pub(crate) fn evict(state: &mut State, call: &Call) -> Result<Reply, Refusal> {
    let eviction = decode::body(call)?;
    create::namespace_admits(state, call, &call.name)?;
    let said = object::name(&eviction);
    if said != call.name {
        return Err(Refusal::bad_request("name in URL does not match name in Eviction object"));
    }
    let key = key(call);
    let pod =
        state.store.get(call.kind.table, &key).cloned().ok_or_else(|| Refusal::not_found(&call.kind, &call.name))?;
    let mut options = DeleteOptions::from_object(eviction.get("deleteOptions").unwrap_or(&Value::Null));
    options.dry_run |= call.query.dry_run();
    budgets::expire(state, &call.namespace);
    if !outside_budgets(&pod.value) {
        allow(state, &pod, &mut options)?;
    }
    mark_and_delete(state, call, &key, options)?;
    let success = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201});
    Ok(Reply::value(StatusCode::CREATED, &success))
}

/// Returns true if evicting the pod costs no budget: it has ended, does not run yet, or is being deleted.
fn outside_budgets(pod: &Value) -> bool {
    matches!(str_at(pod, &["status", "phase"]), "Succeeded" | "Failed" | "Pending") || object::is_deleting(pod)
}

/// Spends a disruption of the one budget that covers the pod. A pod without a budget needs none.
fn allow(state: &mut State, pod: &ObjectVersion, options: &mut DeleteOptions) -> Result<(), Refusal> {
    let budgets = covering(state, &pod.value);
    let budget = match budgets.as_slice() {
        [] => return Ok(()),
        [one] => one.clone(),
        _ => {
            let text =
                "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.";
            return Err(Refusal::plain(500, "", text));
        }
    };
    let count = |field: &str| at(&budget.1.value, &["status", field]).and_then(Value::as_i64).unwrap_or_default();
    if !pods::is_ready(&pod.value) {
        let always = str_at(&budget.1.value, &["spec", "unhealthyPodEvictionPolicy"]) == "AlwaysAllow";
        let healthy = count("currentHealthy") >= count("desiredHealthy") && count("desiredHealthy") > 0;
        if always || healthy {
            // The pod may become ready in the meantime, so only exactly this version may be deleted.
            options.rv.get_or_insert_with(|| pod.rv.to_string());
            return Ok(());
        }
    }
    spend(state, pod, &budget, options.dry_run)
}

fn covering(state: &State, pod: &Value) -> Vec<(Key, std::sync::Arc<ObjectVersion>)> {
    let Some(kind) = state.kinds.by_path("policy", "v1", "poddisruptionbudgets") else { return Vec::new() };
    let all = state.store.scan(kind.table, Some(object::namespace(pod)));
    let covers = |budget: &ObjectVersion| {
        LabelSelector::from_object(at(&budget.value, &["spec", "selector"]))
            .is_some_and(|selector| selector.matches(pod))
    };
    all.filter(|(_, budget)| covers(budget)).map(|(key, budget)| (key.clone(), budget.clone())).collect()
}

fn spend(
    state: &mut State,
    pod: &ObjectVersion,
    budget: &(Key, std::sync::Arc<ObjectVersion>),
    dry_run: bool,
) -> Result<(), Refusal> {
    let (key, version) = budget;
    let Some(kind) = state.kinds.by_path("policy", "v1", "poddisruptionbudgets").cloned() else { return Ok(()) };
    let count = |field: &str| at(&version.value, &["status", field]).and_then(Value::as_i64).unwrap_or_default();
    if count("observedGeneration") < object::generation(&version.value) {
        let text = format!("The disruption budget {} is still being processed by the server.", key.name);
        return Err(too_many(&text, 10));
    }
    if count("disruptionsAllowed") < 0 {
        return Err(Refusal::forbidden(&kind, &key.name, "pdb disruptions allowed is negative"));
    }
    let waiting =
        at(&version.value, &["status", "disruptedPods"]).and_then(Value::as_object).map_or(0, serde_json::Map::len);
    if waiting > MAX_DISRUPTED {
        let text = "DisruptedPods map too big - too many evictions not confirmed by PDB controller";
        return Err(Refusal::forbidden(&kind, &key.name, text));
    }
    if count("disruptionsAllowed") == 0 {
        return Err(too_many(&nothing_allowed(&key.name, &version.value), 0));
    }
    if dry_run {
        return Ok(());
    }
    let (left, time) = (count("disruptionsAllowed") - 1, state.time());
    let name = object::name(&pod.value).to_owned();
    edit::edit(state, &kind, key, |budget| {
        if left == 0 {
            budgets::set_condition(budget, &time);
        }
        let status = object::map_at(budget, "status");
        status.insert("disruptionsAllowed".into(), json!(left));
        let slot = status.entry("disruptedPods").or_insert_with(|| json!({}));
        object::as_map(slot).insert(name, json!(time));
    });
    Ok(())
}

fn nothing_allowed(name: &str, budget: &Value) -> String {
    let count = |field: &str| at(budget, &["status", field]).and_then(Value::as_i64).unwrap_or_default();
    let (desired, current) = (count("desiredHealthy"), count("currentHealthy"));
    let condition = at(budget, &["status", "conditions"]).and_then(Value::as_array).and_then(|all| all.first());
    let condition =
        condition.filter(|one| str_at(one, &["status"]) == "False" && !str_at(one, &["message"]).is_empty());
    let part = |field: &str| condition.map(|one| str_at(one, &[field])).unwrap_or_default();
    let start = format!("The disruption budget {name}");
    match condition {
        Some(_) if part("reason") == "SyncFailed" => {
            format!("{start} does not allow evicting pods currently because it failed sync: {}", part("message"))
        }
        _ if current <= desired => format!("{start} needs {desired} healthy pods and has {current} currently"),
        Some(_) => format!("{start} does not allow evicting pods currently ({}): {}", part("reason"), part("message")),
        None => format!("{start} does not allow evicting pods currently"),
    }
}

fn too_many(cause: &str, after: u64) -> Refusal {
    let mut details = json!({"causes": [{"reason": "DisruptionBudget", "message": cause}]});
    if after > 0 {
        object::as_map(&mut details).insert("retryAfterSeconds".into(), json!(after));
    }
    Refusal::plain(429, "TooManyRequests", CANNOT).with_details(details)
}

/// Adds the reason to the pod's conditions, then deletes the pod. Checks the preconditions before each step.
fn mark_and_delete(state: &mut State, call: &Call, key: &Key, mut options: DeleteOptions) -> Result<(), Refusal> {
    let named = Kind { plural: "Pod".into(), ..(*call.kind).clone() };
    let pod =
        state.store.get(call.kind.table, key).cloned().ok_or_else(|| Refusal::not_found(&call.kind, &key.name))?;
    delete::preconditions(&named, &pod.value, &options)?;
    if !options.dry_run {
        let time = state.time();
        edit::edit(state, &call.kind, key, |pod| disruption_target(pod, &time));
        if options.rv.is_some() {
            options.rv = state.store.get(call.kind.table, key).map(|pod| pod.rv.to_string());
        }
    }
    delete::remove(state, &call.kind, key, options).map(drop)
}

fn disruption_target(pod: &mut Value, time: &str) {
    let status = object::map_at(pod, "status");
    let slot = status.entry("conditions").or_insert_with(|| json!([]));
    let Some(conditions) = slot.as_array_mut() else { return };
    let known = conditions.iter().position(|one| str_at(one, &["type"]) == "DisruptionTarget");
    if known.is_some_and(|index| conditions.get(index).is_some_and(|one| str_at(one, &["status"]) == "True")) {
        return;
    }
    conditions.retain(|one| str_at(one, &["type"]) != "DisruptionTarget");
    conditions.push(json!({
        "type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI",
        "message": "Eviction API: evicting", "lastProbeTime": null, "lastTransitionTime": time,
    }));
}
