//! OperationJobs: how scenarios write and read them.

use std::collections::BTreeMap;

use kube::api::{ApiResource, DynamicObject};
use kube::core::GroupVersionKind;
use serde_json::{Value, json};

/// Returns the API resource of OperationJob.
pub fn resource() -> ApiResource {
    ApiResource::from_gvk_with_plural(
        &GroupVersionKind::gvk("apps.kusionstack.io", "v1alpha1", "OperationJob"),
        "operationjobs",
    )
}

/// Returns the API resource of OperationRecord.
pub fn records() -> ApiResource {
    ApiResource::from_gvk_with_plural(
        &GroupVersionKind::gvk("oarlock.dev", "v1alpha1", "OperationRecord"),
        "operationrecords",
    )
}

/// Returns the spec of a Replace job on these targets, with further fields.
pub fn replace(targets: &[String], more: Value) -> Value {
    let mut spec =
        json!({"action": "Replace", "targets": targets.iter().map(|name| json!({ "name": name })).collect::<Vec<_>>()});
    if let (Some(spec), Some(more)) = (spec.as_object_mut(), more.as_object()) {
        spec.extend(more.clone());
    }
    spec
}

/// Reads fields of a stored job.
pub trait Told {
    /// Returns `status.progress`, or an empty string before the first status.
    fn progress(&self) -> &str;
    /// Returns `status.targetDetails` by name.
    fn targets(&self) -> BTreeMap<String, Value>;
    /// Returns progress and error reason of a target, such as `Failed/PodNotFound`.
    fn target(&self, name: &str) -> String;
    /// Returns the number of targets with this progress.
    fn count(&self, progress: &str) -> usize;
    /// Returns status and reason of a condition, such as `True/Serving`.
    fn condition(&self, kind: &str) -> String;
    /// Returns the message of a condition.
    fn condition_message(&self, kind: &str) -> String;
}

impl Told for DynamicObject {
    fn progress(&self) -> &str {
        self.data.pointer("/status/progress").and_then(Value::as_str).unwrap_or_default()
    }

    fn targets(&self) -> BTreeMap<String, Value> {
        let details = self.data.pointer("/status/targetDetails").and_then(Value::as_array).into_iter().flatten();
        details.filter_map(|detail| Some((detail.get("name")?.as_str()?.to_owned(), detail.clone()))).collect()
    }

    fn target(&self, name: &str) -> String {
        let targets = self.targets();
        let Some(detail) = targets.get(name) else { return String::new() };
        let progress = detail.get("progress").and_then(Value::as_str).unwrap_or_default();
        match detail.pointer("/error/reason").and_then(Value::as_str) {
            Some(reason) => format!("{progress}/{reason}"),
            None => progress.to_owned(),
        }
    }

    fn count(&self, progress: &str) -> usize {
        let field = format!("/status/{}PodCount", progress.to_lowercase());
        self.data.pointer(&field).and_then(Value::as_u64).and_then(|n| usize::try_from(n).ok()).unwrap_or(0)
    }

    fn condition(&self, kind: &str) -> String {
        let found = condition(self, kind);
        let word =
            |field: &str| found.and_then(|c| c.get(field)).and_then(Value::as_str).unwrap_or_default().to_owned();
        format!("{}/{}", word("status"), word("reason"))
    }

    fn condition_message(&self, kind: &str) -> String {
        condition(self, kind).and_then(|c| c.get("message")).and_then(Value::as_str).unwrap_or_default().to_owned()
    }
}

fn condition<'a>(job: &'a DynamicObject, kind: &str) -> Option<&'a Value> {
    let conditions = job.data.pointer("/status/conditions")?.as_array()?;
    conditions.iter().find(|condition| condition.get("type").and_then(Value::as_str) == Some(kind))
}
