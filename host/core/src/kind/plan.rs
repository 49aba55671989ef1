//! A plan: what the engine does next for an object.

use std::collections::BTreeMap;

use k8s_openapi::jiff::Timestamp;
use serde_json::Value;

use crate::kind::locks::LockChange;
use crate::requests::reads::ReadFailed;
use crate::requests::writes::{EventNote, Recorded, Write};

/// The next steps of the engine for an object. The engine takes the parts in the order of the fields.
#[derive(Clone, Debug, PartialEq)]
pub struct KindPlan<M> {
    /// The memory for the next plan. Each plan replaces it, also with the default. If a write fails, the memory of the plan that sees the failure counts.
    pub memory: M,
    /// The change of the object's locks. The engine makes it together with the plan, so that no other plan comes between.
    pub locks: LockChange,
    /// The writes to make now, in order. The first failed write ends them, so put writes that failed before at the end. A plan may base them only on
    /// what is stored. After a write of the object itself, the round ends, and the reply leads to the next one. A write of an object that the host does
    /// not watch for the kind starts no round, so the plan then sets `again`. A write of an object that no longer exists counts as made.
    pub writes: Vec<Write>,
    /// The status to store, if it differs from the stored one. The engine stores it after all `writes` have succeeded, so it may say that they are
    /// made.
    pub status: Option<NewStatus>,
    /// The writes to make once the status is stored. Without a status there are none: a later plan repeats them as `writes`.
    pub after_status: Vec<Write>,
    /// The events to emit once the status is stored. Without a status there are none.
    pub events: Vec<EventNote>,
    /// The time of the next round, if no change comes before. A time that is over means at once. The engine ignores it after a failed write, and if
    /// there is a `trouble`.
    pub again: Option<Timestamp>,
    /// The reason for which the engine repeats the round later, after the rest of the plan.
    pub trouble: Option<Trouble>,
}

impl<M: Default> Default for KindPlan<M> {
    fn default() -> Self {
        Self {
            memory: M::default(),
            locks: LockChange::Keep,
            writes: Vec::new(),
            status: None,
            after_status: Vec::new(),
            events: Vec::new(),
            again: None,
            trouble: None,
        }
    }
}

/// A status to store.
#[derive(Clone, Debug, PartialEq)]
pub struct NewStatus {
    /// The whole status.
    pub body: Value,
    /// When the engine stores it.
    pub when: StoreTime,
}

impl NewStatus {
    /// Returns the proof that the status is stored, with what may follow. Only `oarlock-kube` calls it, after the API server accepted the status.
    pub fn confirmed<T>(&self, then: T) -> Recorded<T> {
        Recorded { then, operation_records: BTreeMap::new() }
    }

    /// Returns the proof that an object has this status already, with what may follow. Returns `None` if the object has another status.
    pub fn found_in<T>(&self, stored: &Value, then: T) -> Option<Recorded<T>> {
        (self.body == *stored).then(|| self.confirmed(then))
    }
}

/// The time at which the engine stores a status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreTime {
    /// At once, because a user or a write waits for it.
    Now,
    /// As soon as the rate limits allow it, but not before this time.
    InTurn(Option<Timestamp>),
}

/// The reason for which the engine repeats a round, with the wait that the API server asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// A description of the failure, for the log.
    pub message: String,
    /// The seconds to wait, if the API server names them.
    pub retry_after: Option<u32>,
}

impl From<ReadFailed> for Trouble {
    fn from(failed: ReadFailed) -> Self {
        Self { message: failed.message, retry_after: failed.retry_after }
    }
}
