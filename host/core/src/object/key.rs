//! Names of jobs.

use oarlock_contract::object_key::{Kind, ObjectKey};
use serde_json::{Value, json};

/// Namespace and name of a job. A later job may have the same name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct JobKey {
    /// Namespace of the job.
    pub namespace: String,
    /// Name of the job.
    pub name: String,
}

impl JobKey {
    /// Returns the key of the OperationJob object.
    pub fn object(&self) -> ObjectKey {
        ObjectKey { kind: Kind::job(), namespace: Some(self.namespace.clone()), name: self.name.clone() }
    }
}

impl std::fmt::Display for JobKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// Identity of one job, which no later job shares.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct JobRef {
    /// Namespace and name.
    pub key: JobKey,
    /// `metadata.uid`.
    pub uid: String,
}

impl JobRef {
    /// Returns the owner reference that makes this job the controller of an object.
    pub fn owner_reference(&self) -> Value {
        json!({"apiVersion": oarlock_api::OPERATION_JOB_API_VERSION, "kind": "OperationJob", "name": self.key.name,
            "uid": self.uid, "controller": true, "blockOwnerDeletion": true})
    }

    /// Returns the prefix of all object names that the host makes for this job. It is the job's name, cut to 200 characters, without a `.` or `-` at
    /// its end.
    pub fn name_prefix(&self) -> &str {
        name_prefix(&self.key.name)
    }
}

/// Returns the part of an object's name with which the names of its dependents begin.
pub fn name_prefix(name: &str) -> &str {
    let end = name.char_indices().nth(200).map_or(name.len(), |(at, _)| at);
    name.get(..end).unwrap_or_default().trim_end_matches(['.', '-'])
}

/// The longest name of a Kubernetes object, in bytes.
pub(crate) const NAME_BYTES: usize = 253;

/// Returns true if `name` is a DNS-1123 subdomain of at most 253 characters. The name becomes part of a URL.
pub fn is_object_name(name: &str) -> bool {
    let edge = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let label =
        |part: &str| part.starts_with(edge) && part.ends_with(edge) && part.chars().all(|c| edge(c) || c == '-');
    name.len() <= NAME_BYTES && name.split('.').all(label)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_contract_names_the_kinds_of_the_api() {
        assert_eq!(Kind::job().api_version, oarlock_api::OPERATION_JOB_API_VERSION);
        assert_eq!(Kind::record().api_version, oarlock_api::OPERATION_RECORD_API_VERSION);
    }

    #[test]
    fn a_name_that_is_cut_never_ends_in_a_dot_or_a_dash() {
        let name = format!("{}.-{}", "a".repeat(199), "b".repeat(20));
        let job = JobRef { key: JobKey { namespace: "d".into(), name }, uid: "u".into() };
        assert_eq!(job.name_prefix(), "a".repeat(199));
    }
}
