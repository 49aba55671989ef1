//! Label and field selectors, parsed from text or from LabelSelector objects. The error for an unknown field or operator
//! names it.

use serde_json::Value;

use crate::{kinds::registry::Kind, object, server::status::Refusal};

/// One requirement of a label selector.
#[derive(Debug, Clone, PartialEq)]
enum Requirement {
    In(String, Vec<String>),
    NotIn(String, Vec<String>),
    Exists(String),
    Absent(String),
}

impl Requirement {
    fn matches(&self, labels: Option<&Value>) -> bool {
        let value = |key: &str| labels.and_then(|labels| labels.get(key)).and_then(Value::as_str);
        match self {
            Self::In(key, values) => value(key).is_some_and(|value| values.iter().any(|one| one == value)),
            Self::NotIn(key, values) => value(key).is_none_or(|value| !values.iter().any(|one| one == value)),
            Self::Exists(key) => value(key).is_some(),
            Self::Absent(key) => value(key).is_none(),
        }
    }
}

/// A label selector. The empty selector matches every object.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct LabelSelector(Vec<Requirement>);

impl LabelSelector {
    /// Parses a selector such as `a=b,c!=d,e in (f,g),!h`.
    pub(crate) fn parse(text: &str) -> Result<Self, Refusal> {
        if text.trim().is_empty() {
            return Ok(Self::default());
        }
        split_outside_parentheses(text)
            .map(|part| requirement(part.trim()))
            .collect::<Result<_, _>>()
            .map(Self)
            .map_err(|why| Refusal::bad_request(format!("unable to parse requirement: {why}")))
    }

    /// Reads a `LabelSelector` object: matchLabels and matchExpressions. Returns none for an absent selector, which selects nothing.
    pub(crate) fn from_object(selector: Option<&Value>) -> Option<Self> {
        let selector = selector.filter(|value| value.is_object())?;
        let labels = selector.get("matchLabels").and_then(Value::as_object).into_iter().flatten();
        let mut all = labels
            .map(|(key, value)| Requirement::In(key.clone(), vec![value.as_str().unwrap_or_default().to_owned()]))
            .collect::<Vec<_>>();
        let expressions = selector.get("matchExpressions").and_then(Value::as_array).into_iter().flatten();
        all.extend(expressions.filter_map(expression));
        Some(Self(all))
    }

    pub(crate) fn matches(&self, object: &Value) -> bool {
        let labels = object::meta(object, "labels");
        self.0.iter().all(|requirement| requirement.matches(labels))
    }
}

fn expression(one: &Value) -> Option<Requirement> {
    let key = one.get("key")?.as_str()?.to_owned();
    let values = || {
        let values = one.get("values").and_then(Value::as_array).into_iter().flatten();
        values.filter_map(Value::as_str).map(str::to_owned).collect()
    };
    match one.get("operator")?.as_str()? {
        "In" => Some(Requirement::In(key, values())),
        "NotIn" => Some(Requirement::NotIn(key, values())),
        "Exists" => Some(Requirement::Exists(key)),
        "DoesNotExist" => Some(Requirement::Absent(key)),
        _ => None,
    }
}

fn split_outside_parentheses(text: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0_i32;
    text.split(move |c: char| {
        depth += i32::from(c == '(') - i32::from(c == ')');
        c == ',' && depth == 0
    })
}

fn requirement(text: &str) -> Result<Requirement, String> {
    if let Some(key) = text.strip_prefix('!') {
        return Ok(Requirement::Absent(checked_key(key)?));
    }
    for (operator, positive) in [("!=", false), ("==", true), ("=", true)] {
        if let Some((key, value)) = text.split_once(operator) {
            let (key, values) = (checked_key(key)?, vec![checked_value(value)?]);
            return Ok(if positive { Requirement::In(key, values) } else { Requirement::NotIn(key, values) });
        }
    }
    if let Some(list) = text.strip_suffix(')') {
        let (head, values) = list.split_once('(').ok_or_else(|| format!("found '{text}', expected '('"))?;
        let values = values.split(',').map(|value| value.trim().to_owned()).collect();
        return match head.split_whitespace().collect::<Vec<_>>().as_slice() {
            [key, "in"] => Ok(Requirement::In(checked_key(key)?, values)),
            [key, "notin"] => Ok(Requirement::NotIn(checked_key(key)?, values)),
            _ => Err(format!("found '{head}', expected: in, notin")),
        };
    }
    Ok(Requirement::Exists(checked_key(text)?))
}

fn checked_key(key: &str) -> Result<String, String> {
    let key = key.trim();
    let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '/');
    if key.is_empty() || !key.chars().all(legal) {
        return Err(format!("invalid label key {key:?}"));
    }
    Ok(key.to_owned())
}

