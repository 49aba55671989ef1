//! Writes of the server's built-in controllers. They skip validation, so client requests must use `verbs`.

use serde_json::Value;

use crate::{kinds::registry::Kind, object, server::cluster::State, storage::Key};

/// Changes an object in place, and writes nothing if nothing changed. If the change removes the last finalizer of a
/// deleted object, it removes the object.
pub(crate) fn edit(state: &mut State, kind: &Kind, key: &Key, change: impl FnOnce(&mut Value)) {
    let Some(old) = state.store.get(kind.table, key).cloned() else { return };
    let mut new = old.value.clone();
    change(&mut new);
    if new == old.value {
        return;
    }
    let grace = object::meta(&new, "deletionGracePeriodSeconds").and_then(Value::as_i64).unwrap_or_default();
    let held = object::finalizers(&new).next().is_some() || grace > 0;
    if object::is_deleting(&new) && !held && object::finalizers(&old.value).next().is_some() {
        state.store.remove(kind.table, key);
    } else {
        state.store.put(kind.table, key.clone(), new);
    }
}
