//! The refusals of the REST API, by the codes that clients know. Source: docs/opsjob-rest.md 3.

/// The code of a refused request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Code {
    /// The request is invalid.
    BadRequest,
    /// The path does not have this method.
    MethodNotAllowed,
    /// The caller is unknown.
    Unauthenticated,
    /// The caller lacks a permission.
    Forbidden,
    /// The job, template, cluster or path does not exist.
    NotFound,
    /// The workload does not exist.
    NoWorkload,
    /// The workspace does not exist.
    NoWorkspace,
    /// The node does not exist.
    NoNode,
    /// Another job works on a target.
    Busy,
    /// Another request used the same idempotency key.
    Conflict,
    /// The body, or the object that it would become, is too large.
    TooLarge,
    /// The server does not read this form of body.
    UnreadForm,
    /// The caller sends too many requests, or has too many jobs.
    TooMany,
    /// A fault of the host.
    Internal,
    /// A service that the request needs does not answer.
    Unreachable,
    /// The host does not serve this type of job.
    NotServed,
}

impl Code {
    /// All codes.
    pub const ALL: [Self; 16] = [
        Self::BadRequest,
        Self::MethodNotAllowed,
        Self::Unauthenticated,
        Self::Forbidden,
        Self::NotFound,
        Self::NoWorkload,
        Self::NoWorkspace,
        Self::NoNode,
        Self::Busy,
        Self::Conflict,
        Self::TooLarge,
        Self::UnreadForm,
        Self::TooMany,
        Self::Internal,
        Self::Unreachable,
        Self::NotServed,
    ];

    /// Returns the HTTP status.
    pub const fn status(self) -> u16 {
        match self {
            Self::BadRequest => 400,
            Self::Unauthenticated => 401,
            Self::Forbidden => 403,
            Self::NotFound | Self::NoWorkload | Self::NoWorkspace | Self::NoNode => 404,
            Self::MethodNotAllowed => 405,
            Self::Busy | Self::Conflict => 409,
            Self::TooLarge => 413,
            Self::UnreadForm => 415,
            Self::TooMany => 429,
            Self::Internal => 500,
            Self::NotServed => 501,
            Self::Unreachable => 503,
        }
    }

    /// Returns the field `errorCode`.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Internal | Self::Unreachable => "Primus.00001",
            Self::BadRequest | Self::MethodNotAllowed | Self::UnreadForm => "Primus.00002",
            Self::Forbidden => "Primus.00003",
            Self::NotFound => "Primus.00005",
            Self::TooLarge => "Primus.00006",
            Self::NotServed => "Primus.00007",
            Self::TooMany => "Primus.00008",
            Self::Unauthenticated => "Primus.00009",
            Self::Busy => "Primus.00010",
            Self::Conflict => "Primus.00012",
            Self::NoWorkload => "Primus.01001",
            Self::NoWorkspace => "Primus.02001",
            Self::NoNode => "Primus.03002",
        }
    }
}

/// A refusal of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpsRefusal {
    /// The code for programs.
    pub code: Code,
    /// The message for people, with the field or object at fault.
    pub message: String,
    /// Seconds after which the caller may retry.
    pub retry_after: Option<u64>,
}

impl OpsRefusal {
    /// Returns a refusal with this code and message.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), retry_after: None }
    }

    /// Returns the refusal with a time after which the caller may retry.
    #[must_use]
    pub fn after(self, seconds: u64) -> Self {
        Self { retry_after: Some(seconds), ..self }
    }

    /// Returns the refusal of an invalid request.
    pub fn bad(message: impl Into<String>) -> Self {
        Self::new(Code::BadRequest, message)
    }
}