fn checked_value(value: &str) -> Result<String, String> {
    let value = value.trim();
    let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if !value.chars().all(legal) {
        return Err(format!("invalid label value {value:?}"));
    }
    Ok(value.to_owned())
}

/// A field selector. An object must match all of its terms.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct FieldSelector(Vec<(Vec<String>, String, bool)>);

impl FieldSelector {
    /// Parses a selector such as `metadata.name=x,status.phase!=Running`. The kind decides which fields are allowed.
    pub(crate) fn parse(text: &str, kind: &Kind) -> Result<Self, Refusal> {
        let terms = text.split(',').filter(|part| !part.is_empty()).map(|term| field_term(term, kind));
        terms.collect::<Result<_, _>>().map(Self)
    }

    pub(crate) fn matches(&self, object: &Value) -> bool {
        self.0.iter().all(|(path, wanted, equal)| {
            let path = path.iter().map(String::as_str).collect::<Vec<_>>();
            let found = match object::at(object, &path) {
                Some(Value::String(text)) => text.clone(),
                Some(other) => other.to_string(),
                None => String::new(),
            };
            (found == *wanted) == *equal
        })
    }

    /// Returns the name in a term `metadata.name=x`. A list in a namespace then reads only that object.
    pub(crate) fn name(&self) -> Option<&str> {
        self.0
            .iter()
            .find(|(path, _, equal)| *equal && path.join(".") == "metadata.name")
            .map(|(_, name, _)| name.as_str())
    }
}

fn field_term(term: &str, kind: &Kind) -> Result<(Vec<String>, String, bool), Refusal> {
    let split = [("!=", false), ("==", true), ("=", true)]
        .into_iter()
        .find_map(|(operator, equal)| term.split_once(operator).map(|(field, value)| (field, value, equal)));
    let Some((field, value, equal)) = split else {
        return Err(Refusal::bad_request(format!("invalid selector: '{term}'; can't understand '{term}'")));
    };
    if !selectable(kind, field) {
        return Err(Refusal::bad_request(unknown_field(kind, field)));
    }
    Ok((stored_path(kind, field), value.to_owned(), equal))
}

fn unknown_field(kind: &Kind, field: &str) -> String {
    if kind.custom.is_none() && extra_fields(kind).is_empty() {
        return format!("{field:?} is not a known field selector: only \"metadata.name\", \"metadata.namespace\"");
    }
    format!("field label not supported: {field}")
}

/// Returns the path of a selectable field in the stored object. The store keeps both versions of Event as core/v1.
fn stored_path(kind: &Kind, field: &str) -> Vec<String> {
    let field = match (kind.kind.as_str(), field) {
        ("Event", "reportingController" | "source") => "reportingComponent".to_owned(),
        ("Event", field) if field.starts_with("regarding.") => field.replacen("regarding", "involvedObject", 1),
        (_, field) => field.to_owned(),
    };
    field.split('.').map(str::to_owned).collect()
}

/// Returns the selectable fields of a built-in kind besides name and namespace.
fn extra_fields(kind: &Kind) -> &'static [&'static str] {
    match (kind.group.as_str(), kind.kind.as_str()) {
        ("", "Pod") => &[
            "spec.nodeName",
            "spec.restartPolicy",
            "spec.schedulerName",
            "spec.serviceAccountName",
            "spec.hostNetwork",
            "status.phase",
            "status.podIP",
            "status.nominatedNodeName",
        ],
        ("", "Node") => &["spec.unschedulable"],
        ("", "Namespace") => &["status.phase"],
        ("", "Secret") => &["type"],
        ("", "Event") => &[
            "involvedObject.kind",
            "involvedObject.namespace",
            "involvedObject.name",
            "involvedObject.uid",
            "involvedObject.apiVersion",
            "involvedObject.resourceVersion",
            "involvedObject.fieldPath",
            "reason",
            "reportingComponent",
            "source",
            "type",
        ],
        ("events.k8s.io", "Event") => &[
            "regarding.kind",
            "regarding.namespace",
            "regarding.name",
            "regarding.uid",
            "regarding.apiVersion",
            "regarding.resourceVersion",
            "regarding.fieldPath",
            "reason",
            "reportingController",
            "type",
        ],
        ("apps", "ReplicaSet") => &["status.replicas"],
        ("batch", "Job") => &["status.successful"],
        _ => &[],
    }
}

fn selectable(kind: &Kind, field: &str) -> bool {
    let extra = extra_fields(kind);
    let own = kind.custom.as_ref().is_some_and(|custom| custom.selectable.iter().any(|one| one == field));
    field == "metadata.name" || (field == "metadata.namespace" && kind.namespaced) || extra.contains(&field) || own
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_absent_label_selector_object_selects_nothing_and_an_empty_one_all() {
        assert_eq!(LabelSelector::from_object(None), None);
        assert!(LabelSelector::from_object(Some(&json!({}))).unwrap().matches(&json!({})));
    }
}
