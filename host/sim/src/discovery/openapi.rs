//! OpenAPI v3 documents of the served kinds. `kubectl explain`, `kubectl apply` and clients that look up merge keys use
//! them.

use std::{
    collections::BTreeMap,
    hash::{DefaultHasher, Hash, Hasher},
    sync::Arc,
};

use serde_json::{Map, Value, json};

use crate::{
    discovery::documents::{self, VERSION},
    kinds::{
        registry::Kind,
        schema::{DEFINITIONS, definition_name, definition_of},
    },
    object::as_map,
    server::{cluster::State, reply::Reply, status::Refusal},
};

const OBJECT_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";

/// Returns the document at a path below `/openapi/v3`.
pub(crate) fn document(state: &State, path: &[&str]) -> Result<Reply, Refusal> {
    match path {
        [] => Ok(Reply::ok(&index(state))),
        ["api", version] => described(state, "", version),
        ["apis", group, version] => described(state, group, version),
        _ => Err(Refusal::no_such_path()),
    }
}

/// Returns the list of all documents. Each URL has a hash, because clients cache a document until its URL changes.
fn index(state: &State) -> Value {
    let mut paths = BTreeMap::new();
    for kind in state.kinds.all() {
        let path = prefix(kind);
        let hash: &mut DefaultHasher = paths.entry(path).or_default();
        kind.kind.hash(hash);
        if let Some(custom) = &kind.custom {
            custom.schema.to_string().hash(hash);
        }
    }
    let entry = |(path, hash): (String, DefaultHasher)| {
        let address = format!("/openapi/v3{path}?hash={:016X}", hash.finish());
        (path.trim_start_matches('/').to_owned(), json!({"serverRelativeURL": address}))
    };
    json!({"paths": paths.into_iter().map(entry).collect::<Map<_, _>>()})
}

/// Returns the path of a kind's version, such as `/api/v1` or `/apis/apps/v1`.
fn prefix(kind: &Kind) -> String {
    let root = if kind.group.is_empty() { "api" } else { "apis" };
    format!("/{root}/{}", kind.api_version())
}

fn described(state: &State, group: &str, version: &str) -> Result<Reply, Refusal> {
    let kinds = state.kinds.all().filter(|kind| kind.group == group && kind.version == version).collect::<Vec<_>>();
    if kinds.is_empty() {
        return Err(Refusal::no_such_path());
    }
    let Described { schemas, paths } = describe(kinds);
    Ok(Reply::ok(&json!({
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": format!("v{}.{}.0", VERSION.0, VERSION.1)},
        "paths": paths,
        "components": {"schemas": schemas},
    })))
}

/// The schemas and paths of some kinds.
pub(crate) struct Described {
    pub(crate) schemas: Map<String, Value>,
    pub(crate) paths: Map<String, Value>,
}

/// Describes kinds and every schema that they refer to.
pub(crate) fn describe<'k>(kinds: impl IntoIterator<Item = &'k Arc<Kind>>) -> Described {
    let mut schemas = Map::new();
    let mut paths = Map::new();
    for kind in kinds {
        let name = match definition_name(kind).filter(|_| kind.custom.is_none()) {
            Some(name) => {
                collect(name, &mut schemas);
                name.to_owned()
            }
            None => {
                collect(OBJECT_META, &mut schemas);
                let name = custom_name(kind);
                schemas.insert(name.clone(), custom_schema(kind));
                name
            }
        };
        add_paths(kind, &name, &mut paths);
        add_questions(kind, &mut schemas, &mut paths);
    }
    Described { schemas, paths }
}

/// Adds a built-in definition and every definition that it refers to.
fn collect(name: &str, schemas: &mut Map<String, Value>) {
    let Some(schema) = DEFINITIONS.get(name).filter(|_| !schemas.contains_key(name)) else { return };
    schemas.insert(name.to_owned(), schema.clone());
    references(schema, schemas);
}

fn references(value: &Value, schemas: &mut Map<String, Value>) {
    match value {
        Value::Object(map) => {
            if let Some(target) = map.get("$ref").and_then(Value::as_str) {
                collect(target.rsplit('/').next().unwrap_or_default(), schemas);
            }
            map.values().for_each(|value| references(value, schemas));
        }
        Value::Array(list) => list.iter().for_each(|value| references(value, schemas)),
        _ => {}
    }
}

