//! Decodes protobuf bodies to JSON. kubectl and other typed Go clients send built-in kinds as protobuf.
//! The responses are JSON, which all of these clients can read.

use std::sync::LazyLock;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use k8s_openapi::jiff::{Timestamp, fmt::strtime};
use serde_json::{Map, Value, json};

use crate::{
    clock,
    kinds::{
        registry::Kind,
        schema::{DEFINITIONS, definition_name},
    },
    object::as_map,
    server::status::Refusal,
};

/// The media type of protobuf bodies.
pub(crate) const MEDIA: &str = "application/vnd.kubernetes.protobuf";
/// The four bytes at the start of a protobuf body.
const MAGIC: &[u8] = b"k8s\0";

/// Field numbers, names and types of all messages, from Kubernetes' definitions.
static MESSAGES: LazyLock<Map<String, Value>> = LazyLock::new(|| {
    // The file is part of this crate, and a test reads it. So no user can see an error here.
    serde_json::from_str(include_str!("../../schemas/protobuf.json")).unwrap_or_default()
});

/// Decodes the object in a body. The body names the object's kind.
pub(crate) fn decode(kind: &Kind, body: &[u8]) -> Result<Value, Refusal> {
    let unreadable = || Refusal::bad_request("the body of the request is not protobuf as Kubernetes writes it");
    let envelope = body.strip_prefix(MAGIC).ok_or_else(unreadable)?;
    let envelope = message("io.k8s.apimachinery.pkg.runtime.Unknown", envelope).ok_or_else(unreadable)?;
    let part = |field: &str| envelope.pointer(&format!("/typeMeta/{field}")).cloned().unwrap_or_default();
    let (api_version, name) = (part("apiVersion"), part("kind"));
    let raw = envelope.get("raw").and_then(Value::as_str).and_then(|raw| STANDARD.decode(raw).ok()).unwrap_or_default();
    let own = match name.as_str().unwrap_or_default() {
        "Eviction" => Some("io.k8s.api.policy.v1.Eviction"),
        "DeleteOptions" => Some("io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions"),
        "Scale" => Some("io.k8s.api.autoscaling.v1.Scale"),
        _ => definition_name(kind),
    };
    let mut object = own.and_then(|own| message(own, &raw)).ok_or_else(unreadable)?;
    let map = as_map(&mut object);
    map.insert("kind".into(), name);
    map.insert("apiVersion".into(), api_version);
    Ok(object)
}

/// The value of an encoded field.
enum Wire<'b> {
    Number(u64),
    Bytes(&'b [u8]),
}

/// Reads a number from the front of the bytes.
fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0_u64;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(byte & 0x7F) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

fn take<'b>(bytes: &mut &'b [u8], count: usize) -> Option<&'b [u8]> {
    let (front, rest) = bytes.split_at_checked(count)?;
    *bytes = rest;
    Some(front)
}

fn field<'b>(bytes: &mut &'b [u8]) -> Option<(u64, Wire<'b>)> {
    let tag = varint(bytes)?;
    let wire = match tag & 7 {
        0 => Wire::Number(varint(bytes)?),
        1 => Wire::Number(u64::from_le_bytes(take(bytes, 8)?.try_into().ok()?)),
        2 => {
            let count = usize::try_from(varint(bytes)?).ok()?;
            Wire::Bytes(take(bytes, count)?)
        }
        5 => Wire::Number(u32::from_le_bytes(take(bytes, 4)?.try_into().ok()?).into()),
        _ => return None,
    };
    Some((tag >> 3, wire))
}

/// Decodes a message to JSON. Returns none if the bytes are not such a message.
fn message(name: &str, mut bytes: &[u8]) -> Option<Value> {
    if let Some(value) = special(name, bytes) {
        return value;
    }
    let fields = MESSAGES.get(name)?;
    let known = DEFINITIONS.get(name).and_then(|schema| schema.get("properties"));
    let mut object = Map::new();
    while !bytes.is_empty() {
        let (number, wire) = field(&mut bytes)?;
        let Some(declared) = fields.get(number.to_string()).and_then(Value::as_array) else { continue };
        let (Some(own), Some(kind)) =
            (declared.first().and_then(Value::as_str), declared.get(1).and_then(Value::as_str))
        else {
            continue;
        };
        // A message field without a JSON name is embedded in Go, so its fields belong to the outer object.
        let embedded = known.is_some_and(|known| known.get(own).is_none()) && kind.contains('.');
        if let (true, Wire::Bytes(inner)) = (embedded, &wire) {
            let Value::Object(inner) = message(kind, inner)? else { continue };
            object.extend(inner);
            continue;
        }
        insert(&mut object, own, kind, &wire)?;
    }
    // Go writes a zero generation in protobuf and omits it in JSON. A zero here would look as if the client had set it.
    if name.ends_with(".ObjectMeta") && object.get("generation") == Some(&json!(0)) {
        object.shift_remove("generation");
    }
    object.retain(|_, value| !value.is_null());
    Some(Value::Object(object))
}

