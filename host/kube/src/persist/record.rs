//! Makes the decisions of a round durable before the host acts on them.
//!
//! [`Cluster::record`] takes a [`Record`] and returns a [`Recorded`], without which no decision is applied. It writes first the finalizer
//! and then the OperationRecords. It writes the status last, at the version that the reply for the finalizer showed. It may not build or
//! change a status.

use std::collections::BTreeMap;

use futures::StreamExt;
use oarlock_core::object::api_object::{Kind, ObjectKey};
use oarlock_core::object::key::JobKey;
use oarlock_core::requests::writes::{
    Lane, OperationRecordWrite, Record, Recorded, Stopped, StoredOperationRecord, Write, WriteBatch,
};
use serde_json::{Value, json};

use crate::cluster::Cluster;
use crate::lease::fence::Fence;
use crate::link::Link;

/// The number of records in flight for one job. A record costs the API server as much as dozens of patches of pods.
const SHARDS_AT_ONCE: usize = 4;

/// The failure to make a record durable. The host must not apply anything that follows the record.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The round decided on a stale view. The next round sees a newer view.
    #[error("failed to write the {step} of job {job}: the view is out of date (conflict)")]
    Conflict {
        /// The job.
        job: JobKey,
        /// The part of the record that was being written.
        step: &'static str,
    },
    /// The record may be durable. The next round reads the job live.
    #[error("unknown whether the {step} of job {job} was written: {message}")]
    Unknown {
        /// The job.
        job: JobKey,
        /// The part of the record that was being written.
        step: &'static str,
        /// The error of the request.
        message: String,
    },
    /// The API server is busy or unreachable.
    #[error("failed to write the {step} of job {job}: the API server is too busy or cannot be reached")]
    Throttled {
        /// The job.
        job: JobKey,
        /// The part of the record that was being written.
        step: &'static str,
        /// The seconds to wait, if the API server names them.
        retry_after: Option<u32>,
    },
    /// The API server refuses the record.
    #[error("failed to write the {step} of job {job}: the API server refused it: {message}")]
    Refused {
        /// The job.
        job: JobKey,
        /// The part of the record that was being written.
        step: &'static str,
        /// The message of the API server.
        message: String,
    },
    /// The term of leadership is over, and nothing was sent.
    #[error("did not write the {step} of job {job}: this process no longer leads")]
    LostLease {
        /// The job.
        job: JobKey,
        /// The part of the record that was not written.
        step: &'static str,
    },
}

impl Cluster {
    /// Makes the record of a round durable. The cache has the replies when this function returns.
    ///
    /// # Errors
    /// If the record is not known to be durable. The host must not apply any of `entries` then.
    pub async fn record(
        &self,
        job: &JobKey,
        record: Record,
        entries: Vec<WriteBatch>,
        fence: &Fence,
    ) -> Result<Recorded, RecordError> {
        let failed = |step| move |stopped| error(job.clone(), step, stopped);
        let mut version = None;
        if let Some(body) = &record.finalizer {
            let write = Write::patch(&job.object(), body.clone());
            let reply = self.link.write(&write, Lane::Record, fence).await.map_err(failed("finalizer"))?;
            version = reply.pointer("/metadata/resourceVersion").cloned();
        }
        let operation_records = self.link.put_shards(job, &record, fence).await.map_err(failed("records"))?;
        if let Some(status) = &record.status {
            let mut body = status.clone();
            if let (Some(version), Some(meta)) = (version, body.get_mut("metadata").and_then(Value::as_object_mut)) {
                meta.insert("resourceVersion".to_owned(), version);
            }
            let subresource = Some("status".to_owned());
            let write = Write::Patch { object: job.object(), subresource, body };
            self.link.write(&write, Lane::Record, fence).await.map_err(failed("status"))?;
        }
        Ok(record.confirmed(entries, operation_records))
    }
}

impl Link {
    async fn put_shards(
        &self,
        job: &JobKey,
        record: &Record,
        fence: &Fence,
    ) -> Result<BTreeMap<u32, StoredOperationRecord>, Stopped> {
        let mut stored = BTreeMap::new();
        for growing in [false, true] {
            let writes = record.operation_records.iter().filter(|write| write.grows == growing);
            let puts = self.put_at_once(job, writes.collect(), fence).await;
            for put in puts {
                match put {
                    Ok((record_number, now)) => drop(stored.insert(record_number, now)),
                    // The API server creates no objects in a namespace that is being deleted. The ranges in the status of the job say the
                    // same.
                    Err(Stopped::Refused { .. } | Stopped::Gone) if record.best_effort_records => {}
                    Err(stopped) => {
                        // The host reads the job before it writes any part of it again.
                        self.jobs.mark_uncertain(job);
                        return Err(stopped);
                    }
                }
            }
        }
        Ok(stored)
    }

