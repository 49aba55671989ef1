//! The documents of JobFlow, JobTemplate and DaemonJob: the kinds, the roles with their bindings, and the policies.
//!
//! Reads and events are bound in the whole cluster, and writes of Jobs only in the chosen namespaces. A flow in another
//! namespace then reports that its Jobs are forbidden.

use oarlock_api::HostAccount;
use oarlock_core::object::own::OPS_NAMESPACE;
use oarlock_core::object::own::TASKS_NAMESPACE;
use serde_json::json;

use super::roles::{RoleDocument, binding};
use super::{ManifestsError, join, yaml};

const FLOWS: &str = include_str!("../../manifests/flows.yaml");
/// The role for the host's writes for flows.
const WRITES: &str = "oarlock-flows-writes";

/// Returns the documents that JobFlow, JobTemplate and DaemonJob need beside those of `manifests`. The documents are
/// for a host that may make Jobs in every namespace.
///
/// The documents are the CRDs, the roles of the host and of users, and the admission policies.
///
/// # Errors
/// If a document cannot be written. A test excludes this.
pub fn flow_manifests() -> Result<String, ManifestsError> {
    flow_manifests_with(&HostAccount::default(), &[])
}

/// Returns these documents for a host with this account, which makes Jobs in the namespaces of `bind`, or in every
/// namespace if `bind` is empty.
///
/// # Errors
/// If `bind` names a namespace in which the host never makes Jobs.
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
        let comment = "Binds the role in every namespace. `oarlock manifests --flows --bind NAMESPACE` binds it only where you name it.";
        return vec![RoleDocument { comment: comment.to_owned(), content: binding(WRITES, metadata, None) }];
    }
    let bound = bind.iter().map(|namespace| binding(WRITES, metadata.clone(), Some(namespace)));
    bound.map(|content| RoleDocument { comment: String::new(), content }).collect()
}
