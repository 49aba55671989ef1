//! Table cells that several kinds share.

use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use crate::{
    object::{self, at},
    printing::{duration::age, json_path},
};

/// Columns: name, type, and 1 if only `-o wide` shows the column.
pub(crate) type Columns = &'static [(&'static str, &'static str, i64)];

/// An object with the time at which it is printed.
#[derive(Clone, Copy)]
pub(crate) struct PrintedObject<'a> {
    pub(crate) object: &'a Value,
    pub(crate) now: Timestamp,
}

impl PrintedObject<'_> {
    /// Returns the object's age.
    pub(crate) fn age(self) -> Value {
        json!(age(object::meta(self.object, "creationTimestamp"), self.now))
    }

    /// Returns a field as text, `<none>` if it is absent or empty.
    pub(crate) fn text(self, path: &[&str]) -> Value {
        let text = at(self.object, path).map(json_path::text).filter(|text| !text.is_empty());
        json!(text.unwrap_or_else(|| "<none>".to_owned()))
    }

    /// Returns a number, 0 if it is absent.
    pub(crate) fn number(self, path: &[&str]) -> Value {
        json!(at(self.object, path).and_then(Value::as_i64).unwrap_or_default())
    }
}

/// Returns a list, empty if it is absent.
pub(crate) fn list<'v>(object: &'v Value, path: &[&str]) -> &'v [Value] {
    at(object, path).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}
