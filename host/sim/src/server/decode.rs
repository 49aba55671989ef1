//! Decodes the body of a write into an object. Kind and apiVersion come from the path if the body lacks them.

use serde_json::{Value, json};

use crate::{
    kinds::{events, registry::Kind},
    lifecycle::normalise::{self, UnknownFields},
    object,
    server::{
        protobuf,
        routing::Call,
        status::{FieldError, Refusal},
    },
};

/// Characters of an unreadable body that an error shows.
const SUMMARY: usize = 30;

/// Returns the body as JSON, from any supported format.
pub(crate) fn body(call: &Call) -> Result<Value, Refusal> {
    let media = call.content_type.split(';').next().unwrap_or_default().trim();
    match media {
        "" | "application/json" => json_text(&call.body),
        "application/yaml" => yaml_text(&call.body),
        protobuf::MEDIA if call.kind.custom.is_none() => protobuf::decode(&call.kind, &call.body),
        _ => Err(Refusal::unsupported_media("application/json, application/yaml, application/vnd.kubernetes.protobuf")),
    }
}

/// Parses JSON text.
pub(crate) fn json_text(body: &[u8]) -> Result<Value, Refusal> {
    serde_json::from_slice(body)
        .map_err(|cause| Refusal::bad_request(format!("error decoding the body of the request: {cause}")))
}

/// Parses YAML text, also JSON, which is valid YAML. Server-side apply sends YAML.
pub(crate) fn yaml_text(body: &[u8]) -> Result<Value, Refusal> {
    if let Ok(value) = serde_json::from_slice(body) {
        return Ok(value);
    }
    let text =
        std::str::from_utf8(body).map_err(|cause| Refusal::bad_request(format!("error decoding YAML: {cause}")))?;
    serde_saphyr::from_str(text).map_err(|cause| Refusal::bad_request(format!("error decoding YAML: {cause}")))
}

/// A client's object in its stored form, with the warnings for the client.
#[derive(Debug)]
pub(crate) struct Decoded {
    pub(crate) object: Value,
    pub(crate) warnings: Vec<String>,
}

/// Decodes the object in the body of a create or update.
pub(crate) fn object(call: &Call) -> Result<Decoded, Refusal> {
    finish(call, body(call)?)
}

/// Converts a value to an object of the call's kind in its stored form.
pub(crate) fn finish(call: &Call, mut value: Value) -> Result<Decoded, Refusal> {
    let warnings = normalise(call, &mut value)?;
    Ok(Decoded { object: stored_form(&call.kind, value), warnings })
}

/// Checks that a value is an object of the call's kind, and normalises it. Returns warnings.
pub(crate) fn normalise(call: &Call, value: &mut Value) -> Result<Vec<String>, Refusal> {
    typed(&call.kind, value)?;
    normalise::normalise(&call.kind, value, UnknownFields::wanted(&call.query))
}

/// Checks that a value is an object of the path's kind.
pub(crate) fn typed(kind: &Kind, value: &mut Value) -> Result<(), Refusal> {
    if !value.is_object() {
        let message = format!(
            "{} in version {:?} cannot be handled as a {}: it is not an object",
            kind.kind, kind.version, kind.kind
        );
        return Err(Refusal::bad_request(message));
    }
    named(kind, value)?;
    let map = object::as_map(value);
    // Kind and apiVersion come first in the JSON text, so that a list can cut them off without serialising again.
    map.shift_remove("kind");
    map.shift_remove("apiVersion");
    map.shift_insert(0, "kind".into(), json!(kind.kind));
    map.shift_insert(1, "apiVersion".into(), json!(kind.api_version()));
    if map.get("metadata").is_some_and(|metadata| !metadata.is_object() && !metadata.is_null()) {
        return Err(Refusal::bad_request(
            "json: cannot unmarshal value into Go struct field .metadata of type v1.ObjectMeta",
        ));
    }
    object::metadata_mut(value).retain(|_, field| !field.is_null());
    Ok(())
}

/// Checks the kind and apiVersion of a value.
fn named(kind: &Kind, value: &Value) -> Result<(), Refusal> {
    let (said_kind, said_version) = (object::str_at(value, &["kind"]), object::str_at(value, &["apiVersion"]));
    if kind.custom.is_some() && said_kind.is_empty() {
        let text = value.to_string();
        let start: String = text.chars().take(SUMMARY).collect();
        let summary = if text.chars().count() > SUMMARY { format!("{start} ...") } else { start };
        return Err(Refusal::bad_request(format!(
            "the object provided is unrecognized (must be of type {}): Object 'Kind' is missing in '{text}' ({summary})",
            kind.kind
        )));
    }
    if !said_version.is_empty() && said_version != kind.api_version() {
        let message = format!(
            "the API version in the data ({said_version}) does not match the expected API version ({})",
            kind.api_version()
        );
        return Err(Refusal::bad_request(message));
    }
    if said_kind.is_empty() || said_kind == kind.kind {
        return Ok(());
    }
    if kind.custom.is_some() {
        let named = Kind { kind: said_kind.to_owned(), ..kind.clone() };
        let wrong = FieldError::invalid("kind", &json!(said_kind), &format!("must be {}", kind.kind));
        return Err(Refusal::invalid(&named, object::name(value), &[wrong]));
    }
    let message = format!("{said_kind} in version {:?} cannot be handled as a {}", kind.version, kind.kind);
    Err(Refusal::bad_request(message))
}

/// Converts an object of any served version to the stored version.
pub(crate) fn stored_form(kind: &Kind, value: Value) -> Value {
    if kind.is("events.k8s.io", "Event") {
        let mut core = events::to_core(&value);
        object::as_map(&mut core).insert("apiVersion".into(), json!("v1"));
        return core;
    }
    let Some(custom) = kind.custom.as_ref().filter(|custom| custom.storage_version != kind.version) else {
        return value;
    };
    let mut value = value;
    let stored = format!("{}/{}", kind.group, custom.storage_version);
    object::as_map(&mut value).insert("apiVersion".into(), json!(stored));
    value
}
