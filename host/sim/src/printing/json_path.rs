//! The part of JSONPath that printer columns use: fields, indexes, `[*]` and `[?(@.a=="b")]`. A path that matches
//! nothing returns no values.

use serde_json::Value;

/// Returns the values at `path`, in order.
pub(crate) fn find<'v>(value: &'v Value, path: &str) -> Vec<&'v Value> {
    let mut found = vec![value];
    let mut rest = path.trim().trim_start_matches('{').trim_end_matches('}');
    while !rest.is_empty() {
        let (step, tail) = step(rest);
        found = found.into_iter().flat_map(|value| follow(value, step)).collect();
        rest = tail;
    }
    found
}

/// Splits a path into its first step and the rest.
fn step(path: &str) -> (&str, &str) {
    if path.starts_with('[') {
        let end = path.find(']').map_or(path.len(), |end| end + 1);
        return path.split_at(end);
    }
    let path = path.strip_prefix('.').unwrap_or(path);
    let mut escaped = false;
    let end = path.find(|c: char| {
        let ends = !escaped && matches!(c, '.' | '[');
        escaped = c == '\\';
        ends
    });
    path.split_at(end.unwrap_or(path.len()))
}

fn follow<'v>(value: &'v Value, step: &str) -> Vec<&'v Value> {
    let Some(inside) = step.strip_prefix('[').and_then(|step| step.strip_suffix(']')) else {
        return value.get(step.replace('\\', "")).into_iter().collect();
    };
    let elements = || value.as_array().into_iter().flatten();
    if inside == "*" {
        return elements().collect();
    }
    if let Some(filter) = inside.strip_prefix("?(@.").and_then(|filter| filter.strip_suffix(')')) {
        let Some((field, wanted)) = filter.split_once("==") else { return Vec::new() };
        let wanted = wanted.trim().trim_matches(['"', '\'']);
        let holds = |one: &&Value| find(one, field.trim()).first().is_some_and(|found| text(found) == wanted);
        return elements().filter(holds).collect();
    }
    let quoted = inside.trim_matches(['"', '\'']);
    let index = inside.parse::<usize>().ok().and_then(|index| value.get(index));
    index.or_else(|| value.get(quoted)).into_iter().collect()
}

/// Returns a value as cell text.
pub(crate) fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn paths_of_columns_lead_to_their_values() {
        let value = json!({"a": {"b.c": 1, "l": [{"t": "x", "s": "True"}, {"t": "y", "s": "False"}]}});
        let texts = |path: &str| find(&value, path).into_iter().map(text).collect::<Vec<_>>();
        assert_eq!(texts(".a.b\\.c"), ["1"]);
        assert_eq!(texts(".a.l[*].t"), ["x", "y"]);
        assert_eq!(texts(".a.l[?(@.t==\"y\")].s"), ["False"]);
        assert_eq!(texts(".a.l[0].t"), ["x"]);
        assert!(texts(".a.nope.x").is_empty());
    }
}
