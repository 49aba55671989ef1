//! Converts stored objects to the form that the client requested: whole, metadata only, or as a table.

use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use crate::{
    kinds::{events, registry::Kind},
    object,
    printing::table,
    server::{routing::Call, status::Refusal},
    storage::ObjectVersion,
};

/// The form of objects in a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    /// The whole object.
    Full,
    /// The metadata, as a PartialObjectMetadata.
    Metadata,
    /// Table rows for people.
    Table(Include),
}

/// The part of the object that a table row carries besides its cells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Include {
    Nothing,
    Metadata,
    Object,
}

/// The form that a request asks for.
#[derive(Debug, Clone)]
pub(crate) struct ResponseForm {
    form: Form,
    kind: Arc<Kind>,
}

/// The `metadata` of a list.
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

impl ResponseForm {
    /// Returns the first supported form in the Accept header.
    pub(crate) fn wanted(call: &Call) -> Result<Self, Refusal> {
        let form = call.accept.split(',').find_map(|media| form(media, call));
        let form = form.ok_or_else(|| {
            Refusal::plain(406, "NotAcceptable", "only the following media types are accepted: application/json")
        })?;
        Ok(Self { form, kind: Arc::clone(&call.kind) })
    }

    /// Serialises one object.
    pub(crate) fn one(&self, version: &ObjectVersion, now: Timestamp) -> Bytes {
        match self.form {
            Form::Full => full(&self.kind, version),
            Form::Metadata => to_bytes(&partial(version)),
            Form::Table(include) => {
                let meta = json!({"resourceVersion": object::meta(&version.value, "resourceVersion")});
                to_bytes(&self.table(&[version], &meta, (include, now)))
            }
        }
    }

    /// Serialises a list of objects.
    pub(crate) fn list(&self, items: &[Arc<ObjectVersion>], meta: &ListMeta, now: Timestamp) -> Bytes {
        let (kind, api_version) = match self.form {
            Form::Full => (self.kind.list_kind.clone(), self.kind.api_version()),
            Form::Metadata => ("PartialObjectMetadataList".to_owned(), "meta.k8s.io/v1".to_owned()),
            Form::Table(include) => {
                let items = items.iter().map(AsRef::as_ref).collect::<Vec<_>>();
                return to_bytes(&self.table(&items, &meta.to_value(), (include, now)));
            }
        };
        let head = json!({"kind": kind, "apiVersion": api_version, "metadata": meta.to_value()}).to_string();
        let mut out = BytesMut::with_capacity(items.len() * 1024 + head.len());
        out.put_slice(head.strip_suffix('}').unwrap_or_default().as_bytes());
        out.put_slice(b",\"items\":[");
        for (index, item) in items.iter().enumerate() {
            if index > 0 {
                out.put_u8(b',');
            }
            out.put(self.item(item, now));
        }
        out.put_slice(b"]}");
        out.freeze()
    }

    /// Serialises one object of a list. Built-in kinds omit kind and apiVersion there.
    fn item(&self, version: &ObjectVersion, now: Timestamp) -> Bytes {
        let whole = self.one(version, now);
        if self.form != Form::Full || self.kind.custom.is_some() {
            return whole;
        }
        let head = format!("{{\"kind\":{:?},\"apiVersion\":{:?},", self.kind.kind, self.kind.api_version());
        if !whole.starts_with(head.as_bytes()) {
            return whole;
        }
        let mut item = BytesMut::with_capacity(whole.len());
        item.put_u8(b'{');
        item.put(whole.slice(head.len()..));
        item.freeze()
    }

    /// Returns the first event line of a watch.
    pub(crate) fn event(&self, change: &str, version: &ObjectVersion, now: Timestamp) -> Bytes {
        self.line(change, &self.one(version, now))
    }

    /// Returns a later event line of a watch. A table lists its columns only in the first line.
    pub(crate) fn later_event(&self, change: &str, version: &ObjectVersion, now: Timestamp) -> Bytes {
        let Form::Table(include) = self.form else { return self.event(change, version, now) };
        let meta = json!({"resourceVersion": object::meta(&version.value, "resourceVersion")});
        let mut table = self.table(&[version], &meta, (include, now));
        object::as_map(&mut table).insert("columnDefinitions".into(), Value::Null);
        self.line(change, &to_bytes(&table))
    }

    fn line(&self, change: &str, object: &Bytes) -> Bytes {
        let mut out = BytesMut::with_capacity(object.len() + 40);
        out.put_slice(format!("{{\"type\":\"{change}\",\"object\":").as_bytes());
        out.put_slice(object);
        out.put_slice(b"}\n");
        out.freeze()
    }

    fn table(&self, items: &[&ObjectVersion], meta: &Value, (include, now): (Include, Timestamp)) -> Value {
        let row = |version: &&ObjectVersion| {
            let object = match include {
                Include::Nothing => Value::Null,
                Include::Metadata => partial(version),
                Include::Object => converted(&self.kind, &version.value),
            };
            json!({"cells": table::cells(&self.kind, &version.value, now), "object": object})
        };
        json!({
            "kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": meta,
            "columnDefinitions": table::columns(&self.kind), "rows": items.iter().map(row).collect::<Vec<_>>(),
        })
    }
}

fn form(media: &str, call: &Call) -> Option<Form> {
    let mut parts = media.split(';').map(str::trim);
    if !matches!(parts.next().unwrap_or_default(), "" | "*/*" | "application/*" | "application/json") {
        return None;
    }
    let parts = parts.collect::<Vec<_>>();
    match parts.iter().find_map(|part| part.strip_prefix("as=")) {
        None => Some(Form::Full),
        Some("PartialObjectMetadata" | "PartialObjectMetadataList") => Some(Form::Metadata),
        Some("Table") if parts.contains(&"v=v1") => Some(Form::Table(match call.query.get("includeObject") {
            Some("None") => Include::Nothing,
            Some("Object") => Include::Object,
            _ => Include::Metadata,
        })),
        Some(_) => None,
    }
}

fn partial(version: &ObjectVersion) -> Value {
    json!({
        "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": version.value.get("metadata"),
    })
}

/// Serialises the whole object in the requested version. The versions of a kind differ only in their apiVersion.
fn full(kind: &Kind, version: &ObjectVersion) -> Bytes {
    if version.value.get("apiVersion").and_then(Value::as_str) == Some(kind.api_version().as_str()) {
        return version.json();
    }
    to_bytes(&converted(kind, &version.value))
}

/// Converts a stored object to the requested version.
pub(crate) fn converted(kind: &Kind, stored: &Value) -> Value {
    let mut value = if kind.is("events.k8s.io", "Event") { events::to_events_api(stored) } else { stored.clone() };
    object::as_map(&mut value).insert("apiVersion".into(), json!(kind.api_version()));
    value
}

pub(crate) fn to_bytes(value: &Value) -> Bytes {
    Bytes::from(serde_json::to_vec(value).unwrap_or_default())
}
