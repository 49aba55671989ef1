//! `globalParams`: settings for the children of all units. Source: docs/jobflow.md 2.2, rules 5 to 8.

use serde_json::{Map, Value};

use crate::attempts::merge::merge_env;
use crate::object::fields::{at, flag, object, object_at, text};
use crate::object::memory::text_len;

/// The `globalParams` of a spec.
#[derive(Clone, Copy, Debug)]
pub struct Globals<'a> {
    params: &'a Value,
    node: Option<&'a str>,
}

impl<'a> Globals<'a> {
    /// Returns the `globalParams` of a spec.
    pub fn of(spec: &'a Value) -> Self {
        let params = at(spec, "/globalParams").unwrap_or(&Value::Null);
        Self { params, node: text(params, "/nodeName").filter(|name| !name.is_empty()) }
    }

    /// Returns the parameters with this node in place of their own.
    #[must_use]
    pub fn on_node(self, node: &'a str) -> Self {
        Self { node: Some(node), ..self }
    }

    /// Returns the length of the parameters as JSON text.
    pub fn text_len(&self) -> usize {
        text_len(self.params)
    }

    /// Returns true if init containers also get env and shared mounts.
    pub fn with_init_containers(&self) -> bool {
        flag(self.params, "/initContainers")
    }

    /// Returns true if every pod runs on one named node.
    pub fn names_node(&self) -> bool {
        self.node.is_some()
    }

    fn merges(&self) -> bool {
        text(self.params, "/mode") == Some("Merge")
    }

    /// Returns the global labels or annotations. `{}` counts as present, and `null` as absent.
    pub fn map(&self, field: &str) -> Option<&'a Map<String, Value>> {
        object(self.params, &format!("/{field}"))
    }

    /// Applies the parameters to a pod template.
    pub fn render(&self, template: &mut Value) {
        for field in ["labels", "annotations"] {
            if let Some(global) = self.map(field) {
                self.render_map(object_at(template, &["metadata"]), field, global);
            }
        }
        if let Some(node) = self.node {
            object_at(template, &["spec"]).insert("nodeName".to_owned(), node.into());
        }
        self.render_env(template);
    }

    fn render_map(&self, metadata: &mut Map<String, Value>, field: &str, global: &Map<String, Value>) {
        let mut rendered = global.clone();
        if let Some(own) = metadata.get(field).and_then(Value::as_object).filter(|_| self.merges()) {
            rendered.extend(
                own.iter().filter(|(_, value)| !value.is_null()).map(|(key, value)| (key.clone(), value.clone())),
            );
        }
        metadata.insert(field.to_owned(), Value::Object(rendered));
    }

    fn render_env(&self, template: &mut Value) {
        let Some(global) = at(self.params, "/env").and_then(Value::as_array) else { return };
        let merges = self.merges();
        for container in containers(template, self.with_init_containers()) {
            let container = object_at(container, &[]);
            let own = container.get("env").and_then(Value::as_array).cloned().unwrap_or_default();
            let mut env = global.clone();
            if merges {
                merge_env(&mut env, &own);
            }
            container.insert("env".to_owned(), Value::Array(env));
        }
    }
}

/// Returns the containers of a pod template. If `with_init` is true, includes the init containers.
pub(crate) fn containers(template: &mut Value, with_init: bool) -> impl Iterator<Item = &mut Value> {
    let spec = object_at(template, &["spec"]);
    let named = move |name: &str| name == "containers" || with_init && name == "initContainers";
    spec.iter_mut().filter(move |(name, _)| named(name)).filter_map(|(_, list)| list.as_array_mut()).flatten()
}

/// A sentence about a conflict between a shared volume and the template's own.
pub type VolumeConflict = String;

/// Adds all shared volumes to a pod, and the mounts to its containers. Source: docs/jobflow.md 2.2, rule 3.
///
/// # Errors
/// If the template has a different volume of the same name, or a different mount of the same path.
pub fn share_volumes(
    template: &mut Value,
    volumes: &[Value],
    mounts: &[Value],
    with_init: bool,
) -> Result<(), VolumeConflict> {
    if volumes.is_empty() || mounts.is_empty() {
        return Ok(());
    }
    let spec = object_at(template, &["spec"]);
    add("volume", "name", spec, "volumes", volumes)?;
    for container in containers(template, with_init) {
        add("mount", "mountPath", object_at(container, &[]), "volumeMounts", mounts)?;
    }
    Ok(())
}

