//! The documents that prepare a cluster for the host, as YAML for `kubectl apply -f -`. The tests install exactly these
//! texts.

mod deployment;
mod kinds;
mod pinned;
mod roles;

use serde_json::{Value, json};
use thiserror::Error;

pub use deployment::{PluginSource, deployment};
pub use kinds::KnownKinds;
pub use pinned::{PinError, pinned};
use roles::RoleDocument;
pub use roles::{GrantedAccess, RoleError};

/// The namespace that the manifests make, and the default of `oarlock host --namespace`.
pub const HOST_NAMESPACE: &str = "oarlock-system";

/// The ServiceAccount that the manifests make.
const HOST_ACCOUNT: &str = "oarlock";
const NAMESPACE: &str = include_str!("../manifests/namespace.yaml");
const ROLES: &str = include_str!("../manifests/roles.yaml");
const USERS: &str = include_str!("../manifests/users.yaml");
const FLOWS: &str = include_str!("../manifests/flows.yaml");

/// The grants of the shipped plugins, as a grants file. They are for any component of those names: [`pinned`] makes them for
/// one.
pub const SHIPPED_GRANTS: &str = include_str!("../../plugins/replace/grant.yaml");

/// The documents cannot be written.
#[derive(Debug, Error)]
pub enum ManifestsError {
    /// The grants cannot be read.
    #[error("cannot read the grants of the shipped plugins")]
    Grants(#[source] oarlock_wasm::GrantsError),
    /// They need what no role can say.
    #[error("cannot write the roles that the grants need")]
    Roles(#[source] RoleError),
    /// A document is not YAML.
    #[error("cannot write a document as YAML")]
    Yaml(#[source] Box<serde_saphyr::SerializeError>),
    /// What was written cannot be read again.
    #[error("cannot read the documents that were written")]
    Read(#[source] Box<serde_saphyr::Error>),
}

/// The CustomResourceDefinitions, as YAML documents.
pub fn crds() -> String {
    join(&oarlock_api::CRDS)
}

/// The documents that JobFlow, JobTemplate and DaemonJob need beside [`manifests`]: their CRDs, the roles of the host and of
/// people, and their admission policies.
pub fn flow_manifests() -> String {
    join(&oarlock_api::FLOW_CRDS.into_iter().chain([FLOWS, oarlock_api::FLOW_ADMISSION]).collect::<Vec<_>>())
}

/// All documents that a cluster needs before the host runs there with the shipped plugins and their grants.
///
/// # Errors
/// If the shipped grants are invalid, which a test excludes.
pub fn manifests() -> Result<String, ManifestsError> {
    let grants = oarlock_wasm::parse_grants(SHIPPED_GRANTS).map_err(ManifestsError::Grants)?;
    manifests_with(&GrantedAccess { grants, kinds: KnownKinds::built_in(), bind: Vec::new() }, PodPolicies::Printed)
}

/// Whether the admission policies of pods are printed. They cost the API server some time at each create and update of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodPolicies {
    /// They are.
    Printed,
    /// They are left out.
    LeftOut,
}

/// All documents that a cluster needs before the host runs there with these grants, in the order in which to apply them:
/// namespace, CRDs, admission policy of jobs with its binding, account and roles, the policies of pods, and where a grant
/// reaches nodes, that of nodes.
///
/// # Errors
/// Names what no role can say, with the fix.
pub fn manifests_with(access: &GrantedAccess, policies: PodPolicies) -> Result<String, ManifestsError> {
    let [job, record] = oarlock_api::CRDS;
    let granted = access.documents().map_err(ManifestsError::Roles)?;
    let granted: Vec<String> = granted.iter().map(yaml).collect::<Result<_, _>>()?;
    let fixed = [NAMESPACE, job, record, oarlock_api::JOB_ADMISSION, ROLES, USERS];
    let granted = granted.iter().map(String::as_str);
    // Last, since a host that runs already is to have the rights that they ask for.
    let policies = (policies == PodPolicies::Printed).then(|| of_pods(access)).transpose()?;
    let of_nodes = access.changes_nodes().then_some(oarlock_api::NODE_ADMISSION);
    Ok(join(&fixed.into_iter().chain(granted).chain(policies.as_deref()).chain(of_nodes).collect::<Vec<_>>()))
}

/// The policies of pods. The one of the account's own patches is evaluated for everybody's, so only where the account may make some.
fn of_pods(access: &GrantedAccess) -> Result<String, ManifestsError> {
    let one = |operator: &str, names: Value| json!({"matchExpressions": [{"key": "kubernetes.io/metadata.name", "operator": operator, "values": names}]});
    let selector = match access.patched_namespaces().map_err(ManifestsError::Roles)? {
        None => json!({}),
        // Every namespace has the label.
        Some(names) if names.is_empty() => one("DoesNotExist", json!([])),
        Some(names) => one("In", json!(names)),
    };
    let account = format!("{HOST_NAMESPACE}:{HOST_ACCOUNT}");
    let policies = oarlock_api::POD_ADMISSION.replace("OARLOCK_NAMESPACE:OARLOCK_ACCOUNT", &account);
    Ok(policies.replace("OARLOCK_GRANTED", &selector.to_string()))
}

fn yaml(document: &RoleDocument) -> Result<String, ManifestsError> {
    let lines = document.comment.lines().map(|line| format!("# {line}\n"));
    let content = serde_saphyr::to_string(&document.content).map_err(|error| ManifestsError::Yaml(Box::new(error)))?;
    Ok(lines.collect::<String>() + &content)
}

/// The documents of `yaml` as one list in JSON.
///
/// # Errors
/// If the text is not YAML.
pub fn as_json(yaml: &str) -> Result<Value, ManifestsError> {
    let items: Vec<Value> = serde_saphyr::from_multiple(yaml).map_err(|error| ManifestsError::Read(Box::new(error)))?;
    Ok(json!({"apiVersion": "v1", "kind": "List", "items": items}))
}

fn join(documents: &[&str]) -> String {
    let trimmed: Vec<&str> = documents.iter().map(|text| text.trim_start_matches("---\n").trim_end()).collect();
    trimmed.join("\n---\n") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Vec<Value> {
        serde_saphyr::from_multiple(text).unwrap()
    }

    #[test]
    fn every_document_has_a_kind_and_a_name_and_comes_after_what_it_needs() {
        let documents = parsed(&manifests().unwrap());
        let kinds: Vec<_> = documents.iter().map(|document| document["kind"].as_str().unwrap()).collect();
        assert_eq!(
            kinds,
            [
                "Namespace",
                "CustomResourceDefinition",
                "CustomResourceDefinition",
                "ValidatingAdmissionPolicy",
                "ValidatingAdmissionPolicyBinding",
                "ServiceAccount",
                "ClusterRole",
                "ClusterRoleBinding",
                "Role",
                "RoleBinding",
                // Of people who view and edit jobs, and who plan them.
                "ClusterRole",
                "ClusterRole",
                "Role",
                // Of the shipped plugin: its reads, and its writes.
                "ClusterRole",
                "ClusterRoleBinding",
                "ClusterRole",
                "ClusterRoleBinding",
                // Of holds on pods, and of what the host may change of pods.
                "ValidatingAdmissionPolicy",
                "ValidatingAdmissionPolicyBinding",
                "ValidatingAdmissionPolicy",
                "ValidatingAdmissionPolicyBinding",
            ]
        );
        assert!(documents.iter().all(|document| document["metadata"]["name"].is_string()));
    }

    #[test]
    fn every_document_of_flows_has_a_kind_and_a_name_and_comes_after_what_it_needs() {
        let documents = parsed(&flow_manifests());
        let kinds: Vec<_> = documents.iter().map(|document| document["kind"].as_str().unwrap()).collect();
        assert_eq!(
            kinds,
            [
                // JobFlow, JobTemplate, DaemonJob and JobRecord.
                "CustomResourceDefinition",
                "CustomResourceDefinition",
                "CustomResourceDefinition",
                "CustomResourceDefinition",
                // Of the host.
                "ClusterRole",
                "ClusterRoleBinding",
                // Of people who view and edit flows.
                "ClusterRole",
                "ClusterRole",
                // Of JobFlow, and of DaemonJob.
                "ValidatingAdmissionPolicy",
                "ValidatingAdmissionPolicyBinding",
                "ValidatingAdmissionPolicy",
                "ValidatingAdmissionPolicyBinding",
            ]
        );
        let name = |document: &Value| document["metadata"]["name"].as_str().unwrap().to_owned();
        let named: Vec<String> = documents.iter().map(name).collect();
        let needs = |document: &Value| {
            let role = document["roleRef"]["name"].as_str();
            role.or_else(|| document["spec"]["policyName"].as_str()).map(str::to_owned)
        };
        for (index, needed) in documents.iter().enumerate().filter_map(|(index, one)| Some((index, needs(one)?))) {
            assert!(named[..index].contains(&needed), "{} comes before {needed}", named[index]);
        }
    }

    #[test]
    fn flows_are_the_business_of_the_account_that_the_other_documents_make() {
        let (first, flows) = (parsed(&manifests().unwrap()), parsed(&flow_manifests()));
        let account = first.iter().find(|document| document["kind"] == "ServiceAccount").unwrap();
        let binding = flows.iter().find(|document| document["kind"] == "ClusterRoleBinding").unwrap();
        let subjects = binding["subjects"].as_array().unwrap();
        assert_eq!(subjects.len(), 1, "{subjects:?}");
        for field in ["name", "namespace"] {
            assert_eq!(subjects[0][field], account["metadata"][field]);
        }
        let id = |document: &Value| format!("{} {}", document["kind"], document["metadata"]["name"]);
        let known: Vec<String> = first.iter().map(id).collect();
        let twice: Vec<String> = flows.iter().map(id).filter(|id| known.contains(id)).collect();
        assert_eq!(twice, Vec::<String>::new(), "applied twice, the later one would take the place of the first");
    }

    #[test]
    fn no_role_writes_pods_reads_secrets_or_uses_a_wildcard() {
        let documents = parsed(&(manifests().unwrap() + "---\n" + &flow_manifests()));
        let rules = documents.iter().filter_map(|document| document["rules"].as_array()).flatten();
        for rule in rules {
            let text = rule.to_string();
            assert!(!text.contains('*') && !text.contains("secrets"), "{text}");
            let on_pods = rule["resources"].as_array().unwrap().contains(&"pods".into());
            let verbs = rule["verbs"].as_array().unwrap();
            assert!(
                !on_pods || !["create", "update", "delete"].iter().any(|verb| verbs.contains(&(*verb).into())),
                "{text}"
            );
        }
    }

    #[test]
    fn nodes_are_in_the_documents_only_where_a_grant_reaches_them() {
        let with = |field: &str, rule: Value| {
            let spec = json!({"namespaces": ["ops"], field: [rule]});
            let document = json!({"apiVersion": "oarlock.dev/v1alpha1", "kind": "ActionPlugin", "metadata": {"name": "x"}, "spec": spec});
            let grants = oarlock_wasm::parse_grants(&document.to_string()).unwrap();
            let access = GrantedAccess { grants, kinds: KnownKinds::built_in(), bind: Vec::new() };
            let documents = parsed(&manifests_with(&access, PodPolicies::LeftOut).unwrap());
            let about = |document: &&Value| {
                let rules = &document["spec"]["matchConstraints"]["resourceRules"];
                format!("{}{rules}", document["rules"]).contains("\"nodes\"")
            };
            let name = |document: &Value| document["metadata"]["name"].as_str().unwrap().to_owned();
            documents.iter().filter(about).map(name).collect::<Vec<_>>()
        };
        let delete = |kind: &str| with("writes", json!({"verb": "delete", "apiVersion": "v1", "kind": kind}));
        assert_eq!(delete("ConfigMap"), Vec::<String>::new());
        let of_nodes = ["oarlock-plugin-x-cluster-writes", "node-holds.oarlock.dev"];
        assert_eq!(delete("Node"), of_nodes);
        assert_eq!(with("tasks", json!({"name": "check-pod"})), of_nodes);
    }

    #[test]
    fn the_policy_of_the_accounts_own_patches_is_bound_to_the_namespaces_where_it_may_make_some() {
        let bound_to = |namespaces: Value, kind: &str| {
            let spec =
                json!({"namespaces": namespaces, "writes": [{"verb": "delete", "apiVersion": "v1", "kind": kind}]});
            let document = json!({"apiVersion": "oarlock.dev/v1alpha1", "kind": "ActionPlugin", "metadata": {"name": "x"}, "spec": spec});
            let grants = oarlock_wasm::parse_grants(&document.to_string()).unwrap();
            let access = GrantedAccess { grants, kinds: KnownKinds::built_in(), bind: vec!["b-1".into()] };
            let documents = parsed(&manifests_with(&access, PodPolicies::Printed).unwrap());
            let of = |name: &str, kind: &str| {
                documents.iter().find(|one| one["metadata"]["name"] == name && one["kind"] == kind).unwrap().clone()
            };
            let policy = of("pod-metadata.oarlock.dev", "ValidatingAdmissionPolicy");
            let condition = &policy["spec"]["matchConditions"][0]["expression"];
            assert_eq!(condition, "request.userInfo.username == 'system:serviceaccount:oarlock-system:oarlock'");
            let binding = of("pod-metadata.oarlock.dev", "ValidatingAdmissionPolicyBinding");
            binding["spec"]["matchResources"]["namespaceSelector"]["matchExpressions"][0].clone()
        };
        assert_eq!(bound_to(json!(["b-1", "*"]), "Pod"), Value::Null);
        assert_eq!(bound_to(json!(["a", "b-*"]), "Pod")["values"], json!(["a", "b-1"]));
        assert_eq!(bound_to(json!(["b-1"]), "Node")["operator"], "DoesNotExist", "it may patch pods nowhere");
    }

    #[test]
    fn json_says_the_same_as_yaml() {
        let yaml = manifests().unwrap();
        let list = as_json(&yaml).unwrap();
        assert_eq!(list["kind"], "List");
        assert_eq!(list["items"].as_array(), Some(&parsed(&yaml)));
    }
}
