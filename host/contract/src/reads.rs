//! What of an object a plugin may read: its metadata, and the fields that its manifest declares.

use serde_json::{Map, Value, json};

use crate::manifest::Manifest;
use crate::names::is_dns_label;
use crate::object_key::{Kind, ObjectKey};

/// The fields of `metadata` that each plugin may read of what it can see; the host drops all others.
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

/// An annotation that repeats the whole object and that the host never keeps.
pub const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Where a field is found that a plugin may read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldPlace {
    /// Among the fields that manifests declare.
    Declared,
    /// In the metadata, or it is `/apiVersion` or `/kind`.
    Metadata,
    /// Nowhere: the pointer is malformed.
    Nowhere,
}

impl Manifest {
    /// Where the plugin finds the field at `pointer` of an object of `kind`.
    ///
    /// # Errors
    ///
    /// The sentence for a field that the manifest does not declare.
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

    /// Checks a look-up by name. `false` where no object can have that name; names reach URLs.
    ///
    /// # Errors
    ///
    /// The sentence for a kind that the manifest does not declare.
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

    /// The document of an object as far as the manifest declares its fields, with its kind and without its metadata.
    pub fn declared_fields(&self, kind: &Kind, fields: &Value) -> Value {
        let mut document = json!({"apiVersion": kind.api_version, "kind": kind.kind});
        for rule in self.reads.iter().filter(|rule| rule.concerns(kind)) {
            rule.fields.iter().for_each(|field| copy(fields, &mut document, field.trim_end_matches("/*")));
        }
        document
    }
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
