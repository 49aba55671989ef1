//! The keys and bodies of the requests of flows.

use oarlock_core::attempts::parent::Parent;
use oarlock_core::attempts::view::{ChildKind, ChildView};
use oarlock_core::object::api_object::{Kind, ObjectKey};
use oarlock_core::requests::writes::Write;
use serde_json::{Value, json};

use crate::transport::flow_kinds;

pub(super) fn key(kind: Kind, namespace: &str, name: &str) -> ObjectKey {
    ObjectKey { kind, namespace: Some(namespace.to_owned()), name: name.to_owned() }
}

pub(super) fn parent_key(parent: &Parent) -> ObjectKey {
    key(flow_kinds::parent(parent.kind), &parent.namespace, &parent.name)
}

pub(super) fn child_key(kind: ChildKind, namespace: &str, name: &str) -> ObjectKey {
    key(flow_kinds::child(kind), namespace, name)
}

pub(super) fn key_of(child: &ChildView) -> ObjectKey {
    child_key(child.kind, &child.namespace, &child.name)
}

/// Returns a merge patch that the API server applies only to the object with this UID.
pub(super) fn patch_child(child: &ChildView, mut body: Value) -> Write {
    if let Some(fields) = body.as_object_mut() {
        fields.insert("metadata".to_owned(), json!({"uid": child.uid}));
    }
    Write::patch(&key_of(child), body)
}

pub(super) fn adopt(child: &ChildView, parent: &Parent) -> Write {
    let place = format!("/metadata/ownerReferences/{}", child.owner_index);
    let body = json!([
        {"op": "test", "path": "/metadata/uid", "value": child.uid},
        {"op": "test", "path": format!("{place}/uid"), "value": parent.uid},
        {"op": "add", "path": format!("{place}/controller"), "value": true},
        {"op": "add", "path": format!("{place}/blockOwnerDeletion"), "value": true},
    ]);
    Write::patch(&key_of(child), body)
}
