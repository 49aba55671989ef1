//! Making the decisions of a round durable, before anything else of it happens.
//!
//! Takes a [`Record`]; yields the [`Recorded`] that alone can be applied. First the finalizer, then the
//! OperationRecords, then the status, at the version that the finalizer's reply showed. May not build or change a
//! status.

use std::collections::BTreeMap;

use futures::StreamExt;
use oarlock_core::cluster::object::{Kind, ObjectKey};
use oarlock_core::cluster::writes::{Entry, Record, Recorded, ShardWrite, Stopped, StoredShard, Write};
use oarlock_core::job::key::JobKey;
use serde_json::{Value, json};

use crate::cluster::{Cluster, Link};
use crate::lease::Fence;

/// Records in flight for one job: one costs the API server as much as dozens of pod patches.
const SHARDS_AT_ONCE: usize = 4;

/// The record is not known to be durable, so nothing that follows it may be applied.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The round was judged on an old view; the next one sees a newer one.
    #[error("failed to write the {step} of job {job}: the view is out of date (conflict)")]
    Conflict {
        /// The job.
        job: JobKey,
        /// The part of the record that was being written.
        step: &'static str,
    },
    /// It may be durable; the next round reads the job anew.
    #[error("unknown whether the {step} of job {job} was written: {message}")]
    Unknown {
        /// The job.
        job: JobKey,
        /// The part of the record that was being written.
        step: &'static str,
        /// The error of the request.
        message: String,
    },
    /// The API server is busy.
    #[error("failed to write the {step} of job {job}: the API server is too busy")]
    Throttled {
        /// The job.
        job: JobKey,
        /// The part of the record that was being written.
        step: &'static str,
        /// Seconds to wait, where the server names them.
        retry_after: Option<u32>,
    },
    /// The API server refuses it.
    #[error("failed to write the {step} of job {job}: the API server refused it: {message}")]
    Refused {
        /// The job.
        job: JobKey,
        /// The part of the record that was being written.
        step: &'static str,
        /// The server's sentence.
        message: String,
    },
    /// The term of leadership is over; nothing was sent.
    #[error("did not write the {step} of job {job}: this process no longer leads")]
    LostLease {
        /// The job.
        job: JobKey,
        /// The part of the record that was not written.
        step: &'static str,
    },
}

impl Cluster {
    /// Makes a round's record durable. The replies are in memory by then.
    ///
    /// # Errors
    /// Nothing of `entries` may be applied then.
    pub async fn record(
        &self,
        job: &JobKey,
        record: Record,
        entries: Vec<Entry>,
        fence: &Fence,
    ) -> Result<Recorded, RecordError> {
        let failed = |step| move |stopped| error(job.clone(), step, stopped);
        let mut version = None;
        if let Some(body) = &record.finalizer {
            let write = Write::patch(&job.object(), body.clone());
            let reply = self.link.write(&write, fence).await.map_err(failed("finalizer"))?;
            version = reply.pointer("/metadata/resourceVersion").cloned();
        }
        let shards = self.link.put_shards(job, &record, fence).await.map_err(failed("records"))?;
        if let Some(status) = &record.status {
            let mut body = status.clone();
            if let (Some(version), Some(meta)) = (version, body.get_mut("metadata").and_then(Value::as_object_mut)) {
                meta.insert("resourceVersion".to_owned(), version);
            }
            let subresource = Some("status".to_owned());
            let write = Write::Patch { object: job.object(), subresource, body };
            self.link.write(&write, fence).await.map_err(failed("status"))?;
        }
        Ok(record.confirmed(entries, shards))
    }
}

impl Link {
    async fn put_shards(
        &self,
        job: &JobKey,
        record: &Record,
        fence: &Fence,
    ) -> Result<BTreeMap<u32, StoredShard>, Stopped> {
        let mut stored = BTreeMap::new();
        for growing in [false, true] {
            let writes = record.shards.iter().filter(|write| write.grows == growing);
            let puts = self.put_at_once(job, writes.collect(), fence).await;
            for put in puts {
                match put {
                    Ok((shard, now)) => drop(stored.insert(shard, now)),
                    // In a namespace that is being deleted nothing can be made any more; the job's ranges say the same.
                    Err(Stopped::Refused { .. } | Stopped::Gone) if record.best_effort_shards => {}
                    Err(stopped) => {
                        // The job is read before anything of it is written again.
                        self.jobs.doubt(job);
                        return Err(stopped);
                    }
                }
            }
        }
        Ok(stored)
    }

    /// Puts these records, in any order.
    async fn put_at_once(
        &self,
        job: &JobKey,
        writes: Vec<&ShardWrite>,
        fence: &Fence,
    ) -> Vec<Result<(u32, StoredShard), Stopped>> {
        // Collected first: a stream that makes futures of borrowed items is not `Send` for every lifetime.
        let puts: Vec<_> = writes.into_iter().map(|write| self.put_shard(job, write, fence)).collect();
        futures::stream::iter(puts).buffer_unordered(SHARDS_AT_ONCE).collect().await
    }

