//! The documents of JobFlow, JobTemplate and DaemonJob.
//!
//! Takes the namespaces in which the host may make Jobs; yields the kinds, the roles and their bindings, and the policies. What the
//! host reads and tells is bound in the cluster: a flow elsewhere says that its Jobs are forbidden.

use oarlock_api::HostAccount;
use oarlock_core::cluster::own::OPS_NAMESPACE;
use oarlock_core::cluster::own::TASKS_NAMESPACE;
use serde_json::json;

use super::roles::{RoleDocument, binding};
use super::{ManifestsError, join, yaml};

const FLOWS: &str = include_str!("../../manifests/flows.yaml");
/// What the host does for flows.
const WRITES: &str = "oarlock-flows-writes";

/// The documents that JobFlow, JobTemplate and DaemonJob need beside those of `manifests`: their CRDs, the roles of the host and of
/// people, and their admission policies, for a host that may make Jobs in every namespace.
///
/// # Errors
/// If a document cannot be written, which a test excludes.
pub fn flow_manifests() -> Result<String, ManifestsError> {
    flow_manifests_with(&HostAccount::default(), &[])
}

/// The same for a host with this account, which makes Jobs in the namespaces of `bind`, or in every one if that is empty.
///
/// # Errors
/// Names a namespace in which the host never makes Jobs.
pub fn flow_manifests_with(host: &HostAccount, bind: &[String]) -> Result<String, ManifestsError> {
    let is_closed = |name: &&String| {
        name.starts_with("kube-") || [host.namespace.as_str(), TASKS_NAMESPACE, OPS_NAMESPACE].contains(&name.as_str())
    };
    if let Some(namespace) = bind.iter().find(is_closed) {
        return Err(ManifestsError::BindFlows { namespace: namespace.clone() });
    }
    let bindings: Vec<String> = bindings(bind).iter().map(yaml).collect::<Result<_, _>>()?;
    let bindings = bindings.iter().map(String::as_str);
    let policies = [oarlock_api::FLOW_ADMISSION, oarlock_api::ACCOUNT_JOB_ADMISSION];
    let documents = oarlock_api::FLOW_CRDS.into_iter().chain([FLOWS]).chain(bindings).chain(policies);
    Ok(host.fill(&join(&documents.collect::<Vec<_>>())))
}

fn bindings(bind: &[String]) -> Vec<RoleDocument> {
    let metadata = json!({"name": WRITES, "labels": {"app.kubernetes.io/name": "oarlock"}});
    if bind.is_empty() {
        let comment =
            "In every namespace: `oarlock manifests --flows --bind NAMESPACE` binds it to those that you name.";
        return vec![RoleDocument { comment: comment.to_owned(), content: binding(WRITES, metadata, None) }];
    }
    let bound = bind.iter().map(|namespace| binding(WRITES, metadata.clone(), Some(namespace)));
    bound.map(|content| RoleDocument { comment: String::new(), content }).collect()
}
