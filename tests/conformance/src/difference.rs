//! Finds the differences between two JSON values. Each difference names its place and both sides.

use serde_json::Value;

/// One place where two values differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Difference {
    /// A JSON pointer. It is empty for the whole value.
    pub(crate) pointer: String,
    pub(crate) real: String,
    pub(crate) sim: String,
}

/// Returns the deepest places where `sim` differs from `real`.
pub(crate) fn between(real: &Value, sim: &Value) -> Vec<Difference> {
    let mut found = Vec::new();
    walk(String::new(), Some(real), Some(sim), &mut found);
    found
}

fn walk(pointer: String, real: Option<&Value>, sim: Option<&Value>, found: &mut Vec<Difference>) {
    match (real, sim) {
        (Some(Value::Object(left)), Some(Value::Object(right))) => {
            let both: std::collections::BTreeSet<&String> = left.keys().chain(right.keys()).collect();
            for key in both {
                let escaped = key.replace('~', "~0").replace('/', "~1");
                walk(format!("{pointer}/{escaped}"), left.get(key), right.get(key), found);
            }
        }
        (Some(Value::Array(left)), Some(Value::Array(right))) => {
            for place in 0..left.len().max(right.len()) {
                walk(format!("{pointer}/{place}"), left.get(place), right.get(place), found);
            }
        }
        (real, sim) if real == sim => {}
        (real, sim) => found.push(Difference { pointer, real: line(real), sim: line(sim) }),
    }
}

fn line(value: Option<&Value>) -> String {
    value.map_or_else(|| "(absent)".to_owned(), Value::to_string)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn deepest_places_are_named_and_absence_is_told_from_null() {
        let real = json!({"a": {"b/c": [1, 2]}, "d": null});
        let sim = json!({"a": {"b/c": [1]}});
        let found: Vec<_> = between(&real, &sim).into_iter().map(|it| (it.pointer, it.real, it.sim)).collect();
        let wanted = [("/a/b~1c/1", "2", "(absent)"), ("/d", "null", "(absent)")];
        assert_eq!(found, wanted.map(|(at, real, sim)| (at.to_owned(), real.to_owned(), sim.to_owned())));
    }
}
