//! OpenAPI v3 schemas of CRDs and built-in kinds, parsed for pruning, defaulting, validating and merging.

use std::{
    collections::BTreeMap,
    sync::{Arc, LazyLock},
};

use parking_lot::Mutex;
use regex::Regex;
use serde_json::{Map, Value};

use crate::{
    kinds::registry::Kind,
    object::{at, str_at},
};

/// The type of a value in a schema.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Shape {
    /// Any value.
    #[default]
    Any,
    Object,
    Array,
    String,
    Integer,
    Number,
    Boolean,
    /// A whole number or a text.
    IntOrString,
    /// A `resource.Quantity`: a number or text in requests, a text in the store.
    Quantity,
}

/// The way to identify the elements of a list.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) enum ListType {
    /// The list is one value without identifiable elements.
    #[default]
    Atomic,
    /// The elements are unique scalars.
    Set,
    /// These fields identify an element.
    Map(Vec<String>),
}

/// A validation rule in CEL.
#[derive(Debug, Clone)]
pub(crate) struct CelRule {
    pub(crate) source: String,
    pub(crate) message: String,
    pub(crate) message_expression: String,
    pub(crate) reason: String,
    pub(crate) field_path: String,
    /// Whether the rule compares with an old value. Without one, the rule does not apply.
    pub(crate) transition: bool,
}

/// The bounds of a value. An absent bound does not limit it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Limits {
    pub(crate) required: Vec<String>,
    pub(crate) allowed: Vec<Value>,
    pub(crate) minimum: Option<f64>,
    pub(crate) maximum: Option<f64>,
    pub(crate) exclusive: (bool, bool),
    pub(crate) multiple_of: Option<f64>,
    pub(crate) pattern: Option<Regex>,
    /// Least and most characters of a text.
    pub(crate) length: (Option<u64>, Option<u64>),
    /// Least and most elements of a list.
    pub(crate) items: (Option<u64>, Option<u64>),
    /// Least and most entries of a map.
    pub(crate) properties: (Option<u64>, Option<u64>),
    pub(crate) unique: bool,
    pub(crate) format: String,
}

/// One node of a schema.
#[derive(Debug, Clone, Default)]
pub(crate) struct Schema {
    pub(crate) shape: Shape,
    pub(crate) nullable: bool,
    /// Whether unknown fields are preserved.
    pub(crate) preserve: bool,
    /// Whether the value is a whole object with kind, apiVersion and metadata.
    pub(crate) embedded: bool,
    pub(crate) default: Option<Value>,
    pub(crate) properties: BTreeMap<String, Arc<Schema>>,
    /// Schema of the values of a map with free keys.
    pub(crate) additional: Option<Arc<Schema>>,
    pub(crate) items: Option<Arc<Schema>>,
    pub(crate) list: ListType,
    /// Whether server-side apply treats the map as one value.
    pub(crate) atomic: bool,
    /// For strategic merge patches: the key of a merged list, empty for a merged list of scalars.
    pub(crate) merge_key: Option<String>,
    pub(crate) limits: Limits,
    pub(crate) rules: Vec<CelRule>,
}

impl Schema {
    /// Returns true if the schema or any schema inside it has a rule.
    pub(crate) fn has_rules(&self) -> bool {
        let mut below = self.properties.values().chain(&self.additional).chain(&self.items);
        !self.rules.is_empty() || below.any(|one| one.has_rules())
    }

    /// Returns the schema of a field, or of the values of a map with free keys.
    pub(crate) fn field(&self, name: &str) -> Option<&Arc<Self>> {
        self.properties.get(name).or(self.additional.as_ref())
    }
}

/// The schemas of the built-in kinds, unchanged from Kubernetes' OpenAPI documents.
const BUILT_IN_TEXT: &str = include_str!("../../schemas/builtin.json");

/// The built-in definitions by full name.
pub(crate) static DEFINITIONS: LazyLock<Map<String, Value>> = LazyLock::new(|| {
    // The file is part of this crate, and a test parses it. So no user can see an error here.
    serde_json::from_str(BUILT_IN_TEXT).unwrap_or_default()
});

