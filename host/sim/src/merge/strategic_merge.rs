//! Strategic merge patches. They merge lists that have a merge key element by element. Custom kinds have no merge keys.

use serde_json::{Map, Value, json};

use crate::{kinds::schema::Schema, object::as_map, server::status::Refusal};

/// The way to merge a list.
enum ListMerge<'s> {
    /// The patch's list replaces the object's list.
    Replace,
    /// The elements are maps, and this field identifies an element.
    ByKey(&'s str),
    /// The elements are unique scalars.
    Set,
}

fn list_merge(schema: Option<&Schema>) -> ListMerge<'_> {
    match schema.and_then(|schema| schema.merge_key.as_deref()) {
        None => ListMerge::Replace,
        Some("") => ListMerge::Set,
        Some(key) => ListMerge::ByKey(key),
    }
}

fn below<'s>(schema: Option<&'s Schema>, field: &str) -> Option<&'s Schema> {
    schema?.field(field).map(AsRef::as_ref)
}

/// Merges a strategic merge patch into an object.
pub(crate) fn merge(schema: Option<&Schema>, object: &mut Value, patch: &Value) -> Result<(), Refusal> {
    let Value::Object(fields) = patch else { return Ok(()) };
    merge_map(schema, as_map(object), fields)
}

fn merge_map(
    schema: Option<&Schema>,
    object: &mut Map<String, Value>,
    patch: &Map<String, Value>,
) -> Result<(), Refusal> {
    match patch.get("$patch").and_then(Value::as_str) {
        Some("replace") => object.clear(),
        Some("delete") => {
            object.clear();
            return Ok(());
        }
        _ => {}
    }
    if let Some(keys) = patch.get("$retainKeys").and_then(Value::as_array) {
        object.retain(|field, _| keys.iter().any(|key| key == field));
    }
    for (field, value) in patch {
        if let Some(list) = field.strip_prefix("$deleteFromPrimitiveList/") {
            delete_from_set(object, list, value);
        } else if !field.starts_with('$') {
            merge_field(below(schema, field), object, (field, value))?;
        }
    }
    for (field, order) in patch.iter().filter_map(|(f, o)| Some((f.strip_prefix("$setElementOrder/")?, o))) {
        let schema = below(schema, field);
        if let (Some(Value::Array(list)), Some(order)) = (object.get_mut(field), order.as_array()) {
            let before = list.clone();
            arrange(schema, list, &before, order);
        }
    }
    Ok(())
}

fn merge_field(
    schema: Option<&Schema>,
    object: &mut Map<String, Value>,
    (field, value): (&str, &Value),
) -> Result<(), Refusal> {
    match value {
        Value::Null => drop(object.shift_remove(field)),
        Value::Object(fields) => {
            let slot = object.entry(field).or_insert_with(|| json!({}));
            merge_map(schema, as_map(slot), fields)?;
            if fields.get("$patch").and_then(Value::as_str) == Some("delete") {
                object.shift_remove(field);
            }
        }
        Value::Array(elements) => {
            let slot = object.entry(field).or_insert_with(|| json!([]));
            let before = slot.as_array().cloned().unwrap_or_default();
            let mut list = before.clone();
            merge_list(schema, &mut list, elements)?;
            if !matches!(list_merge(schema), ListMerge::Replace) {
                arrange(schema, &mut list, &before, elements);
            }
            *slot = Value::Array(list);
        }
        scalar => drop(object.insert(field.to_owned(), scalar.clone())),
    }
    Ok(())
}

fn merge_list(schema: Option<&Schema>, list: &mut Vec<Value>, patch: &[Value]) -> Result<(), Refusal> {
    match list_merge(schema) {
        ListMerge::Replace => *list = patch.to_vec(),
        ListMerge::Set => {
            for one in patch {
                if !list.contains(one) {
                    list.push(one.clone());
                }
            }
        }
        ListMerge::ByKey(key) => {
            let items = schema.and_then(|schema| schema.items.as_deref());
            return merge_elements((items, key), list, patch);
        }
    }
    Ok(())
}

fn merge_elements(
    (schema, key): (Option<&Schema>, &str),
    list: &mut Vec<Value>,
    patch: &[Value],
) -> Result<(), Refusal> {
    if patch.iter().any(|one| one.get("$patch").and_then(Value::as_str) == Some("replace")) {
        list.clear();
    }
    for element in patch {
        let directive = element.get("$patch").and_then(Value::as_str);
        let Some(wanted) = element.get(key) else {
            if directive == Some("replace") {
                continue;
            }
            return Err(Refusal::internal(format!("map: {element} does not contain declared merge key: {key}")));
        };
        let found = list.iter().position(|one| one.get(key) == Some(wanted));
        match (directive, found.and_then(|index| list.get_mut(index))) {
            (Some("delete"), _) => list.retain(|one| one.get(key) != Some(wanted)),
            (_, Some(present)) => {
                if let Value::Object(fields) = element {
                    merge_map(schema, as_map(present), fields)?;
                }
            }
            (_, None) => {
                let mut new = json!({});
                merge(schema, &mut new, element)?;
                list.push(new);
            }
        }
    }
    Ok(())
}

fn delete_from_set(object: &mut Map<String, Value>, field: &str, gone: &Value) {
    let gone = gone.as_array().map(Vec::as_slice).unwrap_or_default();
    let Some(list) = object.get_mut(field).and_then(Value::as_array_mut) else { return };
    list.retain(|one| !gone.contains(one));
    if list.is_empty() {
        object.shift_remove(field);
    }
}

/// Returns the identity of an element of a merged list.
fn identity(schema: Option<&Schema>, element: &Value) -> Option<Value> {
    match list_merge(schema) {
        ListMerge::ByKey(key) => element.get(key).cloned(),
        _ => Some(element.clone()),
    }
}

/// Sorts the elements named in the patch by the patch's order, and keeps the others near their previous positions.
fn arrange(schema: Option<&Schema>, list: &mut Vec<Value>, before: &[Value], patch: &[Value]) {
    let named = patch.iter().map(|one| identity(schema, one)).collect::<Vec<_>>();
    let place = |one: &Value, among: &[Option<Value>]| among.iter().position(|other| *other == identity(schema, one));
    let known = before.iter().map(|one| identity(schema, one)).collect::<Vec<_>>();
    let (mut own, others): (Vec<_>, Vec<_>) = list.drain(..).partition(|one| place(one, &named).is_some());
    own.sort_by_key(|one| place(one, &named));
    let mut own = own.into_iter().peekable();
    for other in others {
        let position = place(&other, &known);
        while let Some(next) = own.peek() {
            let earlier = match (position, place(next, &known)) {
                (Some(position), Some(next)) => position < next,
                _ => false,
            };
            if earlier {
                break;
            }
            list.extend(own.next());
        }
        list.push(other);
    }
    list.extend(own);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::schema::definition;

    #[test]
    fn an_element_without_its_key_is_refused_by_name() {
        let pod = definition("io.k8s.api.core.v1.Pod");
        let patch = json!({"spec": {"containers": [{"image": "2"}]}});
        let refused = merge(Some(&pod), &mut json!({}), &patch).unwrap_err();
        assert!(refused.message.contains("does not contain declared merge key: name"), "{}", refused.message);
    }
}
