//! JSON as a client wrote it: with keys that are repeated, and with its numbers as text.
//!
//! A map keeps one value of a key, and a binary number not the decimals that were written, and both decide here.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{MapAccess, Visitor};
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

/// How deep a body may be. The deepest that means something has three levels.
const DEEPEST: usize = 16;

/// A value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Tree {
    Null,
    Flag(bool),
    /// As it is written.
    Number(String),
    Text(String),
    List(Vec<Tree>),
    /// In the order of writing.
    Fields(Vec<(String, Tree)>),
}

struct Pairs<'a>(Vec<(Cow<'a, str>, &'a RawValue)>);

impl<'de: 'a, 'a> Deserialize<'de> for Pairs<'a> {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OfMap;
        impl<'de> Visitor<'de> for OfMap {
            type Value = Pairs<'de>;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut pairs = Vec::new();
                while let Some(pair) = map.next_entry::<Key<'de>, &'de RawValue>()? {
                    pairs.push((pair.0.0, pair.1));
                }
                Ok(Pairs(pairs))
            }
        }
        deserializer.deserialize_map(OfMap)
    }
}

/// A key, which may have escapes.
#[derive(Deserialize)]
struct Key<'a>(#[serde(borrow)] Cow<'a, str>);

impl Tree {
    /// Reads a document.
    ///
    /// # Errors
    /// Why it is none, with the place in it where one is known.
    pub(super) fn read(bytes: &[u8]) -> Result<Self, String> {
        let raw: &RawValue = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        Self::of(raw, DEEPEST)
    }

    fn of(raw: &RawValue, depth: usize) -> Result<Self, String> {
        let text = raw.get();
        let Some(below) = depth.checked_sub(1) else {
            return Err(format!("it is nested deeper than {DEEPEST} levels"));
        };
        let words = |error: serde_json::Error| error.to_string();
        Ok(match text.as_bytes().first() {
            Some(b'{') => {
                let Pairs(pairs) = serde_json::from_str(text).map_err(words)?;
                let field = |(key, raw): (Cow<'_, str>, &RawValue)| Ok((key.into_owned(), Self::of(raw, below)?));
                Self::Fields(pairs.into_iter().map(field).collect::<Result<_, String>>()?)
            }
            Some(b'[') => {
                let items: Vec<&RawValue> = serde_json::from_str(text).map_err(words)?;
                Self::List(items.into_iter().map(|raw| Self::of(raw, below)).collect::<Result<_, _>>()?)
            }
            Some(b'"') => Self::Text(serde_json::from_str(text).map_err(words)?),
            Some(b't' | b'f') => Self::Flag(text == "true"),
            Some(b'n') => Self::Null,
            _ => Self::Number(text.to_owned()),
        })
    }

    /// True of what says nothing: Go clients send it for fields that they do not set.
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

    /// The whole number that it is.
    pub(super) fn whole(&self) -> Option<i64> {
        let Self::Number(text) = self else { return None };
        text.parse().ok()
    }

    /// The same with the keys of each object in their order, and the last of those that are repeated.
    pub(super) fn sorted(&self) -> Value {
        match self {
            Self::Null => Value::Null,
            Self::Flag(flag) => json!(flag),
            Self::Number(text) => json!({"number": text}),
            Self::Text(text) => json!(text),
            Self::List(items) => items.iter().map(Self::sorted).collect(),
            Self::Fields(fields) => {
                let mut fields: Vec<_> = fields.iter().collect();
                fields.sort_by(|(one, _), (other, _)| one.cmp(other));
                let fields = fields.into_iter().map(|(key, value)| (key.clone(), value.sorted()));
                Value::Object(fields.collect::<Map<_, _>>())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_that_are_repeated_and_numbers_are_kept_as_they_are_written() {
        let read = Tree::read(br#"{"a": 1.50, "\u0061": "x", "b": [true, null, {"c": 1e3}]}"#).unwrap();
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
        for text in ["", "{", "[1,]", "{} {}", "{\"a\": \"\\ud800\"}", "\u{feff}{}"] {
            assert!(Tree::read(text.as_bytes()).is_err(), "{text}");
        }
        assert!(Tree::read(&[b'"', 0xff, b'"']).is_err());
        let nested = format!("{}{}", "[".repeat(100), "]".repeat(100));
        assert!(Tree::read(nested.as_bytes()).unwrap_err().contains("deeper than 16"));
    }
}
