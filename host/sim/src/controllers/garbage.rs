//! The garbage collector: deletes the dependents of deleted owners. It treats an owner of an unserved kind as
//! existing.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use serde_json::{Value, json};

use crate::{
    controllers::edit,
    kinds::registry::{Kind, TableId},
    object::{self, str_at},
    server::cluster::State,
    storage::{Change, Key, LogEntry},
    verbs::delete::{self, DeleteOptions, FOREGROUND, ORPHAN},
};

type ObjectRef = (TableId, Key);

/// The UIDs of all existing objects, and the dependents of each owner.
#[derive(Debug, Default)]
pub(crate) struct Graph {
    alive: BTreeSet<String>,
    dependents: BTreeMap<String, BTreeSet<ObjectRef>>,
}

impl Graph {
    fn note(&mut self, entry: &LogEntry) {
        let place = (entry.table, entry.key.clone());
        for owner in entry.previous.iter().flat_map(|previous| object::owners(&previous.value)) {
            let uid = str_at(owner, &["uid"]);
            if let Some(places) = self.dependents.get_mut(uid) {
                places.remove(&place);
                if places.is_empty() {
                    self.dependents.remove(uid);
                }
            }
        }
        let uid = object::uid(&entry.object.value).to_owned();
        if entry.change == Change::Deleted {
            self.alive.remove(&uid);
            return;
        }
        self.alive.insert(uid);
        for owner in object::owners(&entry.object.value) {
            self.dependents.entry(str_at(owner, &["uid"]).to_owned()).or_default().insert(place.clone());
        }
    }

    fn dependents(&self, uid: &str) -> Vec<ObjectRef> {
        self.dependents.get(uid).into_iter().flatten().cloned().collect()
    }
}

/// Updates the graph with one write, and collects what the write made collectable.
pub(crate) fn observe(state: &mut State, entry: &LogEntry) {
    state.controllers.graph.note(entry);
    let object = &entry.object.value;
    if entry.change == Change::Deleted {
        for place in state.controllers.graph.dependents(object::uid(object)) {
            judge(state, &place);
        }
        return owners_wait(state, object);
    }
    if object::owners(object).next().is_some() {
        judge(state, &(entry.table, entry.key.clone()));
    }
    if object::is_deleting(object) {
        dependents_first(state, &(entry.table, entry.key.clone()));
    }
}

fn kind_of(state: &State, table: TableId) -> Option<Arc<Kind>> {
    state.kinds.all().find(|kind| kind.table == table).cloned()
}

/// Deletes an object if all of its owners are gone. Otherwise drops its references to the owners that are gone.
fn judge(state: &mut State, place: &ObjectRef) {
    let Some(kind) = kind_of(state, place.0) else { return };
    let Some(found) = state.store.get(place.0, &place.1).cloned() else { return };
    let (alive, gone): (Vec<_>, Vec<_>) = object::owners(&found.value).partition(|owner| lives(state, owner));
    if gone.is_empty() || object::is_deleting(&found.value) {
        return;
    }
    if alive.is_empty() {
        let options = DeleteOptions {
            uid: Some(object::uid(&found.value).to_owned()),
            propagation: Some("Background".into()),
            ..DeleteOptions::default()
        };
        // The UID was read under the same lock, so no precondition can refuse this deletion.
        drop(delete::remove(state, &kind, &place.1, options));
    } else {
        let left = json!(alive);
        edit::edit(state, &kind, &place.1, |object| object::set_meta(object, "ownerReferences", left));
    }
}

fn lives(state: &State, owner: &Value) -> bool {
    let served = state.kinds.by_name(str_at(owner, &["apiVersion"]), str_at(owner, &["kind"])).is_some();
    !served || state.controllers.graph.alive.contains(str_at(owner, &["uid"]))
}

/// Orphans or deletes the dependents of an owner that waits for them.
fn dependents_first(state: &mut State, place: &ObjectRef) {
    let Some(kind) = kind_of(state, place.0) else { return };
    let Some(owner) = state.store.get(place.0, &place.1).cloned() else { return };
    let waits = |name: &str| object::finalizers(&owner.value).any(|one| one == name);
    let uid = object::uid(&owner.value).to_owned();
    if waits(ORPHAN) {
        for dependent in state.controllers.graph.dependents(&uid) {
            orphan(state, &dependent, &uid);
        }
        return drop_finalizer(state, &kind, &place.1, ORPHAN);
    }
    if !waits(FOREGROUND) {
        return;
    }
    for dependent in state.controllers.graph.dependents(&uid) {
        let Some(kind) = kind_of(state, dependent.0) else { continue };
        let options = DeleteOptions { propagation: Some("Foreground".into()), ..DeleteOptions::default() };
        let deleting = state.store.get(dependent.0, &dependent.1).is_none_or(|found| object::is_deleting(&found.value));
        if !deleting {
            // The only possible error is that the dependent is already gone.
            drop(delete::remove(state, &kind, &dependent.1, options));
        }
    }
    release(state, &kind, &place.1, &uid);
}

/// Removes the foreground finalizer of an owner once no dependent blocks its deletion.
fn release(state: &mut State, kind: &Kind, key: &Key, uid: &str) {
    let blocks = |place: &ObjectRef| {
        let found = state.store.get(place.0, &place.1);
        let blocking =
            |owner: &Value| str_at(owner, &["uid"]) == uid && owner.get("blockOwnerDeletion") == Some(&json!(true));
        found.is_some_and(|found| object::owners(&found.value).any(blocking))
    };
    if !state.controllers.graph.dependents(uid).iter().any(blocks) {
        drop_finalizer(state, kind, key, FOREGROUND);
    }
}

/// Checks the owners of a deleted object: one of them may have waited only for this dependent.
fn owners_wait(state: &mut State, object: &Value) {
    for owner in object::owners(object) {
        let found = state.kinds.by_name(str_at(owner, &["apiVersion"]), str_at(owner, &["kind"])).cloned();
        let Some(kind) = found else { continue };
        let namespace = if kind.namespaced { object::namespace(object) } else { "" };
        let key = Key::new(namespace, str_at(owner, &["name"]));
        let uid = str_at(owner, &["uid"]);
        let waits = state.store.get(kind.table, &key).is_some_and(|found| {
            object::uid(&found.value) == uid
                && object::is_deleting(&found.value)
                && object::finalizers(&found.value).any(|one| one == FOREGROUND)
        });
        if waits {
            release(state, &kind, &key, uid);
        }
    }
}

fn orphan(state: &mut State, place: &ObjectRef, uid: &str) {
    let Some(kind) = kind_of(state, place.0) else { return };
    edit::edit(state, &kind, &place.1, |object| {
        let left = object::owners(object).filter(|owner| str_at(owner, &["uid"]) != uid).cloned().collect::<Vec<_>>();
        let left = if left.is_empty() { Value::Null } else { json!(left) };
        object::set_meta(object, "ownerReferences", left);
    });
}

fn drop_finalizer(state: &mut State, kind: &Kind, key: &Key, name: &str) {
    edit::edit(state, kind, key, |object| {
        let left = object::finalizers(object).filter(|one| *one != name).map(str::to_owned).collect::<Vec<_>>();
        let left = if left.is_empty() { Value::Null } else { json!(left) };
        object::set_meta(object, "finalizers", left);
    });
}
