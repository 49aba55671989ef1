//! Converts a decoded object to its stored form: drops unknown fields, drops empty fields as Go's structs do, and fills in
//! defaults. It checks only the types of built-in kinds, as Go's decoder does.

use serde_json::Value;

use crate::{
    kinds::{
        registry::Kind,
        schema::{self, Schema, Shape},
    },
    lifecycle::{built_in_defaults, prune, schema_defaults},
    server::{query::Query, status::Refusal},
};

/// Treatment of unknown fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum UnknownFields {
    Ignore,
    Warn,
    Refuse,
}

impl UnknownFields {
    /// Reads the `fieldValidation` parameter. The default is to warn.
    pub(crate) fn wanted(query: &Query) -> Self {
        match query.get("fieldValidation") {
            Some("Ignore") => Self::Ignore,
            Some("Strict") => Self::Refuse,
            _ => Self::Warn,
        }
    }
}

/// Converts an object to its stored form. Returns warnings about dropped fields.
pub(crate) fn normalise(kind: &Kind, object: &mut Value, unknown: UnknownFields) -> Result<Vec<String>, Refusal> {
    let mut dropped = Vec::new();
    let meta = schema::object_meta();
    if let Some(metadata) = object.get_mut("metadata") {
        type_check(kind, &meta, metadata, ".metadata")?;
        prune::prune(&meta, metadata, "metadata", &mut dropped);
        prune::drop_empty(&meta, metadata);
    }
    match &kind.custom {
        Some(custom) => {
            prune::prune(&custom.root, object, "", &mut dropped);
            schema_defaults::default(&custom.root, object);
        }
        None => built_in(kind, object, &mut dropped)?,
    }
    let texts = dropped.iter().map(|path| format!("unknown field {path:?}")).collect::<Vec<_>>();
    match unknown {
        UnknownFields::Refuse if !texts.is_empty() => Err(Refusal::bad_request(format!(
            "{} in version {:?} cannot be handled as a {}: strict decoding error: {}",
            kind.kind,
            kind.version,
            kind.kind,
            texts.join(", ")
        ))),
        UnknownFields::Warn => Ok(texts),
        _ => Ok(Vec::new()),
    }
}

fn built_in(kind: &Kind, object: &mut Value, dropped: &mut Vec<String>) -> Result<(), Refusal> {
    let Some(schema) = schema::built_in(kind) else { return Ok(()) };
    type_check(kind, &schema, object, "")?;
    prune::prune(&schema, object, "", dropped);
    text_quantities(&schema, object);
    prune::drop_empty(&schema, object);
    built_in_defaults::fill(kind, object);
    Ok(())
}

/// Refuses values that Go could not decode into the kind's struct.
fn type_check(kind: &Kind, schema: &Schema, value: &Value, path: &str) -> Result<(), Refusal> {
    let wrong = mismatch(schema, value, path);
    wrong.map_or(Ok(()), |(place, wanted)| {
        let actual = match value_at_end(value, &place, path) {
            Some(Value::String(_)) => "string",
            Some(Value::Number(_)) => "number",
            Some(Value::Bool(_)) => "bool",
            Some(Value::Array(_)) => "array",
            _ => "object",
        };
        Err(Refusal::bad_request(format!(
            "{} in version {:?} cannot be handled as a {}: json: cannot unmarshal {actual} into Go struct field \
             {}{place} of type {wanted}",
            kind.kind, kind.version, kind.kind, kind.kind
        )))
    })
}

fn value_at_end<'v>(value: &'v Value, place: &str, root: &str) -> Option<&'v Value> {
    let rest = place.strip_prefix(root)?;
    rest.split('.').filter(|part| !part.is_empty()).try_fold(value, |value, part| {
        let (field, indexes) = part.split_once('[').unwrap_or((part, ""));
        let value = if field.is_empty() { Some(value) } else { value.get(field) }?;
        let mut indexes = indexes.split(['[', ']']).filter_map(|index| index.parse::<usize>().ok());
        indexes.try_fold(value, |value, index| value.get(index))
    })
}

fn mismatch(schema: &Schema, value: &Value, path: &str) -> Option<(String, &'static str)> {
    let wanted = match (schema.shape, value) {
        (_, Value::Null) | (Shape::Any | Shape::IntOrString | Shape::Quantity, _) => None,
        (Shape::String, value) => (!value.is_string()).then_some("string"),
        (Shape::Boolean, value) => (!value.is_boolean()).then_some("bool"),
        (Shape::Integer, value) if schema.limits.format == "int32" => {
            value.as_i64().is_none_or(|whole| i32::try_from(whole).is_err()).then_some("int32")
        }
        (Shape::Integer, value) => value.as_i64().is_none().then_some("int64"),
        (Shape::Number, value) => (!value.is_number()).then_some("float64"),
        (Shape::Array, value) => (!value.is_array()).then_some("[]interface {}"),
        (Shape::Object, value) => (!value.is_object()).then_some("map[string]interface {}"),
    };
    if let Some(wanted) = wanted {
        return Some((path.to_owned(), wanted));
    }
    match value {
        Value::Object(map) => {
            map.iter().find_map(|(field, value)| mismatch(schema.field(field)?, value, &format!("{path}.{field}")))
        }
        Value::Array(list) => {
            let items = schema.items.as_ref()?;
            list.iter().enumerate().find_map(|(index, one)| mismatch(items, one, &format!("{path}[{index}]")))
        }
        _ => None,
    }
}

/// Converts numbers in quantity fields to text, as the store keeps them.
fn text_quantities(schema: &Schema, value: &mut Value) {
    match value {
        Value::Number(number) if schema.shape == Shape::Quantity => *value = Value::String(number.to_string()),
        Value::Object(map) => {
            for (field, value) in map.iter_mut() {
                if let Some(known) = schema.field(field) {
                    text_quantities(known, value);
                }
            }
        }
        Value::Array(list) => {
            if let Some(items) = &schema.items {
                list.iter_mut().for_each(|one| text_quantities(items, one));
            }
        }
        _ => {}
    }
}

/// Turns a decode error after a patch into the refusal of the patch, because the body itself is valid.
pub(crate) fn blame_patch(patched: &Value, refusal: Refusal) -> Refusal {
    if refusal.code != 400 {
        return refusal;
    }
    let cause = refusal
        .message
        .split_once(" cannot be handled as a ")
        .map_or(refusal.message.as_str(), |(_, rest)| rest.split_once(": ").map_or(rest, |(_, cause)| cause));
    if cause.starts_with("strict decoding error") {
        return refusal;
    }
    let text = format!(" \"\" is invalid: patch: Invalid value: {}: {cause}", Value::String(patched.to_string()));
    let cause = serde_json::json!({"reason": "FieldValueInvalid", "message": text.trim_start_matches(" \"\" is invalid: patch: "), "field": "patch"});
    Refusal::plain(422, "Invalid", text).with_details(serde_json::json!({"causes": [cause]}))
}
