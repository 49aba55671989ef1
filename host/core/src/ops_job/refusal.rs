//! What the REST API refuses, by the code that clients know. Source: docs/opsjob-rest.md 3.

/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Code {
    /// It cannot be right.
    BadRequest,
    /// The path has no such method.
    MethodNotAllowed,
    /// Nobody knows who asks.
    Unauthenticated,
    /// Whoever asks may not do it.
    Forbidden,
    /// There is no such job, template, cluster or path.
    NotFound,
    /// There is no such workload.
    NoWorkload,
    /// There is no such workspace.
    NoWorkspace,
    /// There is no such node.
    NoNode,
    /// Another job works on a target.
    Busy,
    /// Another request was made under this key.
    Conflict,
    /// The body, or what it would become, is too large.
    TooLarge,
    /// The body is in a form that is not read here.
    UnreadForm,
    /// Too many requests.
    TooMany,
    /// A fault of the host.
    Internal,
    /// What it needs does not answer.
    Unreachable,
    /// Nothing here does this type.
    NotServed,
}

impl Code {
    /// All of them.
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

    /// The HTTP status.
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

    /// The field `errorCode`.
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
    /// Why, for programs.
    pub code: Code,
    /// Why, for people, with the field or object at fault.
    pub message: String,
    /// Seconds after which it may be tried again.
    pub retry_after: Option<u64>,
}

impl OpsRefusal {
    /// A refusal of this code, in these words.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), retry_after: None }
    }

    /// The same, which may be tried again after so many seconds.
    #[must_use]
    pub fn after(self, seconds: u64) -> Self {
        Self { retry_after: Some(seconds), ..self }
    }

    /// A request that cannot be right.
    pub fn bad(message: impl Into<String>) -> Self {
        Self::new(Code::BadRequest, message)
    }
}
