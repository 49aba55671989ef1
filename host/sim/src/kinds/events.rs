//! Converts Events between their two APIs. The store keeps the core/v1 form, so `kubectl describe` and events.k8s.io
//! clients read the same objects.

use serde_json::{Map, Value};

/// The fields that differ in name: core/v1 name and events.k8s.io/v1 name.
const NAMES: [(&str, &str); 7] = [
    ("involvedObject", "regarding"),
    ("message", "note"),
    ("reportingComponent", "reportingController"),
    ("source", "deprecatedSource"),
    ("firstTimestamp", "deprecatedFirstTimestamp"),
    ("lastTimestamp", "deprecatedLastTimestamp"),
    ("count", "deprecatedCount"),
];

/// Converts a stored event to events.k8s.io/v1.
pub(crate) fn to_events_api(stored: &Value) -> Value {
    renamed(stored, |name| NAMES.iter().find(|(core, _)| *core == name).map(|(_, other)| *other))
}

/// Converts an events.k8s.io/v1 event to the stored form.
pub(crate) fn to_core(event: &Value) -> Value {
    renamed(event, |name| NAMES.iter().find(|(_, other)| *other == name).map(|(core, _)| *core))
}

fn renamed(value: &Value, rename: impl Fn(&str) -> Option<&'static str>) -> Value {
    let fields = value.as_object().into_iter().flatten();
    let entry = |(name, value): (&String, &Value)| (rename(name).unwrap_or(name).to_owned(), value.clone());
    Value::Object(fields.map(entry).collect::<Map<_, _>>())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_event_survives_both_spellings() {
        let event = json!({"note": "n", "regarding": {"name": "p"}, "reason": "r", "reportingController": "oarlock"});
        let core = to_core(&event);
        assert_eq!(core["message"], "n");
        assert_eq!(core["involvedObject"]["name"], "p");
        assert_eq!(to_events_api(&core), event);
    }
}
