//! Takes an object and a strategic merge patch, yields the merged object. Lists whose elements have a merge key are
//! merged element by element. May not be used for custom kinds, whose lists have no merge keys.

use serde_json::{Map, Value, json};

use crate::{object::as_map, status::Refusal};

/// How a list is merged.
enum Rule {
    /// The patch's list replaces the object's.
    Replace,
    /// Elements are maps and are told apart by this field.
    ByKey(&'static str),
    /// Elements are scalars and each is there once.
    Set,
}

/// The rule of a list field, by its name and its parent's: the built-in kinds use the same names for the same things.
fn rule(parent: &str, field: &str) -> Rule {
    match (parent, field) {
        (
            _,
            "containers"
            | "initContainers"
            | "ephemeralContainers"
            | "env"
            | "volumes"
            | "imagePullSecrets"
            | "resourceClaims",
        ) => Rule::ByKey("name"),
        (_, "conditions") | ("status", "addresses") => Rule::ByKey("type"),
        (_, "ownerReferences") => Rule::ByKey("uid"),
        (_, "volumeMounts") => Rule::ByKey("mountPath"),
        (_, "volumeDevices") => Rule::ByKey("devicePath"),
        ("status", "podIPs" | "hostIPs") | (_, "hostAliases") => Rule::ByKey("ip"),
        ("spec", "ports") => Rule::ByKey("port"),
        (_, "ports") => Rule::ByKey("containerPort"),
        (_, "topologySpreadConstraints") => Rule::ByKey("topologyKey"),
        (_, "schedulingGates") => Rule::ByKey("name"),
        ("", "secrets") => Rule::ByKey("name"),
        ("metadata", "finalizers") | ("spec", "podCIDRs") => Rule::Set,
        _ => Rule::Replace,
    }
}

/// Merges a strategic merge patch into an object.
pub(crate) fn merge(object: &mut Value, patch: &Value) -> Result<(), Refusal> {
    let Value::Object(fields) = patch else { return Ok(()) };
    merge_map(as_map(object), fields, "")
}

fn merge_map(object: &mut Map<String, Value>, patch: &Map<String, Value>, own: &str) -> Result<(), Refusal> {
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
            merge_field(object, (own, field), value)?;
        }
    }
    for (field, order) in patch.iter().filter_map(|(f, o)| Some((f.strip_prefix("$setElementOrder/")?, o))) {
        reorder(object, (own, field), order);
    }
    Ok(())
}

fn merge_field(object: &mut Map<String, Value>, place: (&str, &str), value: &Value) -> Result<(), Refusal> {
    let field = place.1;
    match value {
        Value::Null => drop(object.shift_remove(field)),
        Value::Object(fields) => {
            let slot = object.entry(field).or_insert_with(|| json!({}));
            merge_map(as_map(slot), fields, field)?;
            if fields.get("$patch").and_then(Value::as_str) == Some("delete") {
                object.shift_remove(field);
            }
        }
        Value::Array(elements) => {
            let slot = object.entry(field).or_insert_with(|| json!([]));
            if !slot.is_array() {
                *slot = json!([]);
            }
            if let Value::Array(list) = slot {
                merge_list(list, elements, place)?;
            }
        }
        scalar => drop(object.insert(field.to_owned(), scalar.clone())),
    }
    Ok(())
}

fn merge_list(list: &mut Vec<Value>, patch: &[Value], place: (&str, &str)) -> Result<(), Refusal> {
    match rule(place.0, place.1) {
        Rule::Replace => *list = patch.to_vec(),
        Rule::Set => {
            for one in patch {
                if !list.contains(one) {
                    list.push(one.clone());
                }
            }
        }
        Rule::ByKey(key) => return merge_elements(list, patch, (place.1, key)),
    }
    Ok(())
}

fn merge_elements(list: &mut Vec<Value>, patch: &[Value], names: (&str, &str)) -> Result<(), Refusal> {
    let (field, key) = names;
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
                    merge_map(as_map(present), fields, field)?;
                }
            }
            (_, None) => {
                let mut new = json!({});
                merge(&mut new, element)?;
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

/// Puts the elements that the patch orders into that order; the others keep their place at the end.
fn reorder(object: &mut Map<String, Value>, place: (&str, &str), order: &Value) {
    let key = if let Rule::ByKey(key) = rule(place.0, place.1) { Some(key) } else { None };
    let identity = |one: &Value| key.map_or_else(|| Some(one.clone()), |key| one.get(key).cloned());
    let order = order.as_array().into_iter().flatten().map(identity).collect::<Vec<_>>();
    let Some(list) = object.get_mut(place.1).and_then(Value::as_array_mut) else { return };
    list.sort_by_key(|one| order.iter().position(|wanted| *wanted == identity(one)).unwrap_or(usize::MAX));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn merged(mut object: Value, patch: &Value) -> Value {
        merge(&mut object, patch).unwrap();
        object
    }

    #[test]
    fn containers_are_merged_by_name() {
        let object = json!({"spec": {"containers": [{"name": "a", "image": "1"}, {"name": "b", "image": "1"}]}});
        let patch = json!({"spec": {"containers": [{"name": "b", "image": "2"}, {"name": "c"}, {"name": "a", "$patch": "delete"}]}});
        assert_eq!(
            merged(object, &patch),
            json!({"spec": {"containers": [{"name": "b", "image": "2"}, {"name": "c"}]}})
        );
    }

    #[test]
    fn finalizers_are_a_set() {
        let object = json!({"metadata": {"finalizers": ["a", "b"]}});
        let patch = json!({"metadata": {"finalizers": ["b", "c"], "$deleteFromPrimitiveList/finalizers": ["a"]}});
        assert_eq!(merged(object, &patch)["metadata"]["finalizers"], json!(["b", "c"]));
    }

    #[test]
    fn an_element_without_its_key_is_refused_by_name() {
        let refused = merge(&mut json!({}), &json!({"spec": {"containers": [{"image": "2"}]}})).unwrap_err();
        assert!(refused.message.contains("does not contain declared merge key: name"), "{}", refused.message);
    }
}
