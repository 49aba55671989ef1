//! The in-memory API does what the real API server does, script by script.
//!
//! Takes the scripts of `tests/conformance`; each group is one test, so that the output is readable. `OARLOCK_TRANSCRIPTS=DIR`
//! writes down what the real API server answered. Jobs that are drawn from seeds come on top.

#[cfg(test)]
mod generated_jobs;
#[cfg(test)]
mod groups;
