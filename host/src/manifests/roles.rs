//! The roles that grants need.
//!
//! Each plugin gets a role for the host's reads, bound in every namespace, because the host caches whole kinds. Each
//! plugin also gets a role for the host's writes, bound in the namespaces of the grant. The roles never allow more than
//! the grant.

use std::collections::{BTreeMap, BTreeSet};

use oarlock_api::{HostAccount, OARLOCK_GROUP, OPERATION_JOB_GROUP};
use oarlock_core::object::api_object::Kind;
use oarlock_core::plugin::grant::{Grant, Verb, WriteRule};
use oarlock_core::plugin::names::is_dns_label;
use oarlock_core::plugin::task::{COLLECT_LOGS, COPY_IMAGE};
use serde_json::{Value, json};
use thiserror::Error;

use super::kinds::{KnownKinds, NamedKind};
use super::plugin_accounts::Impersonation;
use super::tasks::Egress;

/// The reason why the roles of a grant cannot be written.
#[derive(Debug, Error)]
pub enum RoleError {
    /// No plugin can have the name in the grant.
    #[error("the grant of `{plugin}`: no plugin has that name, which must be lower-case letters, digits and `-`")]
    Name {
        /// The name in the grant.
        plugin: String,
    },
    /// The grant names kinds by a pattern.
    #[error(
        "the grant of `{plugin}` names kinds by a pattern, `{api_version}` `{kind}`: a role needs each by its name"
    )]
    Pattern {
        /// The name of the plugin.
        plugin: String,
        /// The `apiVersion` of the rule.
        api_version: String,
        /// The `kind` of the rule.
        kind: String,
    },
    /// The resource name of the kind is unknown. Kubernetes does not define the kind, and no `--crds` file does.
    #[error(
        "the grant of `{plugin}` names {kind} of {api_version}, whose resource name is not known here: give its \
         definition by `--crds FILE` (kubectl get crds -o json > FILE)"
    )]
    Kind {
        /// The name of the plugin.
        plugin: String,
        /// The `apiVersion` of the rule.
        api_version: String,
        /// The `kind` of the rule.
        kind: String,
    },
    /// The definition of a kind of the engine is no CustomResourceDefinition.
    #[error("the definition of a kind is no CustomResourceDefinition")]
    Definition,
    /// The resource name of the children of a kind of the engine is not known.
    #[error("the resource name of the children, {kind}, is not known: add it to `KnownKinds`")]
    Child {
        /// The `kind` of the children.
        kind: String,
    },
    /// The grant names namespaces by a pattern, and `--bind` names none that matches.
    #[error(
        "the grant of `{plugin}` counts in the namespaces `{pattern}`: a role is bound to each by its name, so add \
         `--bind NAMESPACE` for each of them"
    )]
    Namespaces {
        /// The name of the plugin.
        plugin: String,
        /// The pattern.
        pattern: String,
    },
    /// No grant applies in a namespace of `--bind`.
    #[error("`--bind {namespace}`: no grant counts in that namespace")]
    Bind {
        /// The namespace.
        namespace: String,
    },
}

/// Grants, with the settings for their roles.
#[derive(Clone, Debug)]
pub struct GrantedAccess {
    /// The grants.
    pub grants: Vec<Grant>,
    /// The kinds with known resource names.
    pub kinds: KnownKinds,
    /// The namespaces that match the patterns of the grants. Exact names in grants need not be repeated here.
    pub bind: Vec<String>,
    /// The account that the host runs as.
    pub host: HostAccount,
    /// The addresses that checks on nodes may connect to.
    pub tasks_egress: Vec<Egress>,
    /// The way in which the host impersonates the accounts of plugins.
    pub impersonation: Impersonation,
}

/// A right that a grant needs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct NeededRight {
    /// The namespace, or `None` for all namespaces.
    pub(crate) namespace: Option<String>,
    /// The API group. The core group is empty.
    pub(crate) group: String,
    /// The resource, with its subresource, such as `pods/eviction`.
    pub(crate) resource: String,
    /// The verb.
    pub(crate) verb: &'static str,
}

