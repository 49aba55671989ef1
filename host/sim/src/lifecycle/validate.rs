//! Validates an object of a custom kind against its schema, with the real server's messages.

use serde_json::Value;

use crate::{
    kinds::schema::{ListType, Schema, Shape},
    server::status::FieldError,
};

/// A value, and the old value that it replaces if there is one.
pub(crate) type Pair<'a> = (&'a Value, Option<&'a Value>);

/// Collects the errors of a value and everything inside it. Unchanged values have no errors, so an object that a newer schema
/// would refuse can still be written.
pub(crate) fn errors(schema: &Schema, (value, old): Pair<'_>, path: &str, found: &mut Vec<FieldError>) {
    if old == Some(value) || (value.is_null() && (schema.nullable || schema.shape == Shape::Any)) {
        return;
    }
    let wrong = wrong_type(schema, value, path);
    let fits = wrong.is_none();
    found.extend(wrong);
    allowed(schema, value, path, found);
    found.extend(range_error(schema, value, path));
    if !fits {
        return;
    }
    match value {
        Value::Object(_) => map_errors(schema, (value, old), path, found),
        Value::Array(list) => list_errors(schema, (list, old), path, found),
        Value::String(text) => text_errors(schema, text, path, found),
        Value::Number(number) => number_errors(schema, number, path, found),
        _ => {}
    }
}

fn map_errors(schema: &Schema, (value, old): Pair<'_>, path: &str, found: &mut Vec<FieldError>) {
    let Value::Object(map) = value else { return };
    for field in schema.limits.required.iter().filter(|field| !map.contains_key(*field)) {
        found.push(FieldError::required(join(path, field), ""));
    }
    count_errors((map.len(), &schema.limits.properties), (path, "properties"), value, found);
    for (field, value) in map {
        let own = schema.embedded && matches!(field.as_str(), "kind" | "apiVersion" | "metadata");
        if let Some(known) = schema.field(field).filter(|_| !own) {
            errors(known, (value, old.and_then(|old| old.get(field))), &join(path, field), found);
        }
    }
}

/// Returns the old version of a list element. Only lists with keys have one.
pub(crate) fn counterpart<'o>(schema: &Schema, element: &Value, old: Option<&'o Value>) -> Option<&'o Value> {
    let ListType::Map(keys) = &schema.list else { return None };
    let same = |other: &&Value| keys.iter().all(|key| other.get(key) == element.get(key));
    old?.as_array()?.iter().find(same)
}

/// Appends a field to a path.
pub(crate) fn join(path: &str, field: &str) -> String {
    match (path.is_empty(), field.is_empty() || field.starts_with('[')) {
        (true, _) => field.to_owned(),
        (false, true) => format!("{path}{field}"),
        (false, false) => format!("{path}.{field}"),
    }
}

fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

fn wrong_type(schema: &Schema, value: &Value, path: &str) -> Option<FieldError> {
    let whole = |number: &serde_json::Number| !number.is_f64() || number.as_f64().is_some_and(|n| n.fract() == 0.0);
    let (fits, wanted) = match (schema.shape, value) {
        (Shape::Any | Shape::Quantity, _) => return None,
        (Shape::Object, value) => (value.is_object(), "object"),
        (Shape::Array, value) => (value.is_array(), "array"),
        (Shape::String, value) => (value.is_string(), "string"),
        (Shape::Boolean, value) => (value.is_boolean(), "boolean"),
        (Shape::Number, value) => (value.is_number(), "number"),
        (Shape::Integer, value) => (matches!(value, Value::Number(number) if whole(number)), "integer"),
        (Shape::IntOrString, value) => {
            (value.is_string() || matches!(value, Value::Number(number) if whole(number)), "integer,string")
        }
    };
    let actual = type_name(value);
    let detail = format!("{path} in body must be of type {wanted}: {actual:?}");
    (!fits).then(|| FieldError::type_invalid(path, &Value::String(actual.into()), &detail))
}

fn allowed(schema: &Schema, value: &Value, path: &str, found: &mut Vec<FieldError>) {
    let allowed = &schema.limits.allowed;
    if allowed.is_empty() || allowed.contains(value) {
        return;
    }
    let shown =
        allowed.iter().map(|one| one.as_str().map_or_else(|| one.to_string(), str::to_owned)).collect::<Vec<_>>();
    found.push(FieldError::not_supported(path, value, &shown));
}

fn count_errors(
    (count, limits): (usize, &(Option<u64>, Option<u64>)),
    (path, noun): (&str, &str),
    value: &Value,
    found: &mut Vec<FieldError>,
) {
    if let Some(least) = limits.0.filter(|least| (count as u64) < *least) {
        let detail = format!("{path} in body should have at least {least} {noun}");
        found.push(FieldError::invalid(path, value, &detail));
    }
    if let Some(most) = limits.1.filter(|most| count as u64 > *most) {
        found.push(FieldError::too_many(path, count, most));
    }
}

