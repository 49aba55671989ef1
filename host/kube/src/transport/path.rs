//! The URL paths of objects.
//!
//! Names are not escaped in URLs, so the host refuses any name that is not a DNS-1123 name. The name `p4/status` would be the status of pod
//! `p4`.

/// A kind as the API server serves it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Resource {
    /// The API version, such as `v1` or `apps/v1`.
    pub(crate) api_version: String,
    /// The plural name, such as `pods`.
    pub(crate) plural: String,
    /// True if the objects of the kind are in namespaces.
    pub(crate) namespaced: bool,
}

/// The reason why there is no path.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(crate) enum PathError {
    #[error("the name {0:?} is no DNS-1123 subdomain (lower-case letters, digits, '-' and '.', at most 253)")]
    Name(String),
    #[error("the namespace {0:?} is no DNS-1123 label (lower-case letters, digits and '-', at most 63)")]
    Namespace(String),
    #[error("{0} live in namespaces, but none is named")]
    NamespaceMissing(String),
}

impl Resource {
    /// Returns the path that lists and creates the objects of `namespace`, or of all namespaces if it is `None`.
    pub(crate) fn collection(&self, namespace: Option<&str>) -> Result<String, PathError> {
        let root = if self.api_version.contains('/') { "apis" } else { "api" };
        let Self { api_version, plural, namespaced } = self;
        match namespace {
            Some(namespace) if *namespaced => {
                let namespace = checked_namespace(namespace)?;
                Ok(format!("/{root}/{api_version}/namespaces/{namespace}/{plural}"))
            }
            _ => Ok(format!("/{root}/{api_version}/{plural}")),
        }
    }

    /// Returns the path of the collection of one object. The function checks the name, but the path does not contain it.
    pub(crate) fn home(&self, namespace: Option<&str>, name: &str) -> Result<String, PathError> {
        if self.namespaced && namespace.is_none() {
            return Err(PathError::NamespaceMissing(self.plural.clone()));
        }
        checked_name(name)?;
        self.collection(namespace)
    }
}

fn checked_name(name: &str) -> Result<&str, PathError> {
    let fits = (1..=253).contains(&name.len()) && name.split('.').all(is_label);
    if fits { Ok(name) } else { Err(PathError::Name(name.to_owned())) }
}

fn checked_namespace(namespace: &str) -> Result<&str, PathError> {
    let fits = namespace.len() <= 63 && is_label(namespace);
    if fits { Ok(namespace) } else { Err(PathError::Namespace(namespace.to_owned())) }
}

fn is_label(label: &str) -> bool {
    let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    !label.is_empty() && label.chars().all(inner) && !label.starts_with('-') && !label.ends_with('-')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pods() -> Resource {
        Resource { api_version: "v1".into(), plural: "pods".into(), namespaced: true }
    }

    #[test]
    fn a_name_that_would_change_the_url_is_refused() {
        for name in ["p4/status", "..", "a b", "", "A", "p?x=1", "p%2f", "-a", &"a".repeat(254)] {
            assert_eq!(pods().home(Some("d"), name), Err(PathError::Name(name.to_owned())));
        }
        assert_eq!(pods().home(Some("d/x"), "a"), Err(PathError::Namespace("d/x".into())));
        assert_eq!(pods().home(None, "a"), Err(PathError::NamespaceMissing("pods".into())));
    }

    #[test]
    fn groups_and_the_core_have_their_own_roots() {
        assert_eq!(pods().home(Some("d"), "a.b-1").unwrap(), "/api/v1/namespaces/d/pods");
        let nodes = Resource { api_version: "v1".into(), plural: "nodes".into(), namespaced: false };
        assert_eq!(nodes.home(None, "n").unwrap(), "/api/v1/nodes");
        let sets = Resource { api_version: "apps/v1".into(), plural: "replicasets".into(), namespaced: true };
        assert_eq!(sets.collection(None).unwrap(), "/apis/apps/v1/replicasets");
    }
}
