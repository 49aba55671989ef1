//! The documents of OpsJob.

use oarlock_api::HostAccount;

use super::join;

const REST: &str = include_str!("../../manifests/rest.yaml");
const OPS: &str = include_str!("../../manifests/ops.yaml");
const PAGE: &str = include_str!("../../manifests/page.yaml");
const PAGE_LOGS: &str = include_str!("../../manifests/page-logs.yaml");

/// Returns the documents that OpsJobs need beside those of `manifests`, for a host with this account.
///
/// The documents are the kind, the namespace of the OperationJobs, the roles of the host and of users, and the
/// admission policies.
pub fn ops_manifests(host: &HostAccount) -> String {
    let documents = oarlock_api::OPS_CRDS.into_iter().chain([OPS, oarlock_api::OPS_ADMISSION]);
    host.fill(&join(&documents.collect::<Vec<_>>()))
}

/// Returns the documents that the REST API of OpsJobs needs beside those, for a host with this account.
///
/// The documents are the rights of the server, the Secret of its keys, a Service, and the network policy.
pub fn rest_manifests(host: &HostAccount) -> String {
    host.fill(REST)
}

/// Returns the documents that the pages of jobs need beside those of the REST API: the rights of the server to read what it
/// shows.
pub fn page_manifests(host: &HostAccount) -> String {
    host.fill(PAGE)
}

/// Returns the documents that pages with logs need beside those: the right of the server to read logs of pods.
pub fn page_log_manifests(host: &HostAccount) -> String {
    host.fill(PAGE_LOGS)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// Returns each rule of an account's roles: its verbs and its resources.
    fn rules_of(documents: &[Value], account: &str) -> Vec<String> {
        let is_of =
            |one: &&Value| one["subjects"].as_array().is_some_and(|all| all.iter().any(|of| of["name"] == account));
        let roles = documents.iter().filter(is_of).map(|binding| {
            let role = |one: &&Value| {
                one["kind"] == binding["roleRef"]["kind"]
                    && one["metadata"]["name"] == binding["roleRef"]["name"]
                    && one["metadata"]["namespace"] == binding["metadata"]["namespace"]
            };
            documents.iter().find(role).unwrap()
        });
        let rules = roles.flat_map(|role| role["rules"].as_array().unwrap());
        rules.map(|rule| format!("{} {}", rule["verbs"], rule["resources"]).replace('"', "")).collect()
    }

    #[test]
    fn the_pages_read_what_they_show_and_no_logs_and_no_secrets() {
        let documents: Vec<Value> = serde_saphyr::from_multiple(&page_manifests(&HostAccount::default())).unwrap();
        let rules = rules_of(&documents, "oarlock-server");
        assert!(rules.iter().all(|rule| rule.starts_with("[get,list,watch] ")), "{rules:?}");
        let all = rules.join("\n");
        assert!(all.contains("operationjobs") && !all.contains("secrets") && !all.contains("pods"), "{all}");
    }

    #[test]
    fn the_account_of_the_server_reads_logs_only_with_pages_that_show_them() {
        let host = HostAccount::default();
        let rules = |more: &[String]| {
            let texts = [&[ops_manifests(&host), rest_manifests(&host), page_manifests(&host)], more].concat();
            let documents: Vec<Value> = serde_saphyr::from_multiple(&texts.join("---\n")).unwrap();
            rules_of(&documents, "oarlock-server")
        };
        let (without, with) = (rules(&[]), rules(&[page_log_manifests(&host)]));
        assert!(!without.join("\n").contains("pods/log"), "{without:?}");
        assert_eq!(with.iter().filter(|rule| !without.contains(rule)).collect::<Vec<_>>(), ["[get] [pods/log]"]);
    }

    #[test]
    fn the_account_of_the_server_stops_and_makes_ops_jobs_and_has_nothing_of_the_hosts() {
        let host = HostAccount::default();
        let documents: Vec<Value> =
            serde_saphyr::from_multiple(&[ops_manifests(&host), rest_manifests(&host)].join("---\n")).unwrap();
        let rules = rules_of(&documents, "oarlock-server");
        let writes: Vec<&String> = rules.iter().filter(|rule| !rule.starts_with("[get")).collect();
        assert_eq!(
            writes,
            [
                "[create] [tokenreviews]",
                "[create] [subjectaccessreviews]",
                "[create,get,list,watch,patch,delete] [opsjobs]",
                "[create] [opsjobs/requesters]",
            ]
        );
        let all = rules.join("\n");
        for others in ["targets", "status", "finalizers", "operationjobs", "leases", "nodes/", "pods/"] {
            assert!(!all.contains(others), "{others}: {all}");
        }
        assert_eq!(rules.iter().filter(|rule| rule.contains("secrets")).collect::<Vec<_>>(), ["[get] [secrets]"]);
        let secrets = documents.iter().filter_map(|one| one["rules"].as_array()).flatten();
        let secrets = secrets.filter(|rule| rule["resources"] == json!(["secrets"]));
        assert!(
            secrets.clone().count() == 2
                && secrets.into_iter().all(|rule| rule["resourceNames"] == json!(["oarlock-rest"]))
        );
        let of_host = rules_of(&documents, "oarlock").join("\n");
        for others in ["tokenreviews", "subjectaccessreviews", "requesters", "create"] {
            let is_child = |rule: &&str| rule.contains("operationjobs");
            assert!(
                of_host.lines().filter(|rule| !is_child(rule)).all(|rule| !rule.contains(others)),
                "{others}: {of_host}"
            );
        }
    }
}
