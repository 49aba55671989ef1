//! Takes a handle on the job and yields typed reads of it and of the operator's
//! settings. May not judge them.

use serde::de::DeserializeOwned;

use crate::object::parse;
use crate::{Failure, ObjectRef, ReadError, Result, backend};

/// One job: an action asked for once, on a list of targets.
#[derive(Debug)]
pub struct Job(pub(crate) backend::Job);

impl Job {
    /// The namespace of the job.
    #[must_use]
    pub fn namespace(&self) -> String {
        self.0.namespace()
    }

    /// Names an object in the namespace of the job.
    #[must_use]
    pub fn local(&self, api_version: &str, kind: &str, name: &str) -> ObjectRef {
        ObjectRef::new(api_version, kind, Some(self.namespace()), name)
    }

    /// The name of the job.
    #[must_use]
    pub fn name(&self) -> String {
        self.0.name()
    }

    /// The UID of the job.
    #[must_use]
    pub fn uid(&self) -> String {
        self.0.uid()
    }

    /// The action asked for.
    #[must_use]
    pub fn action(&self) -> String {
        self.0.action()
    }

    /// When the round began, in milliseconds since 1970. The only clock.
    #[must_use]
    pub fn now_ms(&self) -> u64 {
        self.0.now_ms()
    }

    /// The parameter that a JSON Pointer selects.
    ///
    /// # Errors
    ///
    /// Where it is not a `T`; then the schema in the manifest allows what the
    /// code does not.
    pub fn parameter<T: DeserializeOwned>(&self, pointer: &str) -> Result<Option<T>> {
        self.0.parameter(pointer).map(|text| fixed(&text, || format!("parameter {pointer}"))).transpose()
    }

    /// How many targets the job has.
    #[must_use]
    pub fn target_count(&self) -> u32 {
        self.0.target_count()
    }

    /// Whether someone has asked for the job to stop.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.0.cancelled()
    }
}

/// The operator's setting that a JSON Pointer selects. It can be read in every
/// call.
///
/// # Errors
///
/// Where it is not a `T`; then the schema in the manifest allows what the code
/// does not.
pub fn config<T: DeserializeOwned>(pointer: &str) -> Result<Option<T>> {
    backend::value(pointer).map(|text| fixed(&text, || format!("setting {pointer}"))).transpose()
}

/// Reads what never changes while the job lives: trying again is no use.
fn fixed<T: DeserializeOwned>(text: &str, what: impl Fn() -> String) -> Result<T> {
    parse(text, what).map_err(|error| match error {
        ReadError::Malformed { what, source } => Failure::permanent(
            "Malformed",
            format!("The {what} does not have the type that the plugin expects: {source}; correct the schema in its manifest."),
        ),
        other => other.into(),
    })
}
