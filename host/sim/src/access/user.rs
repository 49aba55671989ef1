//! The users as whom requests are made.

use std::collections::BTreeMap;

use serde_json::{Value, json};

/// The group whose members may do everything.
pub(crate) const MASTERS: &str = "system:masters";
const AUTHENTICATED: &str = "system:authenticated";
/// The beginning of the user name of a service account, before its namespace.
pub(crate) const SERVICE_ACCOUNT: &str = "system:serviceaccount:";

/// A user with groups, UID and extra fields.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct User {
    pub(crate) name: String,
    pub(crate) groups: Vec<String>,
    pub(crate) uid: String,
    pub(crate) extra: BTreeMap<String, Vec<String>>,
}

impl Default for User {
    fn default() -> Self {
        Self::administrator()
    }
}

impl User {
    /// Returns a user without UID and extra fields.
    pub(crate) fn of_groups(name: String, groups: Vec<String>) -> Self {
        Self { name, groups, uid: String::new(), extra: BTreeMap::new() }
    }

    /// Returns the administrator, who sends every request without a token.
    pub(crate) fn administrator() -> Self {
        Self::of_groups("kubernetes-admin".into(), vec![MASTERS.into(), AUTHENTICATED.into()])
    }

    /// Returns the user of a service account.
    pub(crate) fn account(namespace: &str, name: &str) -> Self {
        Self::impersonated(format!("{SERVICE_ACCOUNT}{namespace}:{name}"), Vec::new())
    }

    /// Returns the user with this name and these groups, and with the groups that the server adds.
    pub(crate) fn impersonated(name: String, mut groups: Vec<String>) -> Self {
        if let (true, Some(account)) = (groups.is_empty(), name.strip_prefix(SERVICE_ACCOUNT)) {
            let namespace = account.split(':').next().unwrap_or_default();
            groups.push("system:serviceaccounts".into());
            groups.push(format!("system:serviceaccounts:{namespace}"));
        }
        let told = |group: &String| matches!(group.as_str(), AUTHENTICATED | "system:unauthenticated");
        if !groups.iter().any(told) {
            let own = if name == "system:anonymous" { "system:unauthenticated" } else { AUTHENTICATED };
            groups.push(own.into());
        }
        Self::of_groups(name, groups)
    }

    /// Returns true if the user is the service account `name` of `namespace`.
    pub(crate) fn is_account(&self, namespace: &str, name: &str) -> bool {
        self.name.strip_prefix(SERVICE_ACCOUNT).and_then(|rest| rest.split_once(':')) == Some((namespace, name))
    }

    pub(crate) fn is_in(&self, group: &str) -> bool {
        self.groups.iter().any(|one| one == group)
    }

    /// Returns `userInfo` of a review and of an admission request.
    pub(crate) fn info(&self) -> Value {
        let mut info = json!({"username": self.name, "groups": self.groups});
        if let (false, Some(info)) = (self.uid.is_empty(), info.as_object_mut()) {
            info.insert("uid".into(), json!(self.uid));
        }
        if let (false, Some(info)) = (self.extra.is_empty(), info.as_object_mut()) {
            info.insert("extra".into(), json!(self.extra));
        }
        info
    }
}
