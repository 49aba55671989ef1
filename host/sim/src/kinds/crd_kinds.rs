//! The kinds that a CustomResourceDefinition defines, and the status of an established definition.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::{
    kinds::{
        registry::{Kind, Kinds, Traits},
        schema::{self, Schema},
    },
    object::{at, str_at},
};

/// The properties of a custom kind's version that built-in kinds lack.
#[derive(Debug, Clone, Default)]
pub(crate) struct CustomVersion {
    /// The schema as written in the definition, for OpenAPI.
    pub(crate) schema: Value,
    /// The parsed schema for pruning, defaulting and validation.
    pub(crate) root: Schema,
    /// The parsed schema with the schema of metadata, for server-side apply.
    pub(crate) typed: Schema,
    /// The columns that kubectl shows besides the name.
    pub(crate) columns: Vec<Value>,
    /// The fields that a field selector may use.
    pub(crate) selectable: Vec<String>,
    /// The name of the storage version.
    pub(crate) storage_version: String,
    /// The `scale` subresource: the paths of spec, status and label selector.
    pub(crate) scale: Value,
}

/// Returns the kinds of a definition, one for each served version.
pub(crate) fn kinds_of(definition: &Value, kinds: &mut Kinds) -> Vec<Kind> {
    let spec = definition.get("spec").unwrap_or(&Value::Null);
    let versions = spec.get("versions").and_then(Value::as_array).cloned().unwrap_or_default();
    let storage = versions.iter().find(|one| at(one, &["storage"]) == Some(&json!(true)));
    let storage_version = storage.map(|one| str_at(one, &["name"])).unwrap_or_default().to_owned();
    let served = versions.iter().filter(|one| at(one, &["served"]) == Some(&json!(true)));
    served.map(|version| kind_of(spec, version, &storage_version, kinds)).collect()
}

fn kind_of(spec: &Value, version: &Value, storage_version: &str, kinds: &mut Kinds) -> Kind {
    let (group, plural) = (str_at(spec, &["group"]), str_at(spec, &["names", "plural"]));
    let kind = str_at(spec, &["names", "kind"]);
    let or = |value: &str, default: String| if value.is_empty() { default } else { value.to_owned() };
    let custom = custom_version(spec, version, storage_version);
    let scale = !custom.scale.is_null();
    Kind {
        group: group.to_owned(),
        version: str_at(version, &["name"]).to_owned(),
        kind: kind.to_owned(),
        list_kind: or(str_at(spec, &["names", "listKind"]), format!("{kind}List")),
        plural: plural.to_owned(),
        singular: or(str_at(spec, &["names", "singular"]), kind.to_lowercase()),
        short_names: strings(spec, "shortNames"),
        categories: strings(spec, "categories"),
        namespaced: str_at(spec, &["scope"]) == "Namespaced",
        traits: Traits {
            status: at(version, &["subresources"]).and_then(|all| all.get("status")).is_some(),
            scale,
            generation: true,
            returns_deleted: false,
            create_on_update: false,
            conditional: true,
            create_only: false,
        },
        table: kinds.table(group, plural),
        custom: Some(Arc::new(custom)),
    }
}

fn custom_version(spec: &Value, version: &Value, storage_version: &str) -> CustomVersion {
    let scale = at(version, &["subresources", "scale"]).cloned().unwrap_or(Value::Null);
    let schema = at(version, &["schema", "openAPIV3Schema"]).cloned().unwrap_or_else(|| json!({}));
    let root = Schema { embedded: true, preserve: preserves(spec, &schema), ..schema::parse(&schema) };
    let mut typed = Schema { embedded: false, ..root.clone() };
    typed.properties.insert("metadata".into(), schema::object_meta());
    for name in ["kind", "apiVersion"] {
        typed.properties.entry(name.into()).or_default();
    }
    CustomVersion {
        root,
        typed,
        schema,
        columns: list(version, "additionalPrinterColumns"),
        selectable: list(version, "selectableFields")
            .iter()
            .map(|one| str_at(one, &["jsonPath"]).trim_start_matches('.').to_owned())
            .collect(),
        storage_version: storage_version.to_owned(),
        scale,
    }
}

fn preserves(spec: &Value, schema: &Value) -> bool {
    let flag = |value: &Value, name: &str| value.get(name) == Some(&json!(true));
    flag(spec, "preserveUnknownFields") || flag(schema, "x-kubernetes-preserve-unknown-fields")
}

fn list(version: &Value, field: &str) -> Vec<Value> {
    version.get(field).and_then(Value::as_array).cloned().unwrap_or_default()
}

fn strings(spec: &Value, field: &str) -> Vec<String> {
    let names = at(spec, &["names", field]).and_then(Value::as_array).into_iter().flatten();
    names.filter_map(Value::as_str).map(str::to_owned).collect()
}

/// Returns the status of an established definition with accepted names.
pub(crate) fn established(definition: &Value, now: &str) -> Value {
    let names = at(definition, &["spec", "names"]).cloned().unwrap_or(Value::Null);
    let versions = at(definition, &["spec", "versions"]).and_then(Value::as_array).into_iter().flatten();
    let stored = versions.filter(|one| at(one, &["storage"]) == Some(&json!(true))).map(|one| one["name"].clone());
    let condition = |kind: &str, reason: &str, message: &str| json!({"type": kind, "status": "True", "lastTransitionTime": now, "reason": reason, "message": message});
    json!({
        "conditions": [
            condition("NamesAccepted", "NoConflicts", "no conflicts found"),
            condition("Established", "InitialNamesAccepted", "the initial names have been accepted"),
        ],
        "acceptedNames": names,
        "storedVersions": stored.collect::<Vec<_>>(),
    })
}