impl std::fmt::Display for NeededRight {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { namespace, group, resource, verb } = self;
        let (dot, place) = (if group.is_empty() { "" } else { "." }, namespace.as_deref());
        write!(formatter, "{verb} {resource}{dot}{group} in {}", place.unwrap_or("all namespaces"))
    }
}

/// A document, with a comment about its purpose.
pub(crate) struct RoleDocument {
    pub(crate) comment: String,
    pub(crate) content: Value,
}

/// The verbs by API group and resource.
pub(super) type Rules = BTreeMap<(String, String), BTreeSet<&'static str>>;

pub(super) const READ: [&str; 3] = ["get", "list", "watch"];
/// The verbs of roles, in the usual order.
const VERBS: [&str; 12] = [
    "get",
    "list",
    "watch",
    "create",
    "update",
    "patch",
    "delete",
    "impersonate",
    "impersonate:serviceaccount",
    "impersonate-on:serviceaccount:create",
    "impersonate-on:serviceaccount:patch",
    "impersonate-on:serviceaccount:delete",
];
/// Resources that the admission policies of pods check rights for. No object of these resources exists.
pub(super) const HOLDS: &str = "holds";
pub(super) const POD_SPECS: &str = "podspecs";
/// A resource that the admission policy of nodes checks a right for. No object of this resource exists.
pub(super) const NODE_HOLDS: &str = "nodeholds";
/// The kinds that run pods. A pod may use any Secret and ServiceAccount of its namespace.
const WORKLOADS: [&str; 8] =
    ["Pod", "ReplicationController", "ReplicaSet", "Deployment", "StatefulSet", "DaemonSet", "Job", "CronJob"];

impl GrantedAccess {
    /// Returns the settings for grants that name only kinds of Kubernetes and no pattern of namespaces, for the default
    /// account.
    pub fn of(grants: Vec<Grant>) -> Self {
        let (kinds, host) = (KnownKinds::built_in(), HostAccount::default());
        let impersonation = Impersonation::default();
        Self { grants, kinds, bind: Vec::new(), host, tasks_egress: Vec::new(), impersonation }
    }

    /// Returns the roles and bindings of all plugins with a grant.
    pub(crate) fn documents(&self) -> Result<Vec<RoleDocument>, RoleError> {
        let unused = self.bind.iter().find(|name| !self.grants.iter().any(|grant| grant.allows_namespace(name)));
        if let Some(namespace) = unused {
            return Err(RoleError::Bind { namespace: namespace.clone() });
        }
        let mut documents = Vec::new();
        // A grant without namespaces applies nowhere.
        for grant in self.grants.iter().filter(|grant| !grant.namespaces.is_empty()) {
            if !is_dns_label(&grant.name) {
                return Err(RoleError::Name { plugin: grant.name.clone() });
            }
            documents.extend(self.of_plugin(grant)?);
        }
        Ok(documents)
    }

    /// Returns the rights that the roles of [`GrantedAccess::documents`] give the host's account.
    ///
    /// # Errors
    /// If a grant needs a right that no role can express.
    pub(crate) fn needed_rights(&self) -> Result<BTreeSet<NeededRight>, RoleError> {
        let mut all = BTreeSet::new();
        for grant in self.grants.iter().filter(|grant| !grant.namespaces.is_empty()) {
            let (inside, outside) = self.writes(grant)?;
            let reads = self.reads(grant)?;
            let mut add = |rules: &Rules, namespace: Option<&str>| {
                for ((group, resource), verbs) in rules {
                    all.extend(verbs.iter().map(|verb| NeededRight {
                        namespace: namespace.map(str::to_owned),
                        group: group.clone(),
                        resource: resource.clone(),
                        verb,
                    }));
                }
            };
            add(&reads, None);
            add(&outside, None);
            match self.namespaces(grant)? {
                None => add(&inside, None),
                Some(names) => names.into_iter().for_each(|name| add(&inside, Some(name))),
            }
        }
        Ok(all)
    }

