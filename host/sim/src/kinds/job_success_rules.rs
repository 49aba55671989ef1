//! Rules of the success policy of batch Jobs, with the real server's messages.

use serde_json::{Value, json};

use crate::{
    kinds::job_policy_rules::{RULES, list, shown_rules, too_many},
    object::{at, str_at},
    server::status::FieldError,
};

/// The longest list of indexes in bytes.
const INDEXES: u64 = 64 * 1024;

/// Returns the errors of the `successPolicy` in a Job's spec.
pub(crate) fn success_policy_errors(spec: &Value) -> Vec<FieldError> {
    let Some(policy) = at(spec, &["successPolicy"]) else { return Vec::new() };
    if str_at(spec, &["completionMode"]) != "Indexed" {
        let detail = "requires indexed completion mode";
        return vec![FieldError::invalid("spec.successPolicy", &shown_success_policy(Some(policy)), detail)];
    }
    let rules = list(policy.get("rules"));
    let field = "spec.successPolicy.rules";
    let mut errors = Vec::new();
    if rules.is_empty() {
        let detail = "at least one rules must be specified when the successPolicy is specified";
        errors.push(FieldError::required(field, detail));
    }
    errors.extend(too_many(field, rules, RULES));
    // Missing completions are an error already, and the rules need a number. The real server panics on such a Job and
    // closes the connection.
    let Some(completions) = at(spec, &["completions"]).and_then(Value::as_i64) else { return errors };
    for (index, rule) in rules.iter().enumerate() {
        errors.extend(success_rule_errors(rule, completions, &format!("{field}[{index}]")));
    }
    errors
}

/// Returns a `successPolicy` as the real server's errors show it.
pub(crate) fn shown_success_policy(policy: Option<&Value>) -> Value {
    let Some(policy) = policy else { return Value::Null };
    let rule = |rule: &Value| {
        let (indexes, count) = (at(rule, &["succeededIndexes"]), at(rule, &["succeededCount"]));
        json!({"SucceededIndexes": indexes, "SucceededCount": count})
    };
    shown_rules(policy, rule)
}

fn success_rule_errors(rule: &Value, completions: i64, field: &str) -> Vec<FieldError> {
    let (indexes, count) = (at(rule, &["succeededIndexes"]), at(rule, &["succeededCount"]));
    let mut errors = Vec::new();
    if indexes.is_none() && count.is_none() {
        let detail = "at least one of succeededCount or succeededIndexes must be specified";
        errors.push(FieldError::required(field, detail));
    }
    let mut total = 0;
    if let Some(indexes) = indexes {
        let (place, text) = (format!("{field}.succeededIndexes"), indexes.as_str().unwrap_or_default());
        if text.len() as u64 > INDEXES {
            errors.push(FieldError::too_long(&place, INDEXES));
        }
        match count_indexes(text, completions) {
            Ok(counted) => total = counted,
            Err(cause) => {
                let detail = format!("error parsing succeededIndexes: {cause}");
                errors.push(FieldError::invalid(&place, indexes, &detail));
            }
        }
    }
    let Some(number) = count.and_then(Value::as_i64) else { return errors };
    let mut complain = |detail: String| {
        errors.push(FieldError::invalid(format!("{field}.succeededCount"), &json!(number), &detail));
    };
    if number < 0 {
        complain("must be greater than or equal to 0".to_owned());
    }
    if number > completions {
        complain(format!("must be less than or equal to {completions} (the number of specified completions)"));
    }
    if indexes.is_some() && number > total {
        let of = "the number of indexes in the specified succeededIndexes field";
        complain(format!("must be less than or equal to {total} ({of})"));
    }
    errors
}

/// Counts the indexes in a text such as `1,3-5`.
fn count_indexes(text: &str, completions: i64) -> Result<i64, String> {
    let mut total = 0;
    let mut last = None;
    for part in text.split(',').filter(|_| !text.is_empty()) {
        let (first, end) = interval(part, completions)?;
        if let Some(last) = last.filter(|last| *last >= first) {
            return Err(format!("non-increasing order, previous: {last}, current: {first}"));
        }
        total += end - first + 1;
        last = Some(end);
    }
    Ok(total)
}

fn interval(text: &str, completions: i64) -> Result<(i64, i64), String> {
    let index = |text: &str| {
        let index: i64 = text.parse().map_err(|_| format!("cannot convert string to integer for index: {text:?}"))?;
        if index < completions { Ok(index) } else { Err(format!("too large index: {text:?}")) }
    };
    match text.split('-').collect::<Vec<_>>().as_slice() {
        [one] => index(one).map(|one| (one, one)),
        [first, end] => match (index(first)?, index(end)?) {
            (first, end) if first < end => Ok((first, end)),
            (first, end) => Err(format!("non-increasing order, previous: {first}, current: {end}")),
        },
        _ => Err(format!(
            "the fragment {text:?} violates the requirement that an index interval can have at most two parts \
             separated by '-'"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::job_policy_rules::tests::said;

    #[test]
    fn indexes_that_succeed_have_at_most_64_kib() {
        let policy = json!({"rules": [{"succeededIndexes": "0".repeat(64 * 1024 + 1)}]});
        let spec = json!({"completionMode": "Indexed", "completions": 5, "successPolicy": policy});
        let told = said(&success_policy_errors(&spec));
        assert_eq!(told, ["spec.successPolicy.rules[0].succeededIndexes: Too long: may not be more than 65536 bytes"]);
    }
}
