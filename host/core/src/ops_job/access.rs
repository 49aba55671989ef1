//! What whoever asks for an OpsJob must be allowed, as questions to the API server. Source: docs/opsjob-rest.md 2.

use crate::ops_job::refusal::{Code, OpsRefusal};
use crate::ops_job::spec::OpsType;
use crate::ops_job::workload::WorkloadName;

/// The group of OpsJobs.
const GROUP: &str = "oarlock.dev";
/// Their resource.
const OPS_JOBS: &str = "opsjobs";

/// A question: may somebody do this? Empty means all, or none, as in RBAC.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Access {
    /// The verb.
    pub verb: &'static str,
    /// The API group.
    pub group: String,
    /// The resource.
    pub resource: String,
    /// The subresource.
    pub subresource: &'static str,
    /// The namespace; all where it is empty.
    pub namespace: String,
    /// The name; all where it is empty.
    pub name: String,
}

impl Access {
    /// A verb on OpsJobs, or on a subresource of them.
    pub fn to_ops_jobs(verb: &'static str, subresource: &'static str) -> Self {
        Self { verb, group: GROUP.to_owned(), resource: OPS_JOBS.to_owned(), subresource, ..Self::default() }
    }

    /// The same in a namespace.
    #[must_use]
    pub fn within(self, namespace: &str) -> Self {
        Self { namespace: namespace.to_owned(), ..self }
    }

    /// To read a workload.
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

    /// To read the logs of pods in a namespace.
    pub fn to_logs(namespace: &str) -> Self {
        let (resource, namespace) = ("pods".to_owned(), namespace.to_owned());
        Self { verb: "get", resource, subresource: "log", namespace, ..Self::default() }
    }

    /// To run commands in the containers of pods in a namespace.
    pub fn to_exec(namespace: &str) -> Self {
        Self { verb: "create", subresource: "exec", ..Self::to_logs(namespace) }
    }

    /// To read a Secret.
    pub fn to_secret(namespace: &str, name: &str) -> Self {
        let (resource, namespace, name) = ("secrets".to_owned(), namespace.to_owned(), name.to_owned());
        Self { verb: "get", resource, namespace, name, ..Self::default() }
    }

    /// All that making a job of this type needs.
    pub fn to_create(kind: OpsType, has_own_script: bool) -> Vec<Self> {
        let script = has_own_script.then(|| Self::to_ops_jobs("create", "script"));
        let own = ["", kind.word()].map(|subresource| Self::to_ops_jobs("create", subresource));
        own.into_iter().chain(script).collect()
    }

    /// Refuses what somebody may not do to OpsJobs, and says who can give the right.
    pub fn refused(&self) -> OpsRefusal {
        let words = self.words();
        let advice = match self.subresource {
            "script" => "no role of Oarlock has that right, by which one is root on nodes",
            _ => "a cluster admin may bind the role oarlock-ops-operator to you",
        };
        OpsRefusal::new(Code::Forbidden, format!("you may not {words}; {advice}"))
    }

    /// What it says of OpsJobs, after `you may not`.
    pub fn words(&self) -> String {
        let Self { verb, group, resource, subresource, namespace, .. } = self;
        let sub = if subresource.is_empty() { String::new() } else { format!("/{subresource}") };
        let place = if namespace.is_empty() { String::new() } else { format!(" in namespace {namespace}") };
        format!("{verb} {resource}{sub} of {}{place}", if group.is_empty() { "core" } else { group })
    }
}