    /// Returns true if a plugin is granted tasks on nodes.
    pub(crate) fn has_tasks(&self) -> bool {
        self.grants.iter().any(|grant| !grant.namespaces.is_empty() && grant.has_tasks_on_nodes())
    }

    /// Returns true if the host patches nodes for a plugin, even if only to touch their resourceVersion.
    pub(crate) fn changes_nodes(&self) -> bool {
        self.grants.iter().filter(|grant| !grant.namespaces.is_empty()).any(reaches_nodes)
    }

    /// Returns the namespaces in which the host may patch pods; `None` for all namespaces.
    pub(crate) fn patched_namespaces(&self) -> Result<Option<BTreeSet<&str>>, RoleError> {
        let mut all = BTreeSet::new();
        for grant in self.grants.iter().filter(|grant| patches_pods(grant)) {
            match self.namespaces(grant)? {
                None => return Ok(None),
                Some(names) => all.extend(names),
            }
        }
        Ok(Some(all))
    }

    fn of_plugin(&self, grant: &Grant) -> Result<Vec<RoleDocument>, RoleError> {
        let plugin = &grant.name;
        let reads = self.reads(grant)?;
        let (inside, outside) = self.writes(grant)?;
        let mut documents = Vec::new();
        if !reads.is_empty() {
            let comment = format!(
                "Lets the host read for plugin {plugin}, in every namespace, because the host caches whole kinds."
            );
            let named = Named { plugin, what: "reads" };
            documents.push(RoleDocument { comment, content: named.role(&reads) });
            documents.push(named.bound(None));
        }
        if !outside.is_empty() {
            let comment = format!(
                "Lets the host write for plugin {plugin} in the whole cluster: cluster-scoped objects, and evictions by drains."
            );
            let named = Named { plugin, what: "cluster-writes" };
            documents.push(RoleDocument { comment, content: named.role(&outside) });
            documents.push(named.bound(None));
        }
        if !inside.is_empty() {
            documents.extend(self.host_writes(grant, &inside)?);
        }
        if grant.identity.is_some() {
            documents.extend(self.of_account(grant)?);
        }
        Ok(documents)
    }

    /// Returns the role for the host's writes in the namespaces of a grant, with its bindings.
    fn host_writes(&self, grant: &Grant, inside: &Rules) -> Result<Vec<RoleDocument>, RoleError> {
        let plugin = &grant.name;
        let named = Named { plugin, what: "writes" };
        let logs = if grant.allows_task(COLLECT_LOGS) { " and read logs" } else { "" };
        let logs = if grant.allows_task(COPY_IMAGE) { " and read pull Secrets" } else { logs };
        let comment =
            format!("Lets the host write{logs} for plugin {plugin} in the namespaces of its grant.{}", warning(grant));
        let mut documents = vec![RoleDocument { comment, content: named.role(inside) }];
        match self.namespaces(grant)? {
            None => documents.push(named.bound(None)),
            Some(names) => documents.extend(names.into_iter().map(|name| named.bound(Some(name)))),
        }
        Ok(documents)
    }

    /// Returns the rules for reads.
    fn reads(&self, grant: &Grant) -> Result<Rules, RoleError> {
        let mut reads = Rules::new();
        for rule in &grant.reads {
            let kind = self.kind(&grant.name, &rule.api_version, &rule.kind)?;
            reads.entry((kind.group.clone(), kind.plural.clone())).or_default().extend(READ);
        }
        Ok(reads)
    }

