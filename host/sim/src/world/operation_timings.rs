//! Durations of the steps by which the world takes part in operations on pods and nodes.

use super::random::Span;

/// Durations of the steps by which the world takes part in operations on pods and nodes.
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
    /// From a command to reboot until the node goes down.
    pub reboot_notice: Span,
    /// From there until it is up again.
    pub reboot: Span,
}

impl Default for OperationTimings {
    fn default() -> Self {
        Self {
            check: Span::millis(20, 100),
            drain: Span::millis(50, 300),
            accept: Span::millis(10, 50),
            stop: Span::millis(100, 500),
            reboot_notice: Span::millis(50, 150),
            reboot: Span::millis(800, 1_500),
        }
    }
}
