//! Checks an object of a custom kind against the CEL rules of its schema. Transition rules do not apply without an
//! old object.

use serde_json::Value;

use crate::{
    admission::cel_eval::Variables,
    kinds::schema::{CelRule, Schema, Shape},
    lifecycle::validate::{Pair, counterpart, join},
    server::status::FieldError,
};

/// Returns the rule errors of a value and of everything inside it.
pub(crate) fn errors(schema: &Schema, pair: Pair<'_>, path: &str) -> Vec<FieldError> {
    let mut found = Vec::new();
    visit(schema, pair, path, &mut found);
    found
}

fn visit(schema: &Schema, (new, old): Pair<'_>, path: &str, found: &mut Vec<FieldError>) {
    if new.is_null() {
        return;
    }
    for rule in &schema.rules {
        // A transition rule needs an old value. The other rules are skipped for an unchanged value.
        let skipped = if rule.transition { old.is_none() } else { old == Some(new) };
        if skipped {
            continue;
        }
        found.extend(judge(schema, rule, (new, old), path));
    }
    match new {
        Value::Object(map) => {
            for (field, value) in map {
                if let Some(known) = schema.field(field) {
                    visit(known, (value, old.and_then(|old| old.get(field))), &join(path, field), found);
                }
            }
        }
        Value::Array(list) => {
            let Some(items) = &schema.items else { return };
            for (index, one) in list.iter().enumerate() {
                visit(items, (one, counterpart(schema, one, old)), &format!("{path}[{index}]"), found);
            }
        }
        _ => {}
    }
}

fn judge(schema: &Schema, rule: &CelRule, (new, old): Pair<'_>, path: &str) -> Option<FieldError> {
    let mut variables = Variables::new();
    variables.bind("self", new);
    if let Some(old) = old {
        variables.bind("oldSelf", old);
    }
    let composite = matches!(schema.shape, Shape::Object | Shape::Array);
    let place = if rule.field_path.is_empty() { path.to_owned() } else { format!("{path}{}", rule.field_path) };
    match variables.holds(&rule.source) {
        Ok(true) => None,
        Ok(false) => {
            let computed =
                if rule.message_expression.is_empty() { None } else { variables.text(&rule.message_expression) };
            let detail = computed.filter(|text| !text.is_empty()).unwrap_or_else(|| message(rule));
            Some(complaint(rule, &place, (!composite).then_some(new), &detail))
        }
        Err(cause) => {
            let named = if rule.message.is_empty() { &rule.source } else { &rule.message };
            let kind = Value::String(type_name(schema.shape).into());
            Some(FieldError::invalid(path, &kind, &format!("{cause} evaluating rule: {named}")))
        }
    }
}

fn message(rule: &CelRule) -> String {
    if rule.message.is_empty() { format!("failed rule: {}", rule.source) } else { rule.message.clone() }
}

fn complaint(rule: &CelRule, path: &str, value: Option<&Value>, detail: &str) -> FieldError {
    match (rule.reason.as_str(), value) {
        ("FieldValueForbidden", _) => FieldError::forbidden(path, detail),
        ("FieldValueRequired", _) => FieldError::required(path, detail),
        (_, Some(value)) => FieldError::invalid(path, value, detail),
        (_, None) => FieldError::invalid_without_value(path, detail),
    }
}

fn type_name(shape: Shape) -> &'static str {
    match shape {
        Shape::Object => "object",
        Shape::Array => "array",
        Shape::String | Shape::Quantity => "string",
        Shape::Integer => "integer",
        Shape::Number => "number",
        Shape::Boolean => "boolean",
        Shape::Any | Shape::IntOrString => "",
    }
}
