//! Tests of an action without WebAssembly and without a host: objects that a
//! test builds go in, and what the action answers comes out. Manifest,
//! parameters, reads, answers and limits are checked by the host's own code.
//! Only the limits on time and memory are not there.
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
mod hold;
pub(crate) mod memory;
mod relation;
mod sample;
mod scene;
mod visit;

use crate::{Report, State, TaskStatus};

pub use oarlock_contract::manifest::{Manifest, ManifestError};
pub use sample::{Sample, node, object, pod};
pub use visit::{NOW, Visit};

/// The manifest of a plugin, as the host reads it.
///
/// # Errors
///
/// Where the host would refuse it; the cause names the place.
pub fn manifest<A: crate::Plugin>() -> Result<Manifest, ManifestError> {
    Manifest::parse(A::MANIFEST.as_bytes())
}

/// A task that is so far, with the exit code, output and message that it has.
#[must_use]
pub fn task(state: &str, exit_code: Option<i32>, output: &str, message: &str) -> TaskStatus {
    TaskStatus { state: state.to_owned(), exit_code, output: output.to_owned(), message: message.to_owned() }
}

/// The outcome of a report in a word: `Processing`, `Succeeded`, or the reason of its failure.
#[must_use]
pub fn outcome(report: &Report) -> String {
    match report.state() {
        State::Failed(error) => error.reason.clone(),
        State::Succeeded => "Succeeded".to_owned(),
        State::Processing => "Processing".to_owned(),
    }
}
