//! Making durable what a round decided, before anything else of it happens.
//!
//! Takes a [`Decided`]; yields the [`Recorded`] that alone can be applied. First the finalizer, then the
//! OperationRecords, then the status, at the version that the finalizer's reply showed. May not build or change a
//! status.

use futures::{StreamExt, TryStreamExt};
use oarlock_api::OPERATION_RECORD_API_VERSION;
use oarlock_core::cluster::object::{Kind, ObjectKey};
use oarlock_core::cluster::writes::{EventNote, JobKey, Record, RecordWrite, Recorded, Stopped, TargetWrites, Write};
use serde_json::{Value, json};

use crate::cluster::{Cluster, Link};
use crate::lease::Fence;
use crate::observe::job_object;
use crate::write::Mode;

/// Records in flight for one job: one costs the API server as much as dozens of pod patches.
const RECORDS_AT_ONCE: usize = 4;

/// What a round decided.
#[derive(Debug)]
pub struct Decided {
    /// The job.
    pub job: JobKey,
    /// What must be durable first.
    pub record: Record,
    /// What is written then.
    pub writes: Vec<TargetWrites>,
    /// The events that follow what was recorded.
    pub events: Vec<EventNote>,
}

/// Why nothing of what a round decided may be applied.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The round was judged on an old view; the next one sees a newer one.
    #[error("the {step} of the job {job} was decided on an old view")]
    Conflict {
        /// The job.
        job: JobKey,
        /// What was being written.
        step: &'static str,
    },
    /// It may be durable; the next round reads the job anew.
    #[error("nobody knows whether the {step} of the job {job} was written: {message}")]
    Unknown {
        /// The job.
        job: JobKey,
        /// What was being written.
        step: &'static str,
        /// What was seen.
        message: String,
    },
    /// The API server is busy.
    #[error("the API server is too busy to write the {step} of the job {job}")]
    Throttled {
        /// The job.
        job: JobKey,
        /// What was being written.
        step: &'static str,
        /// Seconds to wait, where the server names them.
        retry_after: Option<u32>,
    },
    /// The API server refuses it.
    #[error("the API server refused to write the {step} of the job {job}: {message}")]
    Refused {
        /// The job.
        job: JobKey,
        /// What was being written.
        step: &'static str,
        /// The server's sentence.
        message: String,
    },
    /// The term of leadership is over; nothing was sent.
    #[error("the {step} of the job {job} was not written: this process does not lead any more")]
    Fenced {
        /// The job.
        job: JobKey,
        /// What was to be written.
        step: &'static str,
    },
}

impl Cluster {
    /// Makes a round's record durable. What the replies show is in memory by then.
    pub async fn record(&self, decided: Decided, fence: &Fence) -> Result<Recorded, RecordError> {
        let Decided { job, record, writes, events } = decided;
        let failed = |step| {
            let job = job.clone();
            move |stopped| error(job, step, stopped)
        };
        let mut version = None;
        if let Some(body) = &record.finalizer {
            let write = Write::Patch { object: job_object(&job), subresource: None, body: body.clone() };
            let reply = self.link.write(&write, Mode::Real, fence).await.map_err(failed("finalizer"))?;
            version = reply.pointer("/metadata/resourceVersion").cloned();
        }
        // Collected first: a stream that makes futures of borrowed items is not `Send` for every lifetime.
        let puts: Vec<_> = record.records.iter().map(|write| self.link.put_record(&job, write, fence)).collect();
        let records = futures::stream::iter(puts);
        records.buffer_unordered(RECORDS_AT_ONCE).try_collect::<()>().await.map_err(failed("records"))?;
        if let Some(status) = &record.status {
            let mut body = status.clone();
            if let (Some(version), Some(meta)) = (version, body.get_mut("metadata").and_then(Value::as_object_mut)) {
                meta.insert("resourceVersion".to_owned(), version);
            }
            let subresource = Some("status".to_owned());
            let write = Write::Patch { object: job_object(&job), subresource, body };
            self.link.write(&write, Mode::Real, fence).await.map_err(failed("status"))?;
        }
        Ok(record.confirmed(writes, events))
    }
}

impl Link {
    /// Creates a record, or patches it where it is there already and belongs to this job.
    async fn put_record(&self, job: &JobKey, write: &RecordWrite, fence: &Fence) -> Result<(), Stopped> {
        let RecordWrite { name, record, patch } = write;
        let kind = Kind::new(OPERATION_RECORD_API_VERSION, "OperationRecord");
        let object = ObjectKey { kind, namespace: Some(job.namespace.clone()), name: name.clone() };
        if let Some(body) = patch {
            let patch = Write::Patch { object: object.clone(), subresource: None, body: body.clone() };
            match self.write(&patch, Mode::Real, fence).await {
                // Somebody removed it: it is made anew.
                Err(Stopped::Gone) => {}
                outcome => return outcome.map(drop),
            }
        }
        let body = serde_json::to_value(record).map_err(|error| Stopped::Refused { message: error.to_string() })?;
        let owner_uid = record.record.job.uid.clone();
        let create = Write::Create { object: object.clone(), body: body.clone(), owner_uid };
        let reply = self.write(&create, Mode::Real, fence).await?;
        if says(&reply, &body) {
            return Ok(());
        }
        // It was there already and says something older.
        let update = Write::Patch { object, subresource: None, body: without_metadata(body, &reply) };
        self.write(&update, Mode::Real, fence).await.map(drop)
    }
}

/// Whether `stored` says everything that `wanted` says beside its metadata.
fn says(stored: &Value, wanted: &Value) -> bool {
    let fields = wanted.as_object().into_iter().flatten().filter(|(name, _)| *name != "metadata");
    fields.into_iter().all(|(name, value)| stored.get(name) == Some(value))
}

/// A merge patch that makes `stored` say what `wanted` says, no more and no less.
fn without_metadata(wanted: Value, stored: &Value) -> Value {
    let mut patch = wanted;
    let Some(fields) = patch.as_object_mut() else { return patch };
    fields.remove("metadata");
    for name in stored.as_object().into_iter().flatten().map(|(name, _)| name) {
        if name != "metadata" && !fields.contains_key(name) {
            fields.insert(name.clone(), Value::Null);
        }
    }
    let precondition = json!({"uid": stored.pointer("/metadata/uid"),
        "resourceVersion": stored.pointer("/metadata/resourceVersion")});
    fields.insert("metadata".to_owned(), precondition);
    patch
}

fn error(job: JobKey, step: &'static str, stopped: Stopped) -> RecordError {
    match stopped {
        // A job that is gone is seen so by the next round.
        Stopped::Gone | Stopped::Conflict => RecordError::Conflict { job, step },
        Stopped::Unknown { message } => RecordError::Unknown { job, step, message },
        Stopped::Throttled { retry_after } => RecordError::Throttled { job, step, retry_after },
        Stopped::Fenced => RecordError::Fenced { job, step },
        Stopped::Refused { message } | Stopped::Blocked { message, .. } => RecordError::Refused { job, step, message },
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
