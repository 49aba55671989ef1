//! Builds Kubernetes objects for tests. It checks no schema, so a test sets
//! only the fields that the plugin reads.

use serde_json::{Map, Value, json};

use super::hold::label;
use crate::wit::ObjectRef;
use crate::{HOLD_PREFIX, backend};

/// An object for a test.
#[derive(Debug, Clone, PartialEq)]
#[must_use]
pub struct Sample(Value);

/// Returns a Pod in the namespace `default` with the UID `uid-of-<name>`.
pub fn pod(name: &str) -> Sample {
    object("v1", "Pod", Some("default"), name)
}

/// Returns a Node with the UID `uid-of-<name>`.
pub fn node(name: &str) -> Sample {
    object("v1", "Node", None, name)
}

/// Returns an object of any kind, with the UID `uid-of-<name>`.
pub fn object(api_version: &str, kind: &str, namespace: Option<&str>, name: &str) -> Sample {
    let mut metadata = json!({"name": name, "uid": format!("uid-of-{name}"), "resourceVersion": "1"});
    if let Some(namespace) = namespace {
        put(&mut metadata, "namespace", json!(namespace));
    }
    Sample(json!({"apiVersion": api_version, "kind": kind, "metadata": metadata}))
}

impl Sample {
    /// Sets the UID.
    pub fn uid(self, uid: &str) -> Self {
        self.metadata("uid", json!(uid))
    }

    /// Sets a label.
    pub fn label(mut self, key: &str, value: &str) -> Self {
        put(child(&mut self.0, &["metadata", "labels"]), key, json!(value));
        self
    }

    /// Sets an annotation.
    pub fn annotation(mut self, key: &str, value: &str) -> Self {
        put(child(&mut self.0, &["metadata", "annotations"]), key, json!(value));
        self
    }

    /// Adds a finalizer.
    pub fn finalizer(mut self, name: &str) -> Self {
        push(child(&mut self.0, &["metadata"]), "finalizers", json!(name));
        self
    }

    /// Lists marks, such as `label:a`, as held by the job of this UID.
    pub fn hold(self, job_uid: &str, marks: &[&str]) -> Self {
        let mut held = self.annotation(&format!("{HOLD_PREFIX}{job_uid}"), &json!(marks).to_string());
        label(&mut held.0);
        held
    }

    /// Sets the controller, with the UID `uid-of-<name>`.
    pub fn controller(mut self, api_version: &str, kind: &str, name: &str) -> Self {
        let uid = format!("uid-of-{name}");
        let owner = json!({"apiVersion": api_version, "kind": kind, "name": name, "uid": uid, "controller": true});
        push(child(&mut self.0, &["metadata"]), "ownerReferences", owner);
        self
    }

    /// Sets the creation time, in RFC 3339.
    pub fn created(self, time: &str) -> Self {
        self.metadata("creationTimestamp", json!(time))
    }

    /// Sets the deletion time, in RFC 3339.
    pub fn deleted(self, time: &str) -> Self {
        self.metadata("deletionTimestamp", json!(time))
    }

    /// Adds a condition with its status and the time of its last change, in RFC
    /// 3339.
    pub fn condition(mut self, kind: &str, status: &str, since: &str) -> Self {
        let condition = json!({"type": kind, "status": status, "lastTransitionTime": since});
        push(child(&mut self.0, &["status"]), "conditions", condition);
        self
    }

    /// Sets the field at this path of keys.
    pub fn field(mut self, path: &[&str], value: Value) -> Self {
        if let Some((last, parents)) = path.split_last() {
            put(child(&mut self.0, parents), last, value);
        }
        self
    }

    /// Returns the object as JSON.
    #[must_use]
    pub fn json(&self) -> &Value {
        &self.0
    }

    fn metadata(mut self, key: &str, value: Value) -> Self {
        put(child(&mut self.0, &["metadata"]), key, value);
        self
    }
}

impl From<&Sample> for ObjectRef {
    fn from(sample: &Sample) -> Self {
        let metadata = |key: &str| backend_text(&sample.0, &["metadata", key]);
        Self {
            api_version: backend_text(&sample.0, &["apiVersion"]).unwrap_or_default(),
            kind: backend_text(&sample.0, &["kind"]).unwrap_or_default(),
            namespace: metadata("namespace"),
            name: metadata("name").unwrap_or_default(),
            uid: metadata("uid"),
        }
    }
}

/// Returns the string at this path of keys.
fn backend_text(value: &Value, path: &[&str]) -> Option<String> {
    backend::Object::text(value, path).map(str::to_owned)
}

/// Returns the object at this path of keys, and creates missing objects.
pub(super) fn child<'a>(value: &'a mut Value, path: &[&str]) -> &'a mut Value {
    let Some((first, rest)) = path.split_first() else { return value };
    if !value.is_object() {
        *value = Value::Object(Map::new());
    }
    // Indexing an object by a missing key inserts the key. It cannot fail,
    // because `value` is an object.
    #[allow(clippy::indexing_slicing, reason = "the value was just made an object")]
    child(&mut value[*first], rest)
}

/// Sets a key of an object. A parent that is no object becomes one.
pub(super) fn put(parent: &mut Value, key: &str, value: Value) {
    *child(parent, &[key]) = value;
}

fn push(parent: &mut Value, key: &str, item: Value) {
    let list = child(parent, &[key]);
    match list {
        Value::Array(items) => items.push(item),
        _ => *list = Value::Array(vec![item]),
    }
}
