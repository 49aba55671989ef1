//! The keys and bodies of the requests of flows.

use oarlock_core::attempts::parent::Parent;
use oarlock_core::attempts::view::ChildView;
use oarlock_core::object::api_object::ObjectKey;
use oarlock_core::requests::writes::Write;
use serde_json::{Value, json};

pub(super) fn key_of(child: &ChildView) -> ObjectKey {
    child.kind.key(&child.namespace, &child.name)
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