    /// Returns the rules for writes of namespaced objects, and for writes of other objects.
    fn writes(&self, grant: &Grant) -> Result<(Rules, Rules), RoleError> {
        let (mut inside, mut outside) = (Rules::new(), Rules::new());
        // The host touches the resourceVersion of each target, and marks it as nobody's successor (3.7.11, 3.15.6). A
        // grant does not name the kind of the targets, but most tasks run on nodes.
        if reaches_nodes(grant) {
            outside.entry((String::new(), "nodes".to_owned())).or_default().insert("patch");
            outside.entry((OARLOCK_GROUP.to_owned(), NODE_HOLDS.to_owned())).or_default().insert("update");
        }
        if patches_pods(grant) {
            inside.entry((String::new(), "pods".to_owned())).or_default().insert("patch");
            inside.entry((OARLOCK_GROUP.to_owned(), HOLDS.to_owned())).or_default().insert("update");
        }
        // The host reads the list of a pod's containers, and the log of each.
        if grant.allows_task(COLLECT_LOGS) {
            for resource in ["pods", "pods/log"] {
                inside.entry((String::new(), resource.to_owned())).or_default().insert("get");
            }
        }
        // The host reads the pull secrets of the pods whose images it copies. The OpsJob names them, and its author
        // must have the right to read them.
        if grant.allows_task(COPY_IMAGE) {
            inside.entry((String::new(), "secrets".to_owned())).or_default().insert("get");
        }
        // The OperationJob of an OpsJob is created in the namespace of its pods.
        if [COLLECT_LOGS, COPY_IMAGE].iter().any(|kind| grant.allows_task(kind)) {
            let jobs = (OPERATION_JOB_GROUP.to_owned(), "operationjobs".to_owned());
            inside.entry(jobs).or_default().insert("create");
        }
        for rule in &grant.writes {
            let kind = self.kind(&grant.name, &rule.api_version, &rule.kind)?;
            let into = if kind.namespaced { &mut inside } else { &mut outside };
            // The plugin's account creates and evicts. The host releases the targets, also without the plugin, so it keeps patch and delete.
            let is_moved = |verb| grant.identity.is_some() && verb == "create";
            for (resource, verb) in needed(rule, &kind.plural) {
                if is_moved(verb) {
                    continue;
                }
                into.entry((kind.group.clone(), resource)).or_default().insert(verb);
            }
            // If several budgets select a pod, the API server names none of them, so the host lists them.
            if matches!(rule.verb, Verb::Evict | Verb::Drain) {
                into.entry(("policy".to_owned(), "poddisruptionbudgets".to_owned())).or_default().insert("list");
            }
            if rule.verb == Verb::Patch && kind.group.is_empty() && kind.plural == "pods" {
                into.entry((OARLOCK_GROUP.to_owned(), POD_SPECS.to_owned())).or_default().insert("patch");
            }
        }
        Ok((inside, outside))
    }

    pub(super) fn kind(&self, plugin: &str, api_version: &str, kind: &str) -> Result<&NamedKind, RoleError> {
        // An `apiVersion` without a group is a version of the core group, such as `v1`.
        let (group, rest) = api_version.split_once('/').map_or(("", api_version), |(group, _)| (group, ""));
        let (plugin, api_version, named) = (plugin.to_owned(), api_version.to_owned(), kind.to_owned());
        if [group, rest, kind].into_iter().any(|part| part.contains('*')) {
            return Err(RoleError::Pattern { plugin, api_version, kind: named });
        }
        self.kinds.find(group, kind).ok_or(RoleError::Kind { plugin, api_version, kind: named })
    }

    /// Returns the namespaces in which a grant applies; `None` for all namespaces.
    pub(super) fn namespaces<'a>(&'a self, grant: &'a Grant) -> Result<Option<BTreeSet<&'a str>>, RoleError> {
        if grant.namespaces.iter().any(|pattern| pattern == "*") {
            return Ok(None);
        }
        let mut names: BTreeSet<&str> =
            self.bind.iter().filter(|name| grant.allows_namespace(name)).map(String::as_str).collect();
        for pattern in &grant.namespaces {
            match pattern.strip_suffix('*') {
                None => drop(names.insert(pattern)),
                Some(prefix) if names.iter().any(|name| name.starts_with(prefix)) => {}
                Some(_) => {
                    let (plugin, pattern) = (grant.name.clone(), pattern.clone());
                    return Err(RoleError::Namespaces { plugin, pattern });
                }
            }
        }
        Ok(Some(names))
    }
}

