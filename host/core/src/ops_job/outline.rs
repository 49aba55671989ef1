//! Reads type, workload and workspace of a body before anything else in it. Source: docs/opsjob-rest.md 4.
//!
//! A caller without permissions in the whole cluster may have permissions in one namespace, and the body names this namespace. So the reader goes as
//! far as it can, even if the body is cut or invalid elsewhere. It judges nothing. The create decision checks all permissions for the whole body.

use std::borrow::Cow;
use std::cell::RefCell;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use crate::object::key::is_object_name;
use crate::ops_job::access::Access;
use crate::ops_job::body::BodyBounds;
use crate::ops_job::json_tree::{Budget, Key, Tree, without_mark};
use crate::ops_job::spec::OpsType;
use crate::ops_job::workload::WorkloadName;

/// The most levels of an input.
const INPUT: usize = 2;

/// The parts of a body that decide which permissions its sender needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outline {
    /// The type, if the body has a valid type.
    pub kind: Option<OpsType>,
    /// The first workspace of the body.
    workspace: Option<String>,
    /// The namespace of the first workload that is named in full.
    namespace: Option<String>,
}

impl Outline {
    /// Reads the outline of a body, within these limits.
    pub fn read(bytes: &[u8], bounds: BodyBounds) -> Self {
        let bytes = without_mark(bytes.get(..bounds.bytes).unwrap_or(bytes));
        let (outline, budget) = (RefCell::default(), Budget::of(bounds.values));
        let whole = Whole { outline: &outline, budget: &budget };
        // Only a caller with permissions learns about errors in the rest of the body.
        let _whole_or_not = whole.deserialize(&mut serde_json::Deserializer::from_slice(bytes));
        outline.into_inner()
    }

    /// Returns the namespace in which the caller needs permissions.
    pub fn place(&self) -> Option<&str> {
        let place = match self.kind {
            Some(kind) if kind.is_for_nodes() => self.workspace.as_deref(),
            Some(_) => self.namespace.as_deref(),
            None => self.workspace.as_deref().or(self.namespace.as_deref()),
        };
        place.filter(|place| place.len() <= 63 && is_object_name(place) && !place.contains('.'))
    }

    /// Returns the types of which the caller needs the permission for at least one.
    pub fn types(&self) -> Vec<OpsType> {
        self.kind.map_or_else(|| OpsType::ALL.to_vec(), |kind| vec![kind])
    }

    /// Returns the permission to name to a caller who has none, neither in the whole cluster nor in the namespace.
    pub fn denied(&self, has_base: bool) -> Access {
        let subresource = self.kind.filter(|_| has_base).map_or("", OpsType::word);
        Access::to_ops_jobs("create", subresource)
    }

    fn input(&mut self, raw: &RawValue, budget: &Budget) {
        let Ok(Tree::Fields(fields)) = Tree::of(raw, INPUT, budget) else { return };
        let of = |name: &str| {
            let found = fields.iter().rev().find(|(key, _)| key.eq_ignore_ascii_case(name));
            found.and_then(|(_, value)| if let Tree::Text(text) = value { Some(text.as_str()) } else { None })
        };
        let (Some(name), Some(value)) = (of("name"), of("value")) else { return };
        match name.trim().to_ascii_lowercase().as_str() {
            "workspace" => self.workspace = self.workspace.take().or_else(|| Some(value.to_owned())),
            "workload" | "workloadid" => {
                let namespace = || WorkloadName::read(value).map(|own| own.namespace);
                self.namespace = self.namespace.take().or_else(namespace);
            }
            _ => {}
        }
    }
}

/// Reads a body as a stream.
#[derive(Clone, Copy)]
struct Whole<'a> {
    outline: &'a RefCell<Outline>,
    budget: &'a Budget,
}

impl Whole<'_> {
    /// Counts a value. Returns an error that ends the reading if the value exceeds the budget.
    fn count<E: serde::de::Error>(&self) -> Result<(), E> {
        if self.budget.take() { Ok(()) } else { Err(E::custom("too many values")) }
    }
}

