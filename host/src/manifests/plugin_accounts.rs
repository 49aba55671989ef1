//! The documents of plugins with an identity: the rights of their accounts, and the host's right to act as them.
//!
//! The accounts need not exist. A role names them, and the host impersonates them. Their namespace has no pods, tokens and Secrets.

use std::str::FromStr;

use oarlock_api::OARLOCK_GROUP;
use oarlock_core::plugin::grant::{Grant, Verb};
use serde_json::{Value, json};

use super::roles::{
    GrantedAccess, HOLDS, NODE_HOLDS, Named, POD_SPECS, RoleDocument, RoleError, Rules, is_of_node, needed,
};
use super::{ManifestsError, yaml};

/// The way in which the host impersonates the accounts of plugins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Impersonation {
    /// With a right for each verb and resource, from Kubernetes 1.36.
    #[default]
    Constrained,
    /// With the verb `impersonate`, which covers every request as the account.
    Legacy,
}

impl FromStr for Impersonation {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "constrained" => Ok(Self::Constrained),
            "legacy" => Ok(Self::Legacy),
            _ => Err("give constrained, or legacy for API servers before 1.36".to_owned()),
        }
    }
}

impl GrantedAccess {
    /// Returns true if a plugin has an identity.
    pub(crate) fn has_accounts(&self) -> bool {
        self.grants.iter().any(|grant| !grant.namespaces.is_empty() && grant.identity.is_some())
    }

    /// Returns the rights of a plugin's account, and of the host to act as this account.
    pub(super) fn of_account(&self, grant: &Grant) -> Result<Vec<RoleDocument>, RoleError> {
        let (plugin, account) = (grant.name.as_str(), grant.account().unwrap_or_default());
        let (inside, outside) = self.account_rules(grant)?;
        let mut documents = vec![];
        let parts = [(outside, ["account-cluster-writes", "cluster-as"]), (inside, ["account-writes", "as"])];
        for (rules, [own, as_account]) in parts.into_iter().filter(|(rules, _)| !rules.is_empty()) {
            let namespaces = if own == "account-writes" { self.namespaces(grant)? } else { None };
            let bound = |named: &Named<'_>| match &namespaces {
                None => vec![named.bound(None)],
                Some(names) => names.iter().map(|name| named.bound(Some(name))).collect::<Vec<_>>(),
            };
            let named = Named { plugin, what: own };
            let comment = format!(
                "Lets the account of plugin {plugin} write, as which the host makes the changes of the plugin."
            );
            documents.push(RoleDocument { comment, content: named.role(&rules) });
            documents.extend(bound(&named).into_iter().map(|binding| of_subject(binding, account)));
            if self.impersonation == Impersonation::Constrained {
                let named = Named { plugin, what: as_account };
                let comment =
                    format!("Lets the host make these requests as the account of plugin {plugin}, and no others.");
                documents.push(RoleDocument { comment, content: named.role(&as_rules(&rules)) });
                documents.extend(bound(&named));
            }
        }
        documents.extend(self.impersonate(&Named { plugin, what: "impersonate" }, account));
        Ok(documents)
    }

    /// Returns the rights of a plugin's account to namespaced objects, and to other objects.
    fn account_rules(&self, grant: &Grant) -> Result<(Rules, Rules), RoleError> {
        let (mut inside, mut outside) = (Rules::new(), Rules::new());
        for rule in &grant.writes {
            let kind = self.kind(&grant.name, &rule.api_version, &rule.kind)?;
            let into = if kind.namespaced { &mut inside } else { &mut outside };
            let is_pod = kind.group.is_empty() && kind.plural == "pods";
            // The host reads what owns an object, as itself.
            for (resource, verb) in needed(rule, &kind.plural).into_iter().filter(|(_, verb)| *verb != "get") {
                // The change of a target and its hold are one patch, and the policies of holds ask for this right.
                let hold = match verb {
                    "patch" if is_pod => Some(HOLDS),
                    "patch" if is_of_node(rule) => Some(NODE_HOLDS),
                    _ => None,
                };
                if let Some(name) = hold {
                    into.entry((OARLOCK_GROUP.to_owned(), name.to_owned())).or_default().insert("update");
                }
                into.entry((kind.group.clone(), resource)).or_default().insert(verb);
            }
            if rule.verb == Verb::Patch && is_pod {
                into.entry((OARLOCK_GROUP.to_owned(), POD_SPECS.to_owned())).or_default().insert("patch");
            }
        }
        Ok((inside, outside))
    }

    /// Returns the Role by which the host may act as the account, with its binding.
    fn impersonate(&self, named: &Named<'_>, account: &str) -> [RoleDocument; 2] {
        let (group, verb) = match self.impersonation {
            Impersonation::Constrained => ("authentication.k8s.io", "impersonate:serviceaccount"),
            Impersonation::Legacy => ("", "impersonate"),
        };
        let namespace = "OARLOCK_PLUGIN_ACCOUNTS";
        let mut metadata = named.metadata();
        if let Some(fields) = metadata.as_object_mut() {
            fields.insert("namespace".to_owned(), json!(namespace));
        }
        let content = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": metadata, "rules": [
            {"apiGroups": [group], "resources": ["serviceaccounts"], "resourceNames": [account], "verbs": [verb]}]});
        let mut bound = named.bound(Some(namespace));
        if let Some(kind) = bound.content.pointer_mut("/roleRef/kind") {
            *kind = json!("Role");
        }
        let comment = format!("Lets the host act as the account of plugin {}.", named.plugin);
        [RoleDocument { comment, content }, bound]
    }
}

/// Returns the rights to make these requests as an account. The resources that only policies check are no requests.
fn as_rules(rules: &Rules) -> Rules {
    let requests = rules.iter().filter(|((group, _), _)| group != OARLOCK_GROUP);
    let verb = |verb: &&'static str| match *verb {
        "create" => Some("impersonate-on:serviceaccount:create"),
        "patch" => Some("impersonate-on:serviceaccount:patch"),
        "delete" => Some("impersonate-on:serviceaccount:delete"),
        _ => None,
    };
    requests.map(|(key, verbs)| (key.clone(), verbs.iter().filter_map(verb).collect())).collect()
}

/// Binds a role to the account of a plugin instead of the host's account.
fn of_subject(mut binding: RoleDocument, account: &str) -> RoleDocument {
    if let Some(subjects) = binding.content.get_mut("subjects") {
        *subjects = json!([{"kind": "ServiceAccount", "name": account, "namespace": "OARLOCK_PLUGIN_ACCOUNTS"}]);
    }
    binding
}

/// Returns the namespace of the accounts and its policy, as text. They come before the roles.
pub(super) fn documents() -> Result<[String; 2], ManifestsError> {
    let labels = json!({"app.kubernetes.io/name": "oarlock", "pod-security.kubernetes.io/enforce": "restricted"});
    let content: Value = json!({"apiVersion": "v1", "kind": "Namespace",
        "metadata": {"name": "OARLOCK_PLUGIN_ACCOUNTS", "labels": labels}});
    let comment =
        "The namespace of the accounts of plugins. The host impersonates them, so they need no objects.".to_owned();
    Ok([yaml(&RoleDocument { comment, content })?, oarlock_api::PLUGIN_ACCOUNT_ADMISSION.to_owned()])
}