/// Returns the definition name of a custom kind, such as `io.kusionstack.apps.v1alpha1.OperationJob`. As on the real server, the
/// group is reversed.
fn custom_name(kind: &Kind) -> String {
    let group = kind.group.split('.').rev().collect::<Vec<_>>().join(".");
    format!("{group}.{}.{}", kind.version, kind.kind)
}

fn custom_schema(kind: &Kind) -> Value {
    let mut schema = kind.custom.as_ref().map(|custom| custom.schema.clone()).unwrap_or_default();
    let map = as_map(&mut schema);
    map.insert("x-kubernetes-group-version-kind".into(), json!([own_name(kind)]));
    let properties = as_map(map.entry("properties").or_insert_with(|| json!({})));
    properties.insert(
        "apiVersion".into(),
        json!({"type": "string", "description": "APIVersion defines the versioned schema of this representation of an object."}),
    );
    properties.insert(
        "kind".into(),
        json!({"type": "string", "description": "Kind is a string value representing the REST resource this object represents."}),
    );
    let reference = json!([{"$ref": format!("#/components/schemas/{OBJECT_META}")}]);
    properties.insert("metadata".into(), json!({"description": "Standard object's metadata.", "allOf": reference}));
    schema
}

fn own_name(kind: &Kind) -> Value {
    group_version_kind([&kind.group, &kind.version, &kind.kind])
}

fn group_version_kind([group, version, kind]: [&str; 3]) -> Value {
    json!({"group": group, "version": version, "kind": kind})
}

/// Returns the collection path of a kind.
fn list_path(kind: &Kind) -> String {
    let scope = if kind.namespaced { "/namespaces/{namespace}" } else { "" };
    format!("{}{scope}/{}", prefix(kind), kind.plural)
}

/// The query parameters of creates and updates.
const WRITE: [&str; 3] = ["dryRun", "fieldManager", "fieldValidation"];

/// Describes an operation of a path. `own` is the group, version and kind of the objects, `name` the name of their definition.
fn operation(action: &str, parameters: &[&str], (own, name): (&Value, &str)) -> Value {
    let schema = json!({"application/json": {"schema": {"$ref": format!("#/components/schemas/{name}")}}});
    let parameters = parameters.iter().map(|name| json!({"name": name, "in": "query", "schema": {"type": "string"}}));
    json!({
        "x-kubernetes-action": action, "x-kubernetes-group-version-kind": own,
        "parameters": parameters.collect::<Vec<_>>(),
        "responses": {"200": {"description": "OK", "content": schema}},
    })
}

/// Adds the subresources that only support create, such as evictions, and the schemas of their bodies.
fn add_questions(kind: &Kind, schemas: &mut Map<String, Value>, paths: &mut Map<String, Value>) {
    for (part, own, _) in documents::subresources(kind).into_iter().filter(|(_, _, verbs)| *verbs == ["create"]) {
        let Some(name) = definition_of(own) else { continue };
        collect(name, schemas);
        let post = operation("post", &WRITE, (&group_version_kind(own), name));
        paths.insert(format!("{}/{{name}}/{part}", list_path(kind)), json!({"post": post}));
    }
}

fn add_paths(kind: &Kind, name: &str, paths: &mut Map<String, Value>) {
    let (list, own) = (list_path(kind), own_name(kind));
    let operation = |action: &str, parameters: &[&str]| operation(action, parameters, (&own, name));
    if kind.traits.create_only {
        paths.insert(list, json!({"post": operation("post", &WRITE)}));
        return;
    }
    let item = json!({
        "get": operation("get", &[]), "put": operation("put", &WRITE),
        "patch": operation("patch", &["dryRun", "fieldManager", "fieldValidation", "force"]),
        "delete": operation("delete", &["dryRun"]),
    });
    paths.insert(format!("{list}/{{name}}"), item);
    paths.insert(list, json!({"get": operation("list", &[]), "post": operation("post", &WRITE)}));
}
