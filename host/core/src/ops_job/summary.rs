//! The fields of an OpsJob in lists, other than its progress. Source: docs/opsjob-rest.md 5.

use k8s_openapi::jiff::Timestamp;
use serde_json::Value;

use crate::object::bound::cut;
use crate::object::fields::{list, number, text};
use crate::object::time::read_time;
use crate::ops_job::workload::WorkloadName;

/// The most characters of a text in a list. The schema allows no longer texts.
const TEXT: usize = 512;

/// The fields of a job in lists.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OpsSummary {
    /// The job name that the owner wrote.
    pub job_name: String,
    /// The type, as written.
    pub kind: String,
    /// The UID of the requester, or its name if it has no UID.
    pub user_id: String,
    /// The name of the requester. Empty if the job names none.
    pub user_name: String,
    /// The workspace of the job's nodes, or the namespace of its workload.
    pub workspace: String,
    /// Seconds from the creation of the job until the host ends it by force.
    pub timeout: i64,
    /// Time of the deletion.
    pub deleted: Option<Timestamp>,
}

impl OpsSummary {
    /// Reads a stored job.
    pub fn read(document: &Value) -> Self {
        let own = |pointer: &str| cut(text(document, pointer).unwrap_or_default(), TEXT);
        let name = own("/metadata/name");
        Self {
            job_name: Some(own("/spec/jobName")).filter(|given| !given.is_empty()).unwrap_or(name),
            kind: own("/spec/type"),
            user_id: own("/spec/requester/id"),
            user_name: own("/spec/requester/name"),
            workspace: workspace(document),
            timeout: number(document, "/spec/timeoutSecond").unwrap_or(0),
            deleted: read_time(text(document, "/metadata/deletionTimestamp")),
        }
    }

    /// Returns the memory of the summary, in bytes.
    pub(super) fn bytes(&self) -> usize {
        let Self { job_name, kind, user_id, user_name, workspace, .. } = self;
        [job_name, kind, user_id, user_name, workspace].iter().map(|text| text.len()).sum()
    }

    /// Returns true if this user requested the job. The same name with another UID is another user.
    pub fn is_of(&self, id: &str, name: &str) -> bool {
        !self.user_name.is_empty() && self.user_name == name && self.user_id == id
    }
}

/// Returns the workspace that the inputs name, or the namespace of the workload, or the workspace that the nodes share.
fn workspace(document: &Value) -> String {
    let of_input = |wanted: &str| {
        let mut inputs = list(document, "/spec/inputs").iter();
        let input =
            inputs.find(|input| text(input, "/name").is_some_and(|name| name.trim().eq_ignore_ascii_case(wanted)));
        input.and_then(|input| text(input, "/value")).map(|value| cut(value, TEXT))
    };
    let of_workload = || of_input("workload").and_then(|words| WorkloadName::read(&words)).map(|own| own.namespace);
    let of_nodes = || text(document, "/spec/workspace").map(|value| cut(value, TEXT));
    of_input("workspace").or_else(of_workload).or_else(of_nodes).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_job_belongs_to_its_workspace_or_its_workload_or_to_what_its_nodes_share() {
        let of = |inputs: Value| {
            let document = json!({"metadata": {"name": "j"}, "spec": {"inputs": inputs, "workspace": "shared",
                "requester": {"id": "u1", "name": "alice"}}});
            OpsSummary::read(&document)
        };
        let workspace = json!({"name": " Workspace ", "value": "team"});
        let workload = json!({"name": "workload", "value": "web/deployment/a"});
        let read = of(json!([workload, workspace]));
        assert_eq!((read.workspace.as_str(), read.job_name.as_str()), ("team", "j"));
        assert_eq!(of(json!([workload])).workspace, "web");
        assert_eq!(of(json!([])).workspace, "shared");
        assert!(read.is_of("u1", "alice") && !read.is_of("u2", "alice") && !read.is_of("u1", "bob"));
        assert!(!OpsSummary::default().is_of("", ""), "nobody is nobody's owner");
    }
}