static PARSED: LazyLock<Mutex<BTreeMap<String, Arc<Schema>>>> = LazyLock::new(Mutex::default);

/// Returns the schema of metadata, also for custom kinds.
pub(crate) fn object_meta() -> Arc<Schema> {
    definition("io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta")
}

/// Returns the schema of a built-in kind.
pub(crate) fn built_in(kind: &Kind) -> Option<Arc<Schema>> {
    definition_name(kind).map(definition)
}

/// Returns the full definition name of a built-in kind.
pub(crate) fn definition_name(kind: &Kind) -> Option<&'static str> {
    definition_of([&kind.group, &kind.version, &kind.kind])
}

/// Returns the full definition name for a group, version and kind.
pub(crate) fn definition_of(own: [&str; 3]) -> Option<&'static str> {
    DEFINITIONS.iter().find(|(_, schema)| names(schema, own)).map(|(name, _)| name.as_str())
}

fn names(schema: &Value, own: [&str; 3]) -> bool {
    let list = schema.get("x-kubernetes-group-version-kind").and_then(Value::as_array);
    let matches = |one: &Value| ["group", "version", "kind"].map(|field| str_at(one, &[field])) == own;
    list.is_some_and(|list| list.len() == 1 && list.iter().all(matches))
}

/// Returns a built-in definition. The process parses each definition once.
pub(crate) fn definition(name: &str) -> Arc<Schema> {
    if let Some(known) = PARSED.lock().get(name) {
        return Arc::clone(known);
    }
    // The schema of schemas refers to itself, so it is not parsed and keeps all content.
    let recursive = name.ends_with("JSONSchemaProps");
    let parsed = match DEFINITIONS.get(name).filter(|_| !recursive) {
        Some(schema) => Arc::new(special(name).unwrap_or_else(|| parse(schema))),
        None => Arc::new(Schema { preserve: true, ..Schema::default() }),
    };
    PARSED.lock().insert(name.to_owned(), Arc::clone(&parsed));
    parsed
}

fn special(name: &str) -> Option<Schema> {
    let shape = match name.rsplit('.').next()? {
        "Quantity" => Shape::Quantity,
        "IntOrString" => Shape::IntOrString,
        "RawExtension" | "FieldsV1" | "JSON" | "JSONSchemaPropsOrBool" | "JSONSchemaPropsOrArray" => Shape::Any,
        _ => return None,
    };
    Some(Schema { shape, preserve: true, ..Schema::default() })
}

/// Parses a schema of a CRD or of a built-in definition.
pub(crate) fn parse(schema: &Value) -> Schema {
    if let Some(name) = reference(schema) {
        let mut target = (*definition(name)).clone();
        describe_list(schema, &mut target);
        return target;
    }
    let flag = |name: &str| at(schema, &[name]).and_then(Value::as_bool).unwrap_or_default();
    let mut parsed = Schema {
        shape: shape(schema),
        nullable: flag("nullable"),
        preserve: flag("x-kubernetes-preserve-unknown-fields"),
        embedded: flag("x-kubernetes-embedded-resource"),
        default: schema.get("default").cloned(),
        properties: properties(schema),
        additional: at(schema, &["additionalProperties"]).map(additional).unwrap_or_default(),
        items: at(schema, &["items"]).map(|items| Arc::new(parse(items))),
        limits: limits(schema),
        rules: rules(schema),
        ..Schema::default()
    };
    describe_list(schema, &mut parsed);
    parsed
}

fn reference(schema: &Value) -> Option<&str> {
    let direct = schema.get("$ref");
    let wrapped = schema.get("allOf").and_then(Value::as_array).and_then(|all| all.first()?.get("$ref"));
    direct.or(wrapped)?.as_str()?.rsplit('/').next()
}

