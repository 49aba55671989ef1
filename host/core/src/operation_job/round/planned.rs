//! The changes that a plugin would make first to a target, and the later changes that its grant allows: as data, and as
//! one line for people.
//!
//! Takes the mutations of one proposal, and the manifest and grant of its plugin; yields a [`Planned`]. May not judge
//! the changes, because they were authorized before. Source: docs/operationjob.md 3.14.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::object::api_object::Kind;
use crate::plugin::grant::{Grant, Verb, WriteRule, covers};
use crate::plugin::manifest::Manifest;
use crate::plugin::proposal::{MetadataChange, Mutation, TaintChange};

/// Most bytes of the line that a target stores under `Plan`.
pub const MOST_BYTES: usize = 1024;

/// Most characters of a value that the line shows.
const VALUE_CHARS: usize = 64;
/// Bytes that the line keeps for text such as `and 64 more`.
const MORE_BYTES: usize = 16;

/// One change that a proposal asks for.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PlannedChange {
    /// The change: `evict`, `patch` (also of metadata), `create`, `delete`, `cordon`, `uncordon`, `taint`, `untaint`,
    /// `drain` or `begin task`. A mutation that this host does not carry out has its own word.
    pub verb: String,
    /// `apiVersion` of the object; empty if the mutation names none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub api_version: String,
    /// `kind` of the object; empty if the mutation names none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub kind: String,
    /// Name of the object; empty if the mutation names none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Parts of the change, as in `labels a=b, c-; finalizers f`. A `-` at the end of a part means removal. Empty if
    /// the verb says all.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub what: String,
}

/// One kind of change that the manifest and the grant allow.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PossibleChange {
    /// The verb, as in [`PlannedChange`]; `cordon/uncordon` if either may come.
    pub verb: String,
    /// `apiVersion` of the objects; a pattern may end in `*`.
    pub api_version: String,
    /// `kind` of the objects; a pattern may end in `*`.
    pub kind: String,
    /// The parts that may be changed, as in `labels a; finalizers b*`. Empty if the verb says all.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub what: String,
}

/// The plan of a plugin for one target.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Planned {
    /// The steps before the first change, in order, such as `begin the PodOpsLifecycle`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub before: Vec<String>,
    /// The first changes, exactly and in order.
    pub first: Vec<PlannedChange>,
    /// The reason why there is no first change; empty if there is one.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub waits: String,
    /// The changes that the plugin may make later, in the order of its manifest.
    pub possible: Vec<PossibleChange>,
}

impl Planned {
    /// Returns the plan of `mutations`, in order, and of the later changes that `manifest` asks for and `grant` allows.
    pub fn of<'a>(mutations: impl IntoIterator<Item = &'a Mutation>, manifest: &Manifest, grant: &Grant) -> Self {
        Self {
            first: mutations.into_iter().map(PlannedChange::of).collect(),
            possible: possible(manifest, grant),
            ..Self::default()
        }
    }

    /// Returns the plan in one line of at most `most` bytes, such as
    /// `evict pod web-1; then possible: patch pods (labels a)`.
    pub fn line(&self, most: usize) -> String {
        let first = self.first.iter().map(PlannedChange::describe);
        let waits = self.first.is_empty().then(|| format!("nothing at first: {}", self.waits));
        let now: Vec<String> = self.before.iter().cloned().chain(first).chain(waits).collect();
        let mut line = listed(&now, ", then ", most);
        let later: Vec<String> = self.possible.iter().map(PossibleChange::describe).collect();
        let head = "; then possible: ";
        let room = most.saturating_sub(line.len()).saturating_sub(head.len());
        if !later.is_empty() && room > MORE_BYTES {
            line = format!("{line}{head}{}", listed(&later, ", ", room));
        }
        line
    }
}

