//! One reconcile of a JobTemplate. The status names the Jobs made from the template. Source: docs/jobflow.md 3.

use serde_json::{Value, json};

use crate::attempts::build::{has_containers, refuse_large};
use crate::attempts::parent::API_VERSION;
use crate::cache::object_cache::CachedObject;
use crate::object::api_object::{Kind, ObjectKey, unread};
use crate::object::canonical::revision;
use crate::object::fields::{at, list, number, text};
use crate::object::memory::memory_of;
use crate::object::time::write_time;

/// The most names in `dependencyList`.
const NAMED: usize = 500;

/// A stored JobTemplate.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredTemplate {
    /// Namespace of the template.
    pub namespace: String,
    /// Name of the template.
    pub name: String,
    /// UID of the template.
    pub uid: String,
    /// resourceVersion of the template.
    pub version: String,
    /// Generation of the template.
    pub generation: i64,
    /// Why the host did not read the spec, as a message for the template's owner.
    pub unread: Option<String>,
    /// The raw `spec.jobTemplate`.
    pub job: Value,
    /// The raw status.
    pub status: Value,
}

/// Returns the kind JobTemplate.
pub fn template_kind() -> Kind {
    Kind::new(API_VERSION, "JobTemplate")
}

/// Returns the key of the template with this namespace and name.
pub fn template_key(namespace: &str, name: &str) -> ObjectKey {
    ObjectKey { kind: template_kind(), namespace: Some(namespace.to_owned()), name: name.to_owned() }
}

impl StoredTemplate {
    /// Returns the key of the template.
    pub fn key(&self) -> ObjectKey {
        template_key(&self.namespace, &self.name)
    }

    /// Reads a stored template.
    pub fn read(mut document: Value) -> Option<Self> {
        let own = |pointer: &str| text(&document, pointer).map(str::to_owned);
        let template = Self {
            namespace: own("/metadata/namespace")?,
            name: own("/metadata/name")?,
            uid: own("/metadata/uid")?,
            version: own("/metadata/resourceVersion").unwrap_or_default(),
            generation: number(&document, "/metadata/generation").unwrap_or(0),
            unread: unread(&document).map(str::to_owned),
            job: Value::Null,
            status: Value::Null,
        };
        let mut take = |pointer: &str| document.pointer_mut(pointer).map_or(Value::Null, Value::take);
        let template = Self { job: take("/spec/jobTemplate"), status: take("/status"), ..template };
        // Each flow that names such a template would be refused.
        match refuse_large(&template.job) {
            Err(cause) => Some(template.without_spec(&cause.message)),
            Ok(()) => Some(template),
        }
    }
}

impl CachedObject for StoredTemplate {
    fn key(&self) -> ObjectKey {
        template_key(&self.namespace, &self.name)
    }

    fn uid(&self) -> &str {
        &self.uid
    }

    fn version(&self) -> u64 {
        self.version.parse().unwrap_or(0)
    }

    fn bytes(&self) -> usize {
        if self.job.is_null() { 0 } else { memory_of(&self.job) }
    }

    fn without_spec(self, why: &str) -> Self {
        Self { job: Value::Null, unread: Some(why.to_owned()), ..self }
    }
}

/// Returns the status of a template. `jobs` are the sorted names of the Jobs made from it.
pub fn status<'a>(
    template: &StoredTemplate,
    jobs: impl ExactSizeIterator<Item = &'a String>,
    now: k8s_openapi::jiff::Timestamp,
) -> Value {
    let count = jobs.len();
    let named: Vec<&String> = jobs.take(NAMED).collect();
    let is_valid = has_containers(&template.job);
    let blocks = "steps that name this template are blocked";
    let (status, reason, message) = match &template.unread {
        Some(why) => ("False", "TooLarge", format!("spec: {why}; {blocks}")),
        None if is_valid => ("True", "Accepted", "the spec is accepted".to_owned()),
        None => ("False", "InvalidValue", format!("spec.jobTemplate: has no container; {blocks}")),
    };
    let mut before = list(&template.status, "/conditions").iter();
    let before = before.find(|one| text(one, "/type") == Some("Valid") && text(one, "/status") == Some(status));
    let since = before.and_then(|one| at(one, "/lastTransitionTime")).cloned();
    json!({
        "dependencyList": named,
        "dependencyCount": count,
        "observedGeneration": template.generation,
        "revision": revision(&template.job),
        "conditions": [{"type": "Valid", "status": status, "reason": reason, "message": message,
            "observedGeneration": template.generation,
            "lastTransitionTime": since.unwrap_or_else(|| write_time(now).into())}],
    })
}

/// Returns the namespace and the template that a Job's annotation names. The name of a template may have dots.
pub fn of_annotation(value: &str) -> Option<(&str, &str)> {
    value.split_once('.').filter(|(namespace, name)| !namespace.is_empty() && !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_annotation_names_a_template_whose_name_has_dots() {
        assert_eq!(of_annotation("ns.a.b"), Some(("ns", "a.b")));
        assert_eq!((of_annotation("nodot"), of_annotation(".x")), (None, None));
    }

    #[test]
    fn a_template_lists_its_jobs_and_says_that_it_has_no_container() {
        let template = StoredTemplate {
            namespace: "n".into(),
            name: "t".into(),
            uid: "u".into(),
            version: "1".into(),
            generation: 3,
            unread: None,
            job: json!({}),
            status: Value::Null,
        };
        let jobs: Vec<String> = (0..600).map(|index| format!("j{index:03}")).collect();
        let status = status(&template, jobs.iter(), "2026-01-01T00:00:00Z".parse().unwrap());
        assert_eq!(
            (status["dependencyList"].as_array().unwrap().len(), &status["dependencyCount"]),
            (500, &json!(600))
        );
        assert_eq!(status["conditions"][0]["status"], "False");
    }
}
