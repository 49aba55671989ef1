//! Marks: what a job has put on an object and takes off again.
//!
//! The annotation `hold.oarlock.dev/<job UID>` lists them, such as `label:<key>`, `taint:<key>:<effect>` and `cordon`. A mark is a job's if it
//! was absent when the job set it, or if another job's hold lists it; it goes once no hold lists it. Source:
//! docs/operationjob.md 3.7.12.

use std::collections::BTreeSet;

use serde_json::json;

/// What the annotations begin with that are holds.
pub const HOLD: &str = "hold.oarlock.dev/";
/// The label of a pod that is held. Where a pod lacks it, no annotation of it is a hold, so that the API server need look at no other
/// pod when it judges who writes one.
pub const HELD: &str = "oarlock.dev/held";
/// The value of that label.
pub const IS_HELD: &str = "true";
/// The beginning of the last entry of a hold of a pod, which proves that the host wrote it. It is no mark.
pub const PROOF: &str = "mac:";
/// The mark of a node that was cordoned.
pub const CORDON: &str = "cordon";

/// The mark of a taint, which its key and its effect name. A key has no colon.
#[must_use]
pub fn taint(key: &str, effect: &str) -> String {
    format!("taint:{key}:{effect}")
}

/// The marks on an object that a job holds, and those that others hold.
#[derive(Clone, Debug)]
pub struct Marks {
    /// Those of the job.
    pub own: BTreeSet<String>,
    others: BTreeSet<String>,
    keep: bool,
}

impl Marks {
    /// Those that `annotations` list, where the job's own are in the annotation `own`. With `keep`, what is set from now on
    /// is nobody's and stays.
    pub fn of<'a>(annotations: impl IntoIterator<Item = (&'a str, &'a str)>, own: &str, keep: bool) -> Self {
        let mut marks = Self { own: BTreeSet::new(), others: BTreeSet::new(), keep };
        for (key, text) in annotations.into_iter().filter(|(key, _)| key.starts_with(HOLD)) {
            let list = if key == own { &mut marks.own } else { &mut marks.others };
            list.extend(listed(text));
        }
        marks
    }

    /// Notes that a mark is set.
    pub fn take(&mut self, mark: String, was_there: bool) {
        if !self.keep && (!was_there || self.others.contains(&mark)) {
            self.own.insert(mark);
        }
    }

    /// Notes that the job gives up a mark. Returns true if the mark is to be removed.
    pub fn let_go(&mut self, mark: &str) -> bool {
        let ours = self.own.remove(mark);
        (ours || self.keep) && !self.others.contains(mark)
    }

    /// The text of the job's annotation; `None` once it has no marks.
    #[must_use]
    pub fn list(&self) -> Option<String> {
        (!self.own.is_empty()).then(|| json!(self.own).to_string())
    }
}

/// The marks in the text of a hold; none if somebody made it unreadable.
#[must_use]
pub fn listed(text: &str) -> BTreeSet<String> {
    let mut marks: BTreeSet<String> = serde_json::from_str(text).unwrap_or_default();
    marks.retain(|mark| !mark.starts_with(PROOF));
    marks
}

/// The proof at the end of the text of a hold.
#[must_use]
pub fn proof(text: &str) -> Option<String> {
    let entries: Vec<String> = serde_json::from_str(text).ok()?;
    entries.last()?.strip_prefix(PROOF).map(str::to_owned)
}
