//! Checks the changes of a job's records, and the stored outcomes of a job that ends.
//!
//! Takes a version of a record or a job and the state that was durable before; yields the broken properties of the step between them.

use std::collections::BTreeSet;

use oarlock_sim::world::Version;

use super::told::{Target, lines};
use super::{Job, Seen};

/// A record as it was stored last.
#[derive(Clone, Debug, Default)]
pub(super) struct StoredRecord {
    epoch: i64,
    /// The names of the targets in the record. Empty once the record is gone.
    names: BTreeSet<String>,
}

impl Seen<'_> {
    /// Checks S2: no outcome is lost, neither with a line nor with the whole record. Checks S6: the epoch of a record does
    /// not fall, even if the record was created again.
    pub(super) fn record(&mut self, version: &Version) -> Vec<String> {
        let uid = version.at("/job/uid").as_str().unwrap_or_default().to_owned();
        // The garbage collector deletes the records of a job that is gone.
        let Some(mut job) = self.jobs.remove(&uid) else { return Vec::new() };
        job.in_records = true;
        let key = (uid.clone(), version.at("/shard").as_i64().unwrap_or(0));
        let before = self.records.remove(&key).unwrap_or_default();
        let told = if version.is_end { Default::default() } else { lines(version) };
        let epoch = if version.is_end { before.epoch } else { version.at("/epoch").as_i64().unwrap_or(0) };
        let after = StoredRecord { epoch, names: told.keys().cloned().collect() };
        let mut wrong = Vec::new();
        if after.epoch < before.epoch {
            wrong.push(format!("S6: its epoch fell from {} to {}", before.epoch, after.epoch));
        }
        // With foreground deletion a job goes after its records.
        if !(version.is_end && (job.deleted || self.meddling.removed.contains(&version.name))) {
            let lost = before.names.difference(&after.names).filter(|name| job.has_ended(name));
            wrong.extend(lost.map(|name| format!("S2: the outcome of {name} is lost")));
        }
        wrong.extend(self.targets(&mut job, told));
        self.jobs.insert(uid, job);
        self.records.insert(key, after);
        self.unless_meddled(wrong)
    }
}

impl Job {
    fn has_ended(&self, name: &str) -> bool {
        self.targets.get(name).is_some_and(Target::is_terminal)
    }

    /// Checks S2: an ended job has an outcome for each target. A deleted job is not checked: its records may go before it.
    /// If its namespace is deleted too, the records may never be created.
    pub(super) fn without_outcome(&self, version: &Version) -> Vec<String> {
        if self.deleted {
            return Vec::new();
        }
        let named = version.at("/spec/targets").as_array().into_iter().flatten();
        let names = named.filter_map(|target| target.get("name")?.as_str());
        let open = names.filter(|name| !self.has_ended(name));
        open.map(|name| format!("S2: the job has ended, and no outcome of {name} is stored")).collect()
    }
}
