//! The other jobs, as a rehearsal has to respect them: what they work on, what they have claimed, and how many
//! targets of each plugin are in flight.

use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;
use oarlock_api::{OperationJob, OperationRecord};
use oarlock_core::cluster::live_reads::LiveReads;
use oarlock_core::job::key::JobKey;
use oarlock_core::plugin::manifest::TargetKind;
use oarlock_core::round::context::Observed;
use oarlock_core::round::memory::JobMemory;
use oarlock_core::round::refresh::refresh;
use oarlock_core::round::unlisted::wait_for_kinds;
use oarlock_core::shared::tables::{SharedTables, lock};
use oarlock_kube::Cluster;
use oarlock_kube::snapshot::UnlistedKind;

/// Notes the jobs of the namespace but the own one; of all namespaces for one on nodes, since all share them. Returns a sentence where they could not be read.
pub(super) async fn note(
    cluster: &Cluster,
    (own, job): (&JobKey, &OperationJob),
    tables: &SharedTables,
    now: Timestamp,
) -> Option<String> {
    let on_nodes = job.spec.as_ref().and_then(|spec| spec.target_kind.as_deref()) == Some(TargetKind::Node.word());
    let namespace = (!on_nodes).then_some(own.namespace.as_str());
    let others = match cluster.jobs_once(namespace).await {
        Ok(jobs) => jobs,
        Err(UnlistedKind::NotServed { .. }) => {
            return Some(
                "this cluster does not serve OperationJobs yet; `oarlock manifests | kubectl apply -f -` prepares it"
                    .to_owned(),
            );
        }
        Err(error) => return Some(format!("other jobs were not read, so what they work on does not count: {error}")),
    };
    let others: Vec<OperationJob> = others.into_iter().filter(|job| key(job) != *own).collect();
    let sharded = others.iter().any(|job| job.status.as_ref().is_some_and(|status| status.records.is_some()));
    let read = if sharded { cluster.records_once(namespace).await } else { Ok(Vec::new()) };
    let (records, failed) = match read {
        Ok(records) => (records, None),
        Err(error) => {
            (Vec::new(), Some(format!("which pods large jobs work on was not read, and does not count: {error}")))
        }
    };
    for job in others {
        note_job(job, &records, tables, (cluster, now));
    }
    failed
}

fn note_job(
    job: OperationJob,
    records: &[OperationRecord],
    tables: &SharedTables,
    (cluster, now): (&Cluster, Timestamp),
) {
    let (key, mut memory) = (key(&job), JobMemory::default());
    let uid = job.metadata.uid.clone().unwrap_or_default();
    let records = records.iter().filter(|record| record.record.job.uid == uid).cloned().collect();
    let plugin = job.status.as_ref().and_then(|status| status.plugin.as_ref()).map(|plugin| plugin.name.clone());
    let job = Arc::new(job);
    let observed = Observed {
        now,
        job: Some(job.clone()),
        records: Some(records),
        live: LiveReads::default(),
        served: cluster.served(),
        namespace_terminating: false,
        node_operations: true,
    };
    refresh(&mut memory, &job, &observed);
    wait_for_kinds(&key, &mut memory, tables, now);
    if let Some(plugin) = plugin {
        lock(tables).note_in_flight(&plugin, &key, memory.in_flight());
    }
}

fn key(job: &OperationJob) -> JobKey {
    let meta = &job.metadata;
    JobKey { namespace: meta.namespace.clone().unwrap_or_default(), name: meta.name.clone().unwrap_or_default() }
}
