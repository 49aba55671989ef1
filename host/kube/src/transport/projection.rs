//! Reads only the kept fields of a JSON document.
//!
//! The reader skips all other fields without keeping them in memory. Most of a pod is `managedFields` and unused parts of its spec.

use std::borrow::Cow;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::LazyLock;

use oarlock_core::object::api_object::{BARE, HOST_FIELDS, METADATA, UNREAD};
use oarlock_core::object::memory::{ENTRY, VALUE};
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

/// The fields that are read, by name. An empty projection reads all fields.
#[derive(Debug, Default)]
pub(crate) struct Projection {
    fields: BTreeMap<String, Self>,
    /// The projection for objects that take too much memory.
    core: Option<&'static LazyLock<Self>>,
}

impl Projection {
    /// Returns a projection that reads everything.
    pub(crate) const fn everything() -> Self {
        Self { fields: BTreeMap::new(), core: None }
    }

    /// Returns a projection that reads only the fields at these pointers, or the whole object if there are none.
    pub(crate) fn of_fields(pointers: &[&str]) -> Self {
        let mut projection = Self { core: (!pointers.is_empty()).then_some(&CORE), ..Self::default() };
        pointers.iter().for_each(|pointer| projection.add_pointer(pointer));
        projection
    }

    /// Returns a projection that reads the kind of an object, its kept metadata, and the fields at these pointers.
    pub(crate) fn of_object(pointers: &[String]) -> Self {
        Self { core: Some(&CORE), ..Self::of_parts(pointers) }
    }

    /// Returns a projection with the same fields. It reads an object that takes too much memory without its spec.
    pub(crate) fn of_parts(pointers: &[String]) -> Self {
        let mut projection = Self::default();
        // The object of an error event of a watch has a message.
        ["apiVersion", "kind", "message"].iter().for_each(|field| projection.add(std::iter::once(*field)));
        METADATA.iter().for_each(|field| projection.add(["metadata", *field].into_iter()));
        let pointers = HOST_FIELDS.into_iter().chain(pointers.iter().map(String::as_str));
        pointers.for_each(|pointer| projection.add_pointer(pointer));
        projection
    }

    fn add_pointer(&mut self, pointer: &str) {
        let tokens: Vec<String> =
            pointer.split('/').skip(1).map(|token| token.replace("~1", "/").replace("~0", "~")).collect();
        self.add(tokens.iter().map(String::as_str));
    }

