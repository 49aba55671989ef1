//! What a plugin may ask for and propose, and what of it is refused.
//!
//! One code for the host, which decides by it, and for the test kit of the SDK, which tells an author the same before a host
//! does. Deterministic, without I/O, clock or chance.

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
pub mod schema;
mod script_rule;
pub mod sighting;
pub mod successors;
pub mod task;
mod task_rule;
