//! The documents that prepare a cluster for the host, as YAML for `kubectl apply -f -`. The tests install exactly these
//! texts.

mod deployment;
mod flows;
mod kind_roles;
mod kinds;
mod ops;
mod pinned;
mod plugin_accounts;
mod roles;
mod tasks;

use serde_json::{Value, json};
use thiserror::Error;

pub use deployment::{DataPlace, Deployed, PluginSource, deployment, export_role};
pub use flows::{flow_manifests, flow_manifests_with};
pub use kind_roles::kind_manifests;
#[cfg(test)]
pub(crate) use kind_roles::kind_rules;
pub use kinds::KnownKinds;
pub(crate) use kinds::NamedKind;
pub use oarlock_api::HostAccount;
pub use ops::{ops_manifests, page_log_manifests, page_manifests, rest_manifests};
pub use pinned::{PinError, pinned};
pub use plugin_accounts::Impersonation;
pub(crate) use roles::NeededRight;
use roles::RoleDocument;
pub use roles::{GrantedAccess, RoleError};
pub use tasks::Egress;

/// The namespace that the manifests create, and the default of `oarlock host --namespace`.
pub use oarlock_core::object::own::HOST_NAMESPACE;

const NAMESPACE: &str = include_str!("../manifests/namespace.yaml");
const ROLES: &str = include_str!("../manifests/roles.yaml");
const USERS: &str = include_str!("../manifests/users.yaml");

/// The grants of the shipped plugins, as a grants file. They allow any component with the plugins' names. [`pinned`]
/// limits them to one component.
pub const SHIPPED_GRANTS: &str = include_str!("../../plugins/replace/grant.yaml");

