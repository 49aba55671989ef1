//! Answers a PUT, and stores the result of a patch or an apply. Clients change existing objects only here.
//! An equal object is not written. An update that removes the last finalizer of a deleted object removes the object.

use http::StatusCode;
use serde_json::Value;

use crate::{
    admission::policies::{self, Operation},
    kinds::registry::Kind,
    lifecycle::{metadata, prepare},
    merge::managed_fields::{self, FieldOwner},
    object::{self, meta_str},
    server::{
        cluster::State,
        decode,
        handle::{key, shown},
        reply::Reply,
        routing::Call,
        status::Refusal,
    },
    storage::{self, Key, ObjectVersion},
    verbs::{
        create::{self, name_matches, version_required},
        delete,
    },
};

/// Answers a PUT.
pub(crate) fn replace(state: &mut State, call: &Call) -> Result<Reply, Refusal> {
    let decode::Decoded { object: mut new, warnings } = decode::object(call)?;
    if object::name(&new).is_empty() {
        let message =
            format!("the name of the object ({} based on URL) was undeterminable: name must be provided", call.name);
        return Err(Refusal::bad_request(message));
    }
    name_matches(call, &mut new)?;
    let kind = &call.kind;
    let Some(old) = state.store.get(kind.table, &key(call)).cloned() else {
        if kind.traits.create_on_update && call.subresource.is_empty() {
            return Ok(create::insert(state, call, (new, Managed::Track))?.warned(warnings));
        }
        return Err(Refusal::not_found(kind, &call.name));
    };
    let said = meta_str(&new, "uid");
    if !said.is_empty() && said != object::uid(&old.value) {
        return Err(uid_precondition(call, said, object::uid(&old.value)));
    }
    if meta_str(&new, "resourceVersion").is_empty() && kind.traits.conditional {
        // Here the real server's error names the resource. Other refusals name the kind.
        let named = Kind { kind: kind.plural.clone(), ..(**kind).clone() };
        return Err(Refusal::invalid(&named, &call.name, &[version_required()]));
    }
    Ok(change(state, call, &old, (new, Managed::Track))?.warned(warnings))
}

pub(crate) fn uid_precondition(call: &Call, said: &str, found: &str) -> Refusal {
    let kind = &call.kind;
    let group = if kind.custom.is_some() { format!("{}/", kind.group) } else { String::new() };
    let namespace = if kind.namespaced { format!("{}/", call.namespace) } else { String::new() };
    let path = format!("/registry/{group}{}/{namespace}{}", kind.plural, call.name);
    Refusal::conflict(
        kind,
        &call.name,
        &format!(
            "StorageError: invalid object, Code: 4, Key: {path}, ResourceVersion: 0, AdditionalErrorMsg: \
             Precondition failed: UID in precondition: {said}, UID in object meta: {found}"
        ),
    )
}

/// The source of the field owners after a write.
#[derive(Debug)]
pub(crate) enum Managed {
    /// The writer owns the fields that it changed.
    Track,
    /// Server-side apply has computed the owners.
    By(Vec<FieldOwner>),
}

impl Managed {
    pub(crate) fn note(self, state: &State, call: &Call, (old, new): (Option<&Value>, &mut Value)) {
        match self {
            Self::Track => managed_fields::track(call, old, new, &state.time()),
            Self::By(owners) => managed_fields::store(new, &owners),
        }
    }
}

/// Checks `new` and stores it in place of `old`.
pub(crate) fn change(
    state: &mut State,
    call: &Call,
    old: &ObjectVersion,
    (mut new, managed): (Value, Managed),
) -> Result<Reply, Refusal> {
    let kind = &call.kind;
    let dry_run = call.query.dry_run();
    let said = meta_str(&new, "resourceVersion");
    if !said.is_empty() && said != "0" && said != old.rv.to_string() {
        return Err(Refusal::modified(kind, &call.name));
    }
    object::copy_meta(&old.value, &mut new, "resourceVersion");
    same_place(call, &mut new)?;
    prepare::for_update(kind, &call.subresource, &old.value, &mut new);
    metadata::keep_for_update(&old.value, &mut new);
    prepare::raise_generation(kind, &old.value, &mut new);
    // The real server validates metadata twice: once for all kinds and once for each kind.
    let mut errors = metadata::change_errors(&old.value, &new);
    errors.extend(errors.clone());
    errors.extend(prepare::update_errors(kind, &call.subresource, &old.value, &new));
    if !errors.is_empty() {
        return Err(Refusal::invalid(kind, &call.name, &errors));
    }
    managed.note(state, call, (Some(&old.value), &mut new));
    policies::check(state, call, &Operation::update(&new, &old.value, &call.subresource))?;
    if dry_run || new == old.value {
        return shown(state, call, StatusCode::OK, &ObjectVersion::new(old.rv, new));
    }
    if deletion_is_complete(kind, &old.value, &new) {
        state.store.remove(kind.table, &key(call));
        return shown(state, call, StatusCode::OK, &ObjectVersion::new(old.rv, new));
    }
    if !storage::fits(&new) {
        return Err(Refusal::too_large());
    }
    let stored = state.store.put(kind.table, Key::new(call.namespace.clone(), call.name.clone()), new);
    shown(state, call, StatusCode::OK, &stored)
}

fn same_place(call: &Call, new: &mut Value) -> Result<(), Refusal> {
    if !call.kind.namespaced {
        object::set_meta(new, "namespace", Value::Null);
        return Ok(());
    }
    let said = object::namespace(new);
    if !said.is_empty() && said != call.namespace {
        return Err(Refusal::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        ));
    }
    object::set_meta(new, "namespace", Value::String(call.namespace.clone()));
    Ok(())
}

/// Returns true if a deleted object has no finalizers left and its grace period is over.
fn deletion_is_complete(kind: &Kind, old: &Value, new: &Value) -> bool {
    let grace = object::meta(old, "deletionGracePeriodSeconds").and_then(Value::as_i64).unwrap_or_default();
    object::is_deleting(old)
        && grace == 0
        && object::finalizers(new).next().is_none()
        && !delete::held_namespace(kind, new)
}
