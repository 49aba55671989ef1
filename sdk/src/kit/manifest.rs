//! Takes the text of a manifest and yields what it lets the plugin read and
//! write. May not be the host's check: that one is authoritative and stricter.

use serde::Deserialize;
use serde_json::Value;

use crate::wit::{MetadataChange, Mutation, ObjectRef};

/// Parts of the metadata that every plugin may read of what it can see.
const ALWAYS: [&str; 11] = [
    "/apiVersion",
    "/kind",
    "/metadata/name",
    "/metadata/namespace",
    "/metadata/uid",
    "/metadata/resourceVersion",
    "/metadata/deletionTimestamp",
    "/metadata/labels",
    "/metadata/annotations",
    "/metadata/finalizers",
    "/metadata/ownerReferences",
];

/// What a plugin's manifest says, as far as the kit needs it.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Manifest {
    /// Version of the manifest's form: 1.
    pub schema: u32,
    /// The name of the plugin.
    pub name: String,
    /// The version of the plugin.
    pub version: String,
    /// The action it implements.
    pub action: String,
    /// The JSON Schema of the job's parameters.
    #[serde(default)]
    pub parameters: Value,
    #[serde(default)]
    reads: Vec<Read>,
    #[serde(default)]
    writes: Vec<Write>,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Read {
    api_version: String,
    kind: String,
    #[serde(default)]
    fields: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Write {
    verb: String,
    #[serde(default)]
    api_version: String,
    #[serde(default)]
    kind: String,
    #[serde(default)]
    labels: Vec<String>,
    #[serde(default)]
    annotations: Vec<String>,
    #[serde(default)]
    finalizers: Vec<String>,
}

/// Why a manifest cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ManifestError {
    /// It is not the JSON that a manifest is.
    #[error("the manifest cannot be read: correct the JSON that `export!` names")]
    Parse(#[source] serde_json::Error),
    /// It is of a form that this SDK does not know.
    #[error("the manifest has schema {0}, this SDK knows schema 1")]
    Schema(u32),
}

impl Manifest {
    /// Reads the text of a manifest.
    ///
    /// # Errors
    ///
    /// Where it is not the JSON of a manifest of schema 1.
    pub fn parse(text: &str) -> Result<Self, ManifestError> {
        let manifest: Self = serde_json::from_str(text).map_err(ManifestError::Parse)?;
        if manifest.schema == 1 { Ok(manifest) } else { Err(ManifestError::Schema(manifest.schema)) }
    }

    /// Whether `get` of this kind is declared.
    pub(crate) fn declares(&self, api_version: &str, kind: &str) -> bool {
        self.fields(api_version, kind).next().is_some()
    }

    /// Whether this field of a kind may be read.
    pub(crate) fn reads(&self, api_version: &str, kind: &str, pointer: &str) -> bool {
        let below = |field: &str| match field.strip_suffix('*') {
            Some(prefix) => pointer.starts_with(prefix),
            None => pointer.strip_prefix(field).is_some_and(|rest| rest.is_empty() || rest.starts_with('/')),
        };
        ALWAYS.into_iter().any(below) || self.fields(api_version, kind).flatten().any(|field| below(field))
    }

    /// The declared fields of a kind, always readable ones included.
    pub(crate) fn visible<'a>(&'a self, api_version: &str, kind: &str) -> Vec<&'a str> {
        let declared = self.fields(api_version, kind).flatten().map(String::as_str);
        ALWAYS.into_iter().chain(declared).collect()
    }

    /// What of this mutation the manifest does not ask for, in words.
    pub(crate) fn denies(&self, mutation: &Mutation) -> Option<String> {
        match mutation {
            Mutation::Metadata(change) => self.denies_metadata(change),
            Mutation::Create(text) => self.denies_create(text),
            Mutation::Patch(patch) => self.denies_object("patch", &patch.object),
            Mutation::Evict(eviction) => self.denies_object("evict", &eviction.pod),
            Mutation::Delete(deletion) => self.denies_object("delete", &deletion.object),
            Mutation::Schedulable(_) => self.denies_kind("schedulable", "v1", "Node"),
            Mutation::Taint(_) => self.denies_kind("taint", "v1", "Node"),
            Mutation::Drain(_) => self.denies_kind("drain", "v1", "Node"),
            // Tasks are asked for in a list of their own, which the kit leaves to the host.
            Mutation::Task(_) => None,
            Mutation::Other((name, _)) => Some(format!("the mutation {name}, which this SDK does not know")),
        }
    }

    fn fields(&self, api_version: &str, kind: &str) -> impl Iterator<Item = &Vec<String>> {
        let (api_version, kind) = (api_version.to_owned(), kind.to_owned());
        self.reads
            .iter()
            .filter(move |read| read.api_version == api_version && read.kind == kind)
            .map(|read| &read.fields)
    }

    fn denies_object(&self, verb: &str, object: &ObjectRef) -> Option<String> {
        self.denies_kind(verb, &object.api_version, &object.kind)
    }

    fn denies_kind(&self, verb: &str, api_version: &str, kind: &str) -> Option<String> {
        self.writes(verb, api_version, kind).next().is_none().then(|| format!("verb {verb} on {api_version} {kind}"))
    }

    fn denies_create(&self, text: &str) -> Option<String> {
        let Ok(object) = serde_json::from_str::<Value>(text) else {
            return Some("an object that is not JSON".to_owned());
        };
        let part = |key: &str| object.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
        self.denies_kind("create", &part("apiVersion"), &part("kind"))
    }

    fn denies_metadata(&self, change: &MetadataChange) -> Option<String> {
        let ObjectRef { api_version, kind, .. } = &change.object;
        let asked = |list: fn(&Write) -> &Vec<String>, key: &str| {
            self.writes("metadata", api_version, kind).flat_map(list).any(|pattern| matches(pattern, key))
        };
        let set = |pairs: &'_ [(String, String)]| pairs.iter().map(|(key, _)| key.clone()).collect::<Vec<_>>();
        let labels = [set(&change.set_labels), change.remove_labels.clone()].concat();
        let annotations = [set(&change.set_annotations), change.remove_annotations.clone()].concat();
        let finalizers = [change.add_finalizers.clone(), change.remove_finalizers.clone()].concat();
        let denied = |what: &str, keys: Vec<String>, list: fn(&Write) -> &Vec<String>| {
            keys.iter().find(|key| !asked(list, key)).map(|key| format!("{what} {key} on {api_version} {kind}"))
        };
        denied("label", labels, |write| &write.labels)
            .or_else(|| denied("annotation", annotations, |write| &write.annotations))
            .or_else(|| denied("finalizer", finalizers, |write| &write.finalizers))
    }

    fn writes(&self, verb: &str, api_version: &str, kind: &str) -> impl Iterator<Item = &Write> {
        let (verb, api_version, kind) = (verb.to_owned(), api_version.to_owned(), kind.to_owned());
        self.writes
            .iter()
            .filter(move |write| write.verb == verb && write.api_version == api_version && write.kind == kind)
    }
}

