//! One line of the log for each request that would change something. Source: docs/opsjob-rest.md 8.

use oarlock_core::cluster::scripts::sha256;
use oarlock_core::ops_job::body::Body;
use serde_json::{Map, Value, json};

/// Most bytes of a body that a line has.
const BODY: usize = 8 * 1024;

/// What a handler knows of its request, for the line.
#[derive(Clone, Debug, Default)]
pub(crate) struct Noted {
    pub(crate) job: String,
    pub(crate) kind: String,
    pub(crate) body: String,
}

impl Noted {
    /// Of a request about this job.
    pub(crate) fn of_job(job: &str) -> Self {
        Self { job: job.to_owned(), ..Self::default() }
    }

    /// Of a body. What may be private in there is there as its digest.
    pub(crate) fn of_body(body: &Body) -> Self {
        let mut spec = body.spec.clone();
        let digest = |value: &Value| json!(format!("sha256:{}", sha256(value.as_str().unwrap_or_default())));
        if let Some(script) = spec.get_mut("entryPoint") {
            *script = digest(script);
        }
        let variables = spec.get_mut("env").and_then(Value::as_object_mut);
        variables.into_iter().flat_map(Map::values_mut).for_each(|value| *value = digest(value));
        let inputs = spec.get_mut("inputs").and_then(Value::as_array_mut).into_iter().flatten();
        for input in inputs.filter(|input| input.get("name") == Some(&json!("script"))) {
            input["value"] = digest(&input["value"]);
        }
        let mut text = Value::Object(spec).to_string();
        let end = (0..=BODY.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
        text.truncate(end.unwrap_or(0));
        Self { job: String::new(), kind: body.asked.kind.word().to_owned(), body: text }
    }
}

#[cfg(test)]
mod tests {
    use oarlock_core::ops_job::body::FieldValidation;
    use oarlock_core::ops_job::spec::Defaults;

    use super::*;

    #[test]
    fn variables_and_scripts_are_noted_by_their_digest() {
        let body = br#"{"name": "a", "type": "preflight", "inputs": [{"name": "cluster", "value": "local"}], "image": "busybox",
            "entryPoint": "dHJ1ZQ==", "env": {"TOKEN": "hidden"}}"#;
        let body = Body::read(body, FieldValidation::Strict, Defaults::default()).unwrap();
        let noted = Noted::of_body(&body);
        assert!(!noted.body.contains("hidden") && !noted.body.contains("dHJ1ZQ"), "{}", noted.body);
        assert!(noted.body.contains("\"TOKEN\":\"sha256:"));
    }
}
