//! The in-memory API does what the real API server does, script by script.
//!
//! Takes the scripts of `tests/conformance`; each group is one test, so that the output is readable. `OARLOCK_TRANSCRIPTS=DIR`
//! writes down what the real API server answered.

#[cfg(test)]
mod groups;
