//! Finds the objects of a call that belong to the target by a relation. It
//! leaves out objects that another target holds.

use oarlock_contract::extras::{EVICTED_AT, NODE, OWNER};
use oarlock_contract::manifest::TargetKind;
use oarlock_contract::proposal::{NODE_NAME, Relation, RelationKey};
use oarlock_contract::successors::{CANDIDATES, MADE_BY_THEN_SECONDS, candidates, controller, keeps_name, keeps_node};
use serde_json::Value;

use super::call_data::{CallData, Lacks, key_of};
use super::memory::Object;
use crate::backend::ReadError;
use crate::wit::Freshness;
use crate::{HOLD_PREFIX, parse_instant};

/// The namespace of every job of the kit.
pub(super) const NAMESPACE: &str = "default";

/// Returns the objects of a relation, in the order that the contract promises.
pub(super) fn find(call_data: &CallData, relation: &Relation, freshness: Freshness) -> Result<Vec<Value>, ReadError> {
    require(call_data, relation);
    let of_kind = |object: &&Value| key_of(object).kind == relation.kind;
    let all = call_data.objects(freshness)?.iter().filter(of_kind);
    if relation.by == RelationKey::SameController {
        return Ok(successors(call_data, all));
    }
    let belongs = |object: &&Value| match is_on_node(call_data, relation) {
        true => object.pointer(NODE_NAME).and_then(Value::as_str) == Some(&call_data.target.name),
        false => belongs(call_data, &relation.by, object) && !is_taken(call_data, object),
    };
    let mut found: Vec<Value> = all.filter(belongs).cloned().collect();
    found.sort_by_key(|object| [&["metadata", "namespace"], &["metadata", "name"]].map(|path| part(object, path)));
    Ok(found)
}

/// Returns true if the relation is that of a Node to its Pods. Such Pods may be
/// in any namespace.
fn is_on_node(call_data: &CallData, relation: &Relation) -> bool {
    let kind = call_data.target.object.as_ref().map(|object| key_of(object).kind);
    kind.is_some_and(|kind| kind.kind == TargetKind::Node.word()) && relation.is_on_node()
}

/// Ends the call if the test does not set the value that the relation needs. An
/// empty list would wrongly say that there are no such objects.
fn require(call_data: &CallData, relation: &Relation) {
    let target = &call_data.target;
    let lacking = match &relation.by {
        RelationKey::SameController if !target.controller_known => {
            "the controller that the target had when it started: say it with `controller` or `without_controller`"
        }
        RelationKey::SameController
            if keeps_node(kind_of_controller(call_data)) && !target.extras.contains_key(NODE) =>
        {
            "the node of the target, since a DaemonSet made it: give the Pod a `/spec/nodeName`, or the visit an extra `Node`"
        }
        RelationKey::OwnerIsTarget if target.uid.is_none() => "the UID of the target: say it with `uid`",
        _ => return,
    };
    let why = format!("relation {} needs {lacking}", relation.name);
    std::panic::resume_unwind(Box::new(Lacks(why)));
}

fn belongs(call_data: &CallData, by: &RelationKey, object: &Value) -> bool {
    let target = &call_data.target;
    let named = |name: Option<&str>| {
        name.is_some() && name == Object::text(object, &["metadata", "name"]) && in_namespace(object)
    };
    match by {
        RelationKey::Label(key) => Object::text(object, &["metadata", "labels", key]).is_some_and(|value| {
            in_namespace(object) && (value == target.name || held(call_data).any(|name| name == value))
        }),
        RelationKey::Extra(key) => named(target.extras.get(key).map(String::as_str)),
        RelationKey::Field(pointer) => {
            in_namespace(object) && object.pointer(pointer).and_then(Value::as_str) == Some(&target.name)
        }
        RelationKey::Parameter(pointer) => named(call_data.job.parameters.pointer(pointer).and_then(Value::as_str)),
        RelationKey::OwnerIsJob => in_namespace(object) && owned_by(object, &call_data.job.uid),
        RelationKey::OwnerIsTarget => {
            in_namespace(object) && target.uid.as_ref().is_some_and(|uid| owned_by(object, uid))
        }
        RelationKey::SameController => has_same_controller(call_data, object),
    }
}

