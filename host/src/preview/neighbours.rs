//! The other jobs that a preview must respect: their targets, their claims, and their numbers of targets in flight. A
//! job of the same name is excluded, because it must be deleted first.

use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;
use oarlock_api::{OperationJob, OperationRecord};
use oarlock_core::cache::store::Store;
use oarlock_core::object::key::JobKey;
use oarlock_core::operation_job::holds::without;
use oarlock_core::operation_job::lifecycle::PodOperation;
use oarlock_core::operation_job::round::context::{Observed, action, owner};
use oarlock_core::operation_job::round::memory::JobMemory;
use oarlock_core::operation_job::round::refresh::refresh;
use oarlock_core::operation_job::round::unlisted::wait_for_kinds;
use oarlock_core::operation_job::shared::tables::{SharedTables, lock};
use oarlock_core::operation_job::spec::asked_kind;
use oarlock_core::plugin::manifest::TargetKind;
use oarlock_core::requests::live_reads::LiveReads;
use oarlock_kube::read::snapshot::UnlistedKind;

use super::{PreviewCaveat, PreviewSetup};

/// The destination of the facts about the other jobs.
pub(super) struct Notes<'a> {
    pub(super) stage: &'a PreviewSetup,
    pub(super) tables: &'a SharedTables,
    pub(super) now: Timestamp,
}

impl Notes<'_> {
    /// Adds the jobs that matter to this one. Returns the caveats.
    ///
    /// The jobs of its namespace matter. The jobs of all namespaces matter too if the job is on nodes, or if the
    /// plugin's targets in flight are limited.
    pub(super) async fn take(&self, own: &JobKey, job: &OperationJob) -> Vec<PreviewCaveat> {
        let on_nodes = asked_kind(job.spec.as_ref()) == TargetKind::Node;
        let mut caveats = Vec::new();
        let Some(mut jobs) = self.listed(own, on_nodes, &mut caveats).await else { return caveats };
        if let Some(at) = jobs.iter().position(|job| key(job) == *own) {
            caveats.push(PreviewCaveat::NameTaken);
            take_as_deleted(&jobs.swap_remove(at), own, self.stage.cluster.store());
        }
        let (beside, elsewhere): (Vec<_>, Vec<_>) =
            jobs.into_iter().partition(|job| on_nodes || key(job).namespace == own.namespace);
        let uses_records = beside.iter().any(|job| job.status.as_ref().is_some_and(|status| status.records.is_some()));
        let place = (!on_nodes).then_some(own.namespace.as_str());
        let read = if uses_records { self.stage.cluster.records_once(place).await } else { Ok(Vec::new()) };
        let records = read.unwrap_or_else(|error| {
            caveats.push(PreviewCaveat::Records(error));
            Vec::new()
        });
        for job in beside {
            let (key, mut memory) = self.remembered(&job, &records);
            wait_for_kinds(&key, &mut memory, self.tables, self.now);
            self.note_in_flight(&key, &job, &memory);
        }
        for job in elsewhere {
            let (key, memory) = self.remembered(&job, &[]);
            self.note_in_flight(&key, &job, &memory);
        }
        caveats
    }

    /// Lists the jobs, as far as the user may.
    async fn listed(
        &self,
        own: &JobKey,
        on_nodes: bool,
        caveats: &mut Vec<PreviewCaveat>,
    ) -> Option<Vec<OperationJob>> {
        let PreviewSetup { cluster, plugin, .. } = self.stage;
        if on_nodes || plugin.targets_in_flight() != usize::MAX {
            match cluster.jobs_once(None).await {
                Ok(jobs) => return Some(jobs),
                Err(UnlistedKind::NotServed { .. }) => {}
                Err(error) if on_nodes => caveats.push(PreviewCaveat::JobsOnNodes(error)),
                Err(error) => caveats.push(PreviewCaveat::JobsInFlight(error)),
            }
        }
        match cluster.jobs_once(Some(&own.namespace)).await {
            Ok(jobs) => return Some(jobs),
            Err(UnlistedKind::NotServed { .. }) => caveats.push(PreviewCaveat::NotServed),
            Err(error) => caveats.push(PreviewCaveat::Jobs(error)),
        }
        None
    }

    /// Returns the memory of a job, from its status and these records.
    fn remembered(&self, job: &OperationJob, records: &[OperationRecord]) -> (JobKey, JobMemory) {
        let uid = job.metadata.uid.clone().unwrap_or_default();
        let observed = Observed {
            now: self.now,
            job: Some(Arc::new(job.clone())),
            records: Some(records.iter().filter(|record| record.record.job.uid == uid).cloned().collect()),
            live: LiveReads::default(),
            served: self.stage.cluster.served(),
            namespace_terminating: false,
            node_operations: true,
            tasks: Arc::default(),
        };
        let mut memory = JobMemory::default();
        refresh(&mut memory, job, &observed);
        (key(job), memory)
    }

    /// Adds the number of a job's targets in flight from its status, because its records may not have been read.
    /// Targets of a dry run do not count.
    fn note_in_flight(&self, key: &JobKey, job: &OperationJob, memory: &JobMemory) {
        let status = job.status.as_ref();
        let Some(plugin) = status.and_then(|status| status.plugin.as_ref()) else { return };
        let said = status.and_then(|status| usize::try_from(status.processing_pod_count?).ok()).unwrap_or(0);
        let count = if memory.stored.state.dry_run { 0 } else { said.min(memory.stored.state.targets.len()) };
        let tables = &mut lock(self.tables);
        tables.note_owner(key, owner(job));
        tables.note_in_flight(&plugin.name, key, count);
    }
}

/// Changes the cached objects as if the job were deleted: removes its holds, and cancels its operations.
fn take_as_deleted(job: &OperationJob, key: &JobKey, store: &Store) {
    let uid = job.metadata.uid.as_deref().unwrap_or_default();
    let operation = PodOperation::of(key, action(job));
    for kind in TargetKind::ALL {
        for object in store.all(&kind.kind(), None) {
            let released = without(&object, uid);
            let seen = released.as_ref().unwrap_or(&object);
            let cancelled = if kind == TargetKind::Pod { operation.without(seen) } else { None };
            if let Some(changed) = cancelled.or(released) {
                store.apply(changed);
            }
        }
    }
}

fn key(job: &OperationJob) -> JobKey {
    let meta = &job.metadata;
    JobKey { namespace: meta.namespace.clone().unwrap_or_default(), name: meta.name.clone().unwrap_or_default() }
}
