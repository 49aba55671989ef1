//! Cells that rows of several kinds have.

use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use crate::{
    object::{self, at},
    printing::{duration::age, json_path},
};

/// Name, type, and 1 if the column is shown with `-o wide` only.
pub(crate) type Columns = &'static [(&'static str, &'static str, i64)];

/// An object and the time at which it is printed.
#[derive(Clone, Copy)]
pub(crate) struct PrintedObject<'a> {
    pub(crate) object: &'a Value,
    pub(crate) now: Timestamp,
}

impl PrintedObject<'_> {
    /// The time since the object was created.
    pub(crate) fn age(self) -> Value {
        json!(age(object::meta(self.object, "creationTimestamp"), self.now))
    }

    /// A field as text, `<none>` if it is absent or empty.
    pub(crate) fn text(self, path: &[&str]) -> Value {
        let text = at(self.object, path).map(json_path::text).filter(|text| !text.is_empty());
        json!(text.unwrap_or_else(|| "<none>".to_owned()))
    }

    /// A number, 0 if it is absent.
    pub(crate) fn number(self, path: &[&str]) -> Value {
        json!(at(self.object, path).and_then(Value::as_i64).unwrap_or_default())
    }
}

/// A list, empty if it is absent.
pub(crate) fn list<'v>(object: &'v Value, path: &[&str]) -> &'v [Value] {
    at(object, path).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}
