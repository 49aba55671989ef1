//! The account of the host, and its placeholders in documents.

/// The placeholder in documents for the namespace of the account.
const NAMESPACE: &str = "OARLOCK_NAMESPACE";
/// The placeholder in documents for the namespace of the accounts of plugins.
const PLUGIN_ACCOUNTS: &str = "OARLOCK_PLUGIN_ACCOUNTS";
/// The placeholder in documents for the name of the account.
const ACCOUNT: &str = "OARLOCK_ACCOUNT";

/// The ServiceAccount of the host. A policy with another account protects nothing, so insert the account into each document before you use
/// the document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostAccount {
    /// The namespace of the account. The lease and the pods of the host are in the same namespace.
    pub namespace: String,
    /// The name of the account.
    pub name: String,
    /// The namespace of the accounts of plugins. The host impersonates them.
    pub plugin_accounts: String,
}

impl Default for HostAccount {
    fn default() -> Self {
        Self {
            namespace: "oarlock-system".to_owned(),
            name: "oarlock".to_owned(),
            plugin_accounts: "oarlock-plugins".to_owned(),
        }
    }
}

impl HostAccount {
    /// Returns a document with this account in place of the placeholders.
    pub fn fill(&self, document: &str) -> String {
        let document = document.replace(PLUGIN_ACCOUNTS, &self.plugin_accounts);
        document.replace(NAMESPACE, &self.namespace).replace(ACCOUNT, &self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_names_the_account_that_it_is_for() {
        let account =
            HostAccount { namespace: "ops".to_owned(), name: "bot".to_owned(), plugin_accounts: "shop".to_owned() };
        let text = "name == 'system:serviceaccount:OARLOCK_NAMESPACE:OARLOCK_ACCOUNT' in [OARLOCK_NAMESPACE, OARLOCK_PLUGIN_ACCOUNTS]";
        assert_eq!(account.fill(text), "name == 'system:serviceaccount:ops:bot' in [ops, shop]");
    }
}
