//! A job on a bench: rounds made as `host/src/round.rs` makes them, with a plugin that is a closure and a cluster that is
//! a few maps.
//!
//! Takes a spec, or a whole job as somebody stored it; yields rounds, one after the other, under a clock that a test
//! moves. What goes wrong on the way is the [`Weather`]. May not decide anything.

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
use oarlock_core::cluster::object::{Kind, Object, ObjectKey};
use oarlock_core::cluster::store::{Indexed, Store};
use oarlock_core::cluster::writes::Stopped;
use oarlock_core::job::key::JobKey;
use oarlock_core::job::time::after_seconds;
use oarlock_core::plugin::lookup::PluginLookup;
use oarlock_core::round::memory::JobMemory;
use oarlock_core::round::task_settings::TaskSettings;
use oarlock_core::shared::reads::ServedKinds;
use oarlock_core::shared::tables::SharedTables;
use oarlock_core::shared::write_queue::WriteQueue;
use serde_json::{Value, json};

use crate::bench::patch::merge;
use crate::bench::plugin::plugin;
use crate::bench::weather::{Fine, Weather};

/// When a bench begins.
pub(crate) const START: &str = "2026-01-01T00:00:00Z";
/// The UID of the job.
pub(crate) const JOB_UID: &str = "job-uid";

/// A job on a bench.
pub(crate) struct Bench {
    /// The time.
    pub(crate) now: Timestamp,
    /// The job as it was stored last.
    pub(crate) job: Value,
    /// It is gone.
    pub(crate) job_is_gone: bool,
    /// The stored OperationRecords, by shard.
    pub(crate) records: BTreeMap<u32, Value>,
    /// Most targets that the stored records ever had in flight.
    pub(crate) most_in_flight: u64,
    /// The host's memory of the job.
    pub(crate) memory: JobMemory,
    /// The host's view of the cluster.
    pub(crate) store: Arc<Store>,
    /// Objects of kinds that the host does not watch: live reads show them.
    pub(crate) unwatched: BTreeMap<ObjectKey, Arc<Object>>,
    /// What the jobs of the term share.
    pub(crate) tables: SharedTables,
    /// The writes of the term.
    pub(crate) queue: WriteQueue,
    /// The plugin.
    pub(crate) found: PluginLookup,
    /// The kinds that the cluster serves.
    pub(crate) served: ServedKinds,
    /// The newest resourceVersion.
    pub(crate) version: u64,
    /// The reasons of all events.
    pub(crate) told: Vec<String>,
    /// The writes.
    pub(crate) sent: Vec<String>,
    /// The outcomes that were counted.
    pub(crate) ended: Vec<String>,
    /// How often the status was written.
    pub(crate) status_writes: usize,
    /// Verbs that are refused.
    pub(crate) refuse: BTreeMap<&'static str, Stopped>,
    /// What goes wrong.
    pub(crate) weather: Box<dyn Weather>,
    /// When the next round is due.
    pub(crate) next: Option<Timestamp>,
    /// The namespace is being deleted.
    pub(crate) namespace_terminating: bool,
    /// The namespace has the label for jobs on nodes.
    pub(crate) node_operations: bool,
    /// Where pods of tasks are made.
    pub(crate) tasks: Arc<TaskSettings>,
    /// Rounds in a row whose record was not written.
    pub(crate) tries: u32,
    /// Entries that leave at once; the others wait for [`Bench::send`].
    pub(crate) wire: usize,
    /// Visits of a round after which its time is up.
    pub(crate) visits_in_time: usize,
}

impl Bench {
    /// A bench with a job of this spec, which nobody has seen yet.
    pub(crate) fn new(spec: Value) -> Self {
        Self::stored(json!({"apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "OperationJob",
            "metadata": {"name": "j", "namespace": "d", "uid": JOB_UID, "resourceVersion": "1", "generation": 1},
            "spec": spec}))
    }

    /// A bench with a job as somebody has stored it.
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
            told: vec![],
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

    /// A spec that replaces these pods.
    pub(crate) fn targets(names: &[&str]) -> Value {
        json!({"action": "Replace", "targets": names.iter().map(|name| json!({"name": name})).collect::<Vec<_>>()})
    }

    /// A bench with a job of one target `a`, whose pod is there, and these fields of its spec.
    pub(crate) fn of_one(fields: &Value) -> Self {
        let mut spec = Self::targets(&["a"]);
        merge(&mut spec, fields);
        let mut bench = Self::new(spec);
        bench.pod("a", "1");
        bench
    }

    /// The key of the job.
    pub(crate) fn key() -> JobKey {
        JobKey { namespace: "d".into(), name: "j".into() }
    }

    /// A new leader: nothing is remembered.
    pub(crate) fn crash(&mut self) {
        self.memory = JobMemory::default();
        self.tables = SharedTables::default();
        self.queue = WriteQueue::default();
        self.tries = 0;
        self.next = Some(Timestamp::UNIX_EPOCH);
    }

    /// Something happened to every target.
    pub(crate) fn touch_all(&mut self) {
        (0..self.memory.state.targets.len() as u32).for_each(|index| self.memory.turn_to(index));
    }

    /// Time passes.
    pub(crate) fn later(&mut self, seconds: i64) {
        self.now = after_seconds(self.now, seconds);
    }

    /// The stored status.
    pub(crate) fn status(&self) -> &Value {
        &self.job["status"]
    }

    /// Progress and error reason of a target.
    pub(crate) fn word(&self, index: usize) -> String {
        let detail = &self.status()["targetDetails"][index];
        let text = |field: &str| detail[field].as_str().unwrap_or("-").to_owned();
        match detail["error"]["reason"].as_str() {
            Some(reason) => format!("{}/{reason}", text("progress")),
            None => text("progress"),
        }
    }

    /// How often a write was sent.
    pub(crate) fn times(&self, write: &str) -> usize {
        self.sent.iter().filter(|sent| *sent == write).count()
    }
}
