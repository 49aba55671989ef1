//! EchoJob, a toy kind that shows what a new kind of the engine needs. No release contains this crate.
//!
//! An EchoJob runs one pod in each namespace that its selector names, until all pods have ended or a deadline is over. Its deletion deletes the pods.
//! [`kind`] and [`plan`] are the whole controller. [`job`] and [`pod`] are the objects.

pub mod job;
pub mod kind;
mod plan;
pub mod pod;

#[cfg(test)]
mod plan_tests;
