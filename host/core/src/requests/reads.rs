//! Live reads of the API server.

/// The reason why a live read has no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadFailed {
    /// The operation that failed, and the message of the API server.
    pub message: String,
    /// True if the API server would refuse the read again.
    pub is_refused: bool,
    /// The seconds to wait, if the API server names them.
    pub retry_after: Option<u32>,
}