fn add(
    what: &str,
    key: &str,
    holder: &mut Map<String, Value>,
    field: &str,
    shared: &[Value],
) -> Result<(), VolumeConflict> {
    let mut all = holder.get(field).and_then(Value::as_array).cloned().unwrap_or_default();
    for item in shared {
        let name = item.get(key).and_then(Value::as_str).unwrap_or_default();
        match all.iter().find(|own| own.get(key).and_then(Value::as_str) == Some(name)) {
            None => all.push(item.clone()),
            Some(own) if own == item => {}
            Some(_) => {
                return Err(format!(
                    "the shared {what} {name:?} differs from the {what} {name:?} of the step's own template; rename one"
                ));
            }
        }
    }
    holder.insert(field.to_owned(), Value::Array(all));
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn template() -> Value {
        json!({"metadata": {"labels": {"a": "own", "b": "own"}}, "spec": {
            "initContainers": [{"name": "i"}],
            "containers": [{"name": "c", "env": [{"name": "X", "value": "own"}], "envFrom": [{"prefix": "p"}]}]}})
    }

    fn rendered(params: Value) -> Value {
        let (spec, mut template) = (json!({"globalParams": params}), template());
        Globals::of(&spec).render(&mut template);
        template
    }

    #[test]
    fn globals_replace_and_an_empty_map_clears() {
        let pod = rendered(json!({"env": [{"name": "G", "value": "g"}], "labels": {}, "nodeName": "n"}));
        assert_eq!(pod.pointer("/metadata/labels"), Some(&json!({})));
        assert_eq!(pod.pointer("/spec/nodeName"), Some(&json!("n")));
        assert_eq!(pod.pointer("/spec/containers/0/env"), Some(&json!([{"name": "G", "value": "g"}])));
        assert_eq!(pod.pointer("/spec/containers/0/envFrom"), Some(&json!([{"prefix": "p"}])));
        assert_eq!(pod.pointer("/spec/initContainers/0/env"), None);
        assert_eq!(rendered(json!({"labels": null, "nodeName": "", "env": null})), template());
    }

    #[test]
    fn merged_globals_come_first_and_the_steps_own_value_wins() {
        let env = json!([{"name": "G", "value": "g"}, {"name": "X", "value": "global"}]);
        let pod =
            rendered(json!({"mode": "Merge", "env": env, "labels": {"a": "g", "z": "g"}, "initContainers": true}));
        let expected = json!([{"name": "G", "value": "g"}, {"name": "X", "value": "own"}]);
        assert_eq!(pod.pointer("/spec/containers/0/env"), Some(&expected));
        assert_eq!(pod.pointer("/metadata/labels"), Some(&json!({"a": "own", "b": "own", "z": "g"})));
        assert_eq!(pod.pointer("/spec/initContainers/0/env"), Some(&env));
    }

    #[test]
    fn a_shared_volume_is_kept_once_and_another_of_its_name_is_a_conflict() {
        let (volumes, mounts) = (json!([{"name": "v", "emptyDir": {}}]), json!([{"name": "v", "mountPath": "/v"}]));
        let share = |template: &mut Value, volumes: &Value| {
            share_volumes(template, volumes.as_array().unwrap(), mounts.as_array().unwrap(), false)
        };
        let mut pod = template();
        share(&mut pod, &volumes).unwrap();
        let once = pod.clone();
        share(&mut pod, &volumes).unwrap();
        assert_eq!(pod, once);
        assert_eq!(pod.pointer("/spec/containers/0/volumeMounts"), Some(&mounts));
        let other = json!([{"name": "v", "hostPath": {"path": "/"}}]);
        assert!(share(&mut pod, &other).unwrap_err().contains("\"v\" differs"));
    }
}