fn insert(object: &mut Map<String, Value>, name: &str, kind: &str, wire: &Wire<'_>) -> Option<()> {
    if let Some(kind) = kind.strip_prefix("[]") {
        let slot = object.entry(name).or_insert_with(|| json!([]));
        slot.as_array_mut()?.push(value(kind, wire)?);
    } else if let Some(kind) = kind.strip_prefix("map ") {
        let Wire::Bytes(mut entry) = *wire else { return None };
        let (mut key, mut found) = (String::new(), Value::Null);
        while !entry.is_empty() {
            match field(&mut entry)? {
                (1, wire) => key = value("string", &wire)?.as_str()?.to_owned(),
                (2, wire) => found = value(kind, &wire)?,
                _ => {}
            }
        }
        as_map(object.entry(name).or_insert_with(|| json!({}))).insert(key, found);
    } else {
        object.insert(name.to_owned(), value(kind, wire)?);
    }
    Some(())
}

fn value(kind: &str, wire: &Wire<'_>) -> Option<Value> {
    match (kind, wire) {
        ("string", Wire::Bytes(bytes)) => Some(json!(std::str::from_utf8(bytes).ok()?)),
        ("bytes", Wire::Bytes(bytes)) => Some(json!(STANDARD.encode(bytes))),
        ("bool", Wire::Number(number)) => Some(json!(*number != 0)),
        ("double", Wire::Number(number)) => Some(json!(f64::from_bits(*number))),
        // Protobuf writes negative numbers as two's complement.
        ("int32" | "int64", Wire::Number(number)) => Some(json!(*number as i64)),
        (_, Wire::Number(number)) => Some(json!(number)),
        (name, Wire::Bytes(bytes)) => message(name, bytes),
    }
}

/// Decodes messages whose JSON is not an object of their fields. The outer option is none for all other messages.
fn special(name: &str, bytes: &[u8]) -> Option<Option<Value>> {
    let part = |wanted: u64| {
        let mut rest = bytes;
        let mut found = None;
        while !rest.is_empty() {
            let (number, wire) = field(&mut rest)?;
            if number == wanted {
                found = Some(wire);
            }
        }
        found
    };
    let number = |wanted: u64| if let Some(Wire::Number(number)) = part(wanted) { number as i64 } else { 0 };
    let text = |wanted: u64| part(wanted).and_then(|wire| value("string", &wire)).unwrap_or_else(|| json!(""));
    let moment = || Timestamp::new(number(1), i32::try_from(number(2)).unwrap_or_default()).ok();
    Some(match name.rsplit('.').next()? {
        "Time" | "MicroTime" if bytes.is_empty() => Some(Value::Null),
        "Time" => moment().map(|at| json!(clock::seconds(at))),
        "MicroTime" => moment().and_then(|at| Some(json!(strtime::format("%Y-%m-%dT%H:%M:%S.%6fZ", at).ok()?))),
        "Quantity" => Some(text(1)),
        "IntOrString" if number(1) == 1 => Some(text(3)),
        "IntOrString" => Some(json!(number(2))),
        "FieldsV1" | "RawExtension" | "JSON" => {
            let Some(Wire::Bytes(raw)) = part(1) else { return Some(Some(json!({}))) };
            serde_json::from_slice(raw).ok()
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::registry::Kinds;

    fn text(number: u8, value: &[u8]) -> Vec<u8> {
        let mut bytes = vec![number << 3 | 2, u8::try_from(value.len()).unwrap()];
        bytes.extend(value);
        bytes
    }

    #[test]
    fn a_pod_in_protobuf_reads_as_its_json() {
        // Go writes a generation and a creationTimestamp even if they are zero.
        let mut metadata = [text(1, b"p"), vec![7 << 3, 0], text(8, b"")].concat();
        metadata.extend(text(11, &[text(1, b"app"), text(2, b"web")].concat()));
        // A volume with an emptyDir. Go embeds the volume source.
        let volume = [text(1, b"v"), text(2, &text(2, b""))].concat();
        let port = [&[3 << 3, 80][..], &text(4, b"TCP")].concat();
        let container = [text(1, b"c"), text(2, b"i"), text(6, &port)].concat();
        let spec = [text(1, &volume), text(2, &container), vec![4 << 3, 30]].concat();
        let pod = [text(1, &metadata), text(2, &spec)].concat();
        let envelope = [text(1, &[text(1, b"v1"), text(2, b"Pod")].concat()), text(2, &pod)].concat();
        let kinds = Kinds::built_in();
        let kind = kinds.by_path("", "v1", "pods").unwrap();
        let object = decode(kind, &[MAGIC, &envelope].concat()).unwrap();
        let wanted = json!({
            "kind": "Pod", "apiVersion": "v1", "metadata": {"name": "p", "labels": {"app": "web"}},
            "spec": {
                "volumes": [{"name": "v", "emptyDir": {}}],
                "containers": [{"name": "c", "image": "i", "ports": [{"containerPort": 80, "protocol": "TCP"}]}],
                "terminationGracePeriodSeconds": 30,
            },
        });
        assert_eq!(object, wanted);
        assert!(decode(kind, b"nonsense").is_err());
    }
}