    /// Writes these records in any order.
    async fn put_at_once(
        &self,
        job: &JobKey,
        writes: Vec<&OperationRecordWrite>,
        fence: &Fence,
    ) -> Vec<Result<(u32, StoredOperationRecord), Stopped>> {
        // The futures are collected first, because a stream that makes futures of borrowed items is not `Send` for every lifetime.
        let puts: Vec<_> = writes.into_iter().map(|write| self.put_shard(job, write, fence)).collect();
        futures::stream::iter(puts).buffer_unordered(SHARDS_AT_ONCE).collect().await
    }

    /// Creates a record, or patches it if it exists already and belongs to this job.
    async fn put_shard(
        &self,
        job: &JobKey,
        write: &OperationRecordWrite,
        fence: &Fence,
    ) -> Result<(u32, StoredOperationRecord), Stopped> {
        let OperationRecordWrite { record_number, name, record, patch, grows: _ } = write;
        let object = ObjectKey { kind: Kind::record(), namespace: Some(job.namespace.clone()), name: name.clone() };
        if let Some(body) = patch {
            match self.write(&Write::patch(&object, body.clone()), Lane::Record, fence).await {
                // Another client removed the record, so the host creates it again.
                Err(Stopped::Gone) => {}
                outcome => return outcome.map(|reply| (*record_number, stored(&reply))),
            }
        }
        let body = serde_json::to_value(record).map_err(|error| Stopped::Refused { message: error.to_string() })?;
        let owner_uid = record.record.job.uid.clone();
        let create = Write::Create { object: object.clone(), body: body.clone(), owner_uid };
        let reply = self.write(&create, Lane::Record, fence).await?;
        if says(&reply, &body) {
            return Ok((*record_number, stored(&reply)));
        }
        if stored(&reply).epoch > record.record.epoch.unwrap_or(0) {
            // A later term has written it.
            return Err(Stopped::Conflict);
        }
        // The record existed already with older content.
        let update = Write::patch(&object, without_metadata(body, &reply));
        self.write(&update, Lane::Record, fence).await.map(|reply| (*record_number, stored(&reply)))
    }
}

/// Returns the version of a record from a reply.
fn stored(reply: &Value) -> StoredOperationRecord {
    let text = |pointer| reply.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
    StoredOperationRecord {
        uid: text("/metadata/uid"),
        resource_version: text("/metadata/resourceVersion"),
        epoch: reply.pointer("/epoch").and_then(Value::as_i64).unwrap_or(0),
    }
}

/// Returns true if `stored` has every field and label of `wanted`.
fn says(stored: &Value, wanted: &Value) -> bool {
    let fields = wanted.as_object().into_iter().flatten().filter(|(name, _)| *name != "metadata");
    let labels = wanted.pointer("/metadata/labels").and_then(Value::as_object).into_iter().flatten();
    let stored_labels = stored.pointer("/metadata/labels");
    let same_labels = labels.into_iter().all(|(key, value)| stored_labels.and_then(|all| all.get(key)) == Some(value));
    same_labels && fields.into_iter().all(|(name, value)| stored.get(name) == Some(value))
}

/// Returns a merge patch that gives `stored` the fields and labels of `wanted`, and no other fields.
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
        // The next round sees that the job no longer exists.
        Stopped::Gone | Stopped::Conflict => RecordError::Conflict { job, step },
        Stopped::Unknown { message } => RecordError::Unknown { job, step, message },
        Stopped::Throttled { retry_after } => RecordError::Throttled { job, step, retry_after },
        Stopped::LostLease | Stopped::NotSent => RecordError::LostLease { job, step },
        Stopped::Refused { message } | Stopped::Blocked { message, .. } | Stopped::Forbidden { message, .. } => {
            RecordError::Refused { job, step, message }
        }
    }
}

impl RecordError {
    /// Returns the seconds to wait before the next try, if the API server names them.
    pub fn retry_after(&self) -> Option<u32> {
        match self {
            Self::Throttled { retry_after, .. } => *retry_after,
            _ => None,
        }
    }

    /// Returns true if the API server refused the write and would refuse it again.
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
