//! JSON as a client wrote it, with repeated keys and with numbers as text.
//!
//! A map would keep only one value of a repeated key, and a binary number would not keep the decimals. Both matter for a request body.

use std::borrow::Cow;
use std::cell::Cell;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, de};
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};

/// The most levels of a body. The deepest valid body has three levels.
pub(super) const DEEPEST: usize = 16;
/// The byte order mark that some editors put before a UTF-8 text.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// A JSON value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Tree {
    Null,
    Flag(bool),
    /// A number, as written.
    Number(String),
    Text(String),
    List(Vec<Tree>),
    /// An object, in the order of writing.
    Fields(Vec<(String, Tree)>),
}

/// The reason why a text cannot be read as a tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NoTree {
    /// The text is not a JSON document. The message names the position if it is known.
    Malformed(String),
    /// The document has more values than allowed.
    TooManyValues,
}

/// The number of values that may still be read.
pub(super) struct Budget(Cell<usize>);

impl Budget {
    pub(super) fn of(values: usize) -> Self {
        Self(Cell::new(values))
    }

    /// Counts a value. Returns false if the value exceeds the budget.
    pub(super) fn take(&self) -> bool {
        let left = self.0.get().checked_sub(1);
        self.0.set(left.unwrap_or(0));
        left.is_some()
    }
}

/// Returns a document without its byte order mark.
pub(super) fn without_mark(bytes: &[u8]) -> &[u8] {
    bytes.strip_prefix(BYTE_ORDER_MARK).unwrap_or(bytes)
}

/// A key, which may contain escapes.
#[derive(Deserialize)]
pub(super) struct Key<'a>(#[serde(borrow)] pub(super) Cow<'a, str>);

/// Reads the parts of a list or object one by one, so that values beyond the budget are not kept.
struct Parts<'b> {
    budget: &'b Budget,
    /// The most levels below this list or object.
    below: usize,
    failed: &'b Cell<Option<NoTree>>,
}

impl Parts<'_> {
    fn part<E: de::Error>(&self, raw: &RawValue) -> Result<Tree, E> {
        Tree::of(raw, self.below, self.budget).map_err(|failed| {
            let error = E::custom("");
            self.failed.set(Some(failed));
            error
        })
    }
}

impl<'de> DeserializeSeed<'de> for Parts<'_> {
    type Value = Tree;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Tree, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Parts<'_> {
    type Value = Tree;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a list or an object")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Tree, A::Error> {
        let mut items = Vec::new();
        while let Some(raw) = list.next_element::<&'de RawValue>()? {
            items.push(self.part(raw)?);
        }
        Ok(Tree::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Tree, A::Error> {
        let mut fields = Vec::new();
        while let Some((key, raw)) = map.next_entry::<Key<'de>, &'de RawValue>()? {
            fields.push((key.0.into_owned(), self.part(raw)?));
        }
        Ok(Tree::Fields(fields))
    }
}

impl Tree {
    /// Reads a document with at most this number of values.
    ///
    /// # Errors
    /// If the bytes are not JSON, are nested too deep, or have too many values.
    pub(super) fn read(bytes: &[u8], values: usize) -> Result<Self, NoTree> {
        let malformed = |error: serde_json::Error| NoTree::Malformed(error.to_string());
        let raw: &RawValue = serde_json::from_slice(without_mark(bytes)).map_err(malformed)?;
        Self::of(raw, DEEPEST, &Budget::of(values))
    }

    /// Reads a value with at most this number of levels.
    pub(super) fn of(raw: &RawValue, depth: usize, budget: &Budget) -> Result<Self, NoTree> {
        let text = raw.get();
        let Some(below) = depth.checked_sub(1) else {
            return Err(NoTree::Malformed(format!("it is nested deeper than {DEEPEST} levels")));
        };
        if !budget.take() {
            return Err(NoTree::TooManyValues);
        }
        let malformed = |error: serde_json::Error| NoTree::Malformed(error.to_string());
        Ok(match text.as_bytes().first() {
            Some(b'{' | b'[') => {
                let failed = Cell::new(None);
                let parts = Parts { budget, below, failed: &failed };
                let read = parts.deserialize(&mut serde_json::Deserializer::from_str(text));
                read.map_err(|error| failed.take().unwrap_or_else(|| malformed(error)))?
            }
            Some(b'"') => Self::Text(serde_json::from_str(text).map_err(malformed)?),
            Some(b't' | b'f') => Self::Flag(text == "true"),
            Some(b'n') => Self::Null,
            _ => Self::Number(text.to_owned()),
        })
    }

    /// Returns true for an empty or zero value. Go clients send such values for fields that they do not set.
    pub(super) fn is_zero(&self) -> bool {
        match self {
            Self::Null | Self::Flag(false) => true,
            Self::Flag(true) => false,
            Self::Number(text) => text.bytes().all(|byte| matches!(byte, b'0' | b'.' | b'-')),
            Self::Text(text) => text.is_empty(),
            Self::List(items) => items.is_empty(),
            Self::Fields(fields) => fields.is_empty(),
        }
    }

    /// Returns the whole number, if the value is one.
    pub(super) fn whole(&self) -> Option<i64> {
        let Self::Number(text) = self else { return None };
        text.parse().ok()
    }

