//! Writes one log line, and one row of the history, for each request that would change something. Source: docs/opsjob-rest.md 8.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use http::StatusCode;
use k8s_openapi::jiff::Timestamp;
use oarlock_core::object::bound::cut;
use oarlock_core::ops_job::body::Body;
use oarlock_core::requests::scripts::sha256;
use oarlock_history::AuditRow;
use serde_json::{Map, Value, json};

use crate::caller::Caller;

/// The most characters of a job name.
const MOST_NAME: usize = 253;
/// The most bytes of a body in a log line.
const BODY: usize = 8 * 1024;

/// The facts about a request that are known before its handler runs.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    /// The id of the row. The client chooses the id of the request, so that id may repeat.
    pub(crate) id: String,
    pub(crate) time: Timestamp,
    pub(crate) request_id: String,
    pub(crate) caller: Arc<Caller>,
    pub(crate) address: String,
    pub(crate) verb: String,
    /// True once the row was sent, which happens before the request has an answer. The flag outlives a handler that was cancelled.
    pub(crate) has_row: Arc<AtomicBool>,
}

/// A row that is written before the requested job exists.
pub(crate) struct FirstRow {
    row: AuditRow,
    is_sent: Arc<AtomicBool>,
}

impl FirstRow {
    /// Returns the row to send, and remembers that the row is sent.
    pub(crate) fn send(&self) -> AuditRow {
        self.is_sent.store(true, Ordering::Release);
        self.row.clone()
    }
}

impl Asked {
    /// Returns true if the row was sent before the request had an answer.
    pub(crate) fn has_row(&self) -> bool {
        self.has_row.load(Ordering::Acquire)
    }

    /// Returns the row to write before the job exists.
    pub(crate) fn first_row(&self, noted: &Noted) -> FirstRow {
        FirstRow { row: self.row(noted), is_sent: self.has_row.clone() }
    }

    /// Returns the row of a request that has no answer yet.
    fn row(&self, noted: &Noted) -> AuditRow {
        let Self { id, time, request_id, caller, address, verb, .. } = self.clone();
        let Noted { job, kind, body, .. } = noted.clone();
        // The path may contain a name of any length.
        let job = cut(&job, MOST_NAME);
        let (user_name, user_id) = (caller.name.clone(), caller.uid.clone());
        let (status, code) = (0, String::new());
        AuditRow { id, time, request_id, user_name, user_id, address, verb, job_id: job, kind, status, code, body }
    }

    /// Returns the row of a request with its answer. The row has no body if the request was refused before its first row.
    pub(crate) fn answered(&self, noted: &Noted, status: StatusCode, code: &str) -> AuditRow {
        let mut row = self.row(noted);
        if !status.is_success() && !self.has_row() {
            row.body.clear();
        }
        AuditRow { status: status.as_u16(), code: code.to_owned(), ..row }
    }
}

/// The facts that a handler adds to the log line of its request.
#[derive(Clone, Debug, Default)]
pub(crate) struct Noted {
    pub(crate) job: String,
    pub(crate) kind: String,
    pub(crate) body: String,
    /// True if the request changed something other than the job that it made.
    pub(crate) has_changed: bool,
    /// True if the caller has some right on OpsJobs. A request of any other caller is only counted, and has no row.
    pub(crate) is_entitled: bool,
}

impl Noted {
    /// Returns the facts about a request for a job.
    pub(crate) fn of_job(job: &str) -> Self {
        Self { job: job.to_owned(), ..Self::default() }
    }

    /// Returns the facts about a body. Values that may be private are replaced by their digests.
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