    /// Adds a field. A field inside a whole field adds nothing, and a field above others makes the whole field read.
    fn add<'a>(&mut self, mut path: impl Iterator<Item = &'a str>) {
        let Some(field) = path.next() else { return self.fields.clear() };
        let is_new = !self.fields.contains_key(field);
        let below = self.fields.entry(field.to_owned()).or_default();
        if is_new || !below.fields.is_empty() {
            below.add(path);
        }
    }

    /// Reads one document. If the document would take more than 16 MiB of memory or cannot be parsed, the function reads less of it. It
    /// then reads the fields that the host must know, or all but the spec, or little more than the identity. Such a document says so
    /// ([`oarlock_core::object::api_object::unread`]), so that one object does not prevent the host from reading others.
    pub(crate) fn read(&self, text: &[u8]) -> Result<Value, serde_json::Error> {
        self.read_as(text, |seed, reader| seed.deserialize(reader))
    }

    /// Reads the document that `read` finds in a text, with the limits of [`Projection::read`].
    pub(crate) fn read_as<T: Document>(
        &self,
        text: &[u8],
        read: impl Fn(Bounded<'_>, &mut Reader<'_>) -> Result<T, serde_json::Error>,
    ) -> Result<T, serde_json::Error> {
        let second = self.core.map_or((self, Some("spec")), |core| (&**core, None));
        let attempts = [
            (self, MOST_BYTES, None, false),
            (second.0, MOST_BYTES, second.1, false),
            (&*LIGHT, MOST_LIGHT_BYTES, None, true),
            (&*IDENTITY, usize::MAX, None, true),
        ];
        let mut failed: Option<serde_json::Error> = None;
        for (projection, most, skipped, is_bare) in attempts {
            let room = Cell::new(Some(most));
            let mut reader = serde_json::Deserializer::from_slice(text);
            let found = read(Bounded { projection, room: &room, skipped, depth: 0 }, &mut reader);
            match found.and_then(|found| reader.end().map(|()| found)) {
                Ok(mut found) => {
                    mark(found.document(), failed.map(|error| unread_words(&error, text.len())), is_bare);
                    return Ok(found);
                }
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        Err(failed.unwrap_or_else(|| serde_json::Error::custom("nothing is read of it")))
    }
}

/// Returns the message for the owner of an object that is not read whole.
fn unread_words(error: &serde_json::Error, bytes: usize) -> String {
    let (error, size) = (error.to_string(), bytes / 1_024);
    if error.starts_with(TOO_MUCH) {
        return format!(
            "it has {size} KiB and takes more than the 16 MiB of memory that the host gives one object: replace it by a smaller one"
        );
    }
    if error.starts_with(TOO_DEEP) {
        return format!(
            "it is nested deeper than the {MOST_DEPTH} levels that the host reads: replace it by a flatter one"
        );
    }
    format!("it cannot be read: {error}")
}

/// The beginnings of the errors for a document that takes too much memory, or is nested too deep.
const TOO_MUCH: &str = "the document is larger than the host reads";
const TOO_DEEP: &str = "the document is nested deeper than the host reads";
/// The most levels of a document. It is lower than the limit of the JSON parser, because an error of that limit would fail the whole list.
const MOST_DEPTH: usize = 100;
/// The most memory of one object that is read whole. It is twice the memory of the largest job, which names 10,000 targets.
const MOST_BYTES: usize = 16 * 1024 * 1024;
/// The most memory of the metadata of a larger object.
const MOST_LIGHT_BYTES: usize = 256 * 1024;

fn of_fields(metadata: impl Iterator<Item = &'static str>) -> Projection {
    let mut projection = Projection::default();
    ["apiVersion", "kind", "message"].iter().for_each(|field| projection.add(std::iter::once(*field)));
    metadata.for_each(|field| projection.add(["metadata", field].into_iter()));
    // The location of a pod is kept, because the drain of a node must know the pods of the node.
    [["spec", "nodeName"], ["status", "phase"]].into_iter().for_each(|field| projection.add(field.into_iter()));
    projection
}

/// The fields that the host must know of an object in any case. A client with access to the status of a node decides how large the status
/// is.
static CORE: LazyLock<Projection> = LazyLock::new(|| {
    let mut projection = of_fields(METADATA.into_iter());
    ["unschedulable", "taints"].iter().for_each(|field| projection.add(["spec", *field].into_iter()));
    projection
});

/// Metadata without annotations.
static LIGHT: LazyLock<Projection> =
    LazyLock::new(|| of_fields(METADATA.into_iter().filter(|field| *field != "annotations").chain(["generation"])));

/// The fields that no writer can make long.
static IDENTITY: LazyLock<Projection> = LazyLock::new(|| {
    let fields =
        ["name", "namespace", "uid", "resourceVersion", "generation", "creationTimestamp", "deletionTimestamp"];
    of_fields(fields.into_iter())
});

/// Makes a document say why it was not read whole, and removes such fields of its own.
fn mark(document: &mut Value, why: Option<String>, is_bare: bool) {
    let Some(fields) = document.as_object_mut() else { return };
    for field in [UNREAD, BARE] {
        fields.swap_remove(field);
    }
    fields.extend(why.map(|why| (UNREAD.to_owned(), why.into())));
    fields.extend(is_bare.then(|| (BARE.to_owned(), true.into())));
}

/// A value that was read and contains a document.
pub(crate) trait Document {
    /// Returns the document.
    fn document(&mut self) -> &mut Value;
}

impl Document for Value {
    fn document(&mut self) -> &mut Value {
        self
    }
}

/// A reader of a JSON text.
pub(crate) type Reader<'a> = serde_json::Deserializer<serde_json::de::SliceRead<'a>>;

/// Reads the fields of a projection into the memory that is left. The memory is `None` once it was too little.
#[derive(Clone, Copy)]
pub(crate) struct Bounded<'a> {
    projection: &'a Projection,
    room: &'a Cell<Option<usize>>,
    /// A field of the document itself that is skipped.
    skipped: Option<&'static str>,
    /// The number of levels above.
    depth: usize,
}