/// Whether a key fits a pattern, which may end in `*`.
fn matches(pattern: &str, key: &str) -> bool {
    pattern.strip_suffix('*').map_or(pattern == key, |prefix| key.starts_with(prefix))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kit::pod;
    use crate::{Change, Proposal};

    fn manifest() -> Manifest {
        Manifest::parse(
            r#"{"schema": 1, "name": "a", "version": "0.1.0", "action": "A",
                "reads": [{"apiVersion": "v1", "kind": "Pod", "fields": ["/status/conditions"], "reason": "r"}],
                "writes": [{"verb": "metadata", "apiVersion": "v1", "kind": "Pod", "labels": ["a.b/*"], "reason": "r"}]}"#,
        )
        .unwrap()
    }

    fn denied(proposal: &Proposal) -> Option<String> {
        manifest().denies(&proposal.mutations()[0])
    }

    #[test]
    fn declared_field_is_readable_and_its_parent_is_not() {
        assert!(manifest().reads("v1", "Pod", "/status/conditions/0"));
        assert!(manifest().reads("v1", "Pod", "/metadata/labels"));
        assert!(!manifest().reads("v1", "Pod", "/status"));
        assert!(!manifest().reads("v1", "Pod", "/status/conditionsX"));
    }

    #[test]
    fn mutation_that_the_manifest_lacks_is_denied_in_words() {
        let web = pod("web");
        assert_eq!(denied(&Proposal::new().evict(&web, None)).unwrap(), "verb evict on v1 Pod");
        assert_eq!(denied(&Proposal::new().change(Change::of(&web).set_label("a.b/c", "1"))), None);
        let other = Proposal::new().change(Change::of(&web).set_label("a.c", "1"));
        assert_eq!(denied(&other).unwrap(), "label a.c on v1 Pod");
        assert_eq!(denied(&Proposal::new().create("{")).unwrap(), "an object that is not JSON");
    }

    #[test]
    fn manifest_of_a_future_schema_is_refused() {
        let text = r#"{"schema": 2, "name": "a", "version": "1.0.0", "action": "A"}"#;
        assert!(matches!(Manifest::parse(text), Err(ManifestError::Schema(2))));
        assert!(matches!(Manifest::parse("{"), Err(ManifestError::Parse(_))));
    }
}
