//! Takes a handle on the target and yields typed reads of it. May not judge
//! them.

use serde::de::DeserializeOwned;

use crate::object::parse;
use crate::{Freshness, Object, ReadError, backend};

/// How far a task is that the host does for the plugin.
pub use crate::wit::TaskStatus;

/// One of the things a job acts on.
#[derive(Debug)]
pub struct Target(pub(crate) backend::Target);

/// What earlier proposals stored for a target, and the host beside it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Extras(Vec<(String, String)>);

impl Extras {
    /// The value under a key.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&str> {
        self.iter().find(|(known, _)| *known == key).map(|(_, value)| value)
    }

    /// Whether there is a value under a key.
    #[must_use]
    pub fn has(&self, key: &str) -> bool {
        self.get(key).is_some()
    }

    /// Keys and values, sorted by key.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(key, value)| (key.as_str(), value.as_str()))
    }
}

/// How far the drain of a Node is. The host stores it as the extra `Drain`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DrainStatus {
    /// Whether no Pod is left that has to go.
    pub done: bool,
    /// The Pods that do not go, as `namespace/name`, at most 10.
    pub blocked: Vec<String>,
    /// How many more do not go.
    pub more: u32,
    /// Of the Pods that terminate the one whose time for it ends last, as `namespace/name`.
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
    /// The name of the target, unique in the job.
    #[must_use]
    pub fn name(&self) -> String {
        self.0.name()
    }

    /// The position of the target in the job, from 0.
    #[must_use]
    pub fn index(&self) -> u32 {
        self.0.index()
    }

    /// The kind of object the target is, such as `Pod`.
    #[must_use]
    pub fn kind(&self) -> String {
        self.0.kind()
    }

    /// The UID of the target's object, also once that is gone: tells a later
    /// object of the same name from it. `None` where there never was one.
    #[must_use]
    pub fn uid(&self) -> Option<String> {
        self.0.uid()
    }

    /// The object itself; `None` where the API server has confirmed that it is
    /// gone, also where another has its name since, as a new pod of a
    /// StatefulSet has.
    #[must_use]
    pub fn object(&self) -> Option<Object> {
        self.0.object().map(Object::new)
    }

    /// The containers that were asked for; empty means all.
    #[must_use]
    pub fn containers(&self) -> Vec<String> {
        self.0.containers()
    }

    /// What an earlier proposal stored under `key`.
    #[must_use]
    pub fn extra(&self, key: &str) -> Option<String> {
        self.0.extra(key)
    }

    /// Everything that earlier proposals stored. One call to the host, so
    /// cheaper than asking for each.
    #[must_use]
    pub fn extras(&self) -> Extras {
        Extras(self.0.extras())
    }

    /// Which attempt at this target this is, from 1.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.0.attempt()
    }

    /// Which try of the current call this is, from 1.
    #[must_use]
    pub fn call_try(&self) -> u32 {
        self.0.call_try()
    }

    /// When the target started, in milliseconds since 1970.
    #[must_use]
    pub fn started_ms(&self) -> u64 {
        self.0.started_ms()
    }

    /// When the host gives up on this target; `None` where no limit is set.
    #[must_use]
    pub fn deadline_ms(&self) -> Option<u64> {
        self.0.deadline_ms()
    }

    /// The objects that belong to this target by a relation of `setup`.
    ///
    /// # Errors
    ///
    /// For a relation that was not declared, or where the host has to look
    /// first.
    pub fn related(&self, relation: &str, freshness: Freshness) -> Result<Vec<Object>, ReadError> {
        Ok(self.0.related(relation, freshness)?.into_iter().map(Object::new).collect())
    }

    /// How far the drain of the target is; `None` where none was proposed in
    /// this attempt.
    #[must_use]
    pub fn drain(&self) -> Option<DrainStatus> {
        self.extra("Drain").and_then(|text| DrainStatus::read(&text))
    }

    /// How far the task of this name is; `None` where there is none.
    ///
    /// The output of a `run-on-node` is what the command printed. That of a `check-pod` is what its program wrote to
    /// `/dev/termination-log`, at most 4096 bytes; what it printed is taken in place of that only where it wrote nothing and
    /// its exit code is not 0. Of both the host keeps about 512 bytes (docs/operationjob.md 3.17).
    #[must_use]
    pub fn task(&self, name: &str) -> Option<TaskStatus> {
        self.0.task(name)
    }

    /// What the task of this name produced, read as JSON.
    ///
    /// # Errors
    ///
    /// Where it is not a `T`.
    pub fn task_output<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>, ReadError> {
        self.task(name).map(|task| parse(&task.output, || format!("the output of task {name}"))).transpose()
    }
}
