//! Sets of field paths in the format of `managedFields`: `f:` is a field, `k:` a list element by its keys, and `v:` an
//! element of a set.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

/// A set of field paths, stored as a tree.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct FieldSet {
    /// Whether the set contains the path to this node itself.
    pub(crate) own: bool,
    pub(crate) children: BTreeMap<String, FieldSet>,
}

impl FieldSet {
    /// Reads a stored `FieldsV1`. Anything but an object gives an empty set.
    pub(crate) fn decode(value: &Value) -> Self {
        let mut set = Self::default();
        for (step, below) in value.as_object().into_iter().flatten() {
            if step == "." {
                set.own = true;
                continue;
            }
            let mut child = Self::decode(below);
            child.own |= below.as_object().is_none_or(Map::is_empty);
            set.children.insert(step.clone(), child);
        }
        set
    }

    /// Returns the set as a `FieldsV1`.
    pub(crate) fn encode(&self) -> Value {
        let mut map = Map::new();
        if self.own && !self.children.is_empty() {
            map.insert(".".into(), json!({}));
        }
        map.extend(self.children.iter().map(|(step, below)| (step.clone(), below.encode())));
        Value::Object(map)
    }

    pub(crate) fn is_empty(&self) -> bool {
        !self.own && self.children.values().all(Self::is_empty)
    }

    /// Returns the subset below a step, and creates it if it is missing.
    pub(crate) fn at(&mut self, step: String) -> &mut Self {
        self.children.entry(step).or_default()
    }

    /// Adds all paths of another set.
    pub(crate) fn union(&mut self, other: &Self) {
        self.own |= other.own;
        for (step, below) in &other.children {
            self.at(step.clone()).union(below);
        }
    }

    /// Removes the paths that the other set contains.
    pub(crate) fn subtract(&mut self, other: &Self) {
        self.own &= !other.own;
        for (step, below) in &mut self.children {
            if let Some(gone) = other.children.get(step) {
                below.subtract(gone);
            }
        }
        self.children.retain(|_, below| !below.is_empty());
    }

    /// Removes the paths that the other set contains or passes through, but not the paths below them.
    pub(crate) fn subtract_above(&mut self, other: &Self) {
        self.own &= other.is_empty();
        for (step, below) in &mut self.children {
            if let Some(wanted) = other.children.get(step) {
                below.subtract_above(wanted);
            }
        }
        self.children.retain(|_, below| !below.is_empty());
    }

    /// Removes the paths of the other set and every path below them.
    pub(crate) fn subtract_below(&mut self, other: &Self) {
        if other.own {
            *self = Self::default();
            return;
        }
        for (step, below) in &mut self.children {
            if let Some(gone) = other.children.get(step) {
                below.subtract_below(gone);
            }
        }
        self.children.retain(|_, below| !below.is_empty());
    }

    /// Returns the paths that both sets contain.
    pub(crate) fn intersection(&self, other: &Self) -> Self {
        let both = self.children.iter().filter_map(|(step, below)| {
            let shared = below.intersection(other.children.get(step)?);
            (!shared.is_empty()).then(|| (step.clone(), shared))
        });
        Self { own: self.own && other.own, children: both.collect() }
    }

    /// Removes a path and every path below it.
    pub(crate) fn drop_below(&mut self, path: &[&str]) {
        match path {
            [] => *self = Self::default(),
            [last] => drop(self.children.remove(*last)),
            [first, rest @ ..] => {
                if let Some(below) = self.children.get_mut(*first) {
                    below.drop_below(rest);
                    if below.is_empty() {
                        self.children.remove(*first);
                    }
                }
            }
        }
    }

    /// Returns the paths in readable form, such as `.spec.containers[name="c"].image`.
    pub(crate) fn paths(&self) -> Vec<String> {
        let mut all = Vec::new();
        self.collect("", &mut all);
        all
    }

    fn collect(&self, path: &str, all: &mut Vec<String>) {
        if self.own {
            all.push(path.to_owned());
        }
        for (step, below) in &self.children {
            below.collect(&format!("{path}{}", shown(step)), all);
        }
    }
}

fn shown(step: &str) -> String {
    match step.split_once(':') {
        Some(("f", name)) => format!(".{name}"),
        Some(("k", keys)) => {
            let keys: Map<String, Value> = serde_json::from_str(keys).unwrap_or_default();
            let keys = keys.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>();
            format!("[{}]", keys.join(","))
        }
        Some(("v", value)) => format!("[={value}]"),
        _ => format!("[{step}]"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_survives_being_stored_and_reads_like_a_path() {
        let stored = json!({"f:spec": {".": {}, "f:containers": {"k:{\"name\":\"c\"}": {".": {}, "f:image": {}}}}});
        let set = FieldSet::decode(&stored);
        assert_eq!(set.encode(), stored);
        assert_eq!(set.paths(), [".spec", ".spec.containers[name=\"c\"]", ".spec.containers[name=\"c\"].image"]);
    }

    #[test]
    fn sets_are_joined_cut_and_subtracted() {
        let one = FieldSet::decode(&json!({"f:a": {"f:b": {}, "f:c": {}}}));
        let other = FieldSet::decode(&json!({"f:a": {"f:c": {}, "f:d": {}}}));
        let mut both = one.clone();
        both.union(&other);
        assert_eq!(both.paths().len(), 3);
        assert_eq!(one.intersection(&other).paths(), [".a.c"]);
        both.subtract(&other);
        assert_eq!(both.paths(), [".a.b"]);
    }
}
