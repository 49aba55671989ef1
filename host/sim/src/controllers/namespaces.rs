//! The namespace controller: deletes the content of a deleted namespace, pods first, and then removes the namespace.

use serde_json::{Value, json};

use crate::{
    controllers::edit,
    kinds::registry::Kind,
    object,
    server::cluster::State,
    storage::{Change, Key, LogEntry},
    verbs::delete::{self, DeleteOptions},
};

/// The finalizer in a namespace's spec that this controller removes once the namespace is empty.
const FINALIZER: &str = "kubernetes";

/// Continues the deletion of the namespace that a write concerns.
pub(crate) fn observe(state: &mut State, entry: &LogEntry) {
    let Some(namespaces) = state.kinds.by_path("", "v1", "namespaces").cloned() else { return };
    let is_namespace = entry.table == namespaces.table;
    if !is_namespace && entry.change != Change::Deleted {
        return;
    }
    let name = if is_namespace { &entry.key.name } else { &entry.key.namespace };
    let key = Key::new("", name.clone());
    if !state.store.get(namespaces.table, &key).is_some_and(|found| object::is_deleting(&found.value)) {
        return;
    }
    let pods = state.kinds.by_path("", "v1", "pods").map(|kind| kind.table);
    let has_pods = pods.is_some_and(|pods| state.store.scan(pods, Some(name)).next().is_some());
    if is_namespace || (Some(entry.table) == pods && !has_pods) {
        delete_content(state, name, |kind| !has_pods || kind.is("", "Pod"));
    }
    let has_content =
        state.kinds.all().any(|kind| kind.namespaced && state.store.scan(kind.table, Some(name)).next().is_some());
    if !has_content {
        finalize(state, &namespaces, &key);
    }
}

fn delete_content(state: &mut State, namespace: &str, wanted: impl Fn(&Kind) -> bool) {
    let kinds = state.kinds.all().filter(|kind| kind.namespaced && wanted(kind)).cloned().collect::<Vec<_>>();
    for kind in kinds {
        let keys = state.store.scan(kind.table, Some(namespace)).map(|(key, _)| key.clone()).collect::<Vec<_>>();
        for key in keys {
            let options = DeleteOptions { propagation: Some("Background".into()), ..DeleteOptions::default() };
            // The only possible error is that the object is already gone.
            drop(delete::remove(state, &kind, &key, options));
        }
    }
}

/// Removes an empty namespace, or only this controller's finalizer if other finalizers hold it.
fn finalize(state: &mut State, namespaces: &Kind, key: &Key) {
    let Some(found) = state.store.get(namespaces.table, key).cloned() else { return };
    let own = object::at(&found.value, &["spec", "finalizers"]).and_then(Value::as_array).into_iter().flatten();
    let left = own.filter(|one| *one != FINALIZER).cloned().collect::<Vec<_>>();
    if left.is_empty() && object::finalizers(&found.value).next().is_none() {
        state.store.remove(namespaces.table, key);
        return;
    }
    edit::edit(state, namespaces, key, |namespace| {
        let spec = object::map_at(namespace, "spec");
        spec.shift_remove("finalizers");
        if !left.is_empty() {
            spec.insert("finalizers".into(), json!(left));
        }
    });
}
