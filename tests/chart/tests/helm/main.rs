//! The chart with a real Helm: rendered, and installed on a real API server.
//!
//! `OARLOCK_HELM` names another Helm, such as Helm 3. No kubelet runs here. So the tests run the programs of hooks
//! themselves, and write the result into the status of the Job as a kubelet and the Job controller would.

#![cfg(test)]

mod contradictions;
mod program;
mod releases;
mod rendered;
