//! Small forms of an object's maps and fields: labels and annotations, and its declared fields.
//!
//! A map of five labels in a tree costs a kilobyte, four pod conditions as a JSON tree cost four: with 20,000 pods in
//! memory that is most of the host's memory budget. Nothing is lost.

use std::collections::BTreeMap;

use serde::{Serialize, Serializer};
use serde_json::{Map, Value, json};

use crate::cluster::kind_cache::NODE_NAME;

/// A map of strings in one piece of text, sorted by key. Meant for a few entries: a lookup walks it.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct Strings {
    text: Box<str>,
    /// End of each key and each value in the text, alternating.
    ends: Box<[u32]>,
}

impl Strings {
    /// The value of `key`.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.iter().find(|(k, _)| *k == key).map(|(_, value)| value)
    }

    /// True if `key` has a value.
    pub fn contains_key(&self, key: &str) -> bool {
        self.get(key).is_some()
    }

    /// True if it has no entries.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// The number of entries.
    pub fn len(&self) -> usize {
        self.ends.len() / 2
    }

    /// Bytes that it takes.
    pub fn bytes(&self) -> usize {
        self.text.len().saturating_add(size_of_val(&*self.ends))
    }

    /// All entries, by key.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        let mut from = 0;
        let mut next = move |end: &u32| {
            let end = *end as usize;
            let piece = self.text.get(from..end).unwrap_or_default();
            from = end;
            piece
        };
        self.ends.chunks_exact(2).filter_map(move |pair| match pair {
            [key, value] => Some((next(key), next(value))),
            _ => None,
        })
    }

    /// All keys, in order.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.iter().map(|(key, _)| key)
    }
}

impl<S: AsRef<str> + Ord> FromIterator<(S, S)> for Strings {
    fn from_iter<I: IntoIterator<Item = (S, S)>>(entries: I) -> Self {
        let sorted: BTreeMap<S, S> = entries.into_iter().collect();
        let mut text = String::new();
        let mut ends = Vec::with_capacity(sorted.len() * 2);
        for piece in sorted.iter().flat_map(|(key, value)| [key, value]) {
            text.push_str(piece.as_ref());
            // All annotations of an object are at most 256 KiB, all labels less.
            ends.push(u32::try_from(text.len()).unwrap_or(u32::MAX));
        }
        Self { text: text.into(), ends: ends.into() }
    }
}

impl std::fmt::Debug for Strings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

impl Serialize for Strings {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter())
    }
}

/// The declared fields of an object, at their places in its document, as JSON text.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Fields(Box<str>);

impl Default for Fields {
    fn default() -> Self {
        Self("{}".into())
    }
}

impl Fields {
    /// Bytes of the text.
    pub const fn bytes(&self) -> usize {
        self.0.len()
    }

    /// The fields as a JSON document.
    pub fn value(&self) -> Value {
        // The text was written from a value, so it parses.
        serde_json::from_str(&self.0).unwrap_or_default()
    }

    /// The same without lists and long texts, which are what may be large. Of what takes more than so many bytes all the same, only
    /// the node of a pod is left.
    #[must_use]
    pub fn short(&self, most: usize) -> Self {
        let short = short(self.value()).unwrap_or_else(|| Value::Object(Map::new()));
        let all = Self::from(short);
        if all.bytes() <= most {
            return all;
        }
        all.text(NODE_NAME).map(|node| Self::from(json!({"spec": {"nodeName": node}}))).unwrap_or_default()
    }

    /// The string at `pointer`.
    pub fn text(&self, pointer: &str) -> Option<String> {
        match self.value().pointer_mut(pointer).map(Value::take) {
            Some(Value::String(text)) => Some(text),
            _ => None,
        }
    }
}

/// Most bytes of a text among the fields that are left: names have at most 253.
const MOST_TEXT: usize = 253;

fn short(value: Value) -> Option<Value> {
    match value {
        Value::Object(fields) => {
            Some(fields.into_iter().filter_map(|(name, value)| Some((name, short(value)?))).collect())
        }
        Value::String(text) => (text.len() <= MOST_TEXT).then_some(Value::String(text)),
        Value::Array(_) => None,
        other => Some(other),
    }
}

impl From<Value> for Fields {
    fn from(value: Value) -> Self {
        Self(value.to_string().into())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn strings_are_found_by_key_and_listed_in_order() {
        let entries = [("b", "2"), ("a", ""), ("ü", "\0")];
        let strings: Strings = entries.map(|(key, value)| (key.to_owned(), value.to_owned())).into_iter().collect();
        assert_eq!(strings.iter().collect::<Vec<_>>(), [("a", ""), ("b", "2"), ("ü", "\0")]);
        assert_eq!((strings.get("b"), strings.get("c"), strings.len()), (Some("2"), None, 3));
        assert_eq!(json!(strings), json!({"a": "", "b": "2", "ü": "\0"}));
        assert!(Strings::default().is_empty());
    }

    #[test]
    fn fields_come_out_as_they_went_in() {
        let value = json!({"status": {"phase": "Running", "conditions": [{"type": "Ready"}]}});
        let fields = Fields::from(value.clone());
        assert_eq!(fields.value(), value);
        assert_eq!(fields.text("/status/phase").as_deref(), Some("Running"));
        assert_eq!((fields.text("/status"), Fields::default().value()), (None, json!({})));
    }
}
