//! The files that OpsJobs leave, and the parts of which logs are put together.
//!
//! ```text
//! log of a container -> part.rs (every line with a time and its place) -> a part -> merge.rs (k ways) -> the file of a job
//! ```

pub mod line_time;
pub mod merge;
pub mod part;
mod store;
mod upload;

pub use store::{Artefacts, ArtefactsFailed};
pub use upload::Upload;
