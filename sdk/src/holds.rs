//! Takes an object and a job and yields which marks on the object the job
//! holds, and which others hold. May not change a hold: the host does that.

use std::cell::OnceCell;
use std::collections::BTreeMap;

use serde::Deserialize;

use crate::{Job, Object, ReadError};

/// What the annotation begins with in which the host lists the marks that a job
/// holds; the UID of the job follows.
pub const HOLD_PREFIX: &str = "hold.oarlock.dev/";

/// Something that can be put on an object and held there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mark<'a> {
    /// The label of this key.
    Label(&'a str),
    /// The annotation of this key.
    Annotation(&'a str),
    /// The finalizer of this name.
    Finalizer(&'a str),
    /// The cordon of a Node. Whether it is on is read from `/spec/unschedulable`.
    Cordon,
    /// The taint of a Node that this key and this effect name. Whether it is on is
    /// read from `/spec/taints`.
    Taint(&'a str, &'a str),
}

impl Mark<'_> {
    /// Whether it is on an object, whoever put it there.
    ///
    /// # Errors
    ///
    /// Where the manifest does not declare the field that says so.
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

    /// Whether an entry of a hold means this mark.
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

/// What names a taint of a Node.
#[derive(Deserialize)]
struct OnNode {
    key: String,
    effect: String,
}

/// What jobs hold on one object.
#[derive(Debug)]
pub struct Holds<'a> {
    object: &'a Object,
    key: String,
    mine: Vec<String>,
    others: OnceCell<Vec<String>>,
}

impl Object {
    /// What this job, and other jobs, hold on the object.
    #[must_use]
    pub fn holds(&self, job: &Job) -> Holds<'_> {
        let key = [HOLD_PREFIX, &job.uid()].concat();
        let mine = self.annotation(&key).map(|text| entries(&text)).unwrap_or_default();
        Holds { object: self, key, mine, others: OnceCell::new() }
    }
}

impl Holds<'_> {
    /// Whether this job holds nothing on the object.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.mine.is_empty()
    }

    /// Whether this job holds the mark.
    #[must_use]
    pub fn has(&self, mark: Mark<'_>) -> bool {
        self.mine.iter().any(|entry| mark.is(entry))
    }

    /// Whether the host keeps the object from being chosen by this job, since
    /// another job had chosen it before.
    #[must_use]
    pub fn is_barred(&self) -> bool {
        self.mine.iter().any(|entry| entry == "barred")
    }

    /// Whether the mark has to be proposed for this job to hold it: it is
    /// missing, or it is there because another job holds it. A mark that
    /// somebody else set can't be held, and proposing it would change nothing.
    ///
    /// # Errors
    ///
    /// Where the annotations, or the field that says whether it is on, cannot be
    /// read.
    pub fn lacks(&self, mark: Mark<'_>) -> Result<bool, ReadError> {
        if !mark.is_on(self.object)? {
            return Ok(true);
        }
        Ok(!self.has(mark) && self.is_shared(mark)?)
    }

    /// Whether another job holds the mark too, so that it stays when this job
    /// lets go.
    ///
    /// # Errors
    ///
    /// Where the annotations cannot be read.
    pub fn is_shared(&self, mark: Mark<'_>) -> Result<bool, ReadError> {
        Ok(self.others()?.iter().any(|entry| mark.is(entry)))
    }

    /// What other jobs hold. Read only where it matters: it copies all
    /// annotations.
    fn others(&self) -> Result<&[String], ReadError> {
        if let Some(others) = self.others.get() {
            return Ok(others);
        }
        let all: Option<BTreeMap<String, String>> = self.object.field("/metadata/annotations")?;
        let holds = all.iter().flatten().filter(|(key, _)| key.starts_with(HOLD_PREFIX) && **key != self.key);
        Ok(self.others.get_or_init(|| holds.flat_map(|(_, text)| entries(text)).collect()))
    }
}

/// The marks that a hold lists, without its proof. A garbled hold lists none.
fn entries(text: &str) -> Vec<String> {
    let mut entries: Vec<String> = serde_json::from_str(text).unwrap_or_default();
    entries.retain(|entry| !entry.starts_with("mac:"));
    entries
}
