//! The whole API as one OpenAPI v2 document. kubectl reads it if it finds no v3 document for a kind. Its form is JSON, or the
//! protobuf that kubectl requests.

use bytes::Bytes;
use serde_json::{Map, Value, json};

use crate::{
    discovery::{documents::VERSION, openapi, openapi_wire},
    object::as_map,
    server::{cluster::State, reply::Reply},
};

/// Returns the document in the requested form.
pub(crate) fn document(state: &State, accept: &str) -> Reply {
    let document = whole(state);
    if accept.contains(openapi_wire::ASKED_FOR) {
        Reply::Document(openapi_wire::MEDIA, Bytes::from(openapi_wire::document(&document)))
    } else {
        Reply::ok(&document)
    }
}

fn whole(state: &State) -> Value {
    let described = openapi::describe(state.kinds.all());
    let definitions = described.schemas.into_iter().map(|(name, schema)| (name, definition(&schema)));
    let paths = described.paths.into_iter().map(|(path, item)| (path, path_item(&item)));
    json!({
        "swagger": "2.0",
        "info": {"title": "Kubernetes", "version": format!("v{}.{}.0", VERSION.0, VERSION.1)},
        "paths": paths.collect::<Map<_, _>>(),
        "definitions": definitions.collect::<Map<_, _>>(),
    })
}

/// Converts a v3 schema to v2, which has neither alternatives nor `nullable`.
fn definition(schema: &Value) -> Value {
    let Value::Object(fields) = schema else { return schema.clone() };
    let mut found = Map::new();
    for (field, value) in fields {
        let value = match (field.as_str(), value) {
            // v2 cannot express "text or number".
            ("oneOf", _) if !fields.contains_key("type") => {
                found.insert("type".to_owned(), json!("string"));
                continue;
            }
            ("oneOf" | "anyOf" | "not" | "nullable", _) => continue,
            ("$ref", Value::String(name)) => json!(name.replace("#/components/schemas/", "#/definitions/")),
            // v3 wraps a reference in `allOf` to add a description to it.
            ("allOf", Value::Array(all)) => match all.first().and_then(|one| one.get("$ref")) {
                Some(_) => {
                    found.extend(as_map(&mut definition(all.first().unwrap_or(&Value::Null))).clone());
                    continue;
                }
                None => continue,
            },
            ("properties", Value::Object(all)) => {
                all.iter().map(|(name, one)| (name.clone(), definition(one))).collect::<Map<_, _>>().into()
            }
            ("items" | "additionalProperties", one) => definition(one),
            (_, other) => other.clone(),
        };
        found.insert(field.clone(), value);
    }
    if found.contains_key("$ref") {
        found.retain(|field, _| matches!(field.as_str(), "$ref" | "description"));
    }
    found.into()
}

/// Converts the operations of a path. kubectl reads only their parameters.
fn path_item(item: &Value) -> Value {
    let operation = |operation: &Value| {
        let parameters = operation.get("parameters").and_then(Value::as_array).into_iter().flatten();
        let parameters = parameters
            .map(|one| json!({"name": one.get("name"), "in": "query", "type": "string", "uniqueItems": true}));
        json!({
            "parameters": parameters.collect::<Vec<_>>(), "responses": {"200": {"description": "OK"}},
            "x-kubernetes-action": operation.get("x-kubernetes-action"),
            "x-kubernetes-group-version-kind": operation.get("x-kubernetes-group-version-kind").and_then(|all| all.get(0)),
        })
    };
    item.as_object()
        .into_iter()
        .flatten()
        .map(|(verb, one)| (verb.clone(), operation(one)))
        .collect::<Map<_, _>>()
        .into()
}
