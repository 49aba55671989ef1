//! The users that send requests. The server does not authenticate: a request comes from the administrator, unless its headers
//! impersonate another user, as `kubectl --as` does.

use http::HeaderMap;
use serde_json::{Value, json};

use crate::server::status::Refusal;

/// The group whose members may do everything.
pub(crate) const MASTERS: &str = "system:masters";
const AUTHENTICATED: &str = "system:authenticated";
const SERVICE_ACCOUNT: &str = "system:serviceaccount:";

/// A user and the user's groups.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct User {
    pub(crate) name: String,
    pub(crate) groups: Vec<String>,
}

impl Default for User {
    fn default() -> Self {
        Self::administrator()
    }
}

impl User {
    /// Returns the administrator, who sends every request without impersonation headers.
    pub(crate) fn administrator() -> Self {
        Self { name: "kubernetes-admin".into(), groups: vec![MASTERS.into(), AUTHENTICATED.into()] }
    }

    /// Returns the user that the headers of a request impersonate, or the administrator.
    pub(crate) fn of(headers: &HeaderMap) -> Result<Self, Refusal> {
        let texts = |name: &str| {
            let all = headers.get_all(name).into_iter().filter_map(|value| value.to_str().ok());
            all.map(str::to_owned).collect::<Vec<_>>()
        };
        let groups = texts("impersonate-group");
        match texts("impersonate-user").into_iter().next() {
            Some(name) => Ok(Self::impersonated(name, groups)),
            None if groups.is_empty() => Ok(Self::administrator()),
            None => Err(Refusal::bad_request(format!("requested groups {groups:?} without impersonating a user name"))),
        }
    }

    /// Returns the user of a service account.
    pub(crate) fn account(namespace: &str, name: &str) -> Self {
        Self::impersonated(format!("{SERVICE_ACCOUNT}{namespace}:{name}"), Vec::new())
    }

    fn impersonated(name: String, mut groups: Vec<String>) -> Self {
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
        Self { name, groups }
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
        json!({"username": self.name, "groups": self.groups})
    }
}
