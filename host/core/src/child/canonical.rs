//! Canonical JSON and digests of it: sorted keys, nulls dropped, numbers as written.

use serde_json::Value;
use sha2::{Digest, Sha256};

/// The value as text that is the same for equal values.
pub fn canonical(value: &Value) -> String {
    let mut text = String::new();
    write(value, &mut text);
    text
}

fn write(value: &Value, text: &mut String) {
    match value {
        Value::Object(map) => {
            // The map is sorted or in order of insertion, as serde_json is built: here it is always sorted.
            let mut fields: Vec<_> = map.iter().filter(|(_, value)| !value.is_null()).collect();
            fields.sort_by_key(|(name, _)| *name);
            text.push('{');
            for (index, (name, value)) in fields.into_iter().enumerate() {
                if index > 0 {
                    text.push(',');
                }
                text.push_str(&Value::from(name.as_str()).to_string());
                text.push(':');
                write(value, text);
            }
            text.push('}');
        }
        Value::Array(items) => {
            text.push('[');
            for (index, item) in items.iter().enumerate() {
                if index > 0 {
                    text.push(',');
                }
                write(item, text);
            }
            text.push(']');
        }
        plain => text.push_str(&plain.to_string()),
    }
}

/// The first `digits` hexadecimal digits of the SHA-256 of the bytes.
pub fn digest(bytes: &[u8], digits: usize) -> String {
    use std::fmt::Write as _;
    let mut text = String::with_capacity(64);
    for byte in Sha256::digest(bytes) {
        // Writing to a text cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    text.truncate(digits);
    text
}

/// The revision of a value: 16 hexadecimal digits. Source: docs/jobflow.md 2.2.
pub fn revision(value: &Value) -> String {
    digest(canonical(value).as_bytes(), 16)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn equal_values_have_one_revision_whatever_the_order_of_their_fields() {
        let one = json!({"b": [1, {"x": null, "y": "z"}], "a": 1.50});
        let other = json!({"a": 1.50, "b": [1, {"y": "z"}], "c": null});
        assert_eq!(canonical(&one), r#"{"a":1.5,"b":[1,{"y":"z"}]}"#);
        assert_eq!(revision(&one), revision(&other));
        assert_ne!(revision(&one), revision(&json!({"a": 1.5, "b": [1, {"y": "z"}, null]})));
    }
}