impl PlannedChange {
    /// Returns the change that a mutation asks for.
    pub fn of(mutation: &Mutation) -> Self {
        let text = |body: &Value, pointer: &str| printable(body.pointer(pointer).and_then(Value::as_str).unwrap_or(""));
        let (verb, what) = match mutation {
            Mutation::Metadata(change) => ("patch", metadata(change)),
            Mutation::Patch { subresource, patch, .. } => ("patch", fields(subresource.as_deref(), patch)),
            Mutation::Evict { grace_seconds, .. } => ("evict", grace(*grace_seconds)),
            Mutation::Delete { grace_seconds, propagation, .. } => {
                let grace = Some(grace(*grace_seconds)).filter(|grace| !grace.is_empty());
                let propagation = propagation.as_ref().map(|word| format!("propagation {word}"));
                ("delete", grace.into_iter().chain(propagation).collect::<Vec<_>>().join("; "))
            }
            Mutation::Create(body) => {
                let (api_version, kind) = (text(body, "/apiVersion"), text(body, "/kind"));
                let (verb, what) = ("create".to_owned(), String::new());
                return Self { verb, api_version, kind, name: text(body, "/metadata/name"), what };
            }
            Mutation::Schedulable { node, schedulable } => {
                return Self::of_node(if *schedulable { "uncordon" } else { "cordon" }, node, String::new());
            }
            Mutation::Taint(TaintChange { node, key, value, effect, present }) => {
                let value = if value.is_empty() { String::new() } else { format!("={}", printable(value)) };
                let what = format!("{}{value}:{}", printable(key), printable(effect));
                return Self::of_node(if *present { "taint" } else { "untaint" }, node, what);
            }
            Mutation::Drain(drain) => return Self::of_node("drain", &drain.node, grace(drain.grace_seconds)),
            Mutation::Task(task) => {
                let (verb, what) = ("begin task".to_owned(), printable(&task.kind));
                let (api_version, kind) = (String::new(), String::new());
                return Self { verb, api_version, kind, name: printable(&task.name), what };
            }
            Mutation::Other { verb } => (verb.as_str(), "cannot be tried".to_owned()),
        };
        let key = mutation.object().map(|object| &object.key);
        Self {
            verb: printable(verb),
            api_version: key.map(|key| printable(&key.kind.api_version)).unwrap_or_default(),
            kind: key.map(|key| printable(&key.kind.kind)).unwrap_or_default(),
            name: key.map(|key| printable(&key.name)).unwrap_or_default(),
            what,
        }
    }

    fn of_node(verb: &str, name: &str, what: String) -> Self {
        let Kind { api_version, kind } = Kind::node();
        Self { verb: verb.to_owned(), api_version, kind, name: printable(name), what }
    }

    /// Returns the change in words, such as `patch pod web-1 (labels a=b)`.
    pub fn describe(&self) -> String {
        let parts = [self.verb.clone(), self.kind.to_lowercase(), self.name.clone()];
        let parts: Vec<String> = parts.into_iter().filter(|part| !part.is_empty()).collect();
        with_parts(&parts.join(" "), &self.what)
    }
}

impl PossibleChange {
    /// Returns the change in words, such as `patch pods (labels a)`.
    pub fn describe(&self) -> String {
        with_parts(&format!("{} {}", self.verb, plural(&self.kind.to_lowercase())), &self.what)
    }
}

/// Returns the rules of the manifest, with the parts of them that are granted.
fn possible(manifest: &Manifest, grant: &Grant) -> Vec<PossibleChange> {
    let mut found: Vec<PossibleChange> = Vec::new();
    for asked in &manifest.writes {
        let same = |rule: &&WriteRule| {
            rule.verb == asked.verb && covers(&rule.api_version, &asked.api_version) && covers(&rule.kind, &asked.kind)
        };
        let rules: Vec<&WriteRule> = grant.writes.iter().filter(same).collect();
        if rules.is_empty() {
            continue;
        }
        let granted = |of: fn(&WriteRule) -> &Vec<String>| {
            let allowed = |key: &&String| rules.iter().any(|rule| of(rule).iter().any(|pattern| covers(pattern, key)));
            of(asked).iter().filter(allowed).map(|key| printable(key)).collect::<Vec<_>>()
        };
        let parts = [
            ("labels", granted(|rule| &rule.labels)),
            ("annotations", granted(|rule| &rule.annotations)),
            ("finalizers", granted(|rule| &rule.finalizers)),
            ("subresources", granted(|rule| &rule.subresources)),
        ];
        let change = PossibleChange {
            verb: verb(asked.verb).to_owned(),
            api_version: printable(&asked.api_version),
            kind: printable(&asked.kind),
            what: listed_parts(&parts),
        };
        // A change of metadata without a granted key is no change.
        if !found.contains(&change) && (asked.verb != Verb::Metadata || !change.what.is_empty()) {
            found.push(change);
        }
    }
    found
}

/// Returns the verb as people know it. A change of metadata is a patch, and a change of whether a node is schedulable
/// is a cordon or uncordon.
fn verb(verb: Verb) -> &'static str {
    match verb {
        Verb::Metadata => "patch",
        Verb::Schedulable => "cordon/uncordon",
        _ => verb.word(),
    }
}