impl<'a> Bounded<'a> {
    fn take<E: Error>(self, bytes: usize) -> Result<(), E> {
        let left = self.room.get().and_then(|room| room.checked_sub(bytes));
        self.room.set(left);
        left.map(drop).ok_or_else(|| E::custom(TOO_MUCH))
    }

    /// Returns the reader of a value one level below.
    fn below<E: Error>(self, projection: &'a Projection) -> Result<Self, E> {
        let depth = self.depth.saturating_add(1);
        if depth > MOST_DEPTH {
            return Err(E::custom(TOO_DEEP));
        }
        Ok(Self { projection, skipped: None, depth, room: self.room })
    }
}

impl<'de> DeserializeSeed<'de> for Bounded<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> Result<Value, D::Error> {
        reader.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Bounded<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON value")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut kept = Map::new();
        while let Some(field) = map.next_key_seed(Field(self.projection))? {
            match field {
                Some((name, projection)) if self.skipped != Some(&*name) => {
                    self.take(ENTRY.saturating_add(name.len()))?;
                    drop(kept.insert(name.into_owned(), map.next_value_seed(self.below(projection)?)?));
                }
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(Value::Object(kept))
    }

    /// Reads a list whole, because without the first items an index would select another item.
    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        let below = self.below(&EVERYTHING)?;
        while let Some(item) = list.next_element_seed(below)? {
            self.take(VALUE)?;
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
        self.take(value.len())?;
        Ok(Value::String(value.to_owned()))
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }
}

static EVERYTHING: Projection = Projection::everything();

/// The name of a field, which is looked up among the fields of the projection.
struct Field<'a>(&'a Projection);

impl<'a, 'de> DeserializeSeed<'de> for Field<'a> {
    type Value = Option<(Cow<'a, str>, &'a Projection)>;

    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> Result<Self::Value, D::Error> {
        reader.deserialize_str(self)
    }
}

impl<'a> Visitor<'_> for Field<'a> {
    type Value = Option<(Cow<'a, str>, &'a Projection)>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the name of a field")
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<Self::Value, E> {
        if self.0.fields.is_empty() {
            return Ok(Some((Cow::Owned(name.to_owned()), self.0)));
        }
        Ok(self.0.fields.get_key_value(name).map(|(name, below)| (Cow::Borrowed(name.as_str()), below)))
    }
}

#[cfg(test)]
mod tests {
    use oarlock_core::object::api_object::{Kind, Object, unread};
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
    fn of_an_object_whose_labels_its_writer_chose_only_the_named_field_is_read() {
        let mut named = pod();
        named["metadata"]["labels"] = (0..60_000).map(|number| (number.to_string(), json!(""))).collect();
        let read = Projection::of_fields(&["/metadata/namespace"]).read(&serde_json::to_vec(&named).unwrap()).unwrap();
        assert_eq!(read, json!({"metadata": {"namespace": named["metadata"]["namespace"]}}));
    }

    #[test]
    fn a_projection_that_names_nothing_reads_everything() {
        let text = serde_json::to_vec(&pod()).unwrap();
        assert_eq!(Projection::everything().read(&text).unwrap(), pod());
        assert_eq!(Projection::of_fields(&[]).read(&text).unwrap(), pod());
    }

    #[test]
    fn an_object_that_takes_too_much_memory_is_read_without_its_spec_or_for_its_identity_alone() {
        let mut large = pod();
        large["spec"]["numbers"] = vec![0; MOST_BYTES / VALUE].into();
        let text = serde_json::to_vec(&large).unwrap();
        let whole = Projection::of_object(&["/status".to_owned()]).read(&text).unwrap();
        assert_eq!((unread(&whole), &whole["status"]["phase"]), (None, &json!("Running")));
        for projection in [Projection::everything(), Projection::of_object(&["/spec".to_owned()])] {
            let read = projection.read(&text).unwrap();
            assert!(unread(&read).is_some_and(|why| why.contains(&format!("{} KiB", text.len() / 1_024))));
            assert_eq!((read.pointer("/spec/numbers"), &read["metadata"]["uid"]), (None, &json!("u")));
            assert_eq!(&read["metadata"]["annotations"]["k"], "v", "all but the spec");
        }
        large["status"]["numbers"] = large["spec"]["numbers"].take();
        let read = Projection::everything().read(&serde_json::to_vec(&large).unwrap()).unwrap();
        let numbers = (read.pointer("/spec/numbers"), read.pointer("/status/numbers"));
        assert_eq!(
            (numbers, &read["metadata"]["uid"], &read["status"]["phase"]),
            ((None, None), &json!("u"), &json!("Running"))
        );
        assert_eq!((&read["metadata"]["labels"]["l"], read["metadata"].get("annotations")), (&json!("é\n"), None));
    }

