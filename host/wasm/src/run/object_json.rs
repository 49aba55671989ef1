//! An object as a plugin may see it, as a JSON document: its metadata, and the fields that the plugin's manifest
//! declares. The cache has the fields that any plugin declared; this file may not show more of them.

use oarlock_core::cluster::object::{Object, Owner};
use oarlock_core::plugin::manifest::Manifest;
use serde_json::{Map, Value, json};

/// The value at `pointer` in the metadata, which each plugin may see, as JSON text; `None` where it points elsewhere.
pub(crate) fn metadata(object: &Object, pointer: &str) -> Option<Option<String>> {
    if let Some(rest) = pointer.strip_prefix("/metadata") {
        if !rest.is_empty() && !rest.starts_with('/') {
            return None;
        }
        let field = rest.strip_prefix('/').map(|path| path.split('/').next().unwrap_or_default());
        let document = metadata_of(object, field);
        return Some(document.pointer(rest).map(Value::to_string));
    }
    match pointer {
        "/apiVersion" => Some(Some(Value::from(object.key.kind.api_version.as_str()).to_string())),
        "/kind" => Some(Some(Value::from(object.key.kind.kind.as_str()).to_string())),
        _ => None,
    }
}

/// The whole document: kind, metadata and the fields that the plugin declares.
pub(crate) fn whole(object: &Object, manifest: &Manifest) -> Value {
    let mut document = json!({"apiVersion": object.key.kind.api_version, "kind": object.key.kind.kind});
    let fields = object.fields.value();
    for rule in manifest.reads.iter().filter(|rule| rule.concerns(&object.key.kind)) {
        for field in &rule.fields {
            copy(&fields, &mut document, field.trim_end_matches("/*"));
        }
    }
    if let (Value::Object(fields), Value::Object(own)) = (&mut document, metadata_of(object, None)) {
        let slot = fields.entry("metadata").or_insert_with(|| Value::Object(Map::new()));
        if let Value::Object(slot) = slot {
            slot.extend(own);
        }
    }
    document
}

/// The metadata, or only `field` of it.
fn metadata_of(object: &Object, field: Option<&str>) -> Value {
    let mut map = Map::new();
    let mut put = |name: &str, value: &dyn Fn() -> Option<Value>| {
        if field.is_none_or(|wanted| wanted == name)
            && let Some(value) = value()
        {
            map.insert(name.to_owned(), value);
        }
    };
    put("name", &|| Some(object.key.name.clone().into()));
    put("namespace", &|| object.key.namespace.clone().map(Value::from));
    put("uid", &|| Some(object.uid.clone().into()));
    put("resourceVersion", &|| Some(object.resource_version.clone().into()));
    put("labels", &|| (!object.labels.is_empty()).then(|| json!(object.labels)));
    put("annotations", &|| (!object.annotations.is_empty()).then(|| json!(object.annotations)));
    put("finalizers", &|| (!object.finalizers.is_empty()).then(|| json!(object.finalizers)));
    put("ownerReferences", &|| {
        (!object.owners.is_empty()).then(|| object.owners.iter().map(owner).collect::<Vec<_>>().into())
    });
    put("creationTimestamp", &|| object.created.map(|time| time.to_string().into()));
    put("deletionTimestamp", &|| object.deleted.map(|time| time.to_string().into()));
    put("deletionGracePeriodSeconds", &|| object.grace_seconds.map(Value::from));
    Value::Object(map)
}

fn owner(owner: &Owner) -> Value {
    json!({"apiVersion": owner.kind.api_version, "kind": owner.kind.kind, "name": owner.name, "uid": owner.uid,
        "controller": owner.controller})
}

/// Copies the value at `pointer` to the same place. A pointer into an array copies the whole array, as it is stored.
fn copy(from: &Value, into: &mut Value, pointer: &str) {
    let Some(rest) = pointer.strip_prefix('/') else { return };
    let (token, below) = rest.find('/').map_or((rest, ""), |end| rest.split_at(end));
    let token = token.replace("~1", "/").replace("~0", "~");
    let (Some(child), Some(map)) = (from.get(&token), into.as_object_mut()) else { return };
    if child.is_object() && !below.is_empty() {
        copy(child, map.entry(token).or_insert_with(|| Value::Object(Map::new())), below);
    } else {
        map.insert(token, child.clone());
    }
}

#[cfg(test)]
mod tests {
    use oarlock_core::cluster::object::Kind;

    use super::*;

    fn pod() -> Object {
        let document = json!({"metadata": {"name": "a", "namespace": "n", "uid": "u", "labels": {"x/y": "1"},
            "creationTimestamp": "2026-01-01T00:00:00Z"}, "status": {"phase": "Running", "conditions": [{"type": "Ready"}]}});
        Object::slim(&document, &Kind::pod(), &["/status".into()]).unwrap()
    }

    fn manifest(fields: &[&str]) -> Manifest {
        let reads = json!([{"apiVersion": "v1", "kind": "Pod", "fields": fields, "reason": "r"}]);
        let document =
            json!({"schema": 1, "name": "p", "version": "1.0.0", "action": "P", "target": ["Pod"], "reads": reads});
        Manifest::parse(document.to_string().as_bytes()).unwrap()
    }

    #[test]
    fn metadata_is_readable_by_pointer() {
        let at = |pointer| metadata(&pod(), pointer);
        assert_eq!(at("/metadata/labels/x~1y"), Some(Some("\"1\"".into())));
        assert_eq!(at("/metadata/creationTimestamp"), Some(Some("\"2026-01-01T00:00:00Z\"".into())));
        assert_eq!(at("/metadata/ownerReferences"), Some(None));
        assert_eq!(at("/metadataX"), None);
        assert_eq!(at("/status"), None);
    }

    #[test]
    fn the_document_has_only_what_this_plugin_declares() {
        let document = whole(&pod(), &manifest(&["/status/conditions"]));
        assert_eq!(document["status"], json!({"conditions": [{"type": "Ready"}]}));
        assert_eq!(document["metadata"]["name"], "a");
        assert_eq!(whole(&pod(), &manifest(&["/status/*"]))["status"]["phase"], "Running");
    }
}
