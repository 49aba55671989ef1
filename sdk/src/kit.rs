//! A kit to test an action without WebAssembly and without a host. A test
//! builds objects and checks the answers of the action. The kit checks the
//! manifest, parameters, reads, answers and limits with the code of the host.
//! Only the limits on time and memory are missing.
//!
//! ```
//! use oarlock_sdk::kit::{Visit, pod};
//! # use oarlock_sdk::*;
//! # struct Evict;
//! # impl Action for Evict {
//! #     fn operate(_: &Job, target: &Target) -> Result<Proposal> {
//! #         Ok(target.object().map_or(Proposal::new(), |pod| Proposal::new().evict(&pod, None)))
//! #     }
//! #     fn progress(_: &Job, _: &Target) -> Result<Report> { Ok(Report::processing()) }
//! # }
//! # export!(Evict, manifest = r#"{"schema": 1, "name": "evict", "version": "0.1.0", "action": "Evict", "target": ["Pod"],
//! #     "writes": [{"verb": "evict", "apiVersion": "v1", "kind": "Pod", "reason": "to evict it"}]}"#);
//! let web = pod("web-1").label("app", "web");
//! let proposal = Visit::to(&web).operate::<Evict>()?;
//! assert_eq!(proposal, Proposal::new().evict(&web, None));
//! # Ok::<(), Failure>(())
//! ```

mod answer;
mod apply;
mod call_data;
mod hold;
pub(crate) mod memory;
mod record;
mod relation;
mod sample;
mod visit;

use crate::{Report, State, TaskStatus};

pub use oarlock_contract::manifest::{Manifest, ManifestError};
pub use sample::{Sample, node, object, pod};
pub use visit::{NOW, Visit};

/// Returns the manifest of a plugin, as the host reads it.
///
/// # Errors
///
/// If the host would refuse the manifest. The cause names the place.
pub fn manifest<A: crate::Plugin>() -> Result<Manifest, ManifestError> {
    Manifest::parse(A::MANIFEST.as_bytes())
}

/// Returns the status of a task with this state, exit code, output and message.
#[must_use]
pub fn task(state: &str, exit_code: Option<i32>, output: &str, message: &str) -> TaskStatus {
    TaskStatus { state: state.to_owned(), exit_code, output: output.to_owned(), message: message.to_owned() }
}

/// Returns the outcome of a report as a word: `Processing`, `Succeeded`, or the
/// reason of its failure.
#[must_use]
pub fn outcome(report: &Report) -> String {
    match report.state() {
        State::Failed(error) => error.reason.clone(),
        State::Succeeded => "Succeeded".to_owned(),
        State::Processing => "Processing".to_owned(),
    }
}
