//! Durations of the steps that the simulated cluster takes in operations on pods and nodes.

use super::random::Span;

/// Durations of the steps that the simulated cluster takes in operations on pods and nodes.
#[derive(Clone, Copy, Debug)]
pub struct OperationTimings {
    /// From `pre-check` or `post-check` until the rules pass.
    pub check: Span,
    /// From the condition `service-ready` False until the traffic controllers release the pod.
    pub drain: Span,
    /// From a ContainerRecreateRequest until the node's daemon accepts it.
    pub accept: Span,
    /// From the acceptance until the containers have stopped and run again.
    pub stop: Span,
    /// From a reboot command until the node goes down.
    pub reboot_notice: Span,
    /// From then until the node is up again.
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