/// Returns the exclusive extras that the target has stored.
fn held(call_data: &CallData) -> impl Iterator<Item = &str> {
    call_data
        .registration
        .exclusive_extras
        .iter()
        .filter_map(|key| call_data.target.extras.get(key))
        .map(String::as_str)
}

/// Returns true if another target holds the object.
fn is_taken(call_data: &CallData, object: &Value) -> bool {
    let name = part(object, &["metadata", "name"]);
    call_data.claimed.contains(&name) && held(call_data).all(|mine| mine != name)
}

fn kind_of_controller(call_data: &CallData) -> &str {
    call_data.target.extras.get(OWNER).and_then(|owner| controller(owner)).map_or("", |(kind, _)| kind)
}

/// Returns true if the object has the controller that the target had when it
/// started, and is not the target itself.
fn has_same_controller(call_data: &CallData, object: &Value) -> bool {
    let target = &call_data.target;
    let Some((kind, uid)) = target.extras.get(OWNER).and_then(|owner| controller(owner)) else { return false };
    let name = part(object, &["metadata", "name"]);
    let node = object.pointer(NODE_NAME).and_then(Value::as_str);
    in_namespace(object)
        && call_data.root_of(object).is_some_and(|root| root.uid == uid)
        && target.uid.as_deref() != Some(&part(object, &["metadata", "uid"]))
        && !is_barred(object)
        && (!keeps_name(kind) || name == target.name)
        && (!keeps_node(kind) || node == target.extras.get(NODE).map(String::as_str))
}

/// Returns true if the object is barred: it may have replaced a target of a job
/// that is gone.
fn is_barred(object: &Value) -> bool {
    let annotations = object.pointer("/metadata/annotations").and_then(Value::as_object);
    let mut holds = annotations.into_iter().flatten().filter(|(key, _)| key.starts_with(HOLD_PREFIX));
    holds.any(|(_, list)| list.as_str().is_some_and(|list| list.contains("\"barred\"")))
}

/// Returns the possible successors of the target, oldest first, and the objects
/// that it has claimed.
fn successors<'a>(call_data: &CallData, all: impl Iterator<Item = &'a Value> + Clone) -> Vec<Value> {
    let target = &call_data.target;
    let asked = target.extras.get(EVICTED_AT).and_then(|time| parse_instant(time)).unwrap_or(target.started_ms);
    // Kubernetes writes whole seconds.
    let asked = asked / 1000 * 1000;
    let by_then = asked.saturating_add(u64::from(MADE_BY_THEN_SECONDS) * 1000);
    // The job of the kit started together with its target. An object that was
    // created in that second may be older.
    let surplus = target.started_ms.saturating_add(1000);
    let surplus = (surplus < asked && by_then <= call_data.job.now_ms).then_some(surplus);
    let mut free: Vec<&Value> =
        all.clone().filter(|object| has_same_controller(call_data, object) && !is_taken(call_data, object)).collect();
    free.sort_by_key(|object| (created_ms(object), part(object, &["metadata", "name"])));
    let made_since = |since: u64| {
        let young = free.iter().filter(|object| created_ms(object) >= Some(since));
        young.take(CANDIDATES).copied().collect()
    };
    let mut shown: Vec<&Value> = candidates(asked, surplus, made_since);
    for name in held(call_data) {
        let claimed = |object: &&Value| in_namespace(object) && part(object, &["metadata", "name"]) == name;
        if !shown.iter().any(claimed) {
            shown.extend(all.clone().find(claimed));
        }
    }
    shown.into_iter().cloned().collect()
}

fn in_namespace(object: &Value) -> bool {
    Object::text(object, &["metadata", "namespace"]) == Some(NAMESPACE)
}

fn owned_by(object: &Value, uid: &str) -> bool {
    let owners = object.pointer("/metadata/ownerReferences").and_then(Value::as_array);
    owners.into_iter().flatten().any(|owner| Object::text(owner, &["uid"]) == Some(uid))
}

fn created_ms(object: &Value) -> Option<u64> {
    Object::text(object, &["metadata", "creationTimestamp"]).and_then(parse_instant)
}

fn part(object: &Value, path: &[&str]) -> String {
    Object::text(object, path).unwrap_or_default().to_owned()
}
