//! Merges `overrides` into a JobSpec. Source: docs/jobflow.md 2.2, rule 2.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value};

/// Returns the fields that identify the items of a list. Returns `None` if the list is not merged.
fn keys(field: &str) -> Option<&'static [&'static str]> {
    match field {
        "containers" | "initContainers" | "volumes" => Some(&["name"]),
        "volumeMounts" => Some(&["mountPath"]),
        "ports" => Some(&["containerPort", "protocol"]),
        _ => None,
    }
}

/// Merges `over` into `base`. Objects merge by key, and `null` deletes a key. The lists of `keys` merge by their identifying fields. All other values
/// replace.
pub fn merge(base: &mut Value, over: &Value) {
    merge_field("", base, over);
}

fn merge_field(field: &str, base: &mut Value, over: &Value) {
    match (base, over) {
        (Value::Object(base), Value::Object(over)) => merge_object(field, base, over),
        (Value::Array(base), Value::Array(over)) if field == "env" => merge_env(base, over),
        (Value::Array(base), Value::Array(over)) if keys(field).is_some() => merge_list(field, base, over),
        (base, over) => *base = over.clone(),
    }
}

/// Returns true if an object of this field may have at most one such key: the source of a volume, or the action of a probe or hook.
fn is_one_of(field: &str, key: &str) -> bool {
    match field {
        "volumes" => key != "name",
        "livenessProbe" | "readinessProbe" | "startupProbe" | "postStart" | "preStop" => {
            matches!(key, "exec" | "httpGet" | "tcpSocket" | "grpc" | "sleep")
        }
        _ => false,
    }
}

fn merge_object(field: &str, base: &mut Map<String, Value>, over: &Map<String, Value>) {
    let is_given = |key: &str| over.get(key).is_some_and(|value| !value.is_null());
    if over.keys().any(|key| is_one_of(field, key) && is_given(key)) {
        base.retain(|key, _| is_given(key) || !is_one_of(field, key));
    }
    for (field, value) in over {
        if value.is_null() {
            base.remove(field);
        } else {
            merge_field(field, base.entry(field.clone()).or_insert(Value::Null), value);
        }
    }
}

/// Merges lists of env. An entry replaces the entry of the same name in its place. Both lists keep their order, because `$(NAME)` only sees earlier
/// entries.
pub fn merge_env(base: &mut Vec<Value>, over: &[Value]) {
    let before = std::mem::take(base);
    let names: HashSet<&Value> = over.iter().filter_map(|entry| entry.get("name")).collect();
    // If a name appears twice, the last entry counts.
    let mut places: HashMap<&Value, usize> = HashMap::new();
    for (at, entry) in before.iter().enumerate() {
        places.extend(entry.get("name").filter(|name| names.contains(name)).map(|name| (name, at)));
    }
    let stays = |entry: &&Value| !entry.get("name").is_some_and(|name| names.contains(name));
    let (mut rest, mut passed, mut held) = (before.iter(), 0, Vec::new());
    for entry in over {
        held.push(entry.clone());
        let Some(at) = entry.get("name").and_then(|name| places.remove(name)) else { continue };
        // An entry that comes later in `over` but earlier in `base` follows the order of `over`.
        let skipped = (at + 1).saturating_sub(passed);
        base.extend(rest.by_ref().take(skipped).filter(stays).cloned());
        passed = passed.max(at + 1);
        base.append(&mut held);
    }
    base.extend(rest.filter(stays).cloned());
    base.append(&mut held);
}

/// Merges items of this field's list that have the same keys. Appends the other items.
fn merge_list(field: &str, base: &mut Vec<Value>, over: &[Value]) {
    let keys = keys(field).unwrap_or_default();
    for item in over {
        match base.iter_mut().find(|before| is_same(before, item, keys)) {
            Some(before) => merge_field(field, before, item),
            None => base.push(item.clone()),
        }
    }
}

