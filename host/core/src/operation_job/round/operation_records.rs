//! The OperationRecords of a job as this term knows them: their versions, and the records to rewrite.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use oarlock_api::OperationRecord;

use crate::object::key::JobRef;
use crate::operation_job::state::SHARD;
use crate::requests::writes::StoredOperationRecord;

/// The OperationRecords of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct OperationRecords {
    /// The stored records, by number.
    pub stored: BTreeMap<u32, StoredOperationRecord>,
    /// True if the host reads the records with the next observation.
    pub wanted: bool,
    /// Numbers of the records to rewrite from memory.
    pub rewrite: BTreeSet<u32>,
}

/// Returns the number of the record that holds a target.
pub fn record_number_of(index: u32) -> u32 {
    index / u32::try_from(SHARD).unwrap_or(u32::MAX)
}

/// Returns the targets of a record, including those beyond the end of the list.
pub fn indexes_of(record_number: u32) -> Range<u32> {
    let size = u32::try_from(SHARD).unwrap_or(u32::MAX);
    let first = record_number.saturating_mul(size);
    first..first.saturating_add(size)
}

impl OperationRecords {
    /// Requests the records before any other decision.
    pub fn read_again(&mut self) {
        self.wanted |= !self.stored.is_empty();
    }

    /// Takes the records as stored. `known` says that this term remembers the targets: the host then rewrites a record
    /// that has disappeared or was changed. The host always rewrites a record that lost its labels.
    pub fn read(&mut self, records: &[OperationRecord], known: bool) {
        let read: BTreeMap<u32, StoredOperationRecord> = records.iter().filter_map(stored).collect();
        if known {
            let missing = self.stored.keys().filter(|record_number| !read.contains_key(record_number)).copied();
            self.rewrite.extend(missing);
            let changed = |(record_number, now): &(&u32, &StoredOperationRecord)| {
                self.stored.get(record_number).is_some_and(|old| old != *now)
            };
            self.rewrite.extend(read.iter().filter(changed).map(|(record_number, _)| *record_number));
        } else {
            self.rewrite.clear();
        }
        let unlabelled = records.iter().filter(|record| !labelled(record)).filter_map(stored);
        self.rewrite.extend(unlabelled.map(|(record_number, _)| record_number));
        self.stored = read;
        self.wanted = false;
    }

    /// Takes the replies to writes of records.
    pub fn written(&mut self, replies: BTreeMap<u32, StoredOperationRecord>) {
        for (record_number, stored) in replies {
            self.rewrite.remove(&record_number);
            self.stored.insert(record_number, stored);
        }
    }

    /// Returns the epoch in a record; 0 if there is no record.
    pub fn epoch(&self, record_number: u32) -> i64 {
        self.stored.get(&record_number).map_or(0, |stored| stored.epoch)
    }

    /// Returns the highest epoch in any record.
    pub fn highest_epoch(&self) -> i64 {
        self.stored.values().map(|stored| stored.epoch).max().unwrap_or(0)
    }
}

/// Returns the labels of a record, by which the host finds it.
pub fn operation_record_labels(job_uid: &str, shard: i32) -> BTreeMap<String, String> {
    let labels = [("oarlock.dev/job-uid", job_uid.to_owned()), ("oarlock.dev/shard", shard.to_string())];
    labels.map(|(key, value)| (key.to_owned(), value)).into()
}

/// Returns the name of a record: the job's name, cut, the first 8 characters of its UID, and the number of the record.
pub fn operation_record_name(job: &JobRef, record_number: u32) -> String {
    let uid: String = job.uid.chars().take(8).collect();
    format!("{}-{uid}-{record_number}", job.name_prefix())
}

/// Returns true if a record has the labels by which the host finds it.
pub fn labelled(record: &OperationRecord) -> bool {
    let labels = record.metadata.labels.clone().unwrap_or_default();
    let wanted = operation_record_labels(&record.record.job.uid, record.record.shard);
    wanted.iter().all(|(key, value)| labels.get(key) == Some(value))
}

fn stored(record: &OperationRecord) -> Option<(u32, StoredOperationRecord)> {
    let record_number = u32::try_from(record.record.shard).ok()?;
    let stored = StoredOperationRecord {
        uid: record.metadata.uid.clone().unwrap_or_default(),
        resource_version: record.metadata.resource_version.clone().unwrap_or_default(),
        epoch: record.record.epoch.unwrap_or(0),
    };
    Some((record_number, stored))
}
