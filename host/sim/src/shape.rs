//! Takes stored versions, yields them in the form that a client asked for: whole, metadata only, or as a table. May not
//! change what is stored.

use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use serde_json::{Value, json};

use crate::{events, kinds::Kind, object, routing::Call, status::Refusal, storage::Version};

/// The form of objects in a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shape {
    /// As stored.
    Full,
    /// PartialObjectMetadata.
    Metadata,
}

/// What a list says about itself.
#[derive(Debug, Default)]
pub(crate) struct ListMeta {
    pub(crate) rv: u64,
    pub(crate) next: Option<String>,
    pub(crate) remaining: Option<usize>,
}

impl ListMeta {
    pub(crate) fn to_value(&self) -> Value {
        let mut meta = json!({"resourceVersion": self.rv.to_string()});
        if let Some(next) = &self.next {
            object::as_map(&mut meta).insert("continue".into(), json!(next));
        }
        if let Some(remaining) = self.remaining {
            object::as_map(&mut meta).insert("remainingItemCount".into(), json!(remaining));
        }
        meta
    }
}

impl Shape {
    /// The first form in the Accept header that is known here.
    pub(crate) fn wanted(call: &Call) -> Result<Self, Refusal> {
        for media in call.accept.split(',') {
            let mut parts = media.split(';').map(str::trim);
            let kind = parts.next().unwrap_or_default();
            if !matches!(kind, "" | "*/*" | "application/*" | "application/json") {
                continue;
            }
            match parts.find_map(|part| part.strip_prefix("as=")) {
                None => return Ok(Self::Full),
                Some("PartialObjectMetadata" | "PartialObjectMetadataList") => return Ok(Self::Metadata),
                Some(_) => {}
            }
        }
        let accepted = "application/json";
        Err(Refusal::plain(406, "NotAcceptable", format!("only the following media types are accepted: {accepted}")))
    }

    /// One object.
    pub(crate) fn one(self, call: &Call, version: &Version) -> Bytes {
        match self {
            Self::Full => full(&call.kind, version),
            Self::Metadata => to_bytes(&json!({
                "kind": "PartialObjectMetadata",
                "apiVersion": "meta.k8s.io/v1",
                "metadata": version.value.get("metadata"),
            })),
        }
    }

    /// A list of objects.
    pub(crate) fn list(self, call: &Call, items: &[Arc<Version>], meta: &ListMeta) -> Bytes {
        let (kind, api_version) = match self {
            Self::Full => (call.kind.list_kind.clone(), call.kind.api_version()),
            Self::Metadata => ("PartialObjectMetadataList".to_owned(), "meta.k8s.io/v1".to_owned()),
        };
        let head = json!({"kind": kind, "apiVersion": api_version, "metadata": meta.to_value()}).to_string();
        let mut out = BytesMut::with_capacity(items.len() * 1024 + head.len());
        out.put_slice(head.strip_suffix('}').unwrap_or_default().as_bytes());
        out.put_slice(b",\"items\":[");
        for (index, item) in items.iter().enumerate() {
            if index > 0 {
                out.put_u8(b',');
            }
            out.put(self.one(call, item));
        }
        out.put_slice(b"]}");
        out.freeze()
    }

    /// One line of a watch.
    pub(crate) fn event(self, call: &Call, change: &str, version: &Version) -> Bytes {
        let object = self.one(call, version);
        let mut out = BytesMut::with_capacity(object.len() + 40);
        out.put_slice(format!("{{\"type\":\"{change}\",\"object\":").as_bytes());
        out.put(object);
        out.put_slice(b"}\n");
        out.freeze()
    }
}

/// The whole object in the version that was asked for. Versions of a kind differ in nothing but their name.
fn full(kind: &Kind, version: &Version) -> Bytes {
    if version.value.get("apiVersion").and_then(Value::as_str) == Some(kind.api_version().as_str()) {
        return version.json();
    }
    to_bytes(&converted(kind, &version.value))
}

/// A stored object in the version that was asked for.
pub(crate) fn converted(kind: &Kind, stored: &Value) -> Value {
    let mut value = if kind.is("events.k8s.io", "Event") { events::to_events_api(stored) } else { stored.clone() };
    object::as_map(&mut value).insert("apiVersion".into(), json!(kind.api_version()));
    value
}

pub(crate) fn to_bytes(value: &Value) -> Bytes {
    Bytes::from(serde_json::to_vec(value).unwrap_or_default())
}
