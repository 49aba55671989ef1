//! Reads the input of a round: the job, its records, the live reads, and the time.
//!
//! [`Cluster::observe`] takes the key of a job and its live reads, and returns [`Observed`]. The job is never older than the host's last
//! write to it. A failed live read is data and must not fail the function.

use std::collections::BTreeSet;
use std::sync::Arc;

use oarlock_api::{OperationJob, OperationRecord};
use oarlock_core::cache::object_cache::CachedView;
use oarlock_core::object::api_object::{Kind, ObjectKey};
use oarlock_core::object::key::{JobKey, JobRef};
use oarlock_core::operation_job::round::context::Observed;
use oarlock_core::operation_job::round::fit::allows_nodes;
use oarlock_core::operation_job::round::operation_records::operation_record_name;
use oarlock_core::requests::live_reads::LiveRead;

use crate::cluster::Cluster;
use crate::error_chain::error_chain;
use crate::link::Link;
use crate::transport::call::absent;
use crate::transport::list::{Collection, ListError};
use crate::transport::projection::Projection;
use crate::watch::jobs::read_job;

/// The label that finds the records of a job.
const JOB_UID_LABEL: &str = "oarlock.dev/job-uid";

/// The number of records of the largest job.
const MOST_RECORDS: i32 = 40;

/// The choice whether to read the OperationRecords of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detail {
    /// The host does not read the records, because the status suffices.
    Status,
    /// The host also reads the records.
    Records,
}

/// The reason why the host cannot observe a job.
#[derive(Debug, thiserror::Error)]
pub enum ObserveError {
    /// The host could not read the job. It had to, because the cache may be older than the host's last write.
    #[error("failed to read the job {key} after a write of unknown outcome: {message}")]
    ReadJob {
        /// The job.
        key: JobKey,
        /// The message of the API server.
        message: String,
    },
    /// The host could not read the records of the job.
    #[error("failed to read the records of the job {key}")]
    ReadRecords {
        /// The job.
        key: JobKey,
        /// The cause.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

impl Cluster {
    /// Reads the input of a round.
    ///
    /// # Errors
    /// If the job or its records must be read and the read fails. A failed live read is data.
    pub async fn observe(&self, key: &JobKey, reads: &[LiveRead], detail: Detail) -> Result<Observed, ObserveError> {
        let (job, live) = futures::join!(self.link.job(key), self.link.read_live(reads));
        let job = job?;
        let records = match (&job, detail) {
            (Some(job), Detail::Records) => Some(self.link.records(key, job).await?),
            _ => None,
        };
        let namespace = self.link.objects.store.get(&ObjectKey::namespace(&key.namespace));
        let discovery = self.link.discovery.clone();
        Ok(Observed {
            // The host reads the time last, so that the time is not before any observation.
            now: self.clock().now(),
            job,
            records,
            live,
            served: Arc::new(move |kind| discovery.serves(kind)),
            namespace_terminating: namespace.as_ref().is_some_and(|namespace| namespace.terminating()),
            tasks: self.tasks(),
            node_operations: namespace.is_some_and(|namespace| allows_nodes(&namespace)),
        })
    }
}

impl Link {
    async fn job(&self, key: &JobKey) -> Result<Option<Arc<OperationJob>>, ObserveError> {
        if let CachedView::Certain(cached) = self.jobs.view(key) {
            return Ok(cached.map(|cached| cached.job.clone()));
        }
        let failed = |message| ObserveError::ReadJob { key: key.clone(), message };
        match self.read(&key.object()).await.map_err(|failure| failed(failure.message))? {
            Ok(document) => {
                let held = read_job(&document).ok_or_else(|| failed("the reply is no OperationJob".to_owned()))?;
                Ok(self.jobs.confirm(key, Some(held)))
            }
            Err(error) if absent(&error, &key.name) => Ok(self.jobs.confirm(key, None)),
            Err(error) => Err(failed(error_chain(&error))),
        }
    }

    async fn records(&self, key: &JobKey, job: &OperationJob) -> Result<Vec<OperationRecord>, ObserveError> {
        let uid = job.metadata.uid.clone().unwrap_or_default();
        let kind = Kind::record();
        let failed = |source| ObserveError::ReadRecords { key: key.clone(), source };
        let resource = self.discovery.resource(&self.transport, &kind).await.map_err(|e| failed(Box::new(e)))?;
        let labels = format!("{JOB_UID_LABEL}={uid}");
        let from =
            Collection { resource: &resource, namespace: Some(&key.namespace), labels: Some(&labels), fields: None };
        let read = |document| match serde_json::from_value::<OperationRecord>(document) {
            Ok(record) => Some(record),
            Err(error) => {
                // The record counts as lost. A term that remembers its targets writes the record again.
                tracing::warn!(job = %key, %error, "failed to read an OperationRecord; the round continues without the record");
                None
            }
        };
        let listed = self
            .transport
            .list(from, &Projection::everything(), read)
            .await
            .map_err(|e: ListError| failed(Box::new(e)))?;
        let mut records = listed.items;
        let count = job.status.as_ref().and_then(|status| status.records.as_ref()).map_or(0, |records| records.count);
        let there: BTreeSet<i32> = records.iter().map(|record| record.record.shard).collect();
        for shard in (0..count.min(MOST_RECORDS)).filter(|shard| !there.contains(shard)) {
            records.extend(self.unlabelled(key, &uid, shard).await.map_err(|message| failed(message.into()))?);
        }
        records.sort_by_key(|record| record.record.shard);
        Ok(records)
    }

    /// Reads a record that the list does not show because a user removed its label.
    async fn unlabelled(&self, key: &JobKey, uid: &str, shard: i32) -> Result<Option<OperationRecord>, String> {
        let job = JobRef { key: key.clone(), uid: uid.to_owned() };
        let name = operation_record_name(&job, u32::try_from(shard).unwrap_or(0));
        let object = ObjectKey { kind: Kind::record(), namespace: Some(key.namespace.clone()), name };
        match self.read(&object).await.map_err(|failure| failure.message)? {
            Ok(document) => {
                let record: Option<OperationRecord> = serde_json::from_value(document).ok();
                Ok(record.filter(|record| record.record.job.uid == uid && record.record.shard == shard))
            }
            Err(error) if absent(&error, &object.name) => Ok(None),
            Err(error) => Err(error_chain(&error)),
        }
    }
}
