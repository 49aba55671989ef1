//! `overrides` on a JobSpec. Source: docs/jobflow.md 2.2, rule 2.

use std::collections::HashSet;

use serde_json::{Map, Value};

/// The fields by which the items of a list are told apart, where a list is merged at all.
fn keys(field: &str) -> Option<&'static [&'static str]> {
    match field {
        "containers" | "initContainers" | "volumes" => Some(&["name"]),
        "volumeMounts" => Some(&["mountPath"]),
        "ports" => Some(&["containerPort", "protocol"]),
        _ => None,
    }
}

/// Puts `over` on `base`: objects by key, where `null` deletes one; the lists named above by their keys; else it replaces.
pub fn merge(base: &mut Value, over: &Value) {
    merge_field("", base, over);
}

fn merge_field(field: &str, base: &mut Value, over: &Value) {
    match (base, over) {
        (Value::Object(base), Value::Object(over)) => merge_object(base, over),
        (Value::Array(base), Value::Array(over)) if field == "env" => merge_env(base, over),
        (Value::Array(base), Value::Array(over)) if keys(field).is_some() => {
            merge_list(base, over, keys(field).unwrap_or_default());
        }
        (base, over) => *base = over.clone(),
    }
}

/// Keys of which an object has one at most: what a probe or a hook does, and what a volume is made of.
const ONE_OF: [&[&str]; 2] = [
    &["exec", "httpGet", "tcpSocket", "grpc", "sleep"],
    &[
        "emptyDir",
        "hostPath",
        "configMap",
        "secret",
        "persistentVolumeClaim",
        "projected",
        "downwardAPI",
        "csi",
        "ephemeral",
        "image",
        "nfs",
    ],
];

fn merge_object(base: &mut Map<String, Value>, over: &Map<String, Value>) {
    for alternatives in ONE_OF {
        let is_given = |field: &str| over.get(field).is_some_and(|value| !value.is_null());
        if alternatives.iter().any(|field| is_given(field)) {
            base.retain(|field, _| is_given(field) || !alternatives.contains(&field.as_str()));
        }
    }
    for (field, value) in over {
        if value.is_null() {
            base.remove(field);
        } else {
            merge_field(field, base.entry(field.clone()).or_insert(Value::Null), value);
        }
    }
}

/// Puts the entries of `over` behind those of other names, in their own order: `$(NAME)` takes what stands before it.
pub fn merge_env(base: &mut Vec<Value>, over: &[Value]) {
    let names: HashSet<&Value> = over.iter().filter_map(|entry| entry.get("name")).collect();
    base.retain(|before| !before.get("name").is_some_and(|name| names.contains(name)));
    base.extend(over.iter().cloned());
}

/// Merges items of the same keys, and appends the others.
pub fn merge_list(base: &mut Vec<Value>, over: &[Value], keys: &[&str]) {
    for item in over {
        match base.iter_mut().find(|before| is_same(before, item, keys)) {
            Some(before) => merge(before, item),
            None => base.push(item.clone()),
        }
    }
}

fn is_same(one: &Value, other: &Value, keys: &[&str]) -> bool {
    // Without a protocol a port is TCP.
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

    /// kubernetes-sigs/kustomize#2606, #2037: both values, or both sources, would be refused.
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

    /// kubernetes/kubernetes#47248, #58477: `$(HOST)` is taken from what stands before, and of one name the last counts.
    #[test]
    fn variables_keep_the_order_of_whoever_overrides_them() {
        let mut env = json!([{"name": "X", "value": "1"}, {"name": "URL", "value": "a"}, {"name": "X", "value": "2"}]);
        let over = json!([{"name": "HOST", "value": "h"}, {"name": "URL", "value": "http://$(HOST)"}, {"name": "X", "value": "3"}]);
        merge_field("env", &mut env, &over);
        assert_eq!(env, over);
    }
}
