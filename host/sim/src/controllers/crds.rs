//! The controller of CustomResourceDefinitions: adds, replaces and removes the kinds that they define.

use serde_json::Value;

use crate::{
    controllers::edit,
    kinds::crd_kinds,
    object::{self, at, str_at},
    server::cluster::State,
    storage::{Change, LogEntry},
};

/// Serves the kinds of a new or changed definition, and stops serving the kinds of a deleted one.
pub(crate) fn observe(state: &mut State, entry: &LogEntry) {
    let Some(kind) = state.kinds.by_path("apiextensions.k8s.io", "v1", "customresourcedefinitions").cloned() else {
        return;
    };
    if entry.table != kind.table {
        return;
    }
    let definition = &entry.object.value;
    let (group, plural) = (str_at(definition, &["spec", "group"]), str_at(definition, &["spec", "names", "plural"]));
    state.kinds.remove(group, plural);
    if entry.change == Change::Deleted {
        let table = state.kinds.table(group, plural);
        let keys = state.store.scan(table, None).map(|(key, _)| key.clone()).collect::<Vec<_>>();
        for key in keys {
            state.store.remove(table, &key);
        }
        return;
    }
    for served in crd_kinds::kinds_of(definition, &mut state.kinds) {
        state.kinds.insert(served);
    }
    if !established(definition) {
        let time = state.time();
        edit::edit(state, &kind, &entry.key, |definition| {
            let status = crd_kinds::established(definition, &time);
            object::as_map(definition).insert("status".into(), status);
        });
    }
}

fn established(definition: &Value) -> bool {
    let names = at(definition, &["spec", "names"]);
    at(definition, &["status", "conditions"]).is_some() && names == at(definition, &["status", "acceptedNames"])
}
