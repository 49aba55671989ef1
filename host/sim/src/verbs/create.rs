//! Answers a POST: validates, admits and stores a new object.

use http::StatusCode;
use serde_json::{Value, json};

use crate::{
    admission::policies::{self, Operation},
    kinds::registry::Kind,
    lifecycle::{metadata, prepare},
    object,
    server::{
        cluster::State,
        decode,
        handle::shown,
        reply::Reply,
        routing::Call,
        status::{FieldError, Refusal},
    },
    storage::{self, Key, ObjectVersion},
    verbs::{binding, eviction, update::Managed},
};

/// Characters of a generateName before the suffix. A generated name has at most 63 characters.
const GENERATED_BASE: usize = 58;

/// Answers a POST.
pub(crate) fn create(state: &mut State, call: &Call) -> Result<Reply, Refusal> {
    match (call.subresource.as_str(), call.name.is_empty()) {
        ("binding", _) => return binding::bind(state, call),
        ("eviction", _) => return eviction::evict(state, call),
        ("", true) => {}
        _ if call.kind.custom.is_some() => return Err(Refusal::not_supported(&call.kind, "create")),
        _ => return Err(Refusal::method_not_allowed()),
    }
    if call.kind.namespaced && call.namespace.is_empty() {
        return Err(Refusal::method_not_allowed());
    }
    let decode::Decoded { object, mut warnings } = decode::object(call)?;
    warnings.extend(without_controller(&call.kind));
    Ok(insert(state, call, (object, Managed::Track))?.warned(warnings))
}

/// Returns a warning for a kind that no controller of this cluster handles.
fn without_controller(kind: &Kind) -> Option<String> {
    let idle = kind.is("batch", "CronJob") || kind.is("apps", "DaemonSet");
    idle.then(|| format!("a cluster in memory makes no pods for a {}: it has no controller for them", kind.kind))
}

/// Stores a new object. Updates and applies that create an object use it too.
pub(crate) fn insert(
    state: &mut State,
    call: &Call,
    (mut object, managed): (Value, Managed),
) -> Result<Reply, Refusal> {
    let kind = &call.kind;
    place(call, &mut object)?;
    if object::meta(&object, "resourceVersion").is_some_and(|rv| rv != "" && rv != "0") {
        return Err(Refusal::plain(500, "", "resourceVersion should not be set on objects to be created"));
    }
    let dry_run = call.query.dry_run();
    namespace_admits(state, call, named(&object))?;
    metadata::strip_for_create(&mut object);
    name(state, &mut object);
    let time = state.time();
    object::set_meta(&mut object, "creationTimestamp", json!(time));
    let uid = state.random.uid();
    object::set_meta(&mut object, "uid", json!(uid));
    prepare::for_create(kind, &mut object);
    let key = Key::new(object::namespace(&object), object::name(&object));
    let mut errors = metadata::errors(kind, &object);
    errors.extend(prepare::create_errors(kind, &object));
    if !errors.is_empty() {
        return Err(Refusal::invalid(kind, &key.name, &errors));
    }
    managed.note(state, call, (None, &mut object));
    policies::check(state, call, &Operation::create(&object))?;
    if state.store.get(kind.table, &key).is_some() {
        return Err(Refusal::already_exists(kind, &key.name));
    }
    prepare::for_store(kind, &mut object);
    if dry_run {
        return shown(state, call, StatusCode::CREATED, &ObjectVersion::new(0, object));
    }
    if !storage::fits(&object) {
        return Err(Refusal::too_large());
    }
    let stored = state.store.put(kind.table, key, object);
    shown(state, call, StatusCode::CREATED, &stored)
}

/// Sets the object's namespace from the path. Refuses an object with another namespace.
pub(crate) fn place(call: &Call, object: &mut Value) -> Result<(), Refusal> {
    let said = object::namespace(object);
    if !call.kind.namespaced {
        if said.is_empty() {
            return Ok(());
        }
        object::set_meta(object, "namespace", Value::Null);
        return Ok(());
    }
    if !said.is_empty() && said != call.namespace {
        return Err(Refusal::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        ));
    }
    object::set_meta(object, "namespace", json!(call.namespace));
    Ok(())
}

fn name(state: &mut State, object: &mut Value) {
    let prefix = object::meta_str(object, "generateName").to_owned();
    if object::name(object).is_empty() && !prefix.is_empty() {
        let base = prefix.chars().take(GENERATED_BASE).collect::<String>();
        let name = format!("{base}{}", state.random.suffix());
        object::set_meta(object, "name", json!(name));
    }
}

/// Returns the object's name, or its generateName if the name is not generated yet.
fn named(object: &Value) -> &str {
    let name = object::name(object);
    if name.is_empty() { object::meta_str(object, "generateName") } else { name }
}

/// Refuses creations in a namespace that is absent or being deleted, also of subresources such as an eviction.
pub(crate) fn namespace_admits(state: &State, call: &Call, name: &str) -> Result<(), Refusal> {
    if !call.kind.namespaced {
        return Ok(());
    }
    let Some(namespaces) = state.kinds.by_path("", "v1", "namespaces") else { return Ok(()) };
    let found = state.store.get(namespaces.table, &Key::new("", call.namespace.clone()));
    let Some(namespace) = found else { return Err(Refusal::not_found(namespaces, &call.namespace)) };
    if !object::is_deleting(&namespace.value) {
        return Ok(());
    }
    let text = format!("unable to create new content in namespace {} because it is being terminated", call.namespace);
    let mut refusal = Refusal::forbidden(&call.kind, name, &text);
    let cause = json!([{
        "reason": "NamespaceTerminating",
        "message": format!("namespace {} is being terminated", call.namespace),
        "field": "metadata.namespace",
    }]);
    object::as_map(&mut refusal.details).insert("causes".into(), cause);
    Err(refusal)
}

/// Refuses an object whose name differs from the path's. Sets a missing name.
pub(crate) fn name_matches(call: &Call, object: &mut Value) -> Result<(), Refusal> {
    let said = object::name(object);
    if said.is_empty() {
        object::set_meta(object, "name", json!(call.name));
        return Ok(());
    }
    if said != call.name {
        let message = format!("the name of the object ({said}) does not match the name on the URL ({})", call.name);
        return Err(Refusal::bad_request(message));
    }
    Ok(())
}

/// Returns the error of an update without a resourceVersion.
pub(crate) fn version_required() -> FieldError {
    FieldError {
        field: "metadata.resourceVersion".into(),
        reason: "FieldValueInvalid",
        text: "Invalid value: 0: must be specified for an update".into(),
    }
}
