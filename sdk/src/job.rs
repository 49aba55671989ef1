//! Typed reads of the job and of the operator's settings.

use serde::de::DeserializeOwned;

use crate::object::parse;
use crate::{Failure, ObjectRef, ReadError, Result, backend};

/// One job: an action for a list of targets.
#[derive(Debug)]
pub struct Job(pub(crate) backend::Job);

impl Job {
    /// Returns the namespace of the job.
    #[must_use]
    pub fn namespace(&self) -> String {
        self.0.namespace()
    }

    /// Returns a reference to an object in the namespace of the job.
    #[must_use]
    pub fn local(&self, api_version: &str, kind: &str, name: &str) -> ObjectRef {
        ObjectRef::new(api_version, kind, Some(self.namespace()), name)
    }

    /// Returns the name of the job.
    #[must_use]
    pub fn name(&self) -> String {
        self.0.name()
    }

    /// Returns the UID of the job.
    #[must_use]
    pub fn uid(&self) -> String {
        self.0.uid()
    }

    /// Returns the requested action.
    #[must_use]
    pub fn action(&self) -> String {
        self.0.action()
    }

    /// Returns the time at which the round began, in milliseconds since 1970. A
    /// plugin has no other clock.
    #[must_use]
    pub fn now_ms(&self) -> u64 {
        self.0.now_ms()
    }

    /// Returns the parameter that a JSON Pointer selects.
    ///
    /// # Errors
    ///
    /// If the parameter is not a `T`. Then the schema in the manifest allows a
    /// value that the code does not accept.
    pub fn parameter<T: DeserializeOwned>(&self, pointer: &str) -> Result<Option<T>> {
        self.0.parameter(pointer).map(|text| fixed(&text, || format!("parameter {pointer}"))).transpose()
    }

    /// Returns the number of targets of the job.
    #[must_use]
    pub fn target_count(&self) -> u32 {
        self.0.target_count()
    }

    /// Returns true if somebody has asked for the job to stop.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.0.cancelled()
    }
}

/// Returns the operator's setting that a JSON Pointer selects. Every call can
/// read settings.
///
/// # Errors
///
/// If the setting is not a `T`. Then the schema in the manifest allows a value
/// that the code does not accept.
pub fn config<T: DeserializeOwned>(pointer: &str) -> Result<Option<T>> {
    backend::value(pointer).map(|text| fixed(&text, || format!("setting {pointer}"))).transpose()
}

/// Parses a value that never changes while the job exists. So a retry is no
/// use.
fn fixed<T: DeserializeOwned>(text: &str, what: impl Fn() -> String) -> Result<T> {
    parse(text, what).map_err(|error| match error {
        ReadError::Malformed { what, source } => Failure::permanent(
            "Malformed",
            format!("The {what} does not have the type that the plugin expects: {source}; correct the schema in its manifest."),
        ),
        other => other.into(),
    })
}
