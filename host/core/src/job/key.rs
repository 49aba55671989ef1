//! Names of jobs.

use oarlock_contract::object_key::{Kind, ObjectKey};
use serde_json::{Value, json};

/// Names one job. A later job may have the same name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct JobKey {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

impl JobKey {
    /// The key of the OperationJob itself.
    pub fn object(&self) -> ObjectKey {
        ObjectKey { kind: Kind::job(), namespace: Some(self.namespace.clone()), name: self.name.clone() }
    }
}

impl std::fmt::Display for JobKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// Names one job for good.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct JobRef {
    /// Namespace and name.
    pub key: JobKey,
    /// `metadata.uid`.
    pub uid: String,
}

impl JobRef {
    /// The owner reference that makes this job the controller of an object.
    pub fn owner_reference(&self) -> Value {
        json!({"apiVersion": oarlock_api::OPERATION_JOB_API_VERSION, "kind": "OperationJob", "name": self.key.name,
            "uid": self.uid, "controller": true, "blockOwnerDeletion": true})
    }

    /// The prefix of all object names that the host makes for this job: its name, cut to 200 characters, ending in a
    /// character that a name may go on with.
    pub fn name_prefix(&self) -> &str {
        name_prefix(&self.key.name)
    }
}

/// The part of a name of an object that names of further objects begin with.
pub fn name_prefix(name: &str) -> &str {
    let end = name.char_indices().nth(200).map_or(name.len(), |(at, _)| at);
    name.get(..end).unwrap_or_default().trim_end_matches(['.', '-'])
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
