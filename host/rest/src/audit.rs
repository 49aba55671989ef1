//! One line of the log, and one row of the history, for each request that would change something. Source: docs/opsjob-rest.md 8.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use http::StatusCode;
use k8s_openapi::jiff::Timestamp;
use oarlock_core::cluster::scripts::sha256;
use oarlock_core::job::state::cut;
use oarlock_core::ops_job::body::Body;
use oarlock_history::AuditRow;
use serde_json::{Map, Value, json};

use crate::caller::Caller;

/// Most characters of the name of a job.
const MOST_NAME: usize = 253;
/// Most bytes of a body that a line has.
const BODY: usize = 8 * 1024;

/// Who asks for what, as far as that is known before it is looked at.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    /// Its own id: that of the request is its client's choice.
    pub(crate) id: String,
    pub(crate) time: Timestamp,
    pub(crate) request_id: String,
    pub(crate) caller: Arc<Caller>,
    pub(crate) address: String,
    pub(crate) verb: String,
    /// True once its row was sent, which is before it has an answer. A handler that is given up leaves that here.
    pub(crate) has_row: Arc<AtomicBool>,
}

/// A row that is there before the job that it asks for.
pub(crate) struct FirstRow {
    row: AuditRow,
    is_sent: Arc<AtomicBool>,
}

impl FirstRow {
    /// Returns the row to be sent, and notes that it is.
    pub(crate) fn send(&self) -> AuditRow {
        self.is_sent.store(true, Ordering::Release);
        self.row.clone()
    }
}

impl Asked {
    /// Returns true if its row was sent before it had an answer.
    pub(crate) fn has_row(&self) -> bool {
        self.has_row.load(Ordering::Acquire)
    }

    /// Returns the row that is there before the job.
    pub(crate) fn first_row(&self, noted: &Noted) -> FirstRow {
        FirstRow { row: self.row(noted), is_sent: self.has_row.clone() }
    }

    /// Its row while it has no answer.
    fn row(&self, noted: &Noted) -> AuditRow {
        let Self { id, time, request_id, caller, address, verb, .. } = self.clone();
        let Noted { job, kind, body, .. } = noted.clone();
        // A path names what it likes.
        let job = cut(&job, MOST_NAME);
        let (user_name, user_id) = (caller.name.clone(), caller.uid.clone());
        let (status, code) = (0, String::new());
        AuditRow { id, time, request_id, user_name, user_id, address, verb, job_id: job, kind, status, code, body }
    }

    /// Its row with its answer. One that was refused before leaves no body.
    pub(crate) fn answered(&self, noted: &Noted, status: StatusCode, code: &str) -> AuditRow {
        let mut row = self.row(noted);
        if !status.is_success() && !self.has_row() {
            row.body.clear();
        }
        AuditRow { status: status.as_u16(), code: code.to_owned(), ..row }
    }
}

/// What a handler knows of its request, for the line.
#[derive(Clone, Debug, Default)]
pub(crate) struct Noted {
    pub(crate) job: String,
    pub(crate) kind: String,
    pub(crate) body: String,
    /// True if the request changed something beside the job that it made.
    pub(crate) has_changed: bool,
    /// True if the caller has some right on OpsJobs. A request of another caller is counted, and leaves no row.
    pub(crate) is_entitled: bool,
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
        Self { kind: body.asked.kind.word().to_owned(), body: text, ..Self::default() }
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