fn metadata(change: &MetadataChange) -> String {
    let pairs = |set: &[(String, String)], removed: &[String]| -> Vec<String> {
        let set = set.iter().map(|(key, value)| format!("{}={}", printable(key), short(value)));
        set.chain(removed.iter().map(|key| format!("{}-", printable(key)))).collect()
    };
    let added = change.add_finalizers.iter().map(|name| printable(name));
    let finalizers = added.chain(change.remove_finalizers.iter().map(|name| format!("{}-", printable(name))));
    listed_parts(&[
        ("labels", pairs(&change.set_labels, &change.remove_labels)),
        ("annotations", pairs(&change.set_annotations, &change.remove_annotations)),
        ("finalizers", finalizers.collect()),
    ])
}

/// Returns the fields that a merge patch sets, and the fields that it removes.
fn fields(subresource: Option<&str>, patch: &Value) -> String {
    let mut changed = Vec::new();
    leaves(patch, "", &mut changed);
    listed_parts(&[("subresource", subresource.map(printable).into_iter().collect()), ("fields", changed)])
}

fn leaves(patch: &Value, at: &str, into: &mut Vec<String>) {
    match patch.as_object() {
        Some(map) if !map.is_empty() => {
            map.iter().for_each(|(key, value)| leaves(value, &format!("{at}/{}", printable(key)), into));
        }
        _ if patch.is_null() => into.push(format!("{at}-")),
        _ => into.push(format!("{at}={}", short(&patch.to_string()))),
    }
}

fn grace(seconds: Option<u32>) -> String {
    seconds.map(|seconds| format!("grace period {seconds} s")).unwrap_or_default()
}

/// Returns the parts that have entries, as in `labels a, b; finalizers c`.
fn listed_parts(parts: &[(&str, Vec<String>)]) -> String {
    let parts = parts.iter().filter(|(_, entries)| !entries.is_empty());
    parts.map(|(name, entries)| format!("{name} {}", entries.join(", "))).collect::<Vec<_>>().join("; ")
}

fn with_parts(words: &str, what: &str) -> String {
    if what.is_empty() { words.to_owned() } else { format!("{words} ({what})") }
}

/// Returns the entries in one line of at most `most` bytes. Entries that do not fit are counted. A single entry that is
/// too long is cut.
fn listed(entries: &[String], between: &str, most: usize) -> String {
    let mut line = String::new();
    for (at, entry) in entries.iter().enumerate() {
        let between = if at == 0 { "" } else { between };
        let left = entries.len().saturating_sub(at);
        let kept = if left > 1 { MORE_BYTES } else { 0 };
        if line.len() + between.len() + entry.len() + kept <= most {
            line = format!("{line}{between}{entry}");
            continue;
        }
        return match at {
            0 if left > 1 => {
                let room = most.saturating_sub(MORE_BYTES);
                format!("{} and {} more", cut_bytes(entry, room), left.saturating_sub(1))
            }
            0 => cut_bytes(entry, most),
            _ => format!("{line} and {left} more"),
        };
    }
    line
}

/// Returns the text cut to `most` bytes, with an ellipsis if something is left out.
fn cut_bytes(text: &str, most: usize) -> String {
    const ELLIPSIS: char = '…';
    if text.len() <= most {
        return text.to_owned();
    }
    let room = most.saturating_sub(ELLIPSIS.len_utf8());
    let end = text.char_indices().map(|(at, c)| at + c.len_utf8()).take_while(|end| *end <= room).last().unwrap_or(0);
    format!("{}{ELLIPSIS}", text.get(..end).unwrap_or_default())
}

fn short(value: &str) -> String {
    let shown = printable(value);
    match shown.char_indices().nth(VALUE_CHARS) {
        Some((at, _)) => format!("{}…", shown.get(..at).unwrap_or_default()),
        None => shown,
    }
}

/// Returns a plugin's text with each control character replaced.
fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

/// Returns the English plural of a kind in lower case. A pattern stays as it is.
fn plural(kind: &str) -> String {
    let consonant_y = kind.strip_suffix('y').filter(|stem| !stem.ends_with(['a', 'e', 'i', 'o', 'u']));
    match consonant_y {
        _ if kind.ends_with('*') => kind.to_owned(),
        Some(stem) => format!("{stem}ies"),
        None if kind.ends_with(['s', 'x']) || kind.ends_with("ch") => format!("{kind}es"),
        None => format!("{kind}s"),
    }
}

#[cfg(test)]
#[path = "planned_tests.rs"]
mod tests;
