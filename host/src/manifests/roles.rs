//! The roles that grants need.
//!
//! Takes grants; yields, for each plugin, what the host may read for it, in every namespace since it keeps whole kinds in
//! memory, and what the host may write for it, bound to the namespaces of the grant. May not name more than the grant does.

use std::collections::{BTreeMap, BTreeSet};

use oarlock_api::{HostAccount, OARLOCK_GROUP, OPERATION_JOB_GROUP};
use oarlock_core::cluster::object::Kind;
use oarlock_core::plugin::grant::{Grant, Verb, WriteRule};
use oarlock_core::plugin::names::is_dns_label;
use oarlock_core::plugin::task::{COLLECT_LOGS, COPY_IMAGE};
use serde_json::{Value, json};
use thiserror::Error;

use super::kinds::{KnownKinds, NamedKind};
use super::tasks::Egress;

/// The roles of a grant cannot be written.
#[derive(Debug, Error)]
pub enum RoleError {
    /// No plugin can have that name.
    #[error("the grant of `{plugin}`: no plugin has that name, which must be lower-case letters, digits and `-`")]
    Name {
        /// The name in the grant.
        plugin: String,
    },
    /// It names kinds by a pattern.
    #[error(
        "the grant of `{plugin}` names kinds by a pattern, `{api_version}` `{kind}`: a role needs each by its name"
    )]
    Pattern {
        /// Name of the plugin.
        plugin: String,
        /// `apiVersion` of the rule.
        api_version: String,
        /// `kind` of the rule.
        kind: String,
    },
    /// The kind is not one of Kubernetes.
    #[error(
        "the grant of `{plugin}` names {kind} of {api_version}, whose resource name is not known here: give its \
         definition by `--crds FILE` (kubectl get crds -o json > FILE)"
    )]
    Kind {
        /// Name of the plugin.
        plugin: String,
        /// `apiVersion` of the rule.
        api_version: String,
        /// `kind` of the rule.
        kind: String,
    },
    /// It names namespaces by a pattern, and none of them is known.
    #[error(
        "the grant of `{plugin}` counts in the namespaces `{pattern}`: a role is bound to each by its name, so add \
         `--bind NAMESPACE` for each of them"
    )]
    Namespaces {
        /// Name of the plugin.
        plugin: String,
        /// The pattern.
        pattern: String,
    },
    /// Nothing is granted in a namespace that was asked for.
    #[error("`--bind {namespace}`: no grant counts in that namespace")]
    Bind {
        /// The namespace.
        namespace: String,
    },
}

/// Grants, and what is needed to write roles for them.
#[derive(Clone, Debug)]
pub struct GrantedAccess {
    /// The grants.
    pub grants: Vec<Grant>,
    /// The kinds whose resource names are known.
    pub kinds: KnownKinds,
    /// Namespaces that the patterns of the grants mean; exact names need not be repeated here.
    pub bind: Vec<String>,
    /// The account that the host runs as.
    pub host: HostAccount,
    /// Where checks on nodes may connect to.
    pub tasks_egress: Vec<Egress>,
}

/// A document, and a comment that says what it is for.
pub(crate) struct RoleDocument {
    pub(crate) comment: String,
    pub(crate) content: Value,
}

/// Verbs by API group and resource.
type Rules = BTreeMap<(String, String), BTreeSet<&'static str>>;

const READ: [&str; 3] = ["get", "list", "watch"];
/// The verbs of roles, in the usual order.
const VERBS: [&str; 7] = ["get", "list", "watch", "create", "update", "patch", "delete"];
/// What the admission policies of pods ask for; no object has these resources.
const HOLDS: &str = "holds";
const POD_SPECS: &str = "podspecs";
/// What the admission policy of nodes asks for; no object has this resource.
const NODE_HOLDS: &str = "nodeholds";
/// Kinds that run pods, which may name any Secret and ServiceAccount of their namespace.
const WORKLOADS: [&str; 8] =
    ["Pod", "ReplicationController", "ReplicaSet", "Deployment", "StatefulSet", "DaemonSet", "Job", "CronJob"];

impl GrantedAccess {
    /// These grants, which name kinds of Kubernetes and no pattern of namespaces, for the usual account.
    pub fn of(grants: Vec<Grant>) -> Self {
        let (kinds, host) = (KnownKinds::built_in(), HostAccount::default());
        Self { grants, kinds, bind: Vec::new(), host, tasks_egress: Vec::new() }
    }

