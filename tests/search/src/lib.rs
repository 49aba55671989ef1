//! The search for failures that nobody thought of. No release contains this crate.
//!
//! Runs kill hosts at their writes and inject faults, and check the properties that must hold nevertheless. Bad input runs beside a
//! good job that must not notice it. Known-bad hosts show that the checks can fail. docs/testing.md describes the search.

pub mod crash;
pub mod misfits;
pub mod variants;
