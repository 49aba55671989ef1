//! The history row of a job.

use k8s_openapi::jiff::Timestamp;
use oarlock_core::object::fields::text;
use oarlock_core::object::quota_key::QuotaKey;
use oarlock_core::ops_job::gone::{GONE_BY, GoneBy};
use oarlock_core::ops_job::phases::Phase;
use oarlock_core::ops_job::spec::Defaults;
use oarlock_core::ops_job::stored::StoredOps;
use oarlock_core::requests::scripts::sha256;
use serde_json::{Map, Value, json};

/// The annotation with the digest of the request, for a job that was made with an idempotency key.
pub const REQUEST: &str = "oarlock.dev/request";
/// The most bytes of a status field that [`JobSnapshot::digested`] keeps.
const SMALL_FIELD: usize = 1_024;
/// The stored number for an absent time. It sorts last.
pub(crate) const NEVER: i64 = i64::MAX;

/// The fields of a job that lists show.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobRow {
    /// The UID of the OpsJob.
    pub uid: String,
    /// The name of the OpsJob.
    pub job_id: String,
    /// The name of the job as the client sent it.
    pub job_name: String,
    /// The workspace of the job.
    pub workspace_id: String,
    /// The UID of the requester, or the name if there is no UID.
    pub user_id: String,
    /// The name of the requester.
    pub user_name: String,
    /// The type of the job.
    pub kind: String,
    /// The phase of the job.
    pub phase: String,
    /// The creation time.
    pub created: Timestamp,
    /// The start time.
    pub started: Option<Timestamp>,
    /// The end time.
    pub ended: Option<Timestamp>,
    /// The deletion time.
    pub deleted: Option<Timestamp>,
    /// The reason for the deletion. `None` while the job exists, and in rows of an earlier version.
    pub gone_by: Option<GoneBy>,
    /// The position among the jobs that were created in the same second.
    pub seq: i64,
    /// The seconds from the job's creation until it times out.
    pub timeout: i64,
}

/// The state of a job that the history stores.
#[derive(Clone, Debug, PartialEq)]
pub struct JobSnapshot {
    /// The fields that lists show.
    pub row: JobRow,
    /// The number of status writes.
    pub revision: i64,
    /// The spec of the job.
    pub spec: Value,
    /// The status of the job.
    pub status: Value,
    /// The digest of the request, if the request had an idempotency key.
    pub request: String,
    /// The quota key that the job's bytes count against, if they count.
    pub counts_for: Option<QuotaKey>,
}

/// A job as read from its row.
#[derive(Clone, Debug, PartialEq)]
pub struct GoneJob {
    /// The fields that lists show.
    pub row: JobRow,
    /// The last known OpsJob: name, UID, times, the digest of its request, spec and status.
    pub document: Value,
}

impl JobSnapshot {
    /// Returns the snapshot of an OpsJob document, or `None` if the document is no OpsJob.
    pub fn of(document: &Value, defaults: Defaults) -> Option<Self> {
        let StoredOps { view, summary, counts_for, gone_by, .. } = StoredOps::read(document, defaults)?;
        let own = |field: &str| document.get(field).filter(|value| value.is_object()).cloned();
        let row = JobRow {
            seq: view.place_in_second(),
            uid: view.uid,
            job_id: view.name,
            job_name: summary.job_name,
            workspace_id: summary.workspace,
            user_id: summary.user_id,
            user_name: summary.user_name,
            kind: summary.kind,
            phase: view.status.phase.unwrap_or(Phase::Pending).word().to_owned(),
            created: view.created.unwrap_or_default(),
            started: view.status.started,
            ended: view.status.finished,
            deleted: summary.deleted,
            gone_by,
            timeout: summary.timeout,
        };
        let empty = || json!({});
        Some(Self {
            counts_for,
            revision: view.status.revision,
            spec: own("spec").unwrap_or_else(empty),
            status: own("status").unwrap_or_else(empty),
            request: text(document, &format!("/metadata/annotations/{}", REQUEST.replace('/', "~1")))
                .unwrap_or_default()
                .to_owned(),
            row,
        })
    }

    /// Returns true if the job has ended.
    pub fn has_ended(&self) -> bool {
        [Phase::Succeeded, Phase::Failed].iter().any(|phase| phase.word() == self.row.phase)
    }

    /// Returns true if this snapshot is newer than the stored row with this revision and deletion state.
    pub fn is_newer_than_row(&self, revision: i64, was_deleted: bool) -> bool {
        self.revision > revision || self.revision == revision && self.row.deleted.is_some() && !was_deleted
    }

    /// Shortens the spec to the fields that lists show, with its length and digest. Keeps only small fields of the status.
    #[must_use]
    pub fn digested(mut self) -> Self {
        let text = self.spec.to_string();
        let digest = json!(format!("sha256:{} ({} bytes)", sha256(&text), text.len()));
        let kept = ["type", "jobName", "requester", "workspace", "timeoutSecond", "ttlSecondsAfterFinished"];
        let kept = kept.into_iter().filter_map(|field| Some((field.to_owned(), self.spec.get(field)?.clone())));
        self.spec = kept.chain([("digest".to_owned(), digest)]).collect::<Map<String, Value>>().into();
        if let Some(status) = self.status.as_object_mut() {
            status.retain(|_, value| value.to_string().len() <= SMALL_FIELD);
        }
        self
    }

