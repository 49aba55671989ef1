//! Decides requests by roles and bindings. RBAC has no deny rules: a request that no role allows is not allowed.

use std::{collections::BTreeMap, sync::Arc};

use serde_json::Value;

use crate::{
    access::user::{MASTERS, User},
    object::{self, at, str_at},
    server::cluster::State,
    storage::{Key, ObjectVersion},
};

const GROUP: &str = "rbac.authorization.k8s.io";
const ROLE: &str = "Role";
const CLUSTER_ROLE: &str = "ClusterRole";

/// The attributes of a request: a verb on a resource, or on the path of a document.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Attributes<'a> {
    pub(crate) verb: &'a str,
    pub(crate) group: &'a str,
    pub(crate) resource: &'a str,
    pub(crate) subresource: &'a str,
    /// Namespace of the request, empty for requests about the whole cluster.
    pub(crate) namespace: &'a str,
    pub(crate) name: &'a str,
    /// Path of a document, empty for resources.
    pub(crate) path: &'a str,
}

/// The decision about a request. The reason names the binding that allows it, or the roles that were not found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Decision {
    pub(crate) allowed: bool,
    pub(crate) reason: String,
}

/// The rules that apply to a user, with the bindings that grant them.
#[derive(Debug, Default)]
pub(crate) struct Rights {
    /// Pairs of the granting binding and the rule.
    pub(crate) rules: Vec<(String, Value)>,
    /// Errors about bound roles that do not exist.
    pub(crate) missing: Vec<String>,
}

/// A snapshot of the roles and bindings.
#[derive(Debug, Default)]
pub(crate) struct Roles {
    bindings: Vec<(Key, Arc<ObjectVersion>)>,
    /// Roles by kind and key.
    roles: BTreeMap<(&'static str, Key), Arc<ObjectVersion>>,
}

impl Roles {
    /// Returns the current roles and bindings.
    pub(crate) fn of(state: &State) -> Self {
        let stored = |plural: &str| {
            let table = state.kinds.by_path(GROUP, "v1", plural).map(|kind| kind.table);
            let all = table.into_iter().flat_map(|table| state.store.scan(table, None));
            all.map(|(key, version)| (key.clone(), Arc::clone(version))).collect::<Vec<_>>()
        };
        let bindings = ["clusterrolebindings", "rolebindings"].into_iter().flat_map(stored).collect();
        let roles = [(CLUSTER_ROLE, "clusterroles"), (ROLE, "roles")]
            .into_iter()
            .flat_map(|(kind, plural)| stored(plural).into_iter().map(move |(key, version)| ((kind, key), version)));
        Self { bindings, roles: roles.collect() }
    }

    /// Decides one request of a user.
    pub(crate) fn decide(&self, user: &User, wanted: &Attributes<'_>) -> Decision {
        if user.is_in(MASTERS) {
            return Decision { allowed: true, reason: String::new() };
        }
        self.rights(user, wanted.namespace).decide(wanted)
    }

    /// Returns the rights of a user in the whole cluster, and in a namespace if one is given.
    pub(crate) fn rights(&self, user: &User, namespace: &str) -> Rights {
        let mut found = Rights::default();
        let here = |key: &Key| key.namespace.is_empty() || key.namespace == namespace;
        for (key, binding) in self.bindings.iter().filter(|(key, _)| here(key)) {
            self.bound((&key.namespace, &binding.value), user, &mut found);
        }
        found
    }

    fn bound(&self, (namespace, binding): (&str, &Value), user: &User, found: &mut Rights) {
        let subjects = at(binding, &["subjects"]).and_then(Value::as_array).into_iter().flatten();
        let Some(subject) = subjects.into_iter().find(|subject| applies(subject, user, namespace)) else { return };
        let name = str_at(binding, &["roleRef", "name"]);
        let (kind, key) = match str_at(binding, &["roleRef", "kind"]) {
            ROLE => (ROLE, Key::new(namespace, name)),
            _ => (CLUSTER_ROLE, Key::new("", name)),
        };
        match self.roles.get(&(kind, key)) {
            Some(role) => {
                let source = source(binding, subject, namespace);
                let rules = at(&role.value, &["rules"]).and_then(Value::as_array).into_iter().flatten();
                found.rules.extend(rules.map(|rule| (source.clone(), rule.clone())));
            }
            None => found.missing.push(format!("{}.{GROUP} {name:?} not found", kind.to_lowercase())),
        }
    }
}

impl Rights {
    /// Decides one request in the namespace of these rights.
    pub(crate) fn decide(&self, wanted: &Attributes<'_>) -> Decision {
        if let Some((source, _)) = self.rules.iter().find(|(_, rule)| allows(rule, wanted)) {
            return Decision { allowed: true, reason: format!("RBAC: allowed by {source}") };
        }
        let reason = match self.missing.as_slice() {
            [] => String::new(),
            [one] => format!("RBAC: {one}"),
            many => format!("RBAC: [{}]", many.join(", ")),
        };
        Decision { allowed: false, reason }
    }
}

fn applies(subject: &Value, user: &User, namespace: &str) -> bool {
    let name = str_at(subject, &["name"]);
    match str_at(subject, &["kind"]) {
        "User" => user.name == name,
        "Group" => user.is_in(name),
        "ServiceAccount" => user.is_account(account_namespace(subject, namespace), name),
        _ => false,
    }
}

/// Returns the namespace of a ServiceAccount subject. A binding may omit it if it is the binding's namespace.
fn account_namespace<'a>(subject: &'a Value, namespace: &'a str) -> &'a str {
    match str_at(subject, &["namespace"]) {
        "" => namespace,
        own => own,
    }
}

/// Describes a binding as the real server does, with the namespace after the name.
fn source(binding: &Value, subject: &Value, namespace: &str) -> String {
    let name = object::name(binding);
    let (kind, name) = match namespace {
        "" => ("ClusterRoleBinding", name.to_owned()),
        namespace => ("RoleBinding", format!("{name}/{namespace}")),
    };
    let mut who = str_at(subject, &["name"]).to_owned();
    if str_at(subject, &["kind"]) == "ServiceAccount" {
        who = format!("{who}/{}", account_namespace(subject, namespace));
    }
    let (role_kind, role) = (str_at(binding, &["roleRef", "kind"]), str_at(binding, &["roleRef", "name"]));
    format!("{kind} {name:?} of {role_kind} {role:?} to {} {who:?}", str_at(subject, &["kind"]))
}

fn allows(rule: &Value, wanted: &Attributes<'_>) -> bool {
    let list = |field: &str| at(rule, &[field]).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let any = |field: &str, fits: &dyn Fn(&str) -> bool| {
        list(field).iter().filter_map(Value::as_str).any(|one| one == "*" || fits(one))
    };
    if !any("verbs", &|one| one == wanted.verb) {
        return false;
    }
    if !wanted.path.is_empty() {
        let below = |one: &str| one.strip_suffix('*').is_some_and(|stem| wanted.path.starts_with(stem));
        return any("nonResourceURLs", &|one| one == wanted.path || below(one));
    }
    let names = list("resourceNames");
    any("apiGroups", &|one| one == wanted.group)
        && any("resources", &|one| resource_fits(one, wanted))
        && (names.is_empty() || names.iter().any(|one| one == wanted.name))
}

fn resource_fits(rule: &str, wanted: &Attributes<'_>) -> bool {
    if wanted.subresource.is_empty() {
        return rule == wanted.resource;
    }
    let fits = |(resource, subresource): (&str, &str)| {
        (resource == "*" || resource == wanted.resource) && subresource == wanted.subresource
    };
    rule.split_once('/').is_some_and(fits)
}
