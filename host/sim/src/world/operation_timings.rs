//! Durations of the steps by which the world takes part in operations on pods.

use super::random::Span;

/// Durations of the steps by which the world takes part in operations on pods.
#[derive(Clone, Copy, Debug)]
pub struct OperationTimings {
    /// From `pre-check` or `post-check` until the rules have passed.
    pub check: Span,
    /// From the condition `service-ready` False until controllers of traffic have let the pod go.
    pub drain: Span,
    /// From a ContainerRecreateRequest until the daemon of the node takes it up.
    pub accept: Span,
    /// From there until the containers have stopped and run again.
    pub stop: Span,
}

impl Default for OperationTimings {
    fn default() -> Self {
        Self {
            check: Span::millis(20, 100),
            drain: Span::millis(50, 300),
            accept: Span::millis(10, 50),
            stop: Span::millis(100, 500),
        }
    }
}
