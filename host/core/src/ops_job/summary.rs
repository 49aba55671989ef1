//! What a list says of an OpsJob beside how far it is. Source: docs/opsjob-rest.md 5.

use k8s_openapi::jiff::Timestamp;
use serde_json::Value;

use crate::child::fields::{list, number, text};
use crate::job::state::cut;
use crate::job::time::read_time;
use crate::ops_job::workload::WorkloadName;

/// Most characters of a text that a list has. The schema has no longer ones.
const TEXT: usize = 512;

/// What a list says of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OpsSummary {
    /// Its name, as its owner wrote it.
    pub job_name: String,
    /// Its type, as it is written.
    pub kind: String,
    /// Who asked for it, by UID or else by name.
    pub user_id: String,
    /// Who asked for it, by name; empty where nobody says so.
    pub user_name: String,
    /// The workspace of its nodes, or the namespace of its workload.
    pub workspace: String,
    /// Seconds from its creation to its end by force.
    pub timeout: i64,
    /// When it was deleted.
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

    /// The memory that it takes.
    pub(super) fn bytes(&self) -> usize {
        let Self { job_name, kind, user_id, user_name, workspace, .. } = self;
        [job_name, kind, user_id, user_name, workspace].iter().map(|text| text.len()).sum()
    }

    /// True where this user asked for it. Of users of one name, another UID is another user.
    pub fn is_of(&self, id: &str, name: &str) -> bool {
        !self.user_name.is_empty() && self.user_name == name && self.user_id == id
    }
}

/// What it names as its workspace, else the namespace of its workload, else what its nodes share.
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
