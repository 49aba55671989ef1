//! A job on a bench. The bench runs rounds as `host/src/round.rs` does, with a closure as the plugin and a few maps as the cluster.
//!
//! A test gives the bench a spec or a whole stored job, and moves its clock. The [`Weather`] decides which requests fail. The bench itself decides
//! nothing.

#![allow(clippy::arithmetic_side_effects, reason = "a test moves its own clock")]

mod cluster;
pub(crate) mod patch;
pub(crate) mod plugin;
mod round;
pub(crate) mod weather;
mod writes;

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;
use oarlock_core::cache::store::{Indexed, Store};
use oarlock_core::object::api_object::{Kind, Object, ObjectKey};
use oarlock_core::object::key::JobKey;
use oarlock_core::object::time::after_seconds;
use oarlock_core::operation_job::round::memory::JobMemory;
use oarlock_core::operation_job::shared::reads::ServedKinds;
use oarlock_core::operation_job::shared::tables::SharedTables;
use oarlock_core::operation_job::tasks::settings::TaskSettings;
use oarlock_core::operation_job::write_queue::WriteQueue;
use oarlock_core::plugin::lookup::PluginLookup;
use oarlock_core::requests::writes::Stopped;
use serde_json::{Value, json};

use crate::bench::patch::merge;
use crate::bench::plugin::plugin;
use crate::bench::weather::{Fine, Weather};

/// The time at which a bench begins.
pub(crate) const START: &str = "2026-01-01T00:00:00Z";
/// The UID of the job.
pub(crate) const JOB_UID: &str = "job-uid";

/// A job on a bench.
pub(crate) struct Bench {
    /// The current time of the bench.
    pub(crate) now: Timestamp,
    /// The job as it was stored last.
    pub(crate) job: Value,
    /// Whether the job is gone from the cluster.
    pub(crate) job_is_gone: bool,
    /// The stored OperationRecords, by number.
    pub(crate) records: BTreeMap<u32, Value>,
    /// The most targets that the stored records ever had in flight.
    pub(crate) most_in_flight: u64,
    /// The host's memory of the job.
    pub(crate) memory: JobMemory,
    /// The host's view of the cluster.
    pub(crate) store: Arc<Store>,
    /// Objects of kinds that the host does not watch. Only live reads show them.
    pub(crate) unwatched: BTreeMap<ObjectKey, Arc<Object>>,
    /// The tables that the jobs of the term share.
    pub(crate) tables: SharedTables,
    /// The write queue of the term.
    pub(crate) queue: WriteQueue,
    /// The plugin that serves the job.
    pub(crate) found: PluginLookup,
    /// The kinds that the cluster serves.
    pub(crate) served: ServedKinds,
    /// The newest resourceVersion.
    pub(crate) version: u64,
    /// The reasons of all events.
    pub(crate) event_reasons: Vec<String>,
    /// The writes that were sent, as verb and name.
    pub(crate) sent: Vec<String>,
    /// The outcomes that the metrics counted.
    pub(crate) ended: Vec<String>,
    /// How often the status was written.
    pub(crate) status_writes: usize,
    /// The verbs that the cluster refuses, each with its failure.
    pub(crate) refuse: BTreeMap<&'static str, Stopped>,
    /// The failures between the host and its cluster.
    pub(crate) weather: Box<dyn Weather>,
    /// The time at which the next round is due.
    pub(crate) next: Option<Timestamp>,
    /// Whether the namespace is being deleted.
    pub(crate) namespace_terminating: bool,
    /// Whether the namespace has the label for jobs on nodes.
    pub(crate) node_operations: bool,
    /// The settings of the pods of tasks.
    pub(crate) tasks: Arc<TaskSettings>,
    /// The number of rounds in a row whose record was not written.
    pub(crate) tries: u32,
    /// The number of write batches that leave at once. The others wait for [`Bench::send`].
    pub(crate) wire: usize,
    /// The number of visits after which the time of a round is up.
    pub(crate) visits_in_time: usize,
}

impl Bench {
    /// Returns a bench with a new job of this spec.
    pub(crate) fn new(spec: Value) -> Self {
        Self::stored(json!({"apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "OperationJob",
            "metadata": {"name": "j", "namespace": "d", "uid": JOB_UID, "resourceVersion": "1", "generation": 1},
            "spec": spec}))
    }

    /// Returns a bench with a stored job.
    pub(crate) fn stored(job: Value) -> Self {
        let store = Store::default();
        store.keep(&Kind::pod(), Indexed::default());
        Self {
            now: START.parse().unwrap(),
            job,
            job_is_gone: false,
            records: BTreeMap::new(),
            most_in_flight: 0,
            memory: JobMemory::default(),
            store: Arc::new(store),
            unwatched: BTreeMap::new(),
            tables: SharedTables::default(),
            queue: WriteQueue::default(),
            found: plugin(),
            served: Arc::new(|_| true),
            version: 1,
            event_reasons: vec![],
            sent: vec![],
            ended: vec![],
            status_writes: 0,
            refuse: BTreeMap::new(),
            weather: Box::new(Fine),
            next: None,
            namespace_terminating: false,
            node_operations: true,
            tasks: Arc::default(),
            tries: 0,
            wire: usize::MAX,
            visits_in_time: usize::MAX,
        }
    }

    /// Returns a spec that replaces these pods.
    pub(crate) fn targets(names: &[&str]) -> Value {
        json!({"action": "Replace", "targets": names.iter().map(|name| json!({"name": name})).collect::<Vec<_>>()})
    }

    /// Returns a bench with a job of one target `a`, whose pod exists, and these fields of its spec.
    pub(crate) fn of_one(fields: &Value) -> Self {
        let mut spec = Self::targets(&["a"]);
        merge(&mut spec, fields);
        let mut bench = Self::new(spec);
        bench.pod("a", "1");
        bench
    }

    /// Returns the key of the job.
    pub(crate) fn key() -> JobKey {
        JobKey { namespace: "d".into(), name: "j".into() }
    }

    /// Starts a new leader, whose memory is empty.
    pub(crate) fn crash(&mut self) {
        self.memory = JobMemory::default();
        self.tables = SharedTables::default();
        self.queue = WriteQueue::default();
        self.tries = 0;
        self.next = Some(Timestamp::UNIX_EPOCH);
    }

    /// Makes a target due, as if another client had changed its object.
    pub(crate) fn requeue(&mut self, index: u32) {
        self.memory.work.requeue(index, &mut self.memory.targets);
    }

    /// Makes every target due.
    pub(crate) fn touch_all(&mut self) {
        (0..self.memory.stored.state.targets.len() as u32).for_each(|index| self.requeue(index));
    }

    /// Lets time pass.
    pub(crate) fn later(&mut self, seconds: i64) {
        self.now = after_seconds(self.now, seconds);
    }

    /// Returns the stored status.
    pub(crate) fn status(&self) -> &Value {
        &self.job["status"]
    }

    /// Returns the progress and the error reason of a target.
    pub(crate) fn word(&self, index: usize) -> String {
        let detail = &self.status()["targetDetails"][index];
        let text = |field: &str| detail[field].as_str().unwrap_or("-").to_owned();
        match detail["error"]["reason"].as_str() {
            Some(reason) => format!("{}/{reason}", text("progress")),
            None => text("progress"),
        }
    }

    /// Returns how often a write was sent.
    pub(crate) fn times(&self, write: &str) -> usize {
        self.sent.iter().filter(|sent| *sent == write).count()
    }
}