impl<'de> DeserializeSeed<'de> for Whole<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Whole<'_> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(Key(key)) = map.next_key::<Key<'de>>()? {
            self.count()?;
            match key.to_ascii_lowercase().as_str() {
                "type" => {
                    let word: Option<Text<'de>> = map.next_value_seed(OneText)?;
                    let kind = word.and_then(|word| OpsType::read(&word.0));
                    let mut outline = self.outline.borrow_mut();
                    outline.kind = kind.or(outline.kind);
                }
                "workspaceid" => {
                    let word: Option<Text<'de>> = map.next_value_seed(OneText)?;
                    let word = word.map(|word| word.0.into_owned()).filter(|word| !word.is_empty());
                    let mut outline = self.outline.borrow_mut();
                    outline.workspace = outline.workspace.take().or(word);
                }
                "inputs" => map.next_value_seed(InputsVisitor(self))?,
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(())
    }
}

struct Text<'a>(Cow<'a, str>);

/// Reads a text. Any other value counts as absent.
struct OneText;

impl<'de> DeserializeSeed<'de> for OneText {
    type Value = Option<Text<'de>>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        let raw: &'de RawValue = serde::Deserialize::deserialize(deserializer)?;
        Ok(serde_json::from_str::<Key<'de>>(raw.get()).ok().map(|key| Text(key.0)))
    }
}

/// Reads the inputs one by one.
struct InputsVisitor<'a>(Whole<'a>);

impl<'de> DeserializeSeed<'de> for InputsVisitor<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for InputsVisitor<'_> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        while let Some(raw) = list.next_element::<&'de RawValue>()? {
            self.0.count()?;
            self.0.outline.borrow_mut().input(raw, self.0.budget);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Outline {
        Outline::read(text.as_bytes(), BodyBounds::OTHERS)
    }

    const REBOOT: &str =
        r#"{"type": "reboot", "inputs": [{"name": "node", "value": "n"}, {"name": "Workspace ", "value": "team"}], "#;

    #[test]
    fn type_and_place_of_a_body_are_read_whatever_else_is_in_it() {
        for rest in
            ["\"name\": \"a\"}", "\"a\": [0, {}]}", "", "\"type\": 7}", "\"type\": \"prewarm\"}", "\u{1}", "\"x\": [1,"]
        {
            let outline = read(&format!("{REBOOT}{rest}"));
            assert_eq!((outline.kind, outline.place()), (Some(OpsType::Reboot), Some("team")), "{rest}");
        }
        let long = format!("{REBOOT}\"a\": \"{}\"}}", "x".repeat(200_000));
        assert_eq!(read(&long).place(), Some("team"), "it is cut off");
        let wide = format!("{REBOOT}\"inputs\": [{}0]}}", "0,".repeat(10_000));
        assert_eq!(read(&wide).place(), Some("team"), "it has more values than are read");
        let marked = format!("\u{feff}{REBOOT}\"INPUTS\": 0}}");
        assert_eq!(read(&marked).place(), Some("team"));
    }

    #[test]
    fn a_job_on_pods_needs_rights_where_its_workload_is_and_one_on_nodes_in_its_workspace() {
        let inputs =
            r#""inputs": [{"name": "workspace", "value": "team"}, {"name": "workload", "value": "apps/deploy/web"}]"#;
        for (kind, place) in [("dumplog", "apps"), ("exportimage", "apps"), ("reboot", "team"), ("nothing", "team")] {
            assert_eq!(read(&format!(r#"{{"type": "{kind}", {inputs}}}"#)).place(), Some(place), "{kind}");
            assert_eq!(read(&format!(r#"{{{inputs}, "type": "{kind}"}}"#)).place(), Some(place), "{kind}");
        }
        assert_eq!(read(r#"{"workspaceId": "team", "type": "preflight"}"#).place(), Some("team"));
    }

    #[test]
    fn what_names_no_namespace_has_no_place() {
        for text in [
            "",
            "[]",
            "null",
            "{",
            r#"{"type": "dumplog", "inputs": [{"name": "workload", "value": "web"}]}"#,
            r#"{"type": "reboot", "inputs": [{"name": "workspace", "value": "A b"}]}"#,
            r#"{"type": "reboot", "inputs": [{"name": "workspace", "value": ["team"]}]}"#,
            r#"{"type": "reboot", "inputs": {"name": "workspace", "value": "team"}}"#,
            r#"{"type": "reboot", "inputs": [{"name": "workspace", "value": {"a": {"b": {"c": 1}}}}]}"#,
        ] {
            assert_eq!(read(text).place(), None, "{text}");
        }
    }
}
