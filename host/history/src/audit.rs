//! The audit row of a request.

use k8s_openapi::jiff::Timestamp;

/// A request that would change something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditRow {
    /// The unique id of the row.
    pub id: String,
    /// The time at which the request arrived.
    pub time: Timestamp,
    /// The id that the client knows the request by.
    pub request_id: String,
    /// The name of the caller.
    pub user_name: String,
    /// The UID of the caller.
    pub user_id: String,
    /// The address of the client.
    pub address: String,
    /// The verb: `POST`, `DELETE` or `stop`.
    pub verb: String,
    /// The job that the request is about.
    pub job_id: String,
    /// The type of the job.
    pub kind: String,
    /// The status of the answer, or 0 while there is no answer.
    pub status: u16,
    /// The code of a refusal.
    pub code: String,
    /// The body of the request. Values that may be private are replaced by their digests.
    pub body: String,
}
