//! The namespace controller: empties a deleted namespace, then removes it.

use crate::{
    object,
    server::cluster::State,
    storage::{Change, Key, LogEntry},
    verbs::delete::{self, DeleteOptions},
};

/// Empties a namespace that is being deleted, and removes it once it is empty.
pub(crate) fn observe(state: &mut State, entry: &LogEntry) {
    let Some(table) = state.kinds.by_path("", "v1", "namespaces").map(|kind| kind.table) else { return };
    let name = if entry.table == table { &entry.key.name } else { &entry.key.namespace };
    let key = Key::new("", name.clone());
    let deleting = state.store.get(table, &key).is_some_and(|namespace| object::is_deleting(&namespace.value));
    if !deleting {
        return;
    }
    if entry.table == table {
        empty(state, name);
    } else if entry.change != Change::Deleted {
        return;
    }
    let left =
        state.kinds.all().any(|kind| kind.namespaced && state.store.scan(kind.table, Some(name)).next().is_some());
    let held = state.store.get(table, &key).is_some_and(|found| object::finalizers(&found.value).next().is_some());
    if !left && !held {
        state.store.remove(table, &key);
    }
}

fn empty(state: &mut State, name: &str) {
    let kinds = state.kinds.all().filter(|kind| kind.namespaced).cloned().collect::<Vec<_>>();
    for kind in kinds {
        let keys = state.store.scan(kind.table, Some(name)).map(|(key, _)| key.clone()).collect::<Vec<_>>();
        for key in keys {
            let options = DeleteOptions { propagation: Some("Background".into()), ..DeleteOptions::default() };
            // An object that is already gone needs no deletion, and nothing else can be refused here.
            drop(delete::remove(state, &kind, &key, options));
        }
    }
}
