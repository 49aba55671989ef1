//! The other jobs, as a rehearsal has to respect them: what they work on, what they have claimed, and how many
//! targets of each plugin are in flight. A job of the same name is none of them: it has to go first.

use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;
use oarlock_api::{OperationJob, OperationRecord};
use oarlock_core::cluster::lifecycle::PodOperation;
use oarlock_core::cluster::live_reads::LiveReads;
use oarlock_core::cluster::store::Store;
use oarlock_core::job::key::JobKey;
use oarlock_core::job::spec::asked_kind;
use oarlock_core::plugin::manifest::TargetKind;
use oarlock_core::round::context::{Observed, action, owner};
use oarlock_core::round::memory::JobMemory;
use oarlock_core::round::refresh::refresh;
use oarlock_core::round::unlisted::wait_for_kinds;
use oarlock_core::shared::holds::without;
use oarlock_core::shared::tables::{SharedTables, lock};
use oarlock_kube::snapshot::UnlistedKind;

use super::{Doubt, Stage};

/// What the jobs are noted in.
pub(super) struct Notes<'a> {
    pub(super) stage: &'a Stage,
    pub(super) tables: &'a SharedTables,
    pub(super) now: Timestamp,
}

impl Notes<'_> {
    /// Notes the jobs that matter to this one: those of its namespace, and those of all where the plugin's targets in flight are
    /// bounded or it is on nodes, since all share them. Returns what is in doubt.
    pub(super) async fn take(&self, own: &JobKey, job: &OperationJob) -> Vec<Doubt> {
        let on_nodes = asked_kind(job.spec.as_ref()) == TargetKind::Node;
        let mut doubts = Vec::new();
        let Some(mut jobs) = self.listed(own, on_nodes, &mut doubts).await else { return doubts };
        if let Some(at) = jobs.iter().position(|job| key(job) == *own) {
            doubts.push(Doubt::NameTaken);
            take_as_deleted(&jobs.swap_remove(at), own, self.stage.cluster.store());
        }
        let (beside, elsewhere): (Vec<_>, Vec<_>) =
            jobs.into_iter().partition(|job| on_nodes || key(job).namespace == own.namespace);
        let sharded = beside.iter().any(|job| job.status.as_ref().is_some_and(|status| status.records.is_some()));
        let place = (!on_nodes).then_some(own.namespace.as_str());
        let read = if sharded { self.stage.cluster.records_once(place).await } else { Ok(Vec::new()) };
        let records = read.unwrap_or_else(|error| {
            doubts.push(Doubt::Records(error));
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
        doubts
    }

    /// The jobs, as many as may be listed.
    async fn listed(&self, own: &JobKey, on_nodes: bool, doubts: &mut Vec<Doubt>) -> Option<Vec<OperationJob>> {
        let Stage { cluster, plugin, .. } = self.stage;
        if on_nodes || plugin.targets_in_flight() != usize::MAX {
            match cluster.jobs_once(None).await {
                Ok(jobs) => return Some(jobs),
                Err(UnlistedKind::NotServed { .. }) => {}
                Err(error) if on_nodes => doubts.push(Doubt::JobsOnNodes(error)),
                Err(error) => doubts.push(Doubt::JobsInFlight(error)),
            }
        }
        match cluster.jobs_once(Some(&own.namespace)).await {
            Ok(jobs) => return Some(jobs),
            Err(UnlistedKind::NotServed { .. }) => doubts.push(Doubt::NotServed),
            Err(error) => doubts.push(Doubt::Jobs(error)),
        }
        None
    }

    /// The memory of a job as its status and these records have it.
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

    /// Notes how many targets a job has in flight, as its status says: its records may not have been read. Those of a dry run do
    /// not count.
    fn note_in_flight(&self, key: &JobKey, job: &OperationJob, memory: &JobMemory) {
        let status = job.status.as_ref();
        let Some(plugin) = status.and_then(|status| status.plugin.as_ref()) else { return };
        let said = status.and_then(|status| usize::try_from(status.processing_pod_count?).ok()).unwrap_or(0);
        let count = if memory.state.dry_run { 0 } else { said.min(memory.state.targets.len()) };
        let tables = &mut lock(self.tables);
        tables.note_owner(key, owner(job));
        tables.note_in_flight(&plugin.name, key, count);
    }
}

/// Shows the objects as they are once a job is deleted: what it holds is let go of, and its operations are cancelled.
fn take_as_deleted(job: &OperationJob, key: &JobKey, store: &Store) {
    let uid = job.metadata.uid.as_deref().unwrap_or_default();
    let operation = PodOperation::of(key, action(job));
    for kind in TargetKind::ALL {
        for object in store.all(&kind.kind(), None) {
            let let_go = without(&object, uid);
            let seen = let_go.as_ref().unwrap_or(&object);
            let cancelled = if kind == TargetKind::Pod { operation.without(seen) } else { None };
            if let Some(changed) = cancelled.or(let_go) {
                store.apply(changed);
            }
        }
    }
}

fn key(job: &OperationJob) -> JobKey {
    let meta = &job.metadata;
    JobKey { namespace: meta.namespace.clone().unwrap_or_default(), name: meta.name.clone().unwrap_or_default() }
}