fn shape(schema: &Value) -> Shape {
    let flagged = at(schema, &["x-kubernetes-int-or-string"]) == Some(&Value::Bool(true));
    match str_at(schema, &["type"]) {
        _ if flagged => Shape::IntOrString,
        "object" => Shape::Object,
        "array" => Shape::Array,
        "string" => Shape::String,
        "integer" => Shape::Integer,
        "number" => Shape::Number,
        "boolean" => Shape::Boolean,
        _ => Shape::Any,
    }
}

fn properties(schema: &Value) -> BTreeMap<String, Arc<Schema>> {
    let all = at(schema, &["properties"]).and_then(Value::as_object).into_iter().flatten();
    all.map(|(name, property)| (name.clone(), Arc::new(parse(property)))).collect()
}

fn additional(schema: &Value) -> Option<Arc<Schema>> {
    match schema {
        Value::Bool(true) => Some(Arc::new(Schema { preserve: true, ..Schema::default() })),
        Value::Object(_) => Some(Arc::new(parse(schema))),
        _ => None,
    }
}

fn describe_list(schema: &Value, parsed: &mut Schema) {
    match str_at(schema, &["x-kubernetes-list-type"]) {
        "set" => parsed.list = ListType::Set,
        "map" => parsed.list = ListType::Map(texts(schema, "x-kubernetes-list-map-keys")),
        _ => {}
    }
    parsed.atomic |= str_at(schema, &["x-kubernetes-map-type"]) == "atomic";
    if str_at(schema, &["x-kubernetes-patch-strategy"]).contains("merge") {
        parsed.merge_key = Some(str_at(schema, &["x-kubernetes-patch-merge-key"]).to_owned());
    }
}

fn texts(schema: &Value, field: &str) -> Vec<String> {
    let all = at(schema, &[field]).and_then(Value::as_array).into_iter().flatten();
    all.filter_map(Value::as_str).map(str::to_owned).collect()
}

fn limits(schema: &Value) -> Limits {
    let number = |name: &str| at(schema, &[name]).and_then(Value::as_f64);
    let count = |name: &str| at(schema, &[name]).and_then(Value::as_u64);
    let flag = |name: &str| at(schema, &[name]).and_then(Value::as_bool).unwrap_or_default();
    Limits {
        required: texts(schema, "required"),
        allowed: at(schema, &["enum"]).and_then(Value::as_array).cloned().unwrap_or_default(),
        minimum: number("minimum"),
        maximum: number("maximum"),
        exclusive: (flag("exclusiveMinimum"), flag("exclusiveMaximum")),
        multiple_of: number("multipleOf"),
        pattern: at(schema, &["pattern"]).and_then(Value::as_str).and_then(|text| Regex::new(text).ok()),
        length: (count("minLength"), count("maxLength")),
        items: (count("minItems"), count("maxItems")),
        properties: (count("minProperties"), count("maxProperties")),
        unique: flag("uniqueItems"),
        format: str_at(schema, &["format"]).to_owned(),
    }
}

fn rules(schema: &Value) -> Vec<CelRule> {
    let all = at(schema, &["x-kubernetes-validations"]).and_then(Value::as_array).into_iter().flatten();
    let own = |one: &Value, field: &str| str_at(one, &[field]).trim().to_owned();
    all.map(|one| CelRule {
        source: own(one, "rule"),
        message: own(one, "message"),
        message_expression: own(one, "messageExpression"),
        reason: own(one, "reason"),
        field_path: own(one, "fieldPath"),
        transition: own(one, "rule").contains("oldSelf"),
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_built_in_schemas_are_readable_and_complete() {
        assert!(DEFINITIONS.len() > 250);
        let pod = definition("io.k8s.api.core.v1.Pod");
        let containers = &pod.properties["spec"].properties["containers"];
        assert_eq!(containers.list, ListType::Map(vec!["name".into()]));
        assert_eq!(containers.merge_key.as_deref(), Some("name"));
        assert_eq!(object_meta().properties["finalizers"].merge_key.as_deref(), Some(""));
        let every = crate::kinds::registry::Kinds::built_in();
        for kind in every.all() {
            assert!(built_in(kind).is_some(), "no schema of {}", kind.group_kind());
        }
    }
}
