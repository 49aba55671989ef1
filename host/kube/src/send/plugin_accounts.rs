//! The accounts as which the host makes the mutations of plugins.
//!
//! The host sends one header more with such a write: `Impersonate-User`. It sends no groups, because the API server adds those of a
//! ServiceAccount itself, and any further header would need rights of its own.

use std::collections::BTreeMap;

use http::header::{HeaderName, HeaderValue};
use oarlock_core::plugin::grant::PLUGIN_ACCOUNTS_NAMESPACE;
use oarlock_core::requests::writes::{Lacking, PluginAccount, Stopped};
use parking_lot::Mutex;

use crate::transport::call::RequestError;

/// The header that names the user of a request.
pub(crate) const IMPERSONATE_USER: HeaderName = HeaderName::from_static("impersonate-user");

/// The settings of the accounts of plugins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PluginAccountSettings {
    /// The namespace of the accounts.
    pub namespace: String,
    /// True if the kubeconfig itself impersonates a user. The host then makes no write as a plugin, because the API server would take the
    /// user of the kubeconfig.
    pub kubeconfig_impersonates: bool,
}

impl Default for PluginAccountSettings {
    fn default() -> Self {
        Self { namespace: PLUGIN_ACCOUNTS_NAMESPACE.to_owned(), kubeconfig_impersonates: false }
    }
}

impl PluginAccountSettings {
    /// Returns the user name of an account.
    pub fn user(&self, account: &str) -> String {
        format!("system:serviceaccount:{}:{account}", self.namespace)
    }
}

/// The accounts of plugins, with one header for each.
#[derive(Debug, Default)]
pub(crate) struct PluginAccounts {
    pub(crate) settings: PluginAccountSettings,
    headers: Mutex<BTreeMap<String, HeaderValue>>,
}

impl PluginAccounts {
    pub(crate) fn new(settings: PluginAccountSettings) -> Self {
        Self { settings, headers: Mutex::default() }
    }

    /// Returns the value of [`IMPERSONATE_USER`] for an account.
    ///
    /// # Errors
    /// If the host cannot send it: the kubeconfig impersonates a user already, or the name is no name of an account.
    pub(crate) fn header(&self, account: &PluginAccount) -> Result<HeaderValue, Stopped> {
        let refused = |message| Err(Stopped::Forbidden { lacking: Lacking::Impersonation, message });
        if self.settings.kubeconfig_impersonates {
            return refused(IMPERSONATING_KUBECONFIG.to_owned());
        }
        let mut headers = self.headers.lock();
        if let Some(known) = headers.get(&account.name) {
            return Ok(known.clone());
        }
        match HeaderValue::try_from(self.settings.user(&account.name)) {
            Ok(value) => Ok(headers.entry(account.name.clone()).or_insert(value).clone()),
            Err(_) => refused(format!("{:?} is not the name of a ServiceAccount", account.name)),
        }
    }

    /// Returns the right that was missing if the API server refused a write as this account because a right is missing.
    pub(crate) fn forbidden(&self, error: &RequestError, account: &PluginAccount) -> Option<Stopped> {
        let RequestError::Refused(refusal) = error else { return None };
        let said = &refusal.status.message;
        let PluginAccount { plugin, name } = account;
        let own = format!("User \"{}\" cannot ", self.settings.user(name));
        if refusal.code != 403 {
            return None;
        }
        if said.contains(&own) {
            let message = format!("apply the roles of plugin {plugin} (`oarlock manifests --grants`): {said}");
            return Some(Stopped::Forbidden { lacking: Lacking::PluginRight, message });
        }
        // Such a refusal names the sender, and a verb such as `impersonate:serviceaccount`.
        said.contains("\" cannot impersonate").then(|| {
            let message = format!(
                "apply Role {}/oarlock-plugin-{plugin}-impersonate and ClusterRole oarlock-plugin-{plugin}-as \
                 (`oarlock manifests --grants`): {said}",
                self.settings.namespace
            );
            Stopped::Forbidden { lacking: Lacking::Impersonation, message }
        })
    }
}

/// The message about a plugin with an identity under a kubeconfig that impersonates.
pub const IMPERSONATING_KUBECONFIG: &str = "the kubeconfig of the host impersonates a user (`as`), and the API server takes one user for a \
     request: remove `as` from the kubeconfig, or `identity` from the grant";

#[cfg(test)]
mod tests {
    use kube::core::Status;

    use super::*;
    use crate::transport::call::Refusal;

    const HOST: &str = "User \"system:serviceaccount:oarlock-system:oarlock\"";

    fn account() -> PluginAccount {
        PluginAccount { plugin: "replace".into(), name: "swap".into() }
    }

    fn lacking(code: u16, message: &str) -> Option<(Lacking, String)> {
        let status = Status { message: message.to_owned(), ..Status::default() };
        let error = RequestError::Refused(Box::new(Refusal { code, status, is_status: true, retry_after: None }));
        match PluginAccounts::default().forbidden(&error, &account())? {
            Stopped::Forbidden { lacking, message } => Some((lacking, message)),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_two_missing_rights_are_told_apart_and_a_policy_is_neither() {
        let own = "pods \"a\" is forbidden: User \"system:serviceaccount:oarlock-plugins:swap\" cannot patch resource \"pods\"";
        assert_eq!(lacking(403, own).unwrap().0, Lacking::PluginRight);
        for verb in ["impersonate-on:serviceaccount:patch", "impersonate:serviceaccount", "impersonate"] {
            let (lacking, message) =
                lacking(403, &format!("pods \"a\" is forbidden: {HOST} cannot {verb} resource \"pods\"")).unwrap();
            assert_eq!(lacking, Lacking::Impersonation);
            assert!(
                message.starts_with("apply Role oarlock-plugins/oarlock-plugin-replace-impersonate and"),
                "{message}"
            );
        }
        assert_eq!(lacking(403, "pods \"a\" is forbidden: ValidatingAdmissionPolicy 'p' denied request"), None);
        assert_eq!(lacking(409, own), None);
    }

    #[test]
    fn the_header_is_built_once_and_never_under_a_kubeconfig_that_impersonates() {
        let accounts = PluginAccounts::default();
        let header = |accounts: &PluginAccounts| accounts.header(&account());
        let (first, second) = (header(&accounts).unwrap(), header(&accounts).unwrap());
        assert_eq!(first, "system:serviceaccount:oarlock-plugins:swap");
        assert_eq!(first.as_bytes().as_ptr(), second.as_bytes().as_ptr());
        let settings = PluginAccountSettings { kubeconfig_impersonates: true, ..PluginAccountSettings::default() };
        let refused = header(&PluginAccounts::new(settings)).unwrap_err();
        assert!(matches!(refused, Stopped::Forbidden { lacking: Lacking::Impersonation, .. }));
    }
}
