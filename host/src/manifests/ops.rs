//! The documents of OpsJob.

use oarlock_api::HostAccount;

use super::join;

const REST: &str = include_str!("../../manifests/rest.yaml");
const OPS: &str = include_str!("../../manifests/ops.yaml");

/// The documents that OpsJobs need beside those of `manifests`, for a host with this account: the kind, the namespace of their
/// OperationJobs, the roles of the host and of people, and the admission policies.
pub fn ops_manifests(host: &HostAccount) -> String {
    let documents = oarlock_api::OPS_CRDS.into_iter().chain([OPS, oarlock_api::OPS_ADMISSION]);
    host.fill(&join(&documents.collect::<Vec<_>>()))
}

/// What the REST API of OpsJobs needs beside that, for a host with this account: its rights, the Secret of its keys, a Service, and who
/// may reach it.
pub fn rest_manifests(host: &HostAccount) -> String {
    host.fill(REST)
}
