//! Rules of when a batch Job has succeeded, in the real server's words.

use serde_json::{Value, json};

use crate::{
    kinds::job_policy_rules::{RULES, list, shown_rules, too_many},
    object::{at, str_at},
    server::status::FieldError,
};

/// The longest list of indexes, in bytes.
const INDEXES: u64 = 64 * 1024;

/// Errors of a Job's `successPolicy`, if it has one. Takes the Job's spec.
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
    // Without completions, for which there is an error already, there is nothing to compare rules with. The real server
    // does not survive such a Job: it breaks the connection off.
    let Some(completions) = at(spec, &["completions"]).and_then(Value::as_i64) else { return errors };
    for (index, rule) in rules.iter().enumerate() {
        errors.extend(success_rule_errors(rule, completions, &format!("{field}[{index}]")));
    }
    errors
}

/// A `successPolicy` as the real server shows it.
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

/// How many indexes a text such as `1,3-5` lists.
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
    use crate::kinds::job_rules::tests::said;

    fn success(policy: Value, completions: i64) -> Vec<String> {
        let spec = json!({"completionMode": "Indexed", "completions": completions, "successPolicy": policy});
        said(&success_policy_errors(&spec))
    }

    #[test]
    fn success_is_for_indexed_jobs_and_shown_under_the_names_of_the_real_servers_code() {
        let spec = json!({"completionMode": "NonIndexed", "successPolicy": {"rules": [{"succeededCount": 1}]}});
        let shown = r#"{"Rules":[{"SucceededIndexes":null,"SucceededCount":1}]}"#;
        let wanted = format!("spec.successPolicy: Invalid value: {shown}: requires indexed completion mode");
        assert_eq!(said(&success_policy_errors(&spec)), [wanted]);
    }

    #[test]
    fn indexes_that_succeed_are_ordered_and_below_the_completions() {
        let parsing = |text: &str, cause: &str| {
            format!(
                "spec.successPolicy.rules[0].succeededIndexes: Invalid value: {text:?}: error parsing succeededIndexes: \
                 {cause}"
            )
        };
        for fits in ["", "0", "4", "0,2-4", "0-1,3"] {
            assert!(success(json!({"rules": [{"succeededIndexes": fits}]}), 5).is_empty(), "{fits}");
        }
        let table = [
            ("5", "too large index: \"5\""),
            ("1-5", "too large index: \"5\""),
            ("a", "cannot convert string to integer for index: \"a\""),
            ("1,", "cannot convert string to integer for index: \"\""),
            ("1-x", "cannot convert string to integer for index: \"x\""),
            ("2-1", "non-increasing order, previous: 2, current: 1"),
            ("1-1", "non-increasing order, previous: 1, current: 1"),
            ("2,1", "non-increasing order, previous: 2, current: 1"),
            (
                "1-2-3",
                "the fragment \"1-2-3\" violates the requirement that an index interval can have at most two parts \
                 separated by '-'",
            ),
        ];
        for (text, cause) in table {
            assert_eq!(success(json!({"rules": [{"succeededIndexes": text}]}), 5), [parsing(text, cause)]);
        }
        let long = "0".repeat(64 * 1024 + 1);
        let told = success(json!({"rules": [{"succeededIndexes": long}]}), 5);
        assert_eq!(told, ["spec.successPolicy.rules[0].succeededIndexes: Too long: may not be more than 65536 bytes"]);
    }

    #[test]
    fn count_of_successes_is_within_the_completions_and_the_indexes() {
        let count = |rule: Value| success(json!({"rules": [rule]}), 5);
        let field = "spec.successPolicy.rules[0].succeededCount";
        assert!(count(json!({"succeededCount": 5})).is_empty());
        assert!(count(json!({"succeededIndexes": "1-2", "succeededCount": 2})).is_empty());
        assert_eq!(
            count(json!({"succeededCount": -1})),
            [format!("{field}: Invalid value: -1: must be greater than or equal to 0")]
        );
        assert_eq!(
            count(json!({"succeededIndexes": "1-2", "succeededCount": 6})),
            [
                format!(
                    "{field}: Invalid value: 6: must be less than or equal to 5 (the number of specified completions)"
                ),
                format!(
                    "{field}: Invalid value: 6: must be less than or equal to 2 (the number of indexes in the specified \
                 succeededIndexes field)"
                ),
            ]
        );
        assert_eq!(
            count(json!({})),
            [
                "spec.successPolicy.rules[0]: Required value: at least one of succeededCount or succeededIndexes must be \
             specified",
            ]
        );
    }

    #[test]
    fn policy_of_success_has_one_to_twenty_rules() {
        let rules = |count: usize| success(json!({"rules": vec![json!({"succeededCount": 1}); count]}), 3);
        assert!(rules(20).is_empty());
        assert_eq!(rules(21), ["spec.successPolicy.rules: Too many: 21: must have at most 20 items"]);
        let wanted = "spec.successPolicy.rules: Required value: at least one rules must be specified when the \
                      successPolicy is specified";
        assert_eq!(rules(0), [wanted]);
    }
}
