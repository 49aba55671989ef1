//! Maintains an object's `managedFields`: the owner of each field, and the time of its last change. Only apply has conflicts.

use serde_json::{Value, json};

use crate::{
    kinds::{
        registry::Kind,
        schema::{self, Schema},
    },
    merge::{
        apply_merge::{self, Difference},
        field_set::FieldSet,
    },
    object,
    server::routing::Call,
};

/// One entry of `managedFields`.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct FieldOwner {
    pub(crate) manager: String,
    /// `Apply` or `Update`.
    pub(crate) operation: String,
    pub(crate) api_version: String,
    pub(crate) subresource: String,
    pub(crate) time: String,
    pub(crate) fields: FieldSet,
}

/// Fields without an owner, because the server sets them.
const NOBODYS: [&[&str]; 13] = [
    &["f:apiVersion"],
    &["f:kind"],
    &["f:metadata", "f:name"],
    &["f:metadata", "f:namespace"],
    &["f:metadata", "f:creationTimestamp"],
    &["f:metadata", "f:selfLink"],
    &["f:metadata", "f:uid"],
    &["f:metadata", "f:generation"],
    &["f:metadata", "f:managedFields"],
    &["f:metadata", "f:resourceVersion"],
    &["f:metadata", "f:deletionTimestamp"],
    &["f:metadata", "f:deletionGracePeriodSeconds"],
    &["f:metadata", "f:generateName"],
];
/// The most `Update` entries of an object. The oldest entries beyond the limit become one entry.
const MOST_UPDATERS: usize = 10;

/// Removes the fields that have no owner.
pub(crate) fn strip(fields: &mut FieldSet) {
    for path in NOBODYS {
        fields.drop_below(path);
    }
    if let Some(metadata) = fields.children.get_mut("f:metadata") {
        metadata.own = false;
        if metadata.is_empty() {
            fields.children.remove("f:metadata");
        }
    }
}

/// Reads the owners from an object's `managedFields`.
pub(crate) fn owners(object: &Value) -> Vec<FieldOwner> {
    let list = object::meta(object, "managedFields").and_then(Value::as_array).into_iter().flatten();
    let text = |one: &Value, field: &str| object::str_at(one, &[field]).to_owned();
    list.map(|one| FieldOwner {
        manager: text(one, "manager"),
        operation: text(one, "operation"),
        api_version: text(one, "apiVersion"),
        subresource: text(one, "subresource"),
        time: text(one, "time"),
        fields: FieldSet::decode(one.get("fieldsV1").unwrap_or(&Value::Null)),
    })
    .collect()
}

/// Writes the owners to an object's `managedFields`.
pub(crate) fn store(object: &mut Value, owners: &[FieldOwner]) {
    let entry = |owner: &FieldOwner| {
        let mut entry = json!({
            "manager": owner.manager, "operation": owner.operation, "apiVersion": owner.api_version,
            "time": owner.time, "fieldsType": "FieldsV1", "fieldsV1": owner.fields.encode(),
        });
        if !owner.subresource.is_empty() {
            object::as_map(&mut entry).insert("subresource".into(), json!(owner.subresource));
        }
        entry
    };
    let list = owners.iter().filter(|owner| !owner.fields.is_empty()).map(entry).collect::<Vec<_>>();
    object::set_meta(object, "managedFields", if list.is_empty() { Value::Null } else { list.into() });
}

/// Returns the field manager of a call: the request's `fieldManager`, or the program name in its user agent.
pub(crate) fn manager(call: &Call) -> String {
    let agent = call.user_agent.split('/').next().unwrap_or_default();
    let named = call.query.get("fieldManager").unwrap_or(agent);
    if named.is_empty() { "unknown".to_owned() } else { named.to_owned() }
}

/// Calls `work` with the schema of a kind.
pub(crate) fn with_schema<T>(kind: &Kind, work: impl FnOnce(Option<&Schema>) -> T) -> T {
    match &kind.custom {
        Some(custom) => work(Some(&custom.typed)),
        None => work(schema::built_in(kind).as_deref()),
    }
}

/// Makes the writer of a non-apply write the owner of the changed fields. Other owners lose the changed and removed fields.
pub(crate) fn track(call: &Call, old: Option<&Value>, new: &mut Value, time: &str) {
    let mut owners = match (object::meta(new, "managedFields"), old) {
        (Some(_), _) => owners(new),
        (None, Some(old)) => owners(old),
        (None, None) => Vec::new(),
    };
    let empty = json!({});
    let mut change = with_schema(&call.kind, |schema| apply_merge::difference(schema, old.unwrap_or(&empty), new));
    strip(&mut change.written);
    strip(&mut change.removed);
    if change.written.is_empty() && change.removed.is_empty() {
        return store(new, &owners);
    }
    let writer = FieldOwner {
        manager: manager(call),
        operation: "Update".into(),
        api_version: call.kind.api_version(),
        subresource: call.subresource.clone(),
        time: time.to_owned(),
        fields: FieldSet::default(),
    };
    disown(&mut owners, &change, |owner| is_same(owner, &writer));
    own(&mut owners, writer, change.written);
    cap(&mut owners);
    store(new, &owners);
}

fn is_same(one: &FieldOwner, other: &FieldOwner) -> bool {
    one.manager == other.manager
        && one.operation == other.operation
        && one.subresource == other.subresource
        && (one.operation == "Apply" || one.api_version == other.api_version)
}

/// Removes the changed fields from all owners that `keeps` does not match, and the removed fields from all owners.
pub(crate) fn disown(owners: &mut Vec<FieldOwner>, change: &Difference, keeps: impl Fn(&FieldOwner) -> bool) {
    for owner in owners.iter_mut() {
        owner.fields.subtract_below(&change.removed);
        if !keeps(owner) {
            owner.fields.subtract(&change.written);
        }
    }
    owners.retain(|owner| !owner.fields.is_empty());
}

fn own(owners: &mut Vec<FieldOwner>, mut writer: FieldOwner, written: FieldSet) {
    if written.is_empty() {
        return;
    }
    match owners.iter_mut().find(|owner| is_same(owner, &writer)) {
        Some(known) => {
            known.fields.union(&written);
            known.time = writer.time;
        }
        None => {
            writer.fields = written;
            owners.push(writer);
        }
    }
}

fn cap(owners: &mut Vec<FieldOwner>) {
    let updaters = owners.iter().filter(|owner| owner.operation == "Update").count();
    if updaters <= MOST_UPDATERS {
        return;
    }
    let mut ancient: Option<FieldOwner> = None;
    let mut excess = updaters - MOST_UPDATERS + 1;
    owners.retain(|owner| {
        if owner.operation != "Update" || excess == 0 {
            return true;
        }
        excess -= 1;
        match &mut ancient {
            Some(ancient) => ancient.fields.union(&owner.fields),
            None => ancient = Some(FieldOwner { manager: "ancient-changes".into(), ..owner.clone() }),
        }
        false
    });
    owners.extend(ancient);
}
