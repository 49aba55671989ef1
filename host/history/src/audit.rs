//! The row of a request.

use k8s_openapi::jiff::Timestamp;

/// A request that would change something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditRow {
    /// Its own id: no two requests have one.
    pub id: String,
    /// When it came.
    pub time: Timestamp,
    /// The id that its client knows it by.
    pub request_id: String,
    /// Who asked, by name.
    pub user_name: String,
    /// Who asked, by UID.
    pub user_id: String,
    /// From where.
    pub address: String,
    /// `POST` or `DELETE`, or `stop`.
    pub verb: String,
    /// The job that it was about.
    pub job_id: String,
    /// Its type.
    pub kind: String,
    /// The status of the answer; 0 while there is none.
    pub status: u16,
    /// The code of a refusal.
    pub code: String,
    /// The body, with digests in place of what may be private.
    pub body: String,
}
