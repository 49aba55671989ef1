//! The contract: the requests and proposals that a plugin may make, and the checks that refuse them.
//!
//! The host decides with this code. The test kit of the SDK uses the same code, so that an author sees a refusal before a host does. The
//! code is deterministic and uses no I/O, clock or randomness.

pub mod authorize;
pub mod causes;
pub mod convert;
pub mod extras;
pub mod grant;
pub mod host_path;
pub mod limits;
pub mod manifest;
pub mod marks;
pub mod names;
pub mod object_key;
pub mod proposal;
pub mod reads;
pub mod recorded_reads;
pub mod replayed;
pub mod rights;
pub mod schema;
mod script_rule;
pub mod sighting;
pub mod successors;
pub mod task;
mod task_rule;
pub mod visit_record;
