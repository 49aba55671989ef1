//! The JSON document of an object that a plugin may see: its metadata, and the fields that the plugin's manifest declares. The cache has
//! the fields of all plugins. This file may not show the fields of other plugins.

use serde_json::{Map, Value, json};

use crate::object::api_object::{Object, Owner};
use crate::plugin::manifest::Manifest;

/// Returns the value at `pointer` as JSON text. The pointer points to the kind or into the metadata.
pub fn metadata(object: &Object, pointer: &str) -> Option<String> {
    let value = match (pointer, pointer.strip_prefix("/metadata")) {
        ("/apiVersion", _) => Some(Value::from(object.key.kind.api_version.as_str())),
        ("/kind", _) => Some(Value::from(object.key.kind.kind.as_str())),
        (_, Some(rest)) => {
            let field = rest.strip_prefix('/').map(|path| path.split('/').next().unwrap_or_default());
            metadata_of(object, field).pointer(rest).cloned()
        }
        _ => None,
    };
    value.map(|value| value.to_string())
}

/// Returns the whole document: kind, metadata and the fields that the plugin declares.
pub fn whole(object: &Object, manifest: &Manifest) -> Value {
    let mut document = manifest.declared_fields(&object.key.kind, &object.fields.value());
    if let (Value::Object(fields), Value::Object(own)) = (&mut document, metadata_of(object, None)) {
        let slot = fields.entry("metadata").or_insert_with(|| Value::Object(Map::new()));
        if let Value::Object(slot) = slot {
            slot.extend(own);
        }
    }
    document
}

/// Returns the metadata, or only its `field`.
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

#[cfg(test)]
mod tests {
    use oarlock_contract::reads::FieldPlace;

    use super::*;
    use crate::object::api_object::Kind;

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
        assert_eq!(at("/metadata/labels/x~1y"), Some("\"1\"".into()));
        assert_eq!(at("/metadata/creationTimestamp"), Some("\"2026-01-01T00:00:00Z\"".into()));
        assert_eq!(at("/metadata/ownerReferences"), None);
        let place = |pointer| manifest(&["/status/phase"]).place_of(&Kind::pod(), pointer).ok();
        assert_eq!(place("/metadata/ownerReferences"), Some(FieldPlace::Metadata));
        assert_eq!(place("/status/phase"), Some(FieldPlace::Declared));
        assert_eq!(place("metadata"), Some(FieldPlace::Nowhere));
        assert_eq!([place("/metadataX"), place("/status"), place("")], [None; 3]);
    }

    #[test]
    fn the_document_has_only_what_this_plugin_declares() {
        let document = whole(&pod(), &manifest(&["/status/conditions"]));
        assert_eq!(document["status"], json!({"conditions": [{"type": "Ready"}]}));
        assert_eq!(document["metadata"]["name"], "a");
        assert_eq!(whole(&pod(), &manifest(&["/status/*"]))["status"]["phase"], "Running");
    }
}
