//! Live reads that pure code asks for, and their answers.
//!
//! A function that decides by objects of the API server takes the [`Answers`] so far. It returns its result, or [`Pending`] with all reads that it can
//! name now. The host makes these reads and calls the function again. So a decision needs no I/O, and the code that reads knows no decision.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::object::api_object::{IN_MEMORY, Kind, ObjectKey};

/// A live read of the API server. Two equal reads have the same answer.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Read {
    /// The kind of the objects.
    pub kind: Kind,
    /// The objects of the kind.
    pub selected: Selected,
    /// The part of each object that the answer keeps.
    pub reduction: Reduction,
    /// The values that the reduction compares an object with, such as the UIDs of owners.
    pub among: BTreeSet<String>,
    /// The host reads no further page of a list once it keeps more than this number of objects.
    pub most: usize,
    /// The most bytes of the kept objects together. The host keeps no object beyond them ([`KeptObjects::is_cut`]).
    pub most_bytes: usize,
    /// The longest wait for an answer, or for a page of a list. `None` is the time limit of all requests.
    pub time_limit: Option<Duration>,
}

impl Read {
    /// Returns the read of whole objects, without limits.
    pub const fn of(kind: Kind, selected: Selected) -> Self {
        Self {
            kind,
            selected,
            reduction: WHOLE,
            among: BTreeSet::new(),
            most: usize::MAX,
            most_bytes: usize::MAX,
            time_limit: None,
        }
    }

    /// Returns the read of one whole object. If its name is no object name, the read fails without a request.
    pub fn one(key: ObjectKey) -> Self {
        Self::of(key.kind, Selected::One { namespace: key.namespace, name: key.name })
    }

    /// Returns the read of all objects of a kind in one or all namespaces.
    pub fn all(kind: Kind, namespace: Option<&str>) -> Self {
        Self::of(kind, Selected::All { namespace: namespace.map(str::to_owned), labels: None, fields: None })
    }

    /// Returns the read of an object that exists only in the host's process. The host answers it, and no API server serves its kind.
    pub fn of_host(kind: &str, name: &str) -> Self {
        Self::one(ObjectKey { kind: Kind::new(IN_MEMORY, kind), namespace: None, name: name.to_owned() })
    }

    /// Returns true if the host answers the read.
    pub fn is_of_host(&self) -> bool {
        self.kind.api_version == IN_MEMORY
    }

    /// Returns the read with this reduction.
    #[must_use]
    pub const fn reduced(mut self, reduction: Reduction) -> Self {
        self.reduction = reduction;
        self
    }
}

/// The objects that a read selects.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Selected {
    /// The object with this name, if it exists.
    One {
        /// The namespace, or `None` for a cluster-scoped object.
        namespace: Option<String>,
        /// The name.
        name: String,
    },
    /// All objects that match.
    All {
        /// The namespace, or `None` for all namespaces.
        namespace: Option<String>,
        /// A label selector.
        labels: Option<String>,
        /// A field selector.
        fields: Option<String>,
    },
}

/// The part of an object that an answer keeps. Every reduction is a constant with its own name, by which reads are compared.
#[derive(Clone, Copy, Debug)]
pub struct Reduction {
    /// The name of the reduction.
    pub name: &'static str,
    /// The only fields that the host parses (RFC 6901, such as `/spec/nodeName`), also of the metadata. If there are none, the host parses the whole object.
    pub fields: &'static [&'static str],
    /// Returns the kept part of an object, or `None` if the answer leaves the object out. The set is [`Read::among`].
    pub keep: fn(Value, &BTreeSet<String>) -> Option<Value>,
}

/// Keeps whole objects.
pub const WHOLE: Reduction = Reduction { name: "whole", fields: &[], keep: |object, _| Some(object) };

impl PartialEq for Reduction {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for Reduction {}

impl PartialOrd for Reduction {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Reduction {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.name.cmp(other.name)
    }
}

impl std::hash::Hash for Reduction {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.name.hash(state);
    }
}

