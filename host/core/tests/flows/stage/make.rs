//! Objects, as users write them.

use serde_json::{Value, json};

/// An object in namespace `ns`.
pub(crate) fn object(kind: &str, name: &str, spec: Value) -> Value {
    json!({"apiVersion": "api.practice.com/v1alpha1", "kind": kind, "spec": spec,
        "metadata": {"namespace": "ns", "name": name, "uid": format!("{name}-uid-0000"), "generation": 1}})
}

/// A JobSpec with one container.
pub(crate) fn job() -> Value {
    json!({"template": {"spec": {"containers": [{"name": "c", "image": "i"}]}}})
}

/// `target` with the fields of `more` in place of its own.
pub(crate) fn with(mut target: Value, more: Value) -> Value {
    let Value::Object(more) = more else { panic!("fields, please") };
    target.as_object_mut().unwrap().extend(more);
    target
}

/// A step with an inline Job.
pub(crate) fn step(name: &str, dependencies: &[&str], more: Value) -> Value {
    with(json!({"name": name, "dependencies": dependencies, "jobTemplate": job()}), more)
}

/// A step of `finally`.
pub(crate) fn last(name: &str, more: Value) -> Value {
    with(json!({"name": name, "jobTemplate": job()}), more)
}

/// A flow of these steps.
pub(crate) fn flow(steps: impl IntoIterator<Item = Value>, more: Value) -> Value {
    with(json!({"flows": steps.into_iter().collect::<Vec<_>>()}), more)
}

/// A flow of steps without more than dependencies.
pub(crate) fn plain(steps: &[(&str, &[&str])]) -> Value {
    flow(steps.iter().map(|(name, needed)| step(name, needed, json!({}))), json!({}))
}

/// The spec of a DaemonJob with this `rollout`.
pub(crate) fn daemon(rollout: Value) -> Value {
    with(job(), json!({"rollout": rollout}))
}
