//! Takes a relation that `setup` declared and yields the objects of the scene
//! that belong to the target by it. May not show what another target holds.

use serde_json::Value;

use super::memory::{Object, Scene};
use crate::backend::ReadError;
use crate::parse_instant;
use crate::wit::{Freshness, Relation, RelationKey};

/// The namespace of every job of the kit.
pub(super) const NAMESPACE: &str = "default";

/// How many objects of the same controller the host shows at most.
const SUCCESSORS: usize = 16;

/// Time for a controller to make an object in place of a target, in milliseconds.
const MADE_BY_THEN_MS: u64 = 10_000;

/// The objects of a relation, in the order that the contract promises.
pub(super) fn find(scene: &Scene, relation: &Relation, freshness: Freshness) -> Result<Vec<Value>, ReadError> {
    let of_kind = |object: &&Value| {
        Object::text(object, &["apiVersion"]) == Some(relation.api_version.as_str())
            && Object::text(object, &["kind"]) == Some(relation.kind.as_str())
    };
    let mut found: Vec<Value> = scene
        .objects(freshness)?
        .iter()
        .filter(of_kind)
        .filter(|object| belongs(scene, &relation.by, object) && !is_taken(scene, object))
        .cloned()
        .collect();
    if relation.by == RelationKey::SameController {
        let asked = asked_ms(scene);
        let since_asked = |object: &Value| created_ms(object) >= Some(asked);
        // Its controller had made one too many before, and so makes no other.
        let surplus = scene.job.now_ms >= asked.saturating_add(MADE_BY_THEN_MS) && !found.iter().any(since_asked);
        found.retain(|object| surplus || since_asked(object));
        found.sort_by_key(created_ms);
        found.truncate(SUCCESSORS);
    } else {
        found.sort_by_key(|object| [&["metadata", "namespace"], &["metadata", "name"]].map(|path| part(object, path)));
    }
    Ok(found)
}

fn belongs(scene: &Scene, by: &RelationKey, object: &Value) -> bool {
    let target = &scene.target;
    match by {
        RelationKey::Label(key) => Object::text(object, &["metadata", "labels", key])
            .is_some_and(|value| value == target.name || held(scene).any(|name| name == value)),
        RelationKey::Extra(key) => {
            target.extras.get(key).map(String::as_str) == Object::text(object, &["metadata", "name"])
                && Object::text(object, &["metadata", "namespace"]) == Some(NAMESPACE)
        }
        RelationKey::Field(pointer) => object.pointer(pointer).and_then(Value::as_str) == Some(&target.name),
        RelationKey::OwnerIsJob => owned_by(object, &scene.job.uid),
        RelationKey::OwnerIsTarget => {
            target.object.as_ref().is_some_and(|object_of| owned_by(object, &part(object_of, &["metadata", "uid"])))
        }
        RelationKey::SameController => has_same_controller(scene, object),
        RelationKey::Other(_) => false,
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

/// When the target was asked to go, else when it started.
fn asked_ms(scene: &Scene) -> u64 {
    let target = &scene.target;
    target.extras.get("EvictedAt").and_then(|time| parse_instant(time)).unwrap_or(target.started_ms)
}

/// By the controller that the host stored when the target started; younger than that.
fn has_same_controller(scene: &Scene, object: &Value) -> bool {
    let target = &scene.target;
    let Some(owner) = target.extras.get("Owner").and_then(|owner| owner.rsplit('/').next()) else { return false };
    let itself = target.object.as_ref().map(|target| part(target, &["metadata", "uid"]));
    owned_by(object, owner)
        && itself != Some(part(object, &["metadata", "uid"]))
        && created_ms(object) >= Some(target.started_ms)
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
