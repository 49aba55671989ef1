//! The account that the host runs as, in the documents that name it.

/// Stands in a document for the namespace of the account.
const NAMESPACE: &str = "OARLOCK_NAMESPACE";
/// Stands in a document for the name of the account.
const ACCOUNT: &str = "OARLOCK_ACCOUNT";

/// The ServiceAccount of the host. A policy that names another one bounds nothing, so no document is used before this is in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostAccount {
    /// Its namespace, in which the lease and the pods of the host are, too.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

impl Default for HostAccount {
    fn default() -> Self {
        Self { namespace: "oarlock-system".to_owned(), name: "oarlock".to_owned() }
    }
}

impl HostAccount {
    /// A document with this account in it.
    pub fn fill(&self, document: &str) -> String {
        document.replace(NAMESPACE, &self.namespace).replace(ACCOUNT, &self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_names_the_account_that_it_is_for() {
        let account = HostAccount { namespace: "ops".to_owned(), name: "bot".to_owned() };
        let text = "name == 'system:serviceaccount:OARLOCK_NAMESPACE:OARLOCK_ACCOUNT' in [OARLOCK_NAMESPACE]";
        assert_eq!(account.fill(text), "name == 'system:serviceaccount:ops:bot' in [ops]");
    }
}
