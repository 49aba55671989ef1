//! Marks: the changes that a job made on an object and must undo.
//!
//! The annotation `hold.oarlock.dev/<job UID>` lists the marks, such as `label:<key>`, `taint:<key>:<effect>` and `cordon`. A mark belongs
//! to a job if it was absent when the job set it, or if another job's hold lists it. The host removes a mark once no hold lists it. Source:
//! docs/operationjob.md 3.7.12.

use std::collections::BTreeSet;

use serde_json::json;

/// The prefix of the annotations that are holds.
pub const HOLD: &str = "hold.oarlock.dev/";
/// The label of a held pod. Without this label, no annotation of a pod is a hold. So the API server checks only labelled pods when it
/// decides who may write a hold.
pub const HELD: &str = "oarlock.dev/held";
/// The value of the label [`HELD`].
pub const IS_HELD: &str = "true";
/// The beginning of the last entry of a hold of a pod, which proves that the host wrote the hold. It is not a mark.
pub const PROOF: &str = "mac:";
/// The mark of a cordoned node.
pub const CORDON: &str = "cordon";

/// Returns the mark of a taint, which names the taint's key and effect. A key has no colon.
#[must_use]
pub fn taint(key: &str, effect: &str) -> String {
    format!("taint:{key}:{effect}")
}

/// The marks on an object that a job holds, and the marks that other jobs hold.
#[derive(Clone, Debug)]
pub struct Marks {
    /// The marks of the job.
    pub own: BTreeSet<String>,
    others: BTreeSet<String>,
    keep: bool,
}

impl Marks {
    /// Reads the marks that `annotations` list. The job's marks are in the annotation `own`. With `keep`, marks that the job sets from now
    /// on belong to no job and stay.
    pub fn of<'a>(annotations: impl IntoIterator<Item = (&'a str, &'a str)>, own: &str, keep: bool) -> Self {
        let mut marks = Self { own: BTreeSet::new(), others: BTreeSet::new(), keep };
        for (key, text) in annotations.into_iter().filter(|(key, _)| key.starts_with(HOLD)) {
            let list = if key == own { &mut marks.own } else { &mut marks.others };
            list.extend(listed(text));
        }
        marks
    }

    /// Records that the job sets a mark.
    pub fn take(&mut self, mark: String, was_there: bool) {
        if !self.keep && (!was_there || self.others.contains(&mark)) {
            self.own.insert(mark);
        }
    }

    /// Records that the job gives up a mark. Returns true if the host must remove the mark.
    pub fn release(&mut self, mark: &str) -> bool {
        let ours = self.own.remove(mark);
        (ours || self.keep) && !self.others.contains(mark)
    }

    /// Returns the text of the job's annotation, or `None` once the job has no marks.
    #[must_use]
    pub fn list(&self) -> Option<String> {
        (!self.own.is_empty()).then(|| json!(self.own).to_string())
    }
}

/// Returns the marks in the text of a hold. The result is empty if the text is unreadable.
#[must_use]
pub fn listed(text: &str) -> BTreeSet<String> {
    let mut marks: BTreeSet<String> = serde_json::from_str(text).unwrap_or_default();
    marks.retain(|mark| !mark.starts_with(PROOF));
    marks
}

/// Returns the proof at the end of the text of a hold.
#[must_use]
pub fn proof(text: &str) -> Option<String> {
    let entries: Vec<String> = serde_json::from_str(text).ok()?;
    entries.last()?.strip_prefix(PROOF).map(str::to_owned)
}
