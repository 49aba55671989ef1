//! Canonical JSON and its digests: sorted keys, no nulls, numbers as written.

use serde_json::Value;
use sha2::{Digest, Sha256};

/// Returns the value as text. Equal values have equal texts.
pub fn canonical(value: &Value) -> String {
    let mut writer = Writer { text: String::new(), hole: None, place: None };
    writer.write(value);
    writer.text
}

/// Writes a value, except for the part at `hole`.
struct Writer<'a> {
    text: String,
    hole: Option<&'a Value>,
    place: Option<usize>,
}

impl Writer<'_> {
    fn write(&mut self, value: &Value) {
        if self.hole.is_some_and(|hole| std::ptr::eq(hole, value)) {
            self.place = Some(self.text.len());
            return;
        }
        match value {
            Value::Object(map) => {
                // A serde_json map is sorted or in insertion order, depending on the build. The canonical text is always sorted.
                let mut fields: Vec<_> = map.iter().filter(|(_, value)| !value.is_null()).collect();
                fields.sort_by_key(|(name, _)| *name);
                self.text.push('{');
                for (index, (name, value)) in fields.into_iter().enumerate() {
                    if index > 0 {
                        self.text.push(',');
                    }
                    self.text.push_str(&Value::from(name.as_str()).to_string());
                    self.text.push(':');
                    self.write(value);
                }
                self.text.push('}');
            }
            Value::Array(items) => {
                self.text.push('[');
                for (index, item) in items.iter().enumerate() {
                    if index > 0 {
                        self.text.push(',');
                    }
                    self.write(item);
                }
                self.text.push(']');
            }
            plain => self.text.push_str(&plain.to_string()),
        }
    }
}

/// Returns the first `digits` hexadecimal digits of the SHA-256 of the bytes.
pub fn digest(bytes: &[u8], digits: usize) -> String {
    hexadecimal(Sha256::new_with_prefix(bytes), digits)
}

fn hexadecimal(hash: Sha256, digits: usize) -> String {
    use std::fmt::Write as _;
    let mut text = String::with_capacity(64);
    for byte in hash.finalize() {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    text.truncate(digits);
    text
}

/// Revisions of values that differ only in one text. The shared parts are written and digested once.
#[derive(Clone, Debug)]
pub struct RevisionsAround {
    before: Sha256,
    after: String,
}

impl RevisionsAround {
    /// Prepares the revisions of `value` with another text at `pointer`. Returns `None` if `value` has nothing at `pointer`.
    pub fn new(value: &Value, pointer: &str) -> Option<Self> {
        let mut writer = Writer { text: String::new(), hole: value.pointer(pointer), place: None };
        writer.write(value);
        let after = writer.text.split_off(writer.place?);
        Some(Self { before: Sha256::new_with_prefix(&writer.text), after })
    }

    /// Returns the revision of the value with this text.
    pub fn with(&self, text: &str) -> String {
        let hash = self.before.clone().chain_update(canonical(&text.into())).chain_update(&self.after);
        hexadecimal(hash, REVISION_DIGITS)
    }
}

const REVISION_DIGITS: usize = 16;

/// Returns the revision of a value: 16 hexadecimal digits. Source: docs/jobflow.md 2.2.
pub fn revision(value: &Value) -> String {
    digest(canonical(value).as_bytes(), REVISION_DIGITS)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_revision_around_a_text_is_that_of_the_whole() {
        let of = |node: &str| json!({"spec": {"nodeName": node, "a": ["n", null], "z": {"y": "n"}}, "ttl": null});
        let around = RevisionsAround::new(&of("n"), "/spec/nodeName").unwrap();
        for node in ["n", "another", "a\"b", ""] {
            assert_eq!(around.with(node), revision(&of(node)));
        }
        assert!(RevisionsAround::new(&of("n"), "/spec/other").is_none());
    }

    #[test]
    fn equal_values_have_one_revision_whatever_the_order_of_their_fields() {
        let one = json!({"b": [1, {"x": null, "y": "z"}], "a": 1.50});
        let other = json!({"a": 1.50, "b": [1, {"y": "z"}], "c": null});
        assert_eq!(canonical(&one), r#"{"a":1.5,"b":[1,{"y":"z"}]}"#);
        assert_eq!(revision(&one), revision(&other));
        assert_ne!(revision(&one), revision(&json!({"a": 1.5, "b": [1, {"y": "z"}, null]})));
    }
}