fn list_errors(schema: &Schema, (list, old): (&[Value], Option<&Value>), path: &str, found: &mut Vec<FieldError>) {
    let whole = Value::Number(list.len().into());
    count_errors((list.len(), &schema.limits.items), (path, "items"), &whole, found);
    if let Some(items) = &schema.items {
        for (index, one) in list.iter().enumerate() {
            errors(items, (one, counterpart(schema, one, old)), &format!("{path}[{index}]"), found);
        }
    }
    let twice = |identities: Vec<Value>, found: &mut Vec<FieldError>| {
        for (index, identity) in identities.iter().enumerate() {
            if identities.iter().take(index).filter(|earlier| *earlier == identity).count() == 1 {
                found.push(FieldError::duplicate(format!("{path}[{index}]"), identity));
            }
        }
    };
    match &schema.list {
        ListType::Atomic if schema.limits.unique => twice(list.to_vec(), found),
        ListType::Atomic => {}
        ListType::Set => twice(list.to_vec(), found),
        ListType::Map(keys) => twice(list.iter().map(|one| identity(one, keys)).collect(), found),
    }
}

/// Returns the keys of a list element as an object.
fn identity(element: &Value, keys: &[String]) -> Value {
    let own = keys.iter().filter_map(|key| Some((key.clone(), element.get(key)?.clone())));
    Value::Object(own.collect())
}

fn text_errors(schema: &Schema, text: &str, path: &str, found: &mut Vec<FieldError>) {
    let limits = &schema.limits;
    let value = Value::String(text.to_owned());
    let length = text.chars().count() as u64;
    if let Some(least) = limits.length.0.filter(|least| length < *least) {
        let detail = format!("{path} in body should be at least {least} chars long");
        found.push(FieldError::invalid(path, &value, &detail));
    }
    if let Some(most) = limits.length.1.filter(|most| length > *most) {
        found.push(FieldError::too_long(path, most));
    }
    if let Some(pattern) = limits.pattern.as_ref().filter(|pattern| !pattern.is_match(text)) {
        let detail = format!("{path} in body should match '{}'", pattern.as_str());
        found.push(FieldError::invalid(path, &value, &detail));
    }
    if limits.format == "date-time" && text.parse::<k8s_openapi::jiff::Timestamp>().is_err() {
        let detail = format!("{path} in body must be of type date-time: {text:?}");
        found.push(FieldError::type_invalid(path, &value, &detail));
    }
}

fn number_errors(schema: &Schema, number: &serde_json::Number, path: &str, found: &mut Vec<FieldError>) {
    let limits = &schema.limits;
    let value = Value::Number(number.clone());
    let actual = number.as_f64().unwrap_or_default();
    let mut complain = |what: &str, bound: f64| {
        let detail = format!("{path} in body should be {what} {}", shortest(bound));
        found.push(FieldError::invalid(path, &value, &detail));
    };
    if let Some(least) = limits.minimum {
        if limits.exclusive.0 && actual <= least {
            complain("greater than", least);
        } else if actual < least {
            complain("greater than or equal to", least);
        }
    }
    if let Some(most) = limits.maximum {
        if limits.exclusive.1 && actual >= most {
            complain("less than", most);
        } else if actual > most {
            complain("less than or equal to", most);
        }
    }
    if let Some(factor) = limits.multiple_of.filter(|factor| *factor > 0.0 && (actual / factor).fract() != 0.0) {
        complain("a multiple of", factor);
    }
}

/// Returns the error of a number that does not fit into the schema's integer format.
fn range_error(schema: &Schema, value: &Value, path: &str) -> Option<FieldError> {
    let format = schema.limits.format.as_str();
    let whole = value.as_i64();
    let fits =
        if format == "int32" { whole.is_some_and(|whole| i32::try_from(whole).is_ok()) } else { whole.is_some() };
    if fits || schema.shape != Shape::Integer || !value.is_number() {
        return None;
    }
    let kind = if format.is_empty() { "(default format)".to_owned() } else { format!("with format {format}") };
    let detail = format!("Checked value must be of type integer {kind} in {path}");
    // If the type error already names the field, the real server repeats the error without a field. If this is the only error, the
    // real server names no field either. This one does, since nobody could find the number otherwise.
    let field = if whole.is_none() && value.is_f64() { "<nil>" } else { path };
    Some(FieldError::invalid(field, &Value::String(String::new()), &detail))
}

fn shortest(bound: f64) -> String {
    if bound.fract() == 0.0 { format!("{bound:.0}") } else { bound.to_string() }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{kinds::schema::parse, server::status::Refusal};

    fn complaints(value: &Value) -> String {
        let schema = parse(&json!({"type": "object", "required": ["r"], "properties": {
            "n": {"type": "integer", "minimum": 0}, "e": {"type": "string", "enum": ["A", "B"]},
            "m": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["t"], "items": {"type": "object"}},
            "p": {"x-kubernetes-int-or-string": true}, "r": {"type": "boolean"},
        }}));
        let mut found = Vec::new();
        errors(&schema, (value, None), "", &mut found);
        let kinds = crate::kinds::registry::Kinds::built_in();
        Refusal::invalid(kinds.by_path("", "v1", "pods").unwrap(), "x", &found).message
    }

    #[test]
    fn complaints_are_spelled_as_the_real_server_does() {
        let text = complaints(&json!({"n": "1", "e": "C", "m": [{"t": 1}, {"t": 1}], "p": true}));
        assert_eq!(
            text,
            "Pod \"x\" is invalid: [r: Required value, n: Invalid value: \"string\": n in body must be of type integer: \
             \"string\", e: Unsupported value: \"C\": supported values: \"A\", \"B\", m[1]: Duplicate value: {\"t\":1}, p: \
             Invalid value: \"boolean\": p in body must be of type integer,string: \"boolean\"]"
        );
        let text = complaints(&json!({"n": -1, "r": true}));
        assert_eq!(text, "Pod \"x\" is invalid: n: Invalid value: -1: n in body should be greater than or equal to 0");
    }
}
