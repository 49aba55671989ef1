//! Takes a relation that `setup` declared and yields the objects of the scene
//! that belong to the target by it. May not show what another target holds.

use oarlock_contract::extras::{EVICTED_AT, NODE, OWNER};
use oarlock_contract::manifest::TargetKind;
use oarlock_contract::proposal::{NODE_NAME, Relation, RelationKey};
use oarlock_contract::successors::{CANDIDATES, MADE_BY_THEN_SECONDS, candidates, controller, keeps_name, keeps_node};
use serde_json::Value;

use super::memory::Object;
use super::scene::{Lacks, Scene, key_of};
use crate::backend::ReadError;
use crate::wit::Freshness;
use crate::{HOLD_PREFIX, parse_instant};

/// The namespace of every job of the kit.
pub(super) const NAMESPACE: &str = "default";

/// The objects of a relation, in the order that the contract promises.
pub(super) fn find(scene: &Scene, relation: &Relation, freshness: Freshness) -> Result<Vec<Value>, ReadError> {
    require(scene, relation);
    let of_kind = |object: &&Value| key_of(object).kind == relation.kind;
    let all = scene.objects(freshness)?.iter().filter(of_kind);
    if relation.by == RelationKey::SameController {
        return Ok(successors(scene, all));
    }
    let belongs = |object: &&Value| match is_on_node(scene, relation) {
        true => object.pointer(NODE_NAME).and_then(Value::as_str) == Some(&scene.target.name),
        false => belongs(scene, &relation.by, object) && !is_taken(scene, object),
    };
    let mut found: Vec<Value> = all.filter(belongs).cloned().collect();
    found.sort_by_key(|object| [&["metadata", "namespace"], &["metadata", "name"]].map(|path| part(object, path)));
    Ok(found)
}

/// Whether the relation is that of a Node to its Pods, which are of every namespace.
fn is_on_node(scene: &Scene, relation: &Relation) -> bool {
    let kind = scene.target.object.as_ref().map(|object| key_of(object).kind);
    kind.is_some_and(|kind| kind.kind == TargetKind::Node.word()) && relation.is_on_node()
}

/// Ends the call where the test does not say what the relation is matched by:
/// an empty list would say that there is nothing.
fn require(scene: &Scene, relation: &Relation) {
    let target = &scene.target;
    let lacking = match &relation.by {
        RelationKey::SameController if !target.controller_known => {
            "the controller that the target had when it started: say it with `controller` or `without_controller`"
        }
        RelationKey::SameController if keeps_node(kind_of_controller(scene)) && !target.extras.contains_key(NODE) => {
            "the node of the target, since a DaemonSet made it: give the Pod a `/spec/nodeName`, or the visit an extra `Node`"
        }
        RelationKey::OwnerIsTarget if target.uid.is_none() => "the UID of the target: say it with `uid`",
        _ => return,
    };
    let why = format!("relation {} needs {lacking}", relation.name);
    std::panic::resume_unwind(Box::new(Lacks(why)));
}

fn belongs(scene: &Scene, by: &RelationKey, object: &Value) -> bool {
    let target = &scene.target;
    let named = |name: Option<&str>| {
        name.is_some() && name == Object::text(object, &["metadata", "name"]) && in_namespace(object)
    };
    match by {
        RelationKey::Label(key) => Object::text(object, &["metadata", "labels", key]).is_some_and(|value| {
            in_namespace(object) && (value == target.name || held(scene).any(|name| name == value))
        }),
        RelationKey::Extra(key) => named(target.extras.get(key).map(String::as_str)),
        RelationKey::Field(pointer) => {
            in_namespace(object) && object.pointer(pointer).and_then(Value::as_str) == Some(&target.name)
        }
        RelationKey::Parameter(pointer) => named(scene.job.parameters.pointer(pointer).and_then(Value::as_str)),
        RelationKey::OwnerIsJob => in_namespace(object) && owned_by(object, &scene.job.uid),
        RelationKey::OwnerIsTarget => {
            in_namespace(object) && target.uid.as_ref().is_some_and(|uid| owned_by(object, uid))
        }
        RelationKey::SameController => has_same_controller(scene, object),
    }
}

/// The exclusive extras that the target has stored.
fn held(scene: &Scene) -> impl Iterator<Item = &str> {
    scene.registration.exclusive_extras.iter().filter_map(|key| scene.target.extras.get(key)).map(String::as_str)
}

/// Whether another target holds the object.
fn is_taken(scene: &Scene, object: &Value) -> bool {
    let name = part(object, &["metadata", "name"]);
    scene.claimed.contains(&name) && held(scene).all(|mine| mine != name)
}

fn kind_of_controller(scene: &Scene) -> &str {
    scene.target.extras.get(OWNER).and_then(|owner| controller(owner)).map_or("", |(kind, _)| kind)
}

/// By the controller that the target had when it started; not the target itself.
fn has_same_controller(scene: &Scene, object: &Value) -> bool {
    let target = &scene.target;
    let Some((kind, uid)) = target.extras.get(OWNER).and_then(|owner| controller(owner)) else { return false };
    let name = part(object, &["metadata", "name"]);
    let node = object.pointer(NODE_NAME).and_then(Value::as_str);
    in_namespace(object)
        && scene.root_of(object).is_some_and(|root| root.uid == uid)
        && target.uid.as_deref() != Some(&part(object, &["metadata", "uid"]))
        && !is_barred(object)
        && (!keeps_name(kind) || name == target.name)
        && (!keeps_node(kind) || node == target.extras.get(NODE).map(String::as_str))
}

/// Whether only a job that is gone knew whose place the object took.
fn is_barred(object: &Value) -> bool {
    let annotations = object.pointer("/metadata/annotations").and_then(Value::as_object);
    let mut holds = annotations.into_iter().flatten().filter(|(key, _)| key.starts_with(HOLD_PREFIX));
    holds.any(|(_, list)| list.as_str().is_some_and(|list| list.contains("\"barred\"")))
}

/// The objects that may take the target's place, oldest first, and what it has claimed.
fn successors<'a>(scene: &Scene, all: impl Iterator<Item = &'a Value> + Clone) -> Vec<Value> {
    let target = &scene.target;
    let asked = target.extras.get(EVICTED_AT).and_then(|time| parse_instant(time)).unwrap_or(target.started_ms);
    // Kubernetes writes whole seconds.
    let asked = asked / 1000 * 1000;
    let by_then = asked.saturating_add(u64::from(MADE_BY_THEN_SECONDS) * 1000);
    // The job of the kit began with its target, and what was made in that second may be older.
    let surplus = target.started_ms.saturating_add(1000);
    let surplus = (surplus < asked && by_then <= scene.job.now_ms).then_some(surplus);
    let mut free: Vec<&Value> =
        all.clone().filter(|object| has_same_controller(scene, object) && !is_taken(scene, object)).collect();
    free.sort_by_key(|object| (created_ms(object), part(object, &["metadata", "name"])));
    let made_since = |since: u64| {
        let young = free.iter().filter(|object| created_ms(object) >= Some(since));
        young.take(CANDIDATES).copied().collect()
    };
    let mut shown: Vec<&Value> = candidates(asked, surplus, made_since);
    for name in held(scene) {
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
