//! The `scale` subresource, for `kubectl scale` and for plugins with a grant for it. It is computed from the fields that
//! the kind defines for it.

use http::StatusCode;
use serde_json::{Value, json};

use crate::{
    kinds::registry::Kind,
    object::{self, at, str_at},
    server::{
        cluster::State,
        decode,
        handle::key,
        reply::Reply,
        routing::{Call, Verb},
        status::{FieldError, Refusal},
    },
    storage::ObjectVersion,
    verbs::{
        create::name_matches,
        update::{self, Managed},
    },
};

/// The paths of a Scale's fields in an object of a kind.
struct Paths {
    wanted: Vec<String>,
    actual: Vec<String>,
    selector: Vec<String>,
}

impl Paths {
    fn of(kind: &Kind) -> Self {
        let steps = |path: &str| path.split('.').filter(|step| !step.is_empty()).map(str::to_owned).collect();
        let own = |name: &str, default: &str| {
            let path = kind.custom.as_ref().map_or(default, |custom| str_at(&custom.scale, &[name]));
            steps(path)
        };
        Self {
            wanted: own("specReplicasPath", ".spec.replicas"),
            actual: own("statusReplicasPath", ".status.replicas"),
            selector: own("labelSelectorPath", ".spec.selector"),
        }
    }
}

fn lookup<'v>(object: &'v Value, path: &[String]) -> Option<&'v Value> {
    if path.is_empty() {
        return None;
    }
    at(object, &path.iter().map(String::as_str).collect::<Vec<_>>())
}

/// Answers a request for `scale`.
pub(crate) fn scale(state: &mut State, call: &Call) -> Result<Reply, Refusal> {
    let kind = &call.kind;
    let found = state.store.get(kind.table, &key(call)).cloned();
    let found = found.ok_or_else(|| Refusal::not_found(kind, &call.name))?;
    let shown = view(kind, &found);
    let mut wanted = match call.verb {
        Verb::Get => return Ok(Reply::ok(&shown)),
        Verb::Update => decode::body(call)?,
        Verb::Patch => {
            let mut patched = shown.clone();
            json_patch::merge(&mut patched, &decode::yaml_text(&call.body)?);
            patched
        }
        _ => return Err(Refusal::method_not_allowed()),
    };
    name_matches(call, &mut wanted)?;
    let replicas = at(&wanted, &["spec", "replicas"]).and_then(Value::as_i64).unwrap_or_default();
    if replicas < 0 {
        let named = Kind { group: "autoscaling".into(), kind: "Scale".into(), ..(**kind).clone() };
        let wrong = FieldError::invalid("spec.replicas", &json!(replicas), "must be greater than or equal to 0");
        return Err(Refusal::invalid(&named, &call.name, &[wrong]));
    }
    let mut new = found.value.clone();
    object::copy_meta(&wanted, &mut new, "resourceVersion");
    set(&mut new, &Paths::of(kind).wanted, json!(replicas));
    // The replicas are part of the main resource, whose generation must rise when they change.
    let main = Call { subresource: String::new(), ..call.clone() };
    update::change(state, &main, &found, (new, Managed::Track))?;
    let now = state.store.get(kind.table, &key(call)).cloned().unwrap_or(found);
    Ok(Reply::value(StatusCode::OK, &view(kind, &now)))
}

fn set(object: &mut Value, path: &[String], value: Value) {
    match path {
        [] => {}
        [last] => drop(object::as_map(object).insert(last.clone(), value)),
        [first, rest @ ..] => set(object::as_map(object).entry(first).or_insert_with(|| json!({})), rest, value),
    }
}

fn view(kind: &Kind, version: &ObjectVersion) -> Value {
    let (object, paths) = (&version.value, Paths::of(kind));
    let count = |path: &[String]| lookup(object, path).and_then(Value::as_i64).unwrap_or_default();
    let meta = |field: &str| object::meta(object, field);
    let mut status = json!({"replicas": count(&paths.actual)});
    if let Some(selector) = lookup(object, &paths.selector).and_then(selector_text) {
        object::as_map(&mut status).insert("selector".into(), json!(selector));
    }
    let replicas = count(&paths.wanted);
    json!({
        "kind": "Scale", "apiVersion": "autoscaling/v1",
        "metadata": {
            "name": meta("name"), "namespace": meta("namespace"), "uid": meta("uid"),
            "resourceVersion": meta("resourceVersion"), "creationTimestamp": meta("creationTimestamp"),
        },
        "spec": if replicas == 0 { json!({}) } else { json!({"replicas": replicas}) },
        "status": status,
    })
}

/// Returns a selector as text: unchanged if it is text, else written from its labels.
fn selector_text(selector: &Value) -> Option<String> {
    if let Some(text) = selector.as_str() {
        return Some(text.to_owned());
    }
    let labels = at(selector, &["matchLabels"])?.as_object()?;
    Some(
        labels
            .iter()
            .map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default()))
            .collect::<Vec<_>>()
            .join(","),
    )
}
