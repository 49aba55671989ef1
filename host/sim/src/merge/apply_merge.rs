//! Union and difference of two objects as server-side apply computes them: maps field by field, lists element by element, and
//! atomic values as a whole.

use serde_json::{Map, Value};

use crate::{
    kinds::schema::{ListType, Schema, Shape},
    merge::field_set::FieldSet,
};

/// A value, split into parts as its schema says.
enum Parts<'v> {
    /// The value has no parts.
    Whole,
    /// The parts are the fields of a map.
    Map(&'v Map<String, Value>),
    /// The parts are the elements of a list.
    List(&'v [Value]),
}

fn parts<'v>(schema: Option<&Schema>, value: &'v Value) -> Parts<'v> {
    match value {
        Value::Object(map) if !schema.is_some_and(|schema| schema.atomic) => Parts::Map(map),
        Value::Array(list) if schema.is_some_and(|schema| schema.list != ListType::Atomic) => Parts::List(list),
        _ => Parts::Whole,
    }
}

/// Returns the path step of a list element.
fn element_step(schema: &Schema, element: &Value) -> String {
    match &schema.list {
        ListType::Map(keys) => {
            let items = schema.items.as_deref();
            let mut own = Map::new();
            for key in keys {
                let default = || items.and_then(|items| items.properties.get(key)?.default.clone());
                if let Some(value) = element.get(key).cloned().or_else(default) {
                    own.insert(key.clone(), value);
                }
            }
            // managedFields lists keys in alphabetical order.
            own.sort_keys();
            format!("k:{}", Value::Object(own))
        }
        _ => format!("v:{element}"),
    }
}

fn below<'s>(schema: Option<&'s Schema>, field: &str) -> Option<&'s Schema> {
    schema?.field(field).map(AsRef::as_ref)
}

/// Returns all fields of a value.
pub(crate) fn fields_of(schema: Option<&Schema>, value: &Value) -> FieldSet {
    let mut set = FieldSet::default();
    match parts(schema, value) {
        Parts::Whole => set.own = true,
        Parts::Map(map) => {
            for (field, value) in map {
                let free = schema.is_none_or(|schema| !schema.properties.contains_key(field));
                let mut inner = fields_of(below(schema, field), value);
                inner.own |= free || value.is_null() || value.as_object().is_some_and(Map::is_empty);
                set.children.insert(format!("f:{field}"), inner);
            }
        }
        Parts::List(list) => {
            let Some(schema) = schema else { return set };
            for element in list {
                let mut inner = fields_of(schema.items.as_deref(), element);
                inner.own = true;
                if schema.list == ListType::Set {
                    inner.children.clear();
                }
                set.children.insert(element_step(schema, element), inner);
            }
        }
    }
    set
}

/// The difference between two values.
#[derive(Debug, Default)]
pub(crate) struct Difference {
    /// The added and changed fields.
    pub(crate) written: FieldSet,
    /// The removed fields.
    pub(crate) removed: FieldSet,
}

/// Compares an object with its previous version.
pub(crate) fn difference(schema: Option<&Schema>, old: &Value, new: &Value) -> Difference {
    let mut found = Difference::default();
    compare(schema, (old, new), &mut found.written, &mut found.removed);
    found
}

fn compare(schema: Option<&Schema>, (old, new): (&Value, &Value), written: &mut FieldSet, removed: &mut FieldSet) {
    if old == new {
        return;
    }
    match (parts(schema, old), parts(schema, new)) {
        (Parts::Map(before), Parts::Map(after)) => {
            let steps = before.keys().chain(after.keys().filter(|field| !before.contains_key(*field)));
            for field in steps {
                let pair = (before.get(field), after.get(field));
                sides(below(schema, field), pair, (format!("f:{field}"), false), (written, removed));
            }
        }
        (Parts::List(before), Parts::List(after)) => {
            let Some(schema) = schema else { return };
            for element in before {
                let step = element_step(schema, element);
                let same = after.iter().find(|other| element_step(schema, other) == step);
                sides(schema.items.as_deref(), (Some(element), same), (step, true), (written, removed));
            }
            for element in after {
                let step = element_step(schema, element);
                if !before.iter().any(|other| element_step(schema, other) == step) {
                    sides(schema.items.as_deref(), (None, Some(element)), (step, true), (written, removed));
                }
            }
        }
        _ => written.own = true,
    }
}

fn sides(
    schema: Option<&Schema>,
    pair: (Option<&Value>, Option<&Value>),
    (step, element): (String, bool),
    (written, removed): (&mut FieldSet, &mut FieldSet),
) {
    match pair {
        (Some(old), Some(new)) => {
            let (mut inner_written, mut inner_removed) = (FieldSet::default(), FieldSet::default());
            compare(schema, (old, new), &mut inner_written, &mut inner_removed);
            insert(written, &step, inner_written);
            insert(removed, &step, inner_removed);
        }
        (None, Some(new)) => {
            let mut all = fields_of(schema, new);
            // A new map or list counts as a change itself, besides its content.
            all.own |= element || !all.children.is_empty();
            insert(written, &step, all);
        }
        (Some(old), None) => {
            let mut all = fields_of(schema, old);
            all.own = true;
            insert(removed, &step, all);
        }
        (None, None) => {}
    }
}

fn insert(set: &mut FieldSet, step: &str, inner: FieldSet) {
    if !inner.is_empty() {
        set.children.insert(step.to_owned(), inner);
    }
}

/// Merges the applied configuration into the live object.
pub(crate) fn merge(schema: Option<&Schema>, live: &mut Value, config: &Value) {
    match (parts(schema, config), live) {
        (Parts::Map(fields), Value::Object(map)) => {
            for (field, value) in fields {
                match map.get_mut(field) {
                    Some(present) => merge(below(schema, field), present, value),
                    None => drop(map.insert(field.clone(), value.clone())),
                }
            }
        }
        (Parts::List(elements), Value::Array(list)) => {
            let Some(schema) = schema else { return };
            for element in elements {
                let step = element_step(schema, element);
                match list.iter_mut().find(|other| element_step(schema, other) == step) {
                    Some(present) => merge(schema.items.as_deref(), present, element),
                    None => list.push(element.clone()),
                }
            }
        }
        (_, live) => live.clone_from(config),
    }
}

/// Removes the paths of a set from a value. Also removes maps and lists that become empty, if the set contains them.
pub(crate) fn remove(schema: Option<&Schema>, value: &mut Value, gone: &FieldSet) {
    match value {
        Value::Object(map) => {
            map.retain(|field, value| {
                let Some(set) = gone.children.get(&format!("f:{field}")) else { return true };
                keep(below(schema, field), value, set)
            });
        }
        Value::Array(list) => {
            let Some(schema) = schema else { return };
            list.retain_mut(|element| {
                let Some(set) = gone.children.get(&element_step(schema, element)) else { return true };
                keep(schema.items.as_deref(), element, set)
            });
        }
        _ => {}
    }
}

fn keep(schema: Option<&Schema>, value: &mut Value, gone: &FieldSet) -> bool {
    if gone.children.is_empty() {
        return !gone.own;
    }
    remove(schema, value, gone);
    // An element keeps its key fields until the whole element is removed.
    if gone.own && schema.is_none_or(|schema| schema.shape != Shape::Any || value.is_object()) {
        return false;
    }
    match value {
        Value::Object(map) => !map.is_empty(),
        Value::Array(list) => !list.is_empty(),
        _ => true,
    }
}