    #[test]
    fn metadata_that_takes_too_much_memory_is_not_read() {
        let mut large = pod();
        large["status"]["text"] = "x".repeat(MOST_BYTES).into();
        large["metadata"]["labels"] = (0..5_000).map(|n| (format!("label-{n}"), json!("x".repeat(60)))).collect();
        let read = Projection::everything().read(&serde_json::to_vec(&large).unwrap()).unwrap();
        assert!(unread(&read).is_some());
        assert_eq!((&read["metadata"]["name"], read["metadata"].get("labels")), (&json!("a"), None));
    }

    #[test]
    fn of_a_node_whose_kubelet_wrote_more_than_fits_the_cordon_and_taints_are_known() {
        let taint = json!({"key": "quarantine", "effect": "NoExecute"});
        let mut node = json!({"metadata": {"name": "n", "uid": "u", "annotations": {"hold.oarlock.dev/j": "[]"}},
            "spec": {"unschedulable": true, "taints": [taint]}, "status": {"conditions": vec![json!({}); MOST_BYTES / VALUE]}});
        let read = |node: &Value, fields: &[String]| {
            let read = Projection::of_object(fields).read(&serde_json::to_vec(node).unwrap()).unwrap();
            Object::slim(&read, &Kind::node(), fields).unwrap()
        };
        for fields in [vec![], vec!["/spec".to_owned(), "/status".to_owned()]] {
            let object = read(&node, &fields);
            let spec = object.node.as_deref().unwrap();
            assert_eq!(
                (spec.cordoned, spec.taints.as_slice(), object.is_whole()),
                (true, [taint.clone()].as_slice(), false)
            );
            assert!(object.annotations.contains_key("hold.oarlock.dev/j"));
        }
        node["metadata"]["labels"] = (0..200_000).map(|number| (number.to_string(), json!(""))).collect();
        assert_eq!(read(&node, &[]).node, None, "nobody knows what is on it");
    }

    #[test]
    fn no_object_says_of_itself_that_it_was_not_read() {
        let text = format!(r#"{{"{UNREAD}": "x", "{BARE}": true, "metadata": {{"name": "a"}}}}"#);
        let read = Projection::everything().read(text.as_bytes()).unwrap();
        assert_eq!((unread(&read), read.get(BARE)), (None, None));
    }

    #[test]
    fn an_object_that_is_nested_too_deep_is_read_without_what_is() {
        let nested = |depth: usize| format!("{}1{}", r#"{"a":["#.repeat(depth / 2), "]}".repeat(depth / 2));
        let text = |depth: usize, field: &str| {
            let nested = nested(depth);
            format!(r#"{{"metadata": {{"name": "n", "uid": "u"}}, "{field}": {nested}}}"#)
        };
        for projection in [Projection::everything(), Projection::of_parts(&["/spec".into(), "/status".into()])] {
            let read = |depth, field| projection.read(text(depth, field).as_bytes()).unwrap();
            assert_eq!(unread(&read(90, "spec")), None);
            for (depth, field) in [(110, "spec"), (1_000, "spec"), (20_000, "status")] {
                let read = read(depth, field);
                assert!(unread(&read).is_some_and(|why| why.contains("deeper than the 100 levels")), "{read}");
                assert_eq!((&read["metadata"]["uid"], read[field].get("a")), (&json!("u"), None));
            }
        }
    }

    #[test]
    fn a_number_that_no_host_holds_costs_its_own_object_alone() {
        let read = Projection::everything().read(br#"{"metadata": {"name": "n"}, "spec": {"a": 1e999}}"#).unwrap();
        assert!(unread(&read).is_some_and(|why| why.contains("cannot be read")), "{read}");
        assert_eq!(read["metadata"]["name"], "n");
    }

    #[test]
    fn what_is_no_json_is_an_error() {
        assert!(Projection::of_object(&[]).read(br#"{"metadata": {"name": "a""#).is_err());
        assert!(Projection::of_object(&[]).read(br#"{} {}"#).is_err());
    }
}
