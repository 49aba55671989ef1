//! Compact forms of an object's labels, annotations and declared fields.
//!
//! A tree of five labels costs a kilobyte. Four pod conditions as a JSON tree cost four kilobytes. With 20,000 pods in memory, this would be most of
//! the host's memory budget. Nothing is lost.

use std::collections::BTreeMap;

use oarlock_contract::proposal::NODE_NAME;
use serde::{Serialize, Serializer};
use serde_json::{Map, Value, json};

/// A map of strings in one text, sorted by key. It suits a few entries, because a lookup walks all entries.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct Strings {
    text: Box<str>,
    /// End of each key and value in the text, alternating.
    ends: Box<[u32]>,
}

impl Strings {
    /// Returns the value of `key`.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.iter().find(|(k, _)| *k == key).map(|(_, value)| value)
    }

    /// Returns true if `key` has a value.
    pub fn contains_key(&self, key: &str) -> bool {
        self.get(key).is_some()
    }

    /// Returns true if the map has no entries.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Returns the number of entries.
    pub fn len(&self) -> usize {
        self.ends.len() / 2
    }

    /// Returns the bytes that the map takes.
    pub fn bytes(&self) -> usize {
        self.text.len().saturating_add(size_of_val(&*self.ends))
    }

    /// Returns all entries, sorted by key.
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

    /// Returns all keys, sorted.
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
            // An object has at most 256 KiB of annotations, and fewer labels.
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

/// The declared fields of an object as JSON text, at their paths in the document.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Fields(Box<str>);

impl Default for Fields {
    fn default() -> Self {
        Self("{}".into())
    }
}

impl Fields {
    /// Returns the bytes of the text.
    pub const fn bytes(&self) -> usize {
        self.0.len()
    }

    /// Returns the fields as a JSON document.
    pub fn value(&self) -> Value {
        // The text was written from a JSON value, so it parses.
        serde_json::from_str(&self.0).unwrap_or_default()
    }

    /// Returns the fields without lists and long texts, which may be large. If the rest is longer than `most` bytes, returns only the node of a pod.
    #[must_use]
    pub fn short(&self, most: usize) -> Self {
        let short = short(self.value()).unwrap_or_else(|| Value::Object(Map::new()));
        let all = Self::from(short);
        if all.bytes() <= most {
            return all;
        }
        all.text(NODE_NAME).map(|node| Self::from(json!({"spec": {"nodeName": node}}))).unwrap_or_default()
    }

    /// Returns the string at `pointer`.
    pub fn text(&self, pointer: &str) -> Option<String> {
        match self.value().pointer_mut(pointer).map(Value::take) {
            Some(Value::String(text)) => Some(text),
            _ => None,
        }
    }
}

/// The most bytes of a text that [`Fields::short`] keeps. Names have at most 253 bytes.
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
