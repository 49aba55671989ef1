//! Reading no more of a JSON document than is kept of it.
//!
//! All other fields are skipped without being held: most of a pod is `managedFields` and a spec that is not used.

use std::collections::BTreeMap;
use std::fmt;

use oarlock_core::cluster::object::{HOST_FIELDS, METADATA};
use serde::de::{Deserialize, DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

/// The fields that are read, by name; all of them where none is named.
#[derive(Debug, Default)]
pub(crate) struct Projection {
    fields: BTreeMap<String, Self>,
}

impl Projection {
    /// Everything is read.
    pub(crate) const fn everything() -> Self {
        Self { fields: BTreeMap::new() }
    }

    /// Reads the kind of an object, its metadata as far as it is kept, and the fields at these pointers.
    pub(crate) fn of_object(pointers: &[String]) -> Self {
        let mut projection = Self::default();
        // The answer to a watch that went wrong has a message.
        ["apiVersion", "kind", "message"].iter().for_each(|field| projection.add(std::iter::once(*field)));
        METADATA.iter().for_each(|field| projection.add(["metadata", *field].into_iter()));
        for pointer in HOST_FIELDS.into_iter().chain(pointers.iter().map(String::as_str)) {
            let tokens: Vec<String> =
                pointer.split('/').skip(1).map(|token| token.replace("~1", "/").replace("~0", "~")).collect();
            projection.add(tokens.iter().map(String::as_str));
        }
        projection
    }

    /// A field below one that is read whole is read with it; a field above others is read whole from now on.
    fn add<'a>(&mut self, mut path: impl Iterator<Item = &'a str>) {
        let Some(field) = path.next() else { return self.fields.clear() };
        let is_new = !self.fields.contains_key(field);
        let below = self.fields.entry(field.to_owned()).or_default();
        if is_new || !below.fields.is_empty() {
            below.add(path);
        }
    }

    /// Reads one document.
    pub(crate) fn read(&self, text: &[u8]) -> Result<Value, serde_json::Error> {
        let mut reader = serde_json::Deserializer::from_slice(text);
        let value = self.deserialize(&mut reader)?;
        reader.end()?;
        Ok(value)
    }
}

impl<'de> DeserializeSeed<'de> for &Projection {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> Result<Value, D::Error> {
        if self.fields.is_empty() { Value::deserialize(reader) } else { reader.deserialize_any(self) }
    }
}

impl<'de> Visitor<'de> for &Projection {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON value")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut kept = Map::new();
        while let Some(field) = map.next_key_seed(Field(self))? {
            match field {
                Some((name, below)) => drop(kept.insert(name.clone(), map.next_value_seed(below)?)),
                None => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(Value::Object(kept))
    }

    /// A list is read whole: without its first items, an index would select another one.
    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = list.next_element()? {
            items.push(item);
        }
        Ok(Value::Array(items))
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_owned()))
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }
}

/// The name of a field: finds it among those that are read.
struct Field<'a>(&'a Projection);

impl<'a, 'de> DeserializeSeed<'de> for Field<'a> {
    type Value = Option<(&'a String, &'a Projection)>;

    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> Result<Self::Value, D::Error> {
        reader.deserialize_str(self)
    }
}

impl<'a> Visitor<'_> for Field<'a> {
    type Value = Option<(&'a String, &'a Projection)>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the name of a field")
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<Self::Value, E> {
        Ok(self.0.fields.get_key_value(name))
    }
}

#[cfg(test)]
mod tests {
    use oarlock_core::cluster::object::{Kind, Object};
    use serde_json::json;

    use super::*;

    fn pod() -> Value {
        json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "a", "namespace": "d", "uid": "u", "resourceVersion": "7", "labels": {"l": "é\n"},
                "annotations": {"k": "v"}, "finalizers": ["f"], "managedFields": [{"manager": "m"}],
                "creationTimestamp": "2026-01-01T00:00:00Z", "deletionTimestamp": "2026-01-01T00:00:01Z",
                "deletionGracePeriodSeconds": 30,
                "ownerReferences": [{"apiVersion": "v1", "kind": "K", "name": "o", "uid": "x", "controller": true}]},
            "spec": {"nodeName": "n", "containers": [{"name": "c", "image": "i"}], "x/y": {"z": 1.5, "w": 2}},
            "status": {"phase": "Running", "conditions": [{"type": "Ready"}]}})
    }

    #[test]
    fn a_projected_object_is_the_same_object() {
        let text = serde_json::to_vec(&pod()).unwrap();
        for pointers in [
            vec![],
            vec!["/status"],
            vec!["/status/phase", "/status"],
            vec!["/status", "/status/phase"],
            vec!["/spec/containers/0/image", "/spec/x~1y/z"],
            vec!["/spec/nodeName", "/status/conditions", "/spec/none", "/metadata/labels/l"],
        ] {
            let pointers: Vec<String> = pointers.into_iter().map(str::to_owned).collect();
            let projected = Projection::of_object(&pointers).read(&text).unwrap();
            let kept = |document: &Value| Object::slim(document, &Kind::pod(), &pointers);
            assert_eq!(kept(&projected), kept(&pod()), "{pointers:?}");
            assert_eq!(projected.pointer("/metadata/managedFields"), None);
        }
    }

    #[test]
    fn a_projection_that_names_nothing_reads_everything() {
        let text = serde_json::to_vec(&pod()).unwrap();
        assert_eq!(Projection::everything().read(&text).unwrap(), pod());
    }

    #[test]
    fn what_is_no_json_is_an_error() {
        assert!(Projection::of_object(&[]).read(br#"{"metadata": {"name": "a""#).is_err());
        assert!(Projection::of_object(&[]).read(br#"{} {}"#).is_err());
    }
}
