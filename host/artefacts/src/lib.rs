//! The files that OpsJobs leave, and the parts from which logs are merged.
//!
//! ```text
//! log of a container -> part.rs (every line with a time and its place) -> a part -> merge.rs (k ways) -> the file of a job
//! ```

mod backend;
mod counts;
mod failed;
pub mod line_time;
pub mod merge;
pub mod part;
mod retention;
mod s3;
mod space;
mod store;
mod upload;
mod visit_records;
mod volume;

pub use backend::StoreRequestCounts;
pub use failed::ArtefactsFailed;
pub use s3::{S3Options, S3Place, S3PlaceFailed};
pub use space::{FileOwner, OwnerRoom};
pub use store::{Artefacts, FileName, PartName};
pub use upload::Upload;
pub use visit_records::VisitsOf;
pub use volume::{FilesShare, VolumeSpace};