    /// Creates a record, or patches it where it is there already and belongs to this job.
    async fn put_shard(&self, job: &JobKey, write: &ShardWrite, fence: &Fence) -> Result<(u32, StoredShard), Stopped> {
        let ShardWrite { shard, name, record, patch, grows: _ } = write;
        let object = ObjectKey { kind: Kind::record(), namespace: Some(job.namespace.clone()), name: name.clone() };
        if let Some(body) = patch {
            match self.write(&Write::patch(&object, body.clone()), fence).await {
                // Another client removed it: the host makes it anew.
                Err(Stopped::Gone) => {}
                outcome => return outcome.map(|reply| (*shard, stored(&reply))),
            }
        }
        let body = serde_json::to_value(record).map_err(|error| Stopped::Refused { message: error.to_string() })?;
        let owner_uid = record.record.job.uid.clone();
        let create = Write::Create { object: object.clone(), body: body.clone(), owner_uid };
        let reply = self.write(&create, fence).await?;
        if says(&reply, &body) {
            return Ok((*shard, stored(&reply)));
        }
        if stored(&reply).epoch > record.record.epoch.unwrap_or(0) {
            // A later term has written it.
            return Err(Stopped::Conflict);
        }
        // It was there already and says something older.
        let update = Write::patch(&object, without_metadata(body, &reply));
        self.write(&update, fence).await.map(|reply| (*shard, stored(&reply)))
    }
}

/// The version that a reply shows.
fn stored(reply: &Value) -> StoredShard {
    let text = |pointer| reply.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
    StoredShard {
        uid: text("/metadata/uid"),
        resource_version: text("/metadata/resourceVersion"),
        epoch: reply.pointer("/epoch").and_then(Value::as_i64).unwrap_or(0),
    }
}

/// True where `stored` has every field and label of `wanted`.
fn says(stored: &Value, wanted: &Value) -> bool {
    let fields = wanted.as_object().into_iter().flatten().filter(|(name, _)| *name != "metadata");
    let labels = wanted.pointer("/metadata/labels").and_then(Value::as_object).into_iter().flatten();
    let stored_labels = stored.pointer("/metadata/labels");
    let same_labels = labels.into_iter().all(|(key, value)| stored_labels.and_then(|all| all.get(key)) == Some(value));
    same_labels && fields.into_iter().all(|(name, value)| stored.get(name) == Some(value))
}

/// A merge patch that gives `stored` the fields and labels of `wanted`, and no other fields.
fn without_metadata(wanted: Value, stored: &Value) -> Value {
    let mut patch = wanted;
    let Some(fields) = patch.as_object_mut() else { return patch };
    let labels = fields.remove("metadata").and_then(|meta| meta.get("labels").cloned());
    for name in stored.as_object().into_iter().flatten().map(|(name, _)| name) {
        if name != "metadata" && !fields.contains_key(name) {
            fields.insert(name.clone(), Value::Null);
        }
    }
    let mut metadata = json!({"uid": stored.pointer("/metadata/uid"),
        "resourceVersion": stored.pointer("/metadata/resourceVersion")});
    if let (Some(labels), Some(into)) = (labels, metadata.as_object_mut()) {
        into.insert("labels".to_owned(), labels);
    }
    fields.insert("metadata".to_owned(), metadata);
    patch
}

fn error(job: JobKey, step: &'static str, stopped: Stopped) -> RecordError {
    match stopped {
        // A job that is gone is seen so by the next round.
        Stopped::Gone | Stopped::Conflict => RecordError::Conflict { job, step },
        Stopped::Unknown { message } => RecordError::Unknown { job, step, message },
        Stopped::Throttled { retry_after } => RecordError::Throttled { job, step, retry_after },
        Stopped::LostLease | Stopped::NotSent => RecordError::LostLease { job, step },
        Stopped::Refused { message } | Stopped::Blocked { message, .. } => RecordError::Refused { job, step, message },
    }
}

impl RecordError {
    /// Seconds to wait before the next try, where the API server names them.
    pub fn retry_after(&self) -> Option<u32> {
        match self {
            Self::Throttled { retry_after, .. } => *retry_after,
            _ => None,
        }
    }

    /// True where the API server refused the write and will again.
    pub fn is_refused(&self) -> bool {
        matches!(self, Self::Refused { .. })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_that_is_there_already_is_patched_to_say_what_is_wanted_and_no_more() {
        let stored = json!({"metadata": {"uid": "u", "resourceVersion": "3"}, "shard": 1, "failedPodCount": 2});
        let wanted = json!({"metadata": {"name": "r"}, "shard": 1, "targets": []});
        assert!(!says(&stored, &wanted));
        assert_eq!(
            without_metadata(wanted, &stored),
            json!({"shard": 1, "targets": [], "failedPodCount": null,
                "metadata": {"uid": "u", "resourceVersion": "3"}})
        );
    }
}
