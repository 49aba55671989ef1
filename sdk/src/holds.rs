//! The marks on an object that this job and other jobs hold. A plugin can only
//! read holds: the host changes them.

use std::cell::OnceCell;
use std::collections::BTreeMap;

use serde::Deserialize;

use crate::{Job, Object, ReadError};

/// The prefix of the annotation in which the host lists the marks that a job
/// holds. The UID of the job follows.
pub const HOLD_PREFIX: &str = "hold.oarlock.dev/";

/// A mark that can be set on an object and held there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mark<'a> {
    /// The label of this key.
    Label(&'a str),
    /// The annotation of this key.
    Annotation(&'a str),
    /// The finalizer of this name.
    Finalizer(&'a str),
    /// The cordon of a Node. It is read from `/spec/unschedulable`.
    Cordon,
    /// The taint of a Node with this key and this effect. It is read from
    /// `/spec/taints`.
    Taint(&'a str, &'a str),
}

impl Mark<'_> {
    /// Returns true if the mark is on an object, whoever set it.
    ///
    /// # Errors
    ///
    /// If the manifest does not declare the field of the mark.
    pub fn is_on(self, object: &Object) -> Result<bool, ReadError> {
        Ok(match self {
            Mark::Label(key) => object.has_label(key),
            Mark::Annotation(key) => object.annotation(key).is_some(),
            Mark::Finalizer(name) => object.has_finalizer(name),
            Mark::Cordon => object.field("/spec/unschedulable")?.unwrap_or(false),
            Mark::Taint(key, effect) => {
                let taints: Option<Vec<OnNode>> = object.field("/spec/taints")?;
                taints.into_iter().flatten().any(|taint| taint.key == key && taint.effect == effect)
            }
        })
    }

    /// Returns true if an entry of a hold means this mark.
    fn is(self, entry: &str) -> bool {
        let (kind, key) = match self {
            Mark::Label(key) => ("label:", key),
            Mark::Annotation(key) => ("annotation:", key),
            Mark::Finalizer(name) => ("finalizer:", name),
            Mark::Cordon => return entry == "cordon",
            Mark::Taint(key, effect) => {
                let named = entry.strip_prefix("taint:").and_then(|rest| rest.split_once(':'));
                return named == Some((key, effect));
            }
        };
        entry.strip_prefix(kind) == Some(key)
    }
}

/// The fields that identify a taint of a Node.
#[derive(Deserialize)]
struct OnNode {
    key: String,
    effect: String,
}

/// The marks that jobs hold on one object.
#[derive(Debug)]
pub struct Holds<'a> {
    object: &'a Object,
    key: String,
    mine: Vec<String>,
    others: OnceCell<Vec<String>>,
}

impl Object {
    /// Returns the marks that this job and other jobs hold on the object.
    #[must_use]
    pub fn holds(&self, job: &Job) -> Holds<'_> {
        let key = [HOLD_PREFIX, &job.uid()].concat();
        let mine = self.annotation(&key).map(|text| entries(&text)).unwrap_or_default();
        Holds { object: self, key, mine, others: OnceCell::new() }
    }
}

impl Holds<'_> {
    /// Returns true if this job holds nothing on the object.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.mine.is_empty()
    }

    /// Returns true if this job holds the mark.
    #[must_use]
    pub fn has(&self, mark: Mark<'_>) -> bool {
        self.mine.iter().any(|entry| mark.is(entry))
    }

    /// Returns true if the host keeps the object from being chosen by this job,
    /// because another job may have chosen it before.
    #[must_use]
    pub fn is_barred(&self) -> bool {
        self.mine.iter().any(|entry| entry == "barred")
    }

    /// Returns true if the job has to propose the mark to hold it. That is so
    /// if the mark is missing, or if another job holds it and this job does
    /// not. A job cannot hold a mark that somebody else set, and a proposal of
    /// such a mark would change nothing.
    ///
    /// # Errors
    ///
    /// If the annotations, or the field of the mark, cannot be read.
    pub fn lacks(&self, mark: Mark<'_>) -> Result<bool, ReadError> {
        if !mark.is_on(self.object)? {
            return Ok(true);
        }
        Ok(!self.has(mark) && self.is_shared(mark)?)
    }

    /// Returns true if another job holds the mark too. Then the mark stays when
    /// this job releases it.
    ///
    /// # Errors
    ///
    /// If the annotations cannot be read.
    pub fn is_shared(&self, mark: Mark<'_>) -> Result<bool, ReadError> {
        Ok(self.others()?.iter().any(|entry| mark.is(entry)))
    }

    /// Returns the marks that other jobs hold. They are read only on demand,
    /// because the read copies all annotations.
    fn others(&self) -> Result<&[String], ReadError> {
        if let Some(others) = self.others.get() {
            return Ok(others);
        }
        let all: Option<BTreeMap<String, String>> = self.object.field("/metadata/annotations")?;
        let holds = all.iter().flatten().filter(|(key, _)| key.starts_with(HOLD_PREFIX) && **key != self.key);
        Ok(self.others.get_or_init(|| holds.flat_map(|(_, text)| entries(text)).collect()))
    }
}

/// Returns the marks that a hold lists, without its `mac:` entry. An invalid
/// hold lists none.
fn entries(text: &str) -> Vec<String> {
    let mut entries: Vec<String> = serde_json::from_str(text).unwrap_or_default();
    entries.retain(|entry| !entry.starts_with("mac:"));
    entries
}
