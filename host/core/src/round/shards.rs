//! The OperationRecords of a job as this term knows them: their versions, and those to rewrite.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use oarlock_api::OperationRecord;

use crate::cluster::writes::StoredShard;
use crate::job::key::JobRef;
use crate::job::state::SHARD;

/// The OperationRecords of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Shards {
    /// The stored records, by number.
    pub stored: BTreeMap<u32, StoredShard>,
    /// The records are read with the next observation.
    pub wanted: bool,
    /// Shards to rewrite from memory.
    pub rewrite: BTreeSet<u32>,
}

/// The number of the shard of a target.
pub fn shard_of(index: u32) -> u32 {
    index / u32::try_from(SHARD).unwrap_or(u32::MAX)
}

/// The targets of a shard, those beyond the end of the list included.
pub fn indexes_of(shard: u32) -> Range<u32> {
    let size = u32::try_from(SHARD).unwrap_or(u32::MAX);
    let first = shard.saturating_mul(size);
    first..first.saturating_add(size)
}

impl Shards {
    /// Requests the records before any other decision.
    pub fn read_again(&mut self) {
        self.wanted |= !self.stored.is_empty();
    }

    /// Takes the records as stored. `known`: this term remembers the targets, so a record that has disappeared or was
    /// changed is rewritten. One that lost its labels always is.
    pub fn read(&mut self, records: &[OperationRecord], known: bool) {
        let read: BTreeMap<u32, StoredShard> = records.iter().filter_map(stored).collect();
        if known {
            let missing = self.stored.keys().filter(|shard| !read.contains_key(shard)).copied();
            self.rewrite.extend(missing);
            let changed = |(shard, now): &(&u32, &StoredShard)| self.stored.get(shard).is_some_and(|old| old != *now);
            self.rewrite.extend(read.iter().filter(changed).map(|(shard, _)| *shard));
        } else {
            self.rewrite.clear();
        }
        let unlabelled = records.iter().filter(|record| !labelled(record)).filter_map(stored);
        self.rewrite.extend(unlabelled.map(|(shard, _)| shard));
        self.stored = read;
        self.wanted = false;
    }

    /// Takes the replies to writes of records.
    pub fn written(&mut self, replies: BTreeMap<u32, StoredShard>) {
        for (shard, stored) in replies {
            self.rewrite.remove(&shard);
            self.stored.insert(shard, stored);
        }
    }

    /// The epoch in a record; 0 if there is none.
    pub fn epoch(&self, shard: u32) -> i64 {
        self.stored.get(&shard).map_or(0, |stored| stored.epoch)
    }

    /// The highest epoch in any record.
    pub fn highest_epoch(&self) -> i64 {
        self.stored.values().map(|stored| stored.epoch).max().unwrap_or(0)
    }
}

/// The labels of a record, by which it is found.
pub fn shard_labels(job_uid: &str, shard: i32) -> BTreeMap<String, String> {
    let labels = [("oarlock.dev/job-uid", job_uid.to_owned()), ("oarlock.dev/shard", shard.to_string())];
    labels.map(|(key, value)| (key.to_owned(), value)).into()
}

/// The name of a record: the job's name, cut, the first 8 characters of its UID, and the shard.
pub fn shard_name(job: &JobRef, shard: u32) -> String {
    let uid: String = job.uid.chars().take(8).collect();
    format!("{}-{uid}-{shard}", job.name_prefix())
}

/// True if a record has the labels by which it is found.
pub fn labelled(record: &OperationRecord) -> bool {
    let labels = record.metadata.labels.clone().unwrap_or_default();
    let wanted = shard_labels(&record.record.job.uid, record.record.shard);
    wanted.iter().all(|(key, value)| labels.get(key) == Some(value))
}

fn stored(record: &OperationRecord) -> Option<(u32, StoredShard)> {
    let shard = u32::try_from(record.record.shard).ok()?;
    let stored = StoredShard {
        uid: record.metadata.uid.clone().unwrap_or_default(),
        resource_version: record.metadata.resource_version.clone().unwrap_or_default(),
        epoch: record.record.epoch.unwrap_or(0),
    };
    Some((shard, stored))
}
