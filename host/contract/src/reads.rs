//! The fields of an object that a plugin may read: its metadata, and the fields that the manifest declares.

use serde_json::{Map, Value, json};

use crate::manifest::Manifest;
use crate::names::is_dns_label;
use crate::object_key::{Kind, ObjectKey};

/// The fields of `metadata` that every plugin may read of each visible object. The host drops all other fields.
pub const METADATA: [&str; 11] = [
    "name",
    "namespace",
    "uid",
    "resourceVersion",
    "labels",
    "annotations",
    "finalizers",
    "ownerReferences",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
];

/// An annotation that repeats the whole object. The host never keeps it.
pub const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// The place of a field that a plugin may read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldPlace {
    /// The field is among the fields that manifests declare.
    Declared,
    /// The field is in the metadata, or it is `/apiVersion` or `/kind`.
    Metadata,
    /// The field is nowhere, because the pointer is malformed.
    Nowhere,
}

impl Manifest {
    /// Returns the place of the field at `pointer` of an object of `kind`.
    ///
    /// # Errors
    ///
    /// If the manifest does not declare the field, with a message.
    pub fn place_of(&self, kind: &Kind, pointer: &str) -> Result<FieldPlace, String> {
        let below_metadata =
            || pointer.strip_prefix("/metadata").is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
        if self.declares_read(kind, pointer) {
            Ok(FieldPlace::Declared)
        } else if ["/apiVersion", "/kind"].contains(&pointer) || below_metadata() {
            Ok(FieldPlace::Metadata)
        } else if !pointer.is_empty() && !pointer.starts_with('/') {
            Ok(FieldPlace::Nowhere)
        } else {
            let Kind { api_version, kind } = kind;
            Err(format!(
                "the manifest does not declare field {pointer:?} of {api_version} {kind}; add it to its `reads`"
            ))
        }
    }

    /// Checks a read by name. Returns false if no object can have that name, because names become parts of URLs.
    ///
    /// # Errors
    ///
    /// If the manifest does not declare the kind, with a message.
    pub fn may_get(&self, key: &ObjectKey) -> Result<bool, String> {
        if !self.declares_kind(&key.kind) {
            let Kind { api_version, kind } = &key.kind;
            return Err(format!(
                "the manifest does not declare reads of {api_version} {kind}; add them to its `reads`"
            ));
        }
        let named = key.name.len() <= 253 && key.name.split('.').all(is_dns_label);
        Ok(named && key.namespace.as_deref().is_none_or(is_dns_label))
    }

    /// Returns the document of an object with its kind and only the declared fields, without its metadata.
    pub fn declared_fields(&self, kind: &Kind, fields: &Value) -> Value {
        let mut document = json!({"apiVersion": kind.api_version, "kind": kind.kind});
        for rule in self.reads.iter().filter(|rule| rule.concerns(kind)) {
            rule.fields.iter().for_each(|field| copy(fields, &mut document, field.trim_end_matches("/*")));
        }
        document
    }
}

/// Copies the value at `pointer` to the same place. A pointer into an array copies the whole array.
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
