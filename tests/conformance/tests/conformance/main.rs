//! Checks that the in-memory API behaves like the real API server, script by script.
//!
//! Each group of scripts in `tests/conformance` is one test, so that the output is readable. `OARLOCK_TRANSCRIPTS=DIR` writes the
//! answers of the real API server to files. Jobs that are drawn from seeds are tested in addition.

#[cfg(test)]
mod generated_jobs;
#[cfg(test)]
mod groups;
