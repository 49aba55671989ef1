//! The permissions that the author of an OpsJob needs, as questions to the API server. Source: docs/opsjob-rest.md 2.

use crate::ops_job::refusal::{Code, OpsRefusal};
use crate::ops_job::spec::OpsType;
use crate::ops_job::workload::WorkloadName;

/// The API group of OpsJobs.
const GROUP: &str = "oarlock.dev";
/// The resource name of OpsJobs.
const OPS_JOBS: &str = "opsjobs";

/// A question to the API server: may a user do this? An empty field means all or none, as in RBAC.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Access {
    /// The verb, such as `get`.
    pub verb: &'static str,
    /// The API group. Empty for the core group.
    pub group: String,
    /// The resource, in the plural.
    pub resource: String,
    /// The subresource. Empty for the resource itself.
    pub subresource: &'static str,
    /// The namespace. Empty for all namespaces.
    pub namespace: String,
    /// The name. Empty for all names.
    pub name: String,
}

impl Access {
    /// Returns the question about a verb on OpsJobs, or on a subresource of OpsJobs.
    pub fn to_ops_jobs(verb: &'static str, subresource: &'static str) -> Self {
        Self { verb, group: GROUP.to_owned(), resource: OPS_JOBS.to_owned(), subresource, ..Self::default() }
    }

    /// Returns the question limited to a namespace.
    #[must_use]
    pub fn within(self, namespace: &str) -> Self {
        Self { namespace: namespace.to_owned(), ..self }
    }

    /// Returns the question whether a user may read a workload.
    pub fn to_workload(workload: &WorkloadName) -> Self {
        let (group, resource) = workload.resource();
        Self {
            verb: "get",
            group: group.to_owned(),
            resource: resource.to_owned(),
            subresource: "",
            namespace: workload.namespace.clone(),
            name: workload.name.clone(),
        }
    }

    /// Returns the question whether a user may read the logs of pods in a namespace.
    pub fn to_logs(namespace: &str) -> Self {
        let (resource, namespace) = ("pods".to_owned(), namespace.to_owned());
        Self { verb: "get", resource, subresource: "log", namespace, ..Self::default() }
    }

    /// Returns the question whether a user may run commands in the containers of pods in a namespace.
    pub fn to_exec(namespace: &str) -> Self {
        Self { verb: "create", subresource: "exec", ..Self::to_logs(namespace) }
    }

    /// Returns the question whether a user may read a Secret.
    pub fn to_secret(namespace: &str, name: &str) -> Self {
        let (resource, namespace, name) = ("secrets".to_owned(), namespace.to_owned(), name.to_owned());
        Self { verb: "get", resource, namespace, name, ..Self::default() }
    }

    /// Returns all questions for the creation of a job of this type.
    pub fn to_create(kind: OpsType, has_own_script: bool) -> Vec<Self> {
        let script = has_own_script.then(|| Self::to_ops_jobs("create", "script"));
        let own = ["", kind.word()].map(|subresource| Self::to_ops_jobs("create", subresource));
        own.into_iter().chain(script).collect()
    }

    /// Returns the refusal for a user who lacks this permission on OpsJobs. It says who can grant the permission.
    pub fn refused(&self) -> OpsRefusal {
        let message = self.describe();
        let advice = match self.subresource {
            "script" => "no role of Oarlock has this right, because its holder is root on nodes: ask a cluster admin",
            _ => "a cluster admin may bind the role oarlock-ops-operator to you",
        };
        OpsRefusal::new(Code::Forbidden, format!("you may not {message}; {advice}"))
    }

    /// Returns the action in words, which follow `you may not`.
    pub fn describe(&self) -> String {
        let Self { verb, group, resource, subresource, namespace, .. } = self;
        let sub = if subresource.is_empty() { String::new() } else { format!("/{subresource}") };
        let place = if namespace.is_empty() { String::new() } else { format!(" in namespace {namespace}") };
        format!("{verb} {resource}{sub} of {}{place}", if group.is_empty() { "core" } else { group })
    }
}
