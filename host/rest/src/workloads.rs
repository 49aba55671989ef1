//! Finds the workloads that a text may mean. Source: docs/opsjob-rest.md 4.

use oarlock_core::object::key::is_object_name;
use oarlock_core::ops_job::refusal::OpsRefusal;
use oarlock_core::ops_job::workload::WorkloadName;
use oarlock_kube::ops::Ops;

use crate::errors::of_read;

/// The most workloads of one kind that are read: one more than a text may mean.
const OF_A_KIND: usize = 11;

/// Returns the workloads that `namespace/kind/name`, `namespace/name` or `name` may mean. It does not check that the first form exists.
pub(crate) async fn candidates(ops: &Ops, text: &str) -> Result<Vec<WorkloadName>, OpsRefusal> {
    if let Some(whole) = WorkloadName::read(text) {
        return Ok(vec![whole]);
    }
    let (namespace, name) = text.split_once('/').map_or((None, text), |(namespace, name)| (Some(namespace), name));
    if !is_object_name(name) || !namespace.is_none_or(is_object_name) {
        return Ok(Vec::new());
    }
    ops.named(namespace, name, OF_A_KIND).await.map_err(|failed| of_read(&failed))
}