/// The objects that a read found, each reduced and as JSON text. As text, the facts of a pod take about 200 bytes. A tree of JSON values takes ten times
/// as much.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeptObjects {
    texts: Vec<Box<str>>,
    bytes: usize,
    is_cut: bool,
}

impl KeptObjects {
    /// Returns the answer of `read`, if it found these objects.
    pub fn of(read: &Read, objects: impl IntoIterator<Item = Value>) -> Self {
        let mut kept = Self::default();
        objects.into_iter().for_each(|object| kept.take(read, object));
        kept
    }

    /// Adds an object that `read` found, as far as its reduction and its bounds allow.
    pub fn take(&mut self, read: &Read, object: Value) {
        let Some(kept) = (read.reduction.keep)(object, &read.among).filter(|_| !self.is_cut) else { return };
        let text = kept.to_string();
        self.bytes = self.bytes.saturating_add(text.len());
        self.is_cut = self.bytes > read.most_bytes;
        if !self.is_cut {
            self.texts.push(text.into_boxed_str());
        }
    }

    /// Returns true if `read` needs the next page of a list.
    pub const fn needs_more(&self, read: &Read) -> bool {
        !self.is_cut && self.texts.len() <= read.most
    }

    /// Returns true if an object had no room in [`Read::most_bytes`]. The answer then lacks it and all later objects.
    pub const fn is_cut(&self) -> bool {
        self.is_cut
    }

    /// Parses the kept objects, one at a time, in the order of the API server.
    pub fn parsed<T: DeserializeOwned>(&self) -> impl Iterator<Item = T> {
        self.texts.iter().filter_map(|text| serde_json::from_str(text).ok())
    }

    /// Parses the kept object of a read of one object. Returns `None` if the object does not exist.
    pub fn one<T: DeserializeOwned>(&self) -> Option<T> {
        self.parsed().next()
    }
}

/// The answers so far, by read.
#[derive(Clone, Debug, Default)]
pub struct Answers(BTreeMap<Read, Result<KeptObjects, ReadFailed>>);

impl Answers {
    /// Adds the answer of a read.
    pub fn insert(&mut self, read: Read, answer: Result<KeptObjects, ReadFailed>) {
        self.0.insert(read, answer);
    }

    /// Returns the objects that a read found.
    ///
    /// # Errors
    /// If the read has no answer yet, or failed.
    pub fn to(&self, read: &Read) -> Result<&KeptObjects, Pending> {
        match self.0.get(read) {
            Some(Ok(kept)) => Ok(kept),
            Some(Err(failed)) => Err(Pending::Failed(failed.clone())),
            None => Err(Pending::Reads(BTreeSet::from([read.clone()]))),
        }
    }
}

/// The reason why a function has no result yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pending {
    /// The function needs the answers of these reads.
    Reads(BTreeSet<Read>),
    /// A read failed, so there will be no result.
    Failed(ReadFailed),
}

impl Pending {
    /// Returns the failure with this message. The API server did not cause it.
    pub fn failed(message: impl Into<String>) -> Self {
        Self::Failed(ReadFailed { message: message.into(), is_refused: false, retry_after: None })
    }

    /// Returns the reads of both, or the first failure.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Failed(failed), _) | (Self::Reads(_), Self::Failed(failed)) => Self::Failed(failed),
            (Self::Reads(mut reads), Self::Reads(others)) => {
                reads.extend(others);
                Self::Reads(reads)
            }
        }
    }
}

/// Returns both results, or all reads that they need. So the host makes these reads at the same time.
///
/// # Errors
/// If a result is pending.
pub fn both<A, B>(first: Result<A, Pending>, second: Result<B, Pending>) -> Result<(A, B), Pending> {
    match (first, second) {
        (Ok(first), Ok(second)) => Ok((first, second)),
        (Err(first), Err(second)) => Err(first.and(second)),
        (Err(pending), Ok(_)) | (Ok(_), Err(pending)) => Err(pending),
    }
}

