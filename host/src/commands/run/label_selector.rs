//! Label selectors in kubectl's syntax: `app=web,tier in (a,b),env!=dev,owner,!legacy`.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};

/// Parses a selector. The cluster checks keys and values.
pub(super) fn label_selector(text: &str) -> Result<LabelSelector, String> {
    let mut labels = BTreeMap::new();
    let mut expressions = Vec::new();
    for term in terms(text) {
        match requirement(term)? {
            // `a=1,a=2` is two requirements, which no object fulfils.
            Requirement::Equal(key, value) if !labels.contains_key(&key) => drop(labels.insert(key, value)),
            Requirement::Equal(key, value) => expressions.push(expression(key, "In", Some(vec![value]))),
            Requirement::Expression(expression) => expressions.push(expression),
        }
    }
    if labels.is_empty() && expressions.is_empty() {
        return Err("an empty selector would choose every pod: write at least one label, such as app=web".to_owned());
    }
    Ok(LabelSelector {
        match_labels: Some(labels).filter(|labels| !labels.is_empty()),
        match_expressions: Some(expressions).filter(|expressions| !expressions.is_empty()),
    })
}

enum Requirement {
    Equal(String, String),
    Expression(LabelSelectorRequirement),
}

/// Returns the terms of a selector. Commas within parentheses separate values, not terms.
fn terms(text: &str) -> Vec<&str> {
    let mut depth = 0_u32;
    let split = |c: char| {
        match c {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        c == ',' && depth == 0
    };
    text.split(split).map(str::trim).filter(|term| !term.is_empty()).collect()
}

fn requirement(term: &str) -> Result<Requirement, String> {
    let wrong = || format!("{term:?} is no label requirement: write app=web, app!=web, app, !app or `app in (a,b)`");
    let key = |text: &str| {
        let key = text.trim();
        let is_key = !key.is_empty() && !key.contains(|c: char| c.is_whitespace() || "()=!,".contains(c));
        is_key.then(|| key.to_owned()).ok_or_else(wrong)
    };
    if let Some(set) = term.strip_suffix(')') {
        let (name, values) = set.split_once('(').ok_or_else(wrong)?;
        let (name, operator) = name.trim().rsplit_once(char::is_whitespace).ok_or_else(wrong)?;
        let operator = match operator {
            "in" => "In",
            "notin" => "NotIn",
            _ => return Err(wrong()),
        };
        let values = values.split(',').map(|value| value.trim().to_owned()).collect();
        return Ok(Requirement::Expression(expression(key(name)?, operator, Some(values))));
    }
    if let Some((name, value)) = term.split_once("!=") {
        return Ok(Requirement::Expression(expression(key(name)?, "NotIn", Some(vec![value.trim().to_owned()]))));
    }
    if let Some((name, value)) = term.split_once('=') {
        let value = value.strip_prefix('=').unwrap_or(value).trim();
        return Ok(Requirement::Equal(key(name)?, value.to_owned()));
    }
    match term.strip_prefix('!') {
        Some(name) => Ok(Requirement::Expression(expression(key(name)?, "DoesNotExist", None))),
        None => Ok(Requirement::Expression(expression(key(term)?, "Exists", None))),
    }
}

fn expression(key: String, operator: &str, values: Option<Vec<String>>) -> LabelSelectorRequirement {
    LabelSelectorRequirement { key, operator: operator.to_owned(), values }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(text: &str) -> serde_json::Value {
        serde_json::to_value(label_selector(text).unwrap()).unwrap()
    }

    #[test]
    fn selectors_read_as_kubectl_reads_them() {
        assert_eq!(read("app=web,tier==db"), json!({"matchLabels": {"app": "web", "tier": "db"}}));
        assert_eq!(
            read("app, !legacy ,env!=dev,tier in (a, b),zone notin (x)"),
            json!({"matchExpressions": [
                {"key": "app", "operator": "Exists"}, {"key": "legacy", "operator": "DoesNotExist"},
                {"key": "env", "operator": "NotIn", "values": ["dev"]},
                {"key": "tier", "operator": "In", "values": ["a", "b"]},
                {"key": "zone", "operator": "NotIn", "values": ["x"]}]})
        );
        assert_eq!(
            read("a=1,a=2"),
            json!({"matchLabels": {"a": "1"}, "matchExpressions": [{"key": "a", "operator": "In", "values": ["2"]}]})
        );
    }

    #[test]
    fn a_selector_of_everything_and_terms_that_are_none_are_refused() {
        for text in ["", " , ", "=web", "app in a,b", "app within (a)", "a b", "!", "(a)"] {
            assert!(label_selector(text).is_err(), "{text}");
        }
    }
}