    /// The roles and bindings of all plugins that are granted something.
    pub(crate) fn documents(&self) -> Result<Vec<RoleDocument>, RoleError> {
        let unused = self.bind.iter().find(|name| !self.grants.iter().any(|grant| grant.allows_namespace(name)));
        if let Some(namespace) = unused {
            return Err(RoleError::Bind { namespace: namespace.clone() });
        }
        let mut documents = Vec::new();
        // Without a namespace a grant serves nothing.
        for grant in self.grants.iter().filter(|grant| !grant.namespaces.is_empty()) {
            if !is_dns_label(&grant.name) {
                return Err(RoleError::Name { plugin: grant.name.clone() });
            }
            documents.extend(self.of_plugin(grant)?);
        }
        Ok(documents)
    }

    /// True if some plugin is granted tasks on nodes.
    pub(crate) fn has_tasks(&self) -> bool {
        self.grants.iter().any(|grant| !grant.namespaces.is_empty() && grant.has_tasks_on_nodes())
    }

    /// True if the host changes nodes for some plugin, if only to bump them.
    pub(crate) fn changes_nodes(&self) -> bool {
        self.grants.iter().filter(|grant| !grant.namespaces.is_empty()).any(reaches_nodes)
    }

    /// The namespaces in which the host may patch pods; `None` for all of them.
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
        let mut reads = Rules::new();
        for rule in &grant.reads {
            let kind = self.kind(plugin, &rule.api_version, &rule.kind)?;
            reads.entry((kind.group.clone(), kind.plural.clone())).or_default().extend(READ);
        }
        let (inside, outside) = self.writes(grant)?;
        let mut documents = Vec::new();
        if !reads.is_empty() {
            let comment =
                format!("What plugin {plugin} reads. The host keeps whole kinds in memory, so in every namespace.");
            let named = Named { plugin, what: "reads" };
            documents.push(RoleDocument { comment, content: named.role(&reads) });
            documents.push(named.bound(None));
        }
        if !outside.is_empty() {
            let comment = format!(
                "What plugin {plugin} has the host write in the whole cluster: objects in no namespace, and evictions by drains."
            );
            let named = Named { plugin, what: "cluster-writes" };
            documents.push(RoleDocument { comment, content: named.role(&outside) });
            documents.push(named.bound(None));
        }
        if inside.is_empty() {
            return Ok(documents);
        }
        let named = Named { plugin, what: "writes" };
        let logs = if grant.allows_task(COLLECT_LOGS) { ", and of which logs" } else { "" };
        let logs = if grant.allows_task(COPY_IMAGE) { ", and by which Secrets it pulls images," } else { logs };
        let comment =
            format!("What plugin {plugin} has the host write{logs} in the namespaces of its grant.{}", warning(grant));
        documents.push(RoleDocument { comment, content: named.role(&inside) });
        match self.namespaces(grant)? {
            None => documents.push(named.bound(None)),
            Some(names) => documents.extend(names.into_iter().map(|name| named.bound(Some(name)))),
        }
        Ok(documents)
    }

    /// What is written inside of namespaces, and what outside of them.
    fn writes(&self, grant: &Grant) -> Result<(Rules, Rules), RoleError> {
        let (mut inside, mut outside) = (Rules::new(), Rules::new());
        // Whatever a plugin does to its target, the host bumps it, and bars it for other targets (3.7.11, 3.15.6). A grant
        // does not name the kind of the targets, but most tasks are done on nodes.
        if reaches_nodes(grant) {
            outside.entry((String::new(), "nodes".to_owned())).or_default().insert("patch");
            outside.entry((OARLOCK_GROUP.to_owned(), NODE_HOLDS.to_owned())).or_default().insert("update");
        }
        if patches_pods(grant) {
            inside.entry((String::new(), "pods".to_owned())).or_default().insert("patch");
            inside.entry((OARLOCK_GROUP.to_owned(), HOLDS.to_owned())).or_default().insert("update");
        }
        // The host looks which containers a pod has, and reads the logs of each.
        if grant.allows_task(COLLECT_LOGS) {
            for resource in ["pods", "pods/log"] {
                inside.entry((String::new(), resource.to_owned())).or_default().insert("get");
            }
        }
        // The pull secrets of the pods whose images are copied: those that the OpsJob of somebody who may read them names.
        if grant.allows_task(COPY_IMAGE) {
            inside.entry((String::new(), "secrets".to_owned())).or_default().insert("get");
        }
        // The child of an OpsJob is where its pods are.
        if [COLLECT_LOGS, COPY_IMAGE].iter().any(|kind| grant.allows_task(kind)) {
            let jobs = (OPERATION_JOB_GROUP.to_owned(), "operationjobs".to_owned());
            inside.entry(jobs).or_default().insert("create");
        }
        for rule in &grant.writes {
            let kind = self.kind(&grant.name, &rule.api_version, &rule.kind)?;
            let into = if kind.namespaced { &mut inside } else { &mut outside };
            for (resource, verb) in needed(rule, &kind.plural) {
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

    fn kind(&self, plugin: &str, api_version: &str, kind: &str) -> Result<&NamedKind, RoleError> {
        // Without a group it is a version of the core group, such as `v1`.
        let (group, rest) = api_version.split_once('/').map_or(("", api_version), |(group, _)| (group, ""));
        let (plugin, api_version, named) = (plugin.to_owned(), api_version.to_owned(), kind.to_owned());
        if [group, rest, kind].into_iter().any(|part| part.contains('*')) {
            return Err(RoleError::Pattern { plugin, api_version, kind: named });
        }
        self.kinds.find(group, kind).ok_or(RoleError::Kind { plugin, api_version, kind: named })
    }

    /// The namespaces in which a grant counts; `None` for all of them.
    fn namespaces<'a>(&'a self, grant: &'a Grant) -> Result<Option<BTreeSet<&'a str>>, RoleError> {
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

/// The resources and verbs that a rule needs.
fn needed(rule: &WriteRule, plural: &str) -> Vec<(String, &'static str)> {
    let of = |verb| (plural.to_owned(), verb);
    match rule.verb {
        Verb::Metadata => vec![of("patch")],
        // An object that is there already is read, to see whose it is.
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

fn is_of_node(rule: &WriteRule) -> bool {
    Kind::new(&rule.api_version, &rule.kind) == Kind::node()
}

/// True if its targets can be pods.
fn patches_pods(grant: &Grant) -> bool {
    !reaches_nodes(grant)
        || grant.writes.iter().any(|rule| !is_of_node(rule))
        || grant.tasks.iter().any(|rule| rule.reaches_pods())
}

/// True if its targets can be nodes: it changes them, or has tasks done on them.
fn reaches_nodes(grant: &Grant) -> bool {
    grant.reaches_nodes() || grant.writes.iter().any(is_of_node)
}

fn warning(grant: &Grant) -> String {
    let workload = grant
        .writes
        .iter()
        .find(|rule| rule.verb == Verb::Create && WORKLOADS.iter().any(|workload| *workload == rule.kind));
    workload.map_or_else(String::new, |rule| {
        format!("\nWhoever creates a {} reaches every Secret and ServiceAccount of its namespace.", rule.kind)
    })
}

/// The roles of one plugin of one sort.
struct Named<'a> {
    plugin: &'a str,
    what: &'static str,
}

impl Named<'_> {
    fn name(&self) -> String {
        format!("oarlock-plugin-{}-{}", self.plugin, self.what)
    }

    fn metadata(&self) -> Value {
        json!({"name": self.name(), "labels": {"app.kubernetes.io/name": "oarlock", "oarlock.dev/plugin": self.plugin}})
    }

    fn role(&self, rules: &Rules) -> Value {
        let mut together: BTreeMap<(&str, Vec<&str>), Vec<&str>> = BTreeMap::new();
        for ((group, resource), verbs) in rules {
            let verbs = VERBS.into_iter().filter(|verb| verbs.contains(verb)).collect();
            together.entry((group, verbs)).or_default().push(resource);
        }
        let rules = together
            .into_iter()
            .map(|((group, verbs), resources)| json!({"apiGroups": [group], "resources": resources, "verbs": verbs}));
        json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
            "metadata": self.metadata(), "rules": rules.collect::<Vec<_>>()})
    }

    /// The binding of the role in one namespace, or in all.
    fn bound(&self, namespace: Option<&str>) -> RoleDocument {
        let content = binding(&self.name(), self.metadata(), namespace);
        RoleDocument { comment: String::new(), content }
    }
}

/// Binds a ClusterRole to the host's account, in one namespace or in all.
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