/// Returns the resources and verbs that a rule needs.
pub(super) fn needed(rule: &WriteRule, plural: &str) -> Vec<(String, &'static str)> {
    let of = |verb| (plural.to_owned(), verb);
    match rule.verb {
        Verb::Metadata => vec![of("patch")],
        // If the object exists already, the host reads it to find its owner.
        Verb::Create => vec![of("create"), of("get")],
        Verb::Patch => {
            let below = rule.subresources.iter().map(|name| (format!("{plural}/{name}"), "patch"));
            std::iter::once(of("patch")).chain(below).collect()
        }
        Verb::Evict => vec![(format!("{plural}/eviction"), "create")],
        Verb::Delete => vec![of("delete")],
        Verb::Schedulable | Verb::Taint => vec![of("patch")],
        // A drain evicts the pods of its node in all namespaces.
        Verb::Drain => vec![of("patch"), ("pods/eviction".to_owned(), "create")],
    }
}

pub(super) fn is_of_node(rule: &WriteRule) -> bool {
    Kind::new(&rule.api_version, &rule.kind) == Kind::node()
}

/// Returns true if the targets can be pods.
fn patches_pods(grant: &Grant) -> bool {
    !reaches_nodes(grant)
        || grant.writes.iter().any(|rule| !is_of_node(rule))
        || grant.tasks.iter().any(|rule| rule.reaches_pods())
}

/// Returns true if the targets can be nodes: the plugin changes nodes, or runs tasks on them.
fn reaches_nodes(grant: &Grant) -> bool {
    grant.reaches_nodes() || grant.writes.iter().any(is_of_node)
}

fn warning(grant: &Grant) -> String {
    let workload = grant
        .writes
        .iter()
        .find(|rule| rule.verb == Verb::Create && WORKLOADS.iter().any(|workload| *workload == rule.kind));
    workload.map_or_else(String::new, |rule| {
        format!("\nAn account that creates a {} reaches every Secret and ServiceAccount of its namespace.", rule.kind)
    })
}

/// The name parts of one role of a plugin.
pub(super) struct Named<'a> {
    pub(super) plugin: &'a str,
    pub(super) what: &'static str,
}

impl Named<'_> {
    pub(super) fn name(&self) -> String {
        format!("oarlock-plugin-{}-{}", self.plugin, self.what)
    }

    pub(super) fn metadata(&self) -> Value {
        json!({"name": self.name(), "labels": {"app.kubernetes.io/name": "oarlock", "oarlock.dev/plugin": self.plugin}})
    }

    pub(super) fn role(&self, rules: &Rules) -> Value {
        role(&self.metadata(), rules)
    }

    /// Returns the binding of the role in one namespace, or in all namespaces.
    pub(super) fn bound(&self, namespace: Option<&str>) -> RoleDocument {
        let content = binding(&self.name(), self.metadata(), namespace);
        RoleDocument { comment: String::new(), content }
    }
}

/// Returns a ClusterRole with these rules.
pub(super) fn role(metadata: &Value, rules: &Rules) -> Value {
    let mut together: BTreeMap<(&str, Vec<&str>), Vec<&str>> = BTreeMap::new();
    for ((group, resource), verbs) in rules {
        let verbs = VERBS.into_iter().filter(|verb| verbs.contains(verb)).collect();
        together.entry((group, verbs)).or_default().push(resource);
    }
    let rules = together
        .into_iter()
        .map(|((group, verbs), resources)| json!({"apiGroups": [group], "resources": resources, "verbs": verbs}));
    json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": metadata, "rules": rules.collect::<Vec<_>>()})
}

/// Returns a binding of a ClusterRole to the host's account, in one namespace or in all namespaces.
pub(super) fn binding(role: &str, mut metadata: Value, namespace: Option<&str>) -> Value {
    let kind = if namespace.is_some() { "RoleBinding" } else { "ClusterRoleBinding" };
    if let (Some(namespace), Some(fields)) = (namespace, metadata.as_object_mut()) {
        fields.insert("namespace".to_owned(), json!(namespace));
    }
    json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind, "metadata": metadata,
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        "subjects": [{"kind": "ServiceAccount", "name": "OARLOCK_ACCOUNT", "namespace": "OARLOCK_NAMESPACE"}]})
}

#[cfg(test)]
#[path = "roles_tests.rs"]
mod tests;
