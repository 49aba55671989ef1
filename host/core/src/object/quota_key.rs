//! The key that a request counts against. Source: docs/opsjob-rest.md 2.
//!
//! ServiceAccounts cost nothing: a user who may edit a namespace can make any number of them. So all ServiceAccounts of a namespace share its limits.

use std::fmt;

use oarlock_contract::names::is_dns_label;

use crate::object::key::is_object_name;

/// The annotation with the quota key of an OpsJob that REST made. It may also say that the job counts against no key.
pub const QUOTA_KEY: &str = "oarlock.dev/quota-key";

/// The prefix of the user names of ServiceAccounts.
const ACCOUNT: &str = "system:serviceaccount:";
const NAMESPACE: &str = "namespace/";
const USER: &str = "user/";

/// The namespace of a ServiceAccount, or the name of another user. Quotas, rate limits and memory shares count by this key.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum QuotaKey {
    /// All ServiceAccounts of this namespace.
    Namespace(String),
    /// The user with this name.
    User(String),
}

impl QuotaKey {
    /// Returns the key of the user with this name: the namespace of a ServiceAccount, or the name itself.
    pub fn of(user_name: &str) -> Self {
        let account = user_name.strip_prefix(ACCOUNT).and_then(|account| account.split_once(':'));
        match account {
            Some((namespace, name)) if is_dns_label(namespace) && is_object_name(name) => {
                Self::Namespace(namespace.to_owned())
            }
            _ => Self::User(user_name.to_owned()),
        }
    }

    /// Returns the key as text: `namespace/NAME` or `user/NAME`. Different keys have different texts.
    pub fn text(&self) -> String {
        match self {
            Self::Namespace(name) => format!("{NAMESPACE}{name}"),
            Self::User(name) => format!("{USER}{name}"),
        }
    }

    /// Reads a text of [`QuotaKey::text`].
    pub fn read(text: &str) -> Option<Self> {
        let namespace = text.strip_prefix(NAMESPACE).filter(|name| is_dns_label(name));
        let namespace = namespace.map(|name| Self::Namespace(name.to_owned()));
        namespace.or_else(|| text.strip_prefix(USER).map(|name| Self::User(name.to_owned())))
    }
}

impl fmt::Display for QuotaKey {
    /// Writes the key in the form that messages use.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Namespace(name) => write!(out, "namespace {name}"),
            Self::User(name) => write!(out, "user {name}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_accounts_of_a_namespace_have_one_key() {
        let key = QuotaKey::of("system:serviceaccount:team-a:builder");
        assert_eq!(key, QuotaKey::of("system:serviceaccount:team-a:another.one"));
        assert_ne!(key, QuotaKey::of("system:serviceaccount:team-b:builder"));
        assert_eq!((key.text().as_str(), key.to_string().as_str()), ("namespace/team-a", "namespace team-a"));
    }

    #[test]
    fn a_user_that_is_no_account_has_a_key_of_its_own() {
        for name in [
            "alice",
            "team-a",
            "namespace/team-a",
            "",
            "system:serviceaccount:",
            "system:serviceaccount:team-a",
            "system:serviceaccount:team-a:",
            "system:serviceaccount::builder",
            "system:serviceaccount:team-a:builder:more",
            "system:serviceaccount:Team A:builder",
            "system:serviceaccounts:team-a",
            "System:ServiceAccount:team-a:builder",
            "\u{1F680}",
        ] {
            assert_eq!(QuotaKey::of(name), QuotaKey::User(name.to_owned()));
            assert_ne!(QuotaKey::of(name), QuotaKey::of("system:serviceaccount:team-a:builder"));
        }
    }

    #[test]
    fn a_key_is_read_from_its_text_and_from_nothing_else() {
        for name in ["alice", "", "user/alice", "namespace/team-a", "system:serviceaccount:team-a:builder"] {
            let key = QuotaKey::of(name);
            assert_eq!(QuotaKey::read(&key.text()), Some(key));
        }
        for text in ["", "alice", "namespace/", "namespace/a/b", "namespace/Team A"] {
            assert_eq!(QuotaKey::read(text), None, "{text}");
        }
    }
}