    /// Returns the SHA-256 of the content, in hexadecimal digits. The order of keys does not matter, and the last value of a repeated key counts.
    ///
    /// The digest is that of a document in which each number is an object with the number's text. Stored jobs keep the digest for their key, so its
    /// form must not change.
    pub(super) fn digest(&self) -> String {
        let mut digest = Sha256::new();
        self.add_to(&mut digest);
        digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn add_to(&self, digest: &mut Sha256) {
        match self {
            Self::Null => digest.update("null"),
            Self::Flag(flag) => digest.update(if *flag { "true" } else { "false" }),
            Self::Number(text) => {
                digest.update("{\"number\":");
                add_text(text, digest);
                digest.update("}");
            }
            Self::Text(text) => add_text(text, digest),
            Self::List(items) => {
                digest.update("[");
                for (index, item) in items.iter().enumerate() {
                    digest.update(if index == 0 { "" } else { "," });
                    item.add_to(digest);
                }
                digest.update("]");
            }
            Self::Fields(fields) => {
                let mut fields: Vec<&(String, Self)> = fields.iter().collect();
                fields.sort_by(|(one, _), (other, _)| one.cmp(other));
                digest.update("{");
                for (index, same) in fields.chunk_by(|(one, _), (other, _)| one == other).enumerate() {
                    let Some((key, last)) = same.last() else { continue };
                    digest.update(if index == 0 { "" } else { "," });
                    add_text(key, digest);
                    digest.update(":");
                    last.add_to(digest);
                }
                digest.update("}");
            }
        }
    }
}

/// Adds a text in its JSON form.
fn add_text(text: &str, digest: &mut Sha256) {
    // Writing to a digest cannot fail.
    let _never_fails = serde_json::to_writer(digest, text);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_that_are_repeated_and_numbers_are_kept_as_they_are_written() {
        let read = Tree::read(br#"{"a": 1.50, "\u0061": "x", "b": [true, null, {"c": 1e3}]}"#, 100).unwrap();
        let number = |text: &str| Tree::Number(text.to_owned());
        let Tree::Fields(fields) = &read else { panic!("{read:?}") };
        assert_eq!(fields[0], ("a".to_owned(), number("1.50")));
        assert_eq!(fields[1], ("a".to_owned(), Tree::Text("x".to_owned())));
        let deep = Tree::Fields(vec![("c".to_owned(), number("1e3"))]);
        assert_eq!(fields[2].1, Tree::List(vec![Tree::Flag(true), Tree::Null, deep]));
        assert_eq!(number("5.0").whole(), None);
    }

    #[test]
    fn what_is_no_document_is_told() {
        for text in ["", "{", "[1,]", "{} {}", "{\"a\": \"\\ud800\"}", "\u{feff}\u{feff}{}", "\u{feff}"] {
            assert!(matches!(read(text), Err(NoTree::Malformed(_))), "{text}");
        }
        assert!(Tree::read(&[b'"', 0xff, b'"'], 100).is_err());
        let nested = format!("{}{}", "[".repeat(100), "]".repeat(100));
        let Err(NoTree::Malformed(why)) = read(&nested) else { panic!("{nested}") };
        assert!(why.contains("deeper than 16"), "{why}");
    }

    fn read(text: &str) -> Result<Tree, NoTree> {
        Tree::read(text.as_bytes(), 100)
    }

    #[test]
    fn a_byte_order_mark_says_nothing() {
        assert_eq!(read("\u{feff} {\"a\": 1}"), read("{\"a\": 1}"));
    }

    #[test]
    fn each_value_counts_wherever_it_is_and_one_too_many_is_not_read() {
        let seven = r#"{"a": [1, 2], "b": {"c": [], "d": null}}"#;
        assert!(Tree::read(seven.as_bytes(), 7).is_ok());
        assert_eq!(Tree::read(seven.as_bytes(), 6), Err(NoTree::TooManyValues));
        for wide in [format!("[{}0]", "0,".repeat(1_000_000)), format!("{{{}\"a\":0}}", "\"a\":0,".repeat(300_000))] {
            assert_eq!(Tree::read(wide.as_bytes(), 2_000), Err(NoTree::TooManyValues));
        }
    }

    /// Returns the digest in its first implementation. Stored jobs have such digests.
    fn digest_of_old(tree: &Tree) -> String {
        fn sorted(tree: &Tree) -> serde_json::Value {
            match tree {
                Tree::Null => serde_json::Value::Null,
                Tree::Flag(flag) => serde_json::json!(flag),
                Tree::Number(text) => serde_json::json!({"number": text}),
                Tree::Text(text) => serde_json::json!(text),
                Tree::List(items) => items.iter().map(sorted).collect(),
                Tree::Fields(fields) => {
                    let mut fields: Vec<_> = fields.iter().collect();
                    fields.sort_by(|(one, _), (other, _)| one.cmp(other));
                    let fields = fields.into_iter().map(|(key, value)| (key.clone(), sorted(value)));
                    serde_json::Value::Object(fields.collect())
                }
            }
        }
        crate::requests::scripts::sha256(&sorted(tree).to_string())
    }

    #[test]
    fn a_digest_is_the_one_that_stored_jobs_have() {
        for text in [
            "null",
            "[]",
            "{}",
            "[1, 2.50, -0, 1e3, true, false, null, \"\"]",
            r#"{"b": 1, "a": {"d": [], "c": [[], {}]}, "b": "x", "": 0, "b": null}"#,
            r#"{"\u0000\u001f\"\\/\n\u00e4\ud83d\ude00": "\u0000\u001f\"\\/\n\t\u007f\u2028\u00e4\ud83d\ude00"}"#,
        ] {
            let tree = read(text).unwrap();
            assert_eq!(tree.digest(), digest_of_old(&tree), "{text}");
        }
    }
}
