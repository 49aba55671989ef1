//! Typed reads of a target.

use serde::de::DeserializeOwned;

use crate::object::parse;
use crate::{Freshness, Object, ReadError, backend};

/// The state of a task that the host runs for the plugin.
pub use crate::wit::TaskStatus;

/// One of the objects that a job acts on.
#[derive(Debug)]
pub struct Target(pub(crate) backend::Target);

/// The values that earlier proposals and the host stored for a target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Extras(Vec<(String, String)>);

impl Extras {
    /// Returns the value under a key.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&str> {
        self.iter().find(|(known, _)| *known == key).map(|(_, value)| value)
    }

    /// Returns true if there is a value under a key.
    #[must_use]
    pub fn has(&self, key: &str) -> bool {
        self.get(key).is_some()
    }

    /// Returns the keys and values, sorted by key.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(key, value)| (key.as_str(), value.as_str()))
    }
}

/// The progress of the drain of a Node. The host stores it as the extra
/// `Drain`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DrainStatus {
    /// True if no Pod is left that has to go.
    pub done: bool,
    /// The Pods that cannot be evicted, as `namespace/name`, at most 10.
    pub blocked: Vec<String>,
    /// The number of further Pods that cannot be evicted.
    pub more: u32,
    /// The terminating Pod whose grace period ends last, as `namespace/name`.
    pub terminating: Option<String>,
}

impl DrainStatus {
    fn read(text: &str) -> Option<Self> {
        let value: serde_json::Value = serde_json::from_str(text).ok()?;
        let blocked = value.get("blocked").and_then(|list| list.as_array()).into_iter().flatten();
        let blocked = blocked.filter_map(|pod| pod.as_str().map(str::to_owned)).collect();
        let more = value.get("more").and_then(|more| more.as_u64()).and_then(|more| u32::try_from(more).ok());
        let terminating = value.get("terminating").and_then(|pod| pod.as_str()).map(str::to_owned);
        let done = value.get("state").is_some_and(|state| state == "Drained");
        Some(Self { done, blocked, more: more.unwrap_or(0), terminating })
    }
}

impl Target {
    /// Returns the name of the target, which is unique in the job.
    #[must_use]
    pub fn name(&self) -> String {
        self.0.name()
    }

    /// Returns the position of the target in the job, from 0.
    #[must_use]
    pub fn index(&self) -> u32 {
        self.0.index()
    }

    /// Returns the kind of the target's object, such as `Pod`.
    #[must_use]
    pub fn kind(&self) -> String {
        self.0.kind()
    }

    /// Returns the UID of the target's object, even after the object is gone.
    /// It distinguishes a later object of the same name. Returns `None` if
    /// there never was an object.
    #[must_use]
    pub fn uid(&self) -> Option<String> {
        self.0.uid()
    }

    /// Returns the object of the target. Returns `None` if the API server has
    /// confirmed that it is gone. A later object of the same name, such as the
    /// next Pod of a StatefulSet, is not the target.
    #[must_use]
    pub fn object(&self) -> Option<Object> {
        self.0.object().map(Object::new)
    }

    /// Returns the requested containers. An empty list means all containers.
    #[must_use]
    pub fn containers(&self) -> Vec<String> {
        self.0.containers()
    }

    /// Returns the value that an earlier proposal stored under `key`.
    #[must_use]
    pub fn extra(&self, key: &str) -> Option<String> {
        self.0.extra(key)
    }

    /// Returns all values that earlier proposals stored. This is one call to
    /// the host, so it is cheaper than a read of each value.
    #[must_use]
    pub fn extras(&self) -> Extras {
        Extras(self.0.extras())
    }

    /// Returns the number of the attempt at this target, from 1.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.0.attempt()
    }

    /// Returns the number of the try of the current call, from 1.
    #[must_use]
    pub fn call_try(&self) -> u32 {
        self.0.call_try()
    }

    /// Returns the start time of the target, in milliseconds since 1970.
    #[must_use]
    pub fn started_ms(&self) -> u64 {
        self.0.started_ms()
    }

    /// Returns the time when the host gives up on this target, or `None` if
    /// there is no limit.
    #[must_use]
    pub fn deadline_ms(&self) -> Option<u64> {
        self.0.deadline_ms()
    }

    /// Returns the objects that belong to this target by a relation of `setup`.
    ///
    /// # Errors
    ///
    /// If the relation was not declared, or the host needs a live read first.
    pub fn related(&self, relation: &str, freshness: Freshness) -> Result<Vec<Object>, ReadError> {
        Ok(self.0.related(relation, freshness)?.into_iter().map(Object::new).collect())
    }

    /// Returns the progress of the target's drain, or `None` if no drain was
    /// proposed in this attempt.
    #[must_use]
    pub fn drain(&self) -> Option<DrainStatus> {
        self.extra("Drain").and_then(|text| DrainStatus::read(&text))
    }

    /// Returns the status of the task of this name, or `None` if there is no
    /// such task.
    ///
    /// The output of a `run-on-node` is the text that the command printed. The
    /// output of a `check-pod` is the text that its program wrote to
    /// `/dev/termination-log`, at most 4096 bytes. If the program wrote nothing
    /// and its exit code is not 0, the output is the text that it printed. The
    /// host keeps about 512 bytes of both (docs/operationjob.md 3.17).
    #[must_use]
    pub fn task(&self, name: &str) -> Option<TaskStatus> {
        self.0.task(name)
    }

    /// Returns the output of the task of this name, parsed as JSON.
    ///
    /// # Errors
    ///
    /// If the output is not a `T`.
    pub fn task_output<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>, ReadError> {
        self.task(name).map(|task| parse(&task.output, || format!("the output of task {name}"))).transpose()
    }
}