fn is_same(one: &Value, other: &Value, keys: &[&str]) -> bool {
    // A port without a protocol is TCP.
    let of = |item: &Value, key: &str| item.get(key).cloned().or_else(|| (key == "protocol").then(|| "TCP".into()));
    keys.iter().all(|key| of(one, key).is_some() && of(one, key) == of(other, key))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_override_changes_only_what_it_names() {
        let mut spec = json!({"parallelism": 2, "unheardOf": {"x": 1}, "template": {"metadata": {"labels": {"a": "1", "b": "2"}},
            "spec": {"nodeSelector": {"n": "1"}, "containers": [
                {"name": "c", "image": "i:1", "command": ["a", "b"], "env": [{"name": "X", "value": "1"}, {"name": "Y", "value": "2"}],
                 "ports": [{"containerPort": 80, "name": "w"}]},
                {"name": "d", "image": "d:1"}]}}});
        let over = json!({"template": {"metadata": {"labels": {"b": null}}, "spec": {"containers": [
            {"name": "c", "image": "i:2", "command": ["z"], "env": [{"name": "Y", "value": "3"}, {"name": "Z", "value": "4"}],
             "ports": [{"containerPort": 80, "protocol": "TCP", "hostPort": 81}]}]}}});
        merge(&mut spec, &over);
        let expected = json!({"parallelism": 2, "unheardOf": {"x": 1}, "template": {"metadata": {"labels": {"a": "1"}},
            "spec": {"nodeSelector": {"n": "1"}, "containers": [
                {"name": "c", "image": "i:2", "command": ["z"],
                 "env": [{"name": "X", "value": "1"}, {"name": "Y", "value": "3"}, {"name": "Z", "value": "4"}],
                 "ports": [{"containerPort": 80, "name": "w", "protocol": "TCP", "hostPort": 81}]},
                {"name": "d", "image": "d:1"}]}}});
        assert_eq!(spec, expected);
    }

    /// kubernetes-sigs/kustomize#2606, #2037: the API server would refuse an item with both values or both sources.
    #[test]
    fn a_value_a_volume_or_a_probe_of_another_kind_takes_the_place_of_the_one_before() {
        let field = json!({"fieldRef": {"fieldPath": "metadata.name"}});
        let mut spec = json!({"volumes": [{"name": "data", "emptyDir": {}}], "containers": [{"name": "c",
            "env": [{"name": "NS", "valueFrom": field}], "livenessProbe": {"httpGet": {"port": 80}, "periodSeconds": 3}}]});
        merge(
            &mut spec,
            &json!({"volumes": [{"name": "data", "configMap": {"name": "m"}}], "containers": [{"name": "c",
            "env": [{"name": "NS", "value": "fixed"}], "livenessProbe": {"exec": {"command": ["a"]}}}]}),
        );
        assert_eq!(
            spec,
            json!({"volumes": [{"name": "data", "configMap": {"name": "m"}}], "containers": [{"name": "c",
                "env": [{"name": "NS", "value": "fixed"}], "livenessProbe": {"exec": {"command": ["a"]}, "periodSeconds": 3}}]})
        );
    }

    /// kubernetes/kubernetes#47248, #58477: `$(HOST)` only sees earlier entries, and the last entry of a name counts.
    #[test]
    fn variables_keep_the_order_of_whoever_overrides_them() {
        let mut env = json!([{"name": "X", "value": "1"}, {"name": "URL", "value": "a"}, {"name": "X", "value": "2"}]);
        let over = json!([{"name": "HOST", "value": "h"}, {"name": "URL", "value": "http://$(HOST)"}, {"name": "X", "value": "3"}]);
        merge_field("env", &mut env, &over);
        assert_eq!(env, over);
    }
    #[test]
    fn variables_keep_their_order_whichever_side_refers_to_them() {
        let env = |entries: &[(&str, &str)]| -> Value {
            entries.iter().map(|(name, value)| json!({"name": name, "value": value})).collect()
        };
        let cases = [
            (
                env(&[("HOST", "a"), ("URL", "$(HOST)")]),
                env(&[("HOST", "b")]),
                env(&[("HOST", "b"), ("URL", "$(HOST)")]),
            ),
            (
                env(&[("A", "1"), ("URL", "x"), ("Z", "1")]),
                env(&[("HOST", "b"), ("URL", "$(HOST)")]),
                env(&[("A", "1"), ("HOST", "b"), ("URL", "$(HOST)"), ("Z", "1")]),
            ),
            (
                env(&[("URL", "x"), ("HOST", "a"), ("Z", "1")]),
                env(&[("HOST", "b"), ("URL", "$(HOST)")]),
                env(&[("HOST", "b"), ("URL", "$(HOST)"), ("Z", "1")]),
            ),
            (env(&[("X", "1")]), env(&[("Y", "2")]), env(&[("X", "1"), ("Y", "2")])),
        ];
        for (mut base, over, merged) in cases {
            merge_field("env", &mut base, &over);
            assert_eq!(base, merged);
        }
    }

    #[test]
    fn keys_of_maps_that_are_called_as_kinds_of_volumes_are_stay() {
        let mut pod = json!({"nodeSelector": {"nfs": "true"}, "volumes": [{"name": "v", "iscsi": {"lun": 0}}]});
        merge(&mut pod, &json!({"nodeSelector": {"csi": "true"}, "volumes": [{"name": "v", "fc": {"lun": 0}}]}));
        let merged =
            json!({"nodeSelector": {"nfs": "true", "csi": "true"}, "volumes": [{"name": "v", "fc": {"lun": 0}}]});
        assert_eq!(pod, merged);
    }
}
