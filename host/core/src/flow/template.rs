//! One pass over a JobTemplate: its status says which Jobs were made from it. Source: docs/jobflow.md 3.

use serde_json::{Value, json};

use crate::child::build::has_containers;
use crate::child::canonical::revision;
use crate::child::fields::{at, list, text};
use crate::job::time::write_time;

/// Most names in `dependencyList`.
const NAMED: usize = 500;

/// A JobTemplate as it is stored.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredTemplate {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
    /// Its version.
    pub version: String,
    /// Its generation.
    pub generation: i64,
    /// Why its spec is not read: the sentence for its owner.
    pub unread: Option<String>,
    /// `spec.jobTemplate`, raw.
    pub job: Value,
    /// Its status, raw.
    pub status: Value,
}

/// The status of a template; `jobs` are the names of the Jobs made from it, sorted.
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

/// The namespace and the template that the annotation of a Job names; a template's name may have dots.
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