/// The reason why the documents cannot be written.
#[derive(Debug, Error)]
pub enum ManifestsError {
    /// The grants cannot be read.
    #[error("cannot read the grants of the shipped plugins")]
    Grants(#[source] oarlock_wasm::GrantsError),
    /// The grants need a right that no role can express.
    #[error("cannot write the roles that the grants need")]
    Roles(#[source] RoleError),
    /// The host never makes Jobs in this namespace.
    #[error(
        "`--bind {namespace}`: the host makes no Jobs in the namespaces of Kubernetes and in its own, so leave it out, and give other \
         flags their own run of `oarlock manifests` if a grant needs it"
    )]
    BindFlows {
        /// The namespace.
        namespace: String,
    },
    /// A document is not YAML.
    #[error("cannot write a document as YAML")]
    Yaml(#[source] Box<serde_saphyr::SerializeError>),
    /// The written documents cannot be parsed.
    #[error("cannot read the documents that were written")]
    Read(#[source] Box<serde_saphyr::Error>),
}

/// Returns the CustomResourceDefinitions as YAML documents.
pub fn crds() -> String {
    join(&oarlock_api::CRDS)
}

/// Returns all documents that a cluster needs for the host with the shipped plugins and their grants.
///
/// # Errors
/// If the shipped grants are invalid. A test excludes this.
pub fn manifests() -> Result<String, ManifestsError> {
    let grants = oarlock_wasm::parse_grants(SHIPPED_GRANTS).map_err(ManifestsError::Grants)?;
    manifests_with(&GrantedAccess::of(grants), PodPolicies::USUAL)
}

/// The admission policies of pods to print. Each costs the API server some time at each update of a pod that it
/// matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PodPolicies {
    /// True for the policy that lets only hosts write holds. A host that proves its holds does not need it.
    pub guards_holds: bool,
    /// True for the policy that limits how the host's account changes pods.
    pub guards_pod_writes: bool,
}

impl PodPolicies {
    /// No policy.
    pub const NONE: Self = Self { guards_holds: false, guards_pod_writes: false };
    /// The default policies.
    pub const USUAL: Self = Self { guards_holds: false, guards_pod_writes: true };
    /// All policies.
    pub const ALL: Self = Self { guards_holds: true, guards_pod_writes: true };
}

/// Returns all documents that a cluster needs for the host with these grants, in the order in which to apply them.
///
/// The order: namespace, CRDs, admission policies of jobs and of namespaces with their bindings, account and roles, the
/// documents of tasks, the policies of pods, and the policy of nodes if a grant reaches nodes.
///
/// # Errors
/// If a grant needs a right that no role can express. The error names the fix.
pub fn manifests_with(access: &GrantedAccess, policies: PodPolicies) -> Result<String, ManifestsError> {
    let of_jobs = [
        oarlock_api::JOB_ADMISSION,
        oarlock_api::ACCOUNT_ADMISSION,
        oarlock_api::NAMESPACE_ADMISSION,
        oarlock_api::JOB_RECORDING_ADMISSION,
        oarlock_api::ACTION_PLUGIN_ADMISSION,
    ];
    let granted = granted(access)?;
    let fixed = std::iter::once(NAMESPACE).chain(oarlock_api::CRDS).chain(of_jobs).chain([ROLES, USERS]);
    let granted = granted.iter().map(String::as_str);
    // The policies come last: a running host must have the rights that they ask for before they apply.
    let of_holds = policies.guards_holds.then_some(oarlock_api::HOLD_ADMISSION);
    let of_pods = policies.guards_pod_writes.then(|| of_pods(access)).transpose()?;
    let of_nodes = access.changes_nodes().then_some(oarlock_api::NODE_ADMISSION);
    let all: Vec<&str> = fixed.chain(granted).chain(of_holds).chain(of_pods.as_deref()).chain(of_nodes).collect();
    Ok(access.host.fill(&join(&all)))
}

/// Returns only the documents that these grants add, for the value `grants` of the Helm chart.
///
/// The documents are the grants as a ConfigMap, the roles, the documents of tasks, the policy of pods, and the policy of
/// nodes if a grant reaches nodes.
///
/// # Errors
/// If a grant needs a right that no role can express. The error names the fix.
pub fn grant_manifests(access: &GrantedAccess, grants: &str) -> Result<String, ManifestsError> {
    let map = deployment::grants_document(grants, &access.host)?;
    let (granted, of_pods) = (granted(access)?, of_pods(access)?);
    let of_nodes = access.changes_nodes().then_some(oarlock_api::NODE_ADMISSION);
    let all = [map.as_str()].into_iter().chain(granted.iter().map(String::as_str)).chain([of_pods.as_str()]);
    Ok(access.host.fill(&join(&all.chain(of_nodes).collect::<Vec<_>>())))
}

/// Returns only the roles that these grants need, with the documents of tasks and the policies of what the plugins change.
///
/// # Errors
/// If a grant needs a right that no role can express. The error names the fix.
pub fn plugin_roles(access: &GrantedAccess) -> Result<String, ManifestsError> {
    let granted = granted(access)?;
    let of_nodes = access.changes_nodes().then_some(oarlock_api::NODE_ADMISSION);
    let all: Vec<&str> = granted.iter().map(String::as_str).chain(of_nodes).collect();
    Ok(access.host.fill(&join(&all)))
}

/// Returns the roles that the grants need, and the documents of tasks.
fn granted(access: &GrantedAccess) -> Result<Vec<String>, ManifestsError> {
    let roles = access.documents().map_err(ManifestsError::Roles)?;
    let mut granted = if access.has_accounts() { plugin_accounts::documents()?.to_vec() } else { Vec::new() };
    granted.extend(roles.iter().map(yaml).collect::<Result<Vec<_>, _>>()?);
    if access.has_tasks() {
        granted.extend(tasks::documents(&access.tasks_egress)?);
    }
    Ok(granted)
}

/// Returns the policy of the account's patches of pods. Its binding selects only namespaces where the account may patch
/// pods, because the API server evaluates the policy for the patches of all users.
fn of_pods(access: &GrantedAccess) -> Result<String, ManifestsError> {
    let one = |operator: &str, names: Value| json!({"matchExpressions": [{"key": "kubernetes.io/metadata.name", "operator": operator, "values": names}]});
    let selector = match access.patched_namespaces().map_err(ManifestsError::Roles)? {
        None => json!({}),
        // Every namespace has this label, so the selector matches no namespace.
        Some(names) if names.is_empty() => one("DoesNotExist", json!([])),
        Some(names) => one("In", json!(names)),
    };
    Ok(oarlock_api::POD_ADMISSION.replace("OARLOCK_GRANTED", &selector.to_string()))
}

/// Returns the documents of a grant with tasks, for a cluster that gets its plugins later.
///
/// # Errors
/// If a document cannot be written. A test excludes this.
pub fn task_manifests() -> Result<String, ManifestsError> {
    let documents = tasks::documents(&[])?;
    Ok(HostAccount::default().fill(&join(&documents.iter().map(String::as_str).collect::<Vec<_>>())))
}

fn yaml(document: &RoleDocument) -> Result<String, ManifestsError> {
    let lines = document.comment.lines().map(|line| format!("# {line}\n"));
    let content = serde_saphyr::to_string(&document.content).map_err(|error| ManifestsError::Yaml(Box::new(error)))?;
    Ok(lines.collect::<String>() + &content)
}

/// Returns the documents of `yaml` as one list in JSON.
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
                "CustomResourceDefinition",
                // The policies of jobs, of the host's writes of jobs, of the namespaces' label for nodes, of records, and of grants.
                "ValidatingAdmissionPolicy",
                "ValidatingAdmissionPolicyBinding",
                "ValidatingAdmissionPolicy",
                "ValidatingAdmissionPolicyBinding",
                "ValidatingAdmissionPolicy",
                "ValidatingAdmissionPolicyBinding",
                "ValidatingAdmissionPolicy",
                "ValidatingAdmissionPolicyBinding",
                "ValidatingAdmissionPolicy",
                "ValidatingAdmissionPolicyBinding",
                "ServiceAccount",
                "ClusterRole",
                "ClusterRoleBinding",
                "Secret",
                "Role",
                "RoleBinding",
                // The roles of users who view and edit jobs, and who plan them.
                "ClusterRole",
                "ClusterRole",
                "Role",
                // The roles of the shipped plugin: its reads and its writes.
                "ClusterRole",
                "ClusterRoleBinding",
                "ClusterRole",
                "ClusterRoleBinding",
                // The policy of the host's changes of pods.
                "ValidatingAdmissionPolicy",
                "ValidatingAdmissionPolicyBinding",
            ]
        );
        assert!(documents.iter().all(|document| document["metadata"]["name"].is_string()));
    }

    #[test]
    fn every_document_of_flows_has_a_kind_and_a_name_and_comes_after_what_it_needs() {
        let documents = parsed(&flow_manifests().unwrap());
        let kinds: Vec<_> = documents.iter().map(|document| document["kind"].as_str().unwrap()).collect();
        assert_eq!(
            kinds,
            [
                // The kinds JobFlow, JobTemplate, DaemonJob and JobRecord.
                "CustomResourceDefinition",
                "CustomResourceDefinition",
                "CustomResourceDefinition",
                "CustomResourceDefinition",
                // The roles of the host: its reads and events, and its writes.
                "ClusterRole",
                "ClusterRoleBinding",
                "ClusterRole",
                // The roles of users who view and edit flows.
                "ClusterRole",
                "ClusterRole",
                "ClusterRoleBinding",
                // The policies of JobFlow, of DaemonJob, of users who start Jobs by flows, and of the host's writes of
                // Jobs.
                "ValidatingAdmissionPolicy",
                "ValidatingAdmissionPolicyBinding",
                "ValidatingAdmissionPolicy",
                "ValidatingAdmissionPolicyBinding",
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
        let (first, flows) = (parsed(&manifests().unwrap()), parsed(&flow_manifests().unwrap()));
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
        let documents = parsed(&(manifests().unwrap() + "---\n" + &flow_manifests().unwrap()));
        let rules = documents.iter().filter_map(|document| document["rules"].as_array()).flatten();
        for rule in rules {
            let text = rule.to_string();
            let is_own = rule["resourceNames"] == json!(["oarlock-holds"]);
            assert!(!text.contains('*') && (is_own || !text.contains("secrets")), "{text}");
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
            let access = GrantedAccess::of(grants);
            let documents = parsed(&manifests_with(&access, PodPolicies::NONE).unwrap());
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
            let access = GrantedAccess { bind: vec!["b-1".into()], ..GrantedAccess::of(grants) };
            let documents = parsed(&manifests_with(&access, PodPolicies::USUAL).unwrap());
            let of = |name: &str, kind: &str| {
                documents.iter().find(|one| one["metadata"]["name"] == name && one["kind"] == kind).unwrap().clone()
            };
            let policy = of("pod-metadata.oarlock.dev", "ValidatingAdmissionPolicy");
            let condition = policy["spec"]["matchConditions"][0]["expression"].as_str().unwrap();
            let own = "(request.userInfo.username == 'system:serviceaccount:oarlock-system:oarlock' || \
                       'system:serviceaccounts:oarlock-plugins' in request.userInfo.groups) && (";
            assert!(condition.starts_with(own), "{condition}");
            let binding = of("pod-metadata.oarlock.dev", "ValidatingAdmissionPolicyBinding");
            binding["spec"]["matchResources"]["namespaceSelector"]["matchExpressions"][0].clone()
        };
        assert_eq!(bound_to(json!(["b-1", "*"]), "Pod"), Value::Null);
        assert_eq!(bound_to(json!(["a", "b-*"]), "Pod")["values"], json!(["a", "b-1"]));
        assert_eq!(bound_to(json!(["b-1"]), "Node")["operator"], "DoesNotExist", "it may patch pods nowhere");
    }

    /// Each policy that matches pods adds a tenth to the time of each pod update.
    #[test]
    fn one_policy_looks_at_an_update_of_a_pod_and_none_at_its_status_its_binding_or_a_new_pod() {
        let looking = |policies: PodPolicies| {
            let grants = oarlock_wasm::parse_grants(SHIPPED_GRANTS).unwrap();
            let all =
                manifests_with(&GrantedAccess::of(grants), policies).unwrap() + "---\n" + &flow_manifests().unwrap();
            let documents = parsed(&all);
            let policies = documents.iter().filter(|one| one["kind"] == "ValidatingAdmissionPolicy");
            let rules =
                |one: &Value| one["spec"]["matchConstraints"]["resourceRules"].as_array().cloned().unwrap_or_default();
            let pods = policies.flat_map(rules).filter(|rule| rule["resources"].to_string().contains("pods"));
            pods.map(|rule| format!("{} {}", rule["operations"], rule["resources"])).collect::<Vec<_>>()
        };
        assert_eq!(looking(PodPolicies::USUAL), [r#"["UPDATE"] ["pods"]"#]);
        assert_eq!(looking(PodPolicies::NONE), Vec::<String>::new());
    }

    #[test]
    fn a_granted_task_brings_its_namespace_with_its_bounds_and_nothing_else_does() {
        let of = |spec: Value| {
            let document = json!({"apiVersion": "oarlock.dev/v1alpha1", "kind": "ActionPlugin", "metadata": {"name": "x"}, "spec": spec});
            let grants = oarlock_wasm::parse_grants(&document.to_string()).unwrap();
            let printed = manifests_with(&GrantedAccess::of(grants), PodPolicies::NONE).unwrap();
            let documents = parsed(&printed).into_iter();
            documents
                .filter(|one| one["metadata"]["name"].as_str().unwrap().starts_with("oarlock-tasks"))
                .collect::<Vec<_>>()
        };
        let granted = of(json!({"namespaces": ["ops"], "tasks": [{"name": "run-on-node"}]}));
        let kinds: Vec<_> = granted.iter().map(|one| one["kind"].as_str().unwrap()).collect();
        let expected = ["Namespace", "Role", "RoleBinding", "NetworkPolicy", "LimitRange"];
        assert_eq!(kinds[..5], expected);
        assert_eq!(kinds[5..], ["ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"]);
        assert_eq!(granted[0]["metadata"]["labels"]["pod-security.kubernetes.io/enforce"], "privileged");
        assert!(granted[1..5].iter().all(|one| one["metadata"]["namespace"] == "oarlock-tasks"));
        assert!(of(json!({"namespaces": ["ops"]})).is_empty());
        assert!(of(json!({"tasks": [{"name": "*"}]})).is_empty());
    }

    #[test]
    fn the_namespace_and_the_name_of_the_account_are_where_it_is_named_and_no_place_is_left_empty() {
        let grants = "{apiVersion: oarlock.dev/v1alpha1, kind: ActionPlugin, metadata: {name: x}, spec: {namespaces: [ops], \
                      tasks: [{name: run-on-node}], writes: [{verb: evict, apiVersion: v1, kind: Pod}]}}";
        let print = |host: HostAccount| {
            let access = GrantedAccess { host, ..GrantedAccess::of(oarlock_wasm::parse_grants(grants).unwrap()) };
            let first = manifests_with(&access, PodPolicies::USUAL).unwrap();
            let deployed = deployment(&Deployed::bare("image", grants, &access.host)).unwrap();
            [first, flow_manifests_with(&access.host, &[]).unwrap(), deployed].join("---\n")
        };
        let usual = print(HostAccount::default());
        assert_eq!(HostAccount::default().namespace, HOST_NAMESPACE);
        assert!(!usual.contains("OARLOCK_NAMESPACE") && !usual.contains("OARLOCK_ACCOUNT"));
        let other = print(HostAccount {
            namespace: "elsewhere".to_owned(),
            name: "robot".to_owned(),
            ..HostAccount::default()
        });
        assert!(!other.contains("oarlock-system"), "the usual namespace is left in it");
        let user = "system:serviceaccount:elsewhere:robot";
        assert_eq!(other.matches("system:serviceaccount:").count(), other.matches(user).count());
        let documents = parsed(&other);
        let account = documents.iter().find(|one| one["kind"] == "ServiceAccount").unwrap();
        assert_eq!(
            (&account["metadata"]["name"], &account["metadata"]["namespace"]),
            (&json!("robot"), &json!("elsewhere"))
        );
        let subjects = documents.iter().filter_map(|one| one["subjects"].as_array()).flatten();
        assert!(subjects.clone().count() > 5);
        for subject in subjects {
            assert_eq!((&subject["name"], &subject["namespace"]), (&json!("robot"), &json!("elsewhere")));
        }
        let about_host = |one: &&Value| one.to_string().contains(user);
        let policies: Vec<_> =
            documents.iter().filter(about_host).map(|one| one["metadata"]["name"].as_str().unwrap()).collect();
        assert_eq!(policies, ["host-operationjobs.oarlock.dev", "pod-metadata.oarlock.dev", "host-jobs.oarlock.dev"]);
        let deployment = documents.iter().find(|one| one["kind"] == "Deployment").unwrap();
        assert_eq!(deployment["spec"]["template"]["spec"]["serviceAccountName"], "robot");
    }

    #[test]
    fn a_plugin_with_an_identity_brings_the_namespace_of_its_account_before_its_roles() {
        let grants = "{apiVersion: oarlock.dev/v1alpha1, kind: ActionPlugin, metadata: {name: x}, spec: {namespaces: [ops], \
                      identity: {serviceAccount: x}, writes: [{verb: evict, apiVersion: v1, kind: Pod}]}}";
        let host = HostAccount { plugin_accounts: "robots".to_owned(), ..HostAccount::default() };
        let access = GrantedAccess { host, ..GrantedAccess::of(oarlock_wasm::parse_grants(grants).unwrap()) };
        let text = grant_manifests(&access, grants).unwrap();
        assert!(!text.contains("OARLOCK_") && !text.contains("oarlock-plugins\n"), "{text}");
        let documents = parsed(&text);
        assert_eq!((&documents[1]["kind"], &documents[1]["metadata"]["name"]), (&json!("Namespace"), &json!("robots")));
        assert_eq!(documents[2]["metadata"]["name"], "plugin-accounts.oarlock.dev");
        let policy = documents.iter().find(|one| one["metadata"]["name"] == "pod-metadata.oarlock.dev").unwrap();
        assert!(policy.to_string().contains("'system:serviceaccounts:robots' in request.userInfo.groups"));
    }

    #[test]
    fn the_host_makes_jobs_where_it_is_bound_to_and_reads_and_tells_everywhere() {
        let bound = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            let text = flow_manifests_with(&HostAccount::default(), &names)?;
            let is_binding = |one: &Value| one["roleRef"].is_object();
            let line = |one: &Value| {
                format!("{} {} {}", one["kind"], one["roleRef"]["name"], one["metadata"]["namespace"]).replace('"', "")
            };
            Ok::<_, ManifestsError>(parsed(&text).iter().filter(|one| is_binding(one)).map(line).collect::<Vec<_>>())
        };
        let reads = "ClusterRoleBinding oarlock-flows null";
        assert_eq!(bound(&[]).unwrap(), [reads, "ClusterRoleBinding oarlock-flows-writes null"]);
        let of = |name: &str| format!("RoleBinding oarlock-flows-writes {name}");
        assert_eq!(bound(&["a", "b"]).unwrap(), [reads.to_owned(), of("a"), of("b")]);
        for closed in ["kube-system", "oarlock-system", "oarlock-tasks", "oarlock-ops"] {
            let refused = bound(&["a", closed]).unwrap_err().to_string();
            assert!(refused.contains(&format!("`--bind {closed}`")), "{refused}");
        }
        let documents = parsed(&flow_manifests().unwrap());
        let role = |name: &str| {
            documents.iter().find(|one| one["metadata"]["name"] == name && one["kind"] == "ClusterRole").unwrap()
        };
        let writes = role("oarlock-flows")["rules"].to_string();
        assert!(!writes.contains("delete") && writes.matches("create").count() == 1, "records alone: {writes}");
    }

    #[test]
    fn json_says_the_same_as_yaml() {
        let yaml = manifests().unwrap();
        let list = as_json(&yaml).unwrap();
        assert_eq!(list["kind"], "List");
        assert_eq!(list["items"].as_array(), Some(&parsed(&yaml)));
    }
}