    /// Replaces scripts and variables by their digests and lengths.
    #[must_use]
    pub fn redacted(mut self) -> Self {
        let digest = |value: &Value| {
            let text = value.as_str().unwrap_or_default();
            json!(format!("sha256:{} ({} bytes)", sha256(text), text.len()))
        };
        if let Some(script) = self.spec.get_mut("entryPoint") {
            *script = digest(script);
        }
        let variables = self.spec.get_mut("env").and_then(Value::as_object_mut);
        variables.into_iter().flat_map(Map::values_mut).for_each(|value| *value = digest(value));
        let inputs = self.spec.get_mut("inputs").and_then(Value::as_array_mut).into_iter().flatten();
        let is_script =
            |input: &&mut Value| text(input, "/name").is_some_and(|name| name.trim().eq_ignore_ascii_case("script"));
        for input in inputs.filter(is_script) {
            input["value"] = digest(&input["value"]);
        }
        self
    }
}

impl GoneJob {
    /// Builds an OpsJob document from its row.
    pub(crate) fn of(row: JobRow, spec: Value, status: Value, request: &str) -> Self {
        let deleted = row.deleted.map(|time| ("deletionTimestamp".to_owned(), json!(time.to_string())));
        let request = (!request.is_empty()).then(|| (REQUEST.to_owned(), json!(request)));
        let gone_by = row.gone_by.map(|gone_by| (GONE_BY.to_owned(), json!(gone_by.word())));
        let noted: Map<String, Value> = request.into_iter().chain(gone_by).collect();
        let noted = (!noted.is_empty()).then(|| ("annotations".to_owned(), Value::Object(noted)));
        let created = ("creationTimestamp".to_owned(), json!(row.created.to_string()));
        let names = [("name", &row.job_id), ("uid", &row.uid)].map(|(field, value)| (field.to_owned(), json!(value)));
        let metadata: Map<String, Value> = names.into_iter().chain([created]).chain(deleted).chain(noted).collect();
        Self { document: json!({"metadata": metadata, "spec": spec, "status": status}), row }
    }
}

/// Returns a sortable number for a time: milliseconds with a precision of seconds, because lists show no more.
pub(crate) fn millis(time: Option<Timestamp>) -> i64 {
    time.map_or(NEVER, |time| time.as_second().saturating_mul(1_000))
}

pub(crate) fn time(millis: i64) -> Option<Timestamp> {
    (millis != NEVER).then(|| Timestamp::from_millisecond(millis).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_and_variables_are_kept_as_their_digests_where_that_is_asked_for() {
        let document = json!({"metadata": {"name": "j", "uid": "u"}, "spec": {"type": "preflight", "entryPoint": "c2VjcmV0",
            "env": {"A": "secret"}, "inputs": [{"name": "Script", "value": "secret"}, {"name": "label", "value": "l"}]}});
        let redacted = JobSnapshot::of(&document, Defaults::default()).unwrap().redacted().spec;
        assert!(!redacted.to_string().contains("secret") && !redacted.to_string().contains("c2VjcmV0"), "{redacted}");
        assert_eq!(redacted["inputs"][1]["value"], "l");
        assert!(redacted["env"]["A"].as_str().unwrap().ends_with("(6 bytes)"), "{redacted}");
    }

    #[test]
    fn a_spec_that_is_kept_as_its_digest_says_what_lists_say() {
        let document = json!({"metadata": {"name": "j", "uid": "u"}, "spec": {"type": "reboot", "jobName": "J",
            "requester": {"id": "i", "name": "alice"}, "inputs": [{"name": "label", "value": "x".repeat(4_096)}]}});
        let mut whole = JobSnapshot::of(&document, Defaults::default()).unwrap();
        whole.status = json!({"phase": "Failed", "outputs": [{"name": "n", "value": "v".repeat(2_000)}]});
        let digested = whole.clone().digested();
        assert_eq!((&digested.row, digested.status.clone()), (&whole.row, json!({"phase": "Failed"})));
        let text = digested.spec.to_string();
        assert!(text.len() < 300 && text.contains("sha256:") && text.contains("alice"), "{text}");
    }

    #[test]
    fn a_job_is_read_from_its_row_as_it_was() {
        let document = json!({"metadata": {"name": "j", "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z",
            "annotations": {"oarlock.dev/request": "r"}}, "spec": {"type": "reboot", "jobName": "J"}, "status": {"phase": "Failed", "finishedAt": "2026-01-01T00:00:09Z"}});
        let JobSnapshot { row, spec, status, request, .. } = JobSnapshot::of(&document, Defaults::default()).unwrap();
        assert_eq!(GoneJob::of(row, spec, status, &request).document, document);
    }
}
