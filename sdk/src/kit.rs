//! Takes objects built in a test and yields what an action answers, without
//! WebAssembly and without a host. May not be kinder than the host: what the
//! manifest does not declare can neither be read nor proposed.
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
//! # export!(Evict, manifest = r#"{"schema": 1, "name": "evict", "version": "0.1.0", "action": "Evict",
//! #     "writes": [{"verb": "evict", "apiVersion": "v1", "kind": "Pod", "reason": "to evict it"}]}"#);
//! let web = pod("web-1").label("app", "web");
//! let proposal = Visit::to(&web).operate::<Evict>()?;
//! assert_eq!(proposal, Proposal::new().evict(&web, None));
//! # Ok::<(), Failure>(())
//! ```

mod manifest;
pub(crate) mod memory;
mod relation;
mod sample;
mod visit;

pub use manifest::{Manifest, ManifestError};
pub use sample::{Sample, object, pod};
pub use visit::{NOW, Visit};