/// Returns all results in their order, or all reads that they need. So the host makes these reads at the same time.
///
/// # Errors
/// If a result is pending.
pub fn every<T>(results: impl IntoIterator<Item = Result<T, Pending>>) -> Result<Vec<T>, Pending> {
    let (mut all, mut pending) = (Vec::new(), None::<Pending>);
    for result in results {
        match result {
            Ok(one) => all.push(one),
            Err(other) => {
                pending = Some(match pending.take() {
                    Some(before) => before.and(other),
                    None => other,
                });
            }
        }
    }
    pending.map_or(Ok(all), Err)
}

/// The reason why a live read has no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadFailed {
    /// The operation that failed, and the message of the API server.
    pub message: String,
    /// True if the API server would refuse the read again.
    pub is_refused: bool,
    /// The seconds to wait, if the API server names them.
    pub retry_after: Option<u32>,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const NAME: Reduction = Reduction {
        name: "name",
        fields: &["/metadata/name"],
        keep: |object, among| {
            let name = object.pointer("/metadata/name")?.clone();
            name.as_str().is_none_or(|name| !among.contains(name)).then_some(name)
        },
    };

    fn pods(namespace: &str) -> Read {
        Read::all(Kind::pod(), Some(namespace)).reduced(NAME)
    }

    fn named(names: &[&str]) -> Vec<Value> {
        names.iter().map(|name| json!({"metadata": {"name": name}})).collect()
    }

    #[test]
    fn an_answer_keeps_the_reduced_objects_in_their_order() {
        let read = Read { among: BTreeSet::from(["b".to_owned()]), ..pods("d") };
        let kept = KeptObjects::of(&read, named(&["c", "b", "a"]));
        assert_eq!(kept.parsed::<String>().collect::<Vec<_>>(), ["c", "a"]);
        assert_eq!((kept.one(), kept.is_cut()), (Some("c".to_owned()), false));
    }

    #[test]
    fn an_answer_keeps_nothing_beyond_its_bytes() {
        let read = Read { most_bytes: 6, ..pods("d") };
        assert!(KeptObjects::of(&read, named(&["a", "b"])).needs_more(&read));
        let kept = KeptObjects::of(&read, named(&["a", "b", "c", ""]));
        assert_eq!((kept.parsed::<String>().count(), kept.is_cut(), kept.needs_more(&read)), (2, true, false));
    }

    #[test]
    fn a_list_ends_with_the_page_that_has_enough_objects() {
        let read = Read { most: 2, ..pods("d") };
        assert!(KeptObjects::of(&read, named(&["a", "b"])).needs_more(&read));
        assert!(!KeptObjects::of(&read, named(&["a", "b", "c"])).needs_more(&read));
    }

    #[test]
    fn reads_that_are_missing_are_named_together_and_the_first_failure_counts() {
        let (a, b, mut answers) = (pods("a"), pods("b"), Answers::default());
        let asked = |answers: &Answers| every([answers.to(&a).cloned(), answers.to(&b).cloned()]);
        assert_eq!(asked(&answers), Err(Pending::Reads(BTreeSet::from([a.clone(), b.clone()]))));
        let failed = |message: &str| ReadFailed { message: message.into(), is_refused: true, retry_after: None };
        answers.insert(b.clone(), Err(failed("b")));
        assert_eq!(asked(&answers), Err(Pending::Failed(failed("b"))), "no further read helps");
        answers.insert(a.clone(), Err(failed("a")));
        assert_eq!(asked(&answers), Err(Pending::Failed(failed("a"))));
        answers.insert(a.clone(), Ok(KeptObjects::default()));
        answers.insert(b.clone(), Ok(KeptObjects::default()));
        assert_eq!(asked(&answers).map(|all| all.len()), Ok(2));
    }

    #[test]
    fn reads_of_other_parts_or_other_owners_are_other_reads() {
        let read = pods("a");
        assert_eq!(read, pods("a"));
        assert_ne!(read, Read::all(Kind::pod(), Some("a")));
        assert_ne!(read, Read { among: BTreeSet::from(["u".to_owned()]), ..pods("a") });
    }
}
