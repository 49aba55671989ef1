//! A preview: the rounds of a job that does not exist, on one set of lists.
//!
//! The preview runs the steps of `round.rs` in their order, but sends no write. A record counts as durable at once.
//! The writes after a record are kept as the first proposal of their target. The preview's clock skips the waits of
//! rate limits.
//!
//! The preview ends when no further step is possible without a change in the cluster. The preview makes no
//! decisions of its own: `oarlock-core` decides.

mod answers;
mod calls;
mod caveat;
mod neighbours;
mod previewed_target;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use oarlock_api::OperationJob;
use oarlock_core::object::key::JobKey;
use oarlock_core::object::time::after;
use oarlock_core::operation_job::round::context::{Observed, Round};
use oarlock_core::operation_job::round::decide::{Decision, WriteSpan, commit};
use oarlock_core::operation_job::round::memory::BATCH;
use oarlock_core::operation_job::round::memory::JobMemory;
use oarlock_core::operation_job::round::open_round::OpenRound;
use oarlock_core::operation_job::round::refresh::refresh;
use oarlock_core::operation_job::round::starts::bounds::{StartBound, start_bounds};
use oarlock_core::operation_job::shared::budgets::Budgets;
use oarlock_core::operation_job::shared::tables::{SharedTables, lock};
use oarlock_core::operation_job::spec::Invalid;
use oarlock_core::operation_job::write_queue::WriteQueue;
use oarlock_core::plugin::lookup::{PluginInfo, PluginLookup};
use oarlock_core::plugin::manifest::Lifecycle;
use oarlock_core::plugin::proposal::Mutation;
use oarlock_core::requests::live_reads::LiveReads;
use oarlock_core::requests::writes::{Priority, StoredOperationRecord, Write};
use oarlock_kube::Cluster;
use oarlock_wasm::Plugins;

use self::answers::Answers;
use self::calls::call_plugin;
pub use self::caveat::PreviewCaveat;
use self::neighbours::Notes;
pub use self::previewed_target::PreviewedTarget;

/// The longest wait that the clock skips: until the rate limit allows a record, or before an end is recorded. The waits of
/// a plugin or a spec are longer, or lead to no new step.
const SKIPPED_WAIT: SignedDuration = SignedDuration::from_secs(2);
/// The number of rounds without a new step after which the preview ends. A trapping call is made three times. Further
/// rounds are added to visit all targets in flight again.
const IDLE_ROUNDS: usize = 4;

/// The environment of a preview.
pub struct PreviewSetup {
    /// The Cluster port, whose store holds the lists.
    pub cluster: Cluster,
    /// The Plugins port.
    pub plugins: Plugins,
    /// The plugin of the action.
    pub plugin: Arc<PluginInfo>,
    /// The answers to earlier live reads.
    pub known: LiveReads,
}

/// The rounds of one job, and their results.
pub struct Preview<'a> {
    stage: &'a PreviewSetup,
    key: JobKey,
    job: Arc<OperationJob>,
    plugin: PluginLookup,
    memory: JobMemory,
    tables: SharedTables,
    answers: Answers,
    now: Timestamp,
    /// True if the namespace has the label that jobs on nodes need.
    node_operations: bool,
    caveats: Vec<PreviewCaveat>,
    /// The first writes of each target.
    writes: BTreeMap<u32, Vec<Write>>,
    /// The first mutations of each target, and the targets whose first writes began the PodOpsLifecycle instead.
    mutations: BTreeMap<u32, Vec<Mutation>>,
    begin_lifecycle: BTreeSet<u32>,
    /// The targets whose plugin has answered.
    answered: BTreeSet<u32>,
    bounds: BTreeMap<u32, StartBound>,
    /// Reports the number of finished targets and the number of all targets.
    tell: Box<dyn Fn(usize, usize) + 'a>,
}

/// The reason why a job cannot be previewed.
#[derive(Debug, thiserror::Error)]
pub enum PreviewError {
    /// The namespace of the job does not exist.
    #[error("there is no namespace {0}; create it, or choose another with -n")]
    NoNamespace(String),
    /// The namespace of the job is being deleted.
    #[error("namespace {0} is being deleted: no target of a job in it would start")]
    NamespaceTerminating(String),
    /// The host would not act on the spec.
    #[error("the host would not act on this job: {}: {}", .0.reason, .0.message)]
    Invalid(Invalid),
}

impl<'a> Preview<'a> {
    /// Makes a preview of `job`, which needs a name, a namespace and a UID. `tell` receives the progress.
    pub fn new(stage: &'a PreviewSetup, job: OperationJob, tell: impl Fn(usize, usize) + 'a) -> Self {
        let meta = &job.metadata;
        let key = JobKey {
            namespace: meta.namespace.clone().unwrap_or_default(),
            name: meta.name.clone().unwrap_or_default(),
        };
        Self {
            answers: Answers::new(stage, &key.namespace),
            plugin: PluginLookup::Serving(stage.plugin.clone()),
            stage,
            key,
            job: Arc::new(job),
            memory: JobMemory::default(),
            tables: SharedTables::default(),
            now: stage.cluster.clock().now(),
            node_operations: false,
            caveats: Vec::new(),
            writes: BTreeMap::new(),
            mutations: BTreeMap::new(),
            begin_lifecycle: BTreeSet::new(),
            answered: BTreeSet::new(),
            bounds: BTreeMap::new(),
            tell: Box::new(tell),
        }
    }

    /// Adds the other jobs: their targets, and their numbers of targets in flight. A job of the same name counts as
    /// deleted.
    pub async fn beside_other_jobs(&mut self) {
        let notes = Notes { stage: self.stage, tables: &self.tables, now: self.now };
        let caveats = notes.take(&self.key, &self.job).await;
        self.caveats.extend(caveats);
    }

    /// Returns the caveats so far.
    pub fn caveats(&self) -> &[PreviewCaveat] {
        &self.caveats
    }

    /// Runs rounds until no further step is possible without a change in the cluster. Returns the targets in the order
    /// of the job.
    ///
    /// # Errors
    ///
    /// If no target of the job can be previewed.
    pub async fn first(&mut self) -> Result<Vec<PreviewedTarget>, PreviewError> {
        self.check_namespace().await?;
        self.until_rest().await?;
        Ok(self.targets())
    }

    /// Continues without the bounds of the spec and of the plugin and without the delay, so that all possible targets
    /// start. Then continues as if the PodOpsLifecycle permitted the changes. The results of [`Preview::first`] stay.
    ///
    /// # Errors
    ///
    /// If no target of the job can be previewed.
    pub async fn later(&mut self) -> Result<Vec<PreviewedTarget>, PreviewError> {
        let mut unbounded = PluginInfo::clone(&self.stage.plugin);
        unbounded.manifest.limits.targets_in_flight = None;
        unbounded.grant.limits.targets_in_flight = Some(u32::MAX);
        self.go_on_with(unbounded.clone()).await?;
        if self.begin_lifecycle.iter().any(|index| !self.mutations.contains_key(index)) {
            unbounded.manifest.lifecycle = Lifecycle::Off;
            self.go_on_with(unbounded).await?;
        }
        Ok(self.targets())
    }

    /// Continues as if the job had been edited to have no bounds, with another plugin.
    async fn go_on_with(&mut self, plugin: PluginInfo) -> Result<(), PreviewError> {
        let job = Arc::make_mut(&mut self.job);
        if let Some(spec) = &mut job.spec {
            (spec.partition, spec.parallelism, spec.max_unavailable) = (None, None, None);
            (spec.paused, spec.operation_delay_seconds, spec.failure_policy) = (None, None, None);
        }
        job.metadata.generation = Some(job.metadata.generation.unwrap_or(0).saturating_add(1));
        job.metadata.resource_version = job.metadata.generation.map(|number| number.to_string());
        self.plugin = PluginLookup::Serving(Arc::new(plugin));
        self.until_rest().await
    }

    async fn check_namespace(&mut self) -> Result<(), PreviewError> {
        let namespace = self.key.namespace.clone();
        match self.answers.namespace().await {
            None => Err(PreviewError::NoNamespace(namespace)),
            Some(found) if found.terminating => Err(PreviewError::NamespaceTerminating(namespace)),
            Some(found) => {
                self.node_operations = found.node_operations;
                self.caveats.extend(found.unread.map(PreviewCaveat::Namespace));
                Ok(())
            }
        }
    }

    async fn until_rest(&mut self) -> Result<(), PreviewError> {
        let (mut known, mut idle) = (self.progress(), 0);
        while idle < IDLE_ROUNDS + self.memory.stored.durable.processing.len().div_ceil(BATCH) {
            let next = self.round().await?;
            let now = self.progress();
            idle = if now == known { idle + 1 } else { 0 };
            known = now;
            (self.tell)(self.dealt_with(), self.memory.stored.state.targets.len());
            match next.filter(|time| *time <= after(self.now, SKIPPED_WAIT)) {
                Some(time) => self.now = self.now.max(time),
                None => break,
            }
        }
        Ok(())
    }

    /// Returns numbers that change when a round takes a new step.
    fn progress(&self) -> [usize; 6] {
        let counts = self.memory.decisions.counts();
        let ended = counts.succeeded + counts.failed;
        [counts.total, counts.processing, ended, self.writes.len(), self.answered.len(), self.answers.made()]
    }

    /// Returns the number of targets whose first step is known.
    fn dealt_with(&self) -> usize {
        let durable = &self.memory.stored.durable;
        let waiting = |index: &&u32| !self.writes.contains_key(index) && !self.answered.contains(index);
        let waiting = durable.processing.iter().filter(waiting).count();
        self.memory.stored.state.targets.len().saturating_sub(durable.pending.len()).saturating_sub(waiting)
    }

    /// Runs one round, whose record counts as durable. Returns the time of the next round.
    async fn round(&mut self) -> Result<Option<Timestamp>, PreviewError> {
        let observed = self.observe().await;
        let refreshed = refresh(&mut self.memory, &self.job, &observed);
        // The budgets slow down a plugin that asks too often. Here they would only delay the result.
        lock(&self.tables).budgets = Budgets::default();
        let Self { stage, key, plugin, memory, tables, .. } = self;
        let Some(round) = Round::begin(key, &observed, plugin, stage.cluster.store(), memory) else { return Ok(None) };
        if let Some(invalid) = round.invalid() {
            return Err(PreviewError::Invalid(invalid.clone()));
        }
        let (mut open, _events) = OpenRound::open(&round, memory, refreshed, tables, &mut WriteQueue::default());
        let called = call_plugin(stage, &mut open, &memory.stored, &mut memory.targets).await;
        let decision = open.conclude(memory);
        let Decision { record, commit: mut changes, entries, requeue_at, must_wait } = decision;
        let stored = |epoch: Option<i64>| StoredOperationRecord {
            epoch: epoch.unwrap_or(0),
            ..StoredOperationRecord::default()
        };
        changes.operation_records = record
            .operation_records
            .iter()
            .map(|write| (write.record_number, stored(write.record.record.epoch)))
            .collect();
        let status = changes.status.clone();
        let _events = commit(&round, changes, memory, tables, WriteSpan { began: observed.now, ended: observed.now });
        self.bounds = start_bounds(&round, &memory.stored, &memory.decisions, &memory.targets, &lock(tables));
        self.answered.extend(called.answered);
        for (index, mutations) in called.mutations {
            self.mutations.entry(index).or_insert(mutations);
        }
        for entry in entries.into_iter().filter(|entry| entry.priority != Priority::Invalidate) {
            // Writes of the job itself or of a failed target are not first changes of a plugin.
            let Some(index) = entry.index.filter(|index| !self.memory.stored.durable.failed.contains(index)) else {
                continue;
            };
            if !self.writes.contains_key(&index) {
                self.begin_lifecycle.extend((!self.mutations.contains_key(&index)).then_some(index));
                self.writes.insert(index, entry.writes);
            }
        }
        for (job, index) in std::mem::take(&mut self.memory.targets.woken) {
            if job.key == self.key {
                self.memory.work.requeue(index, &mut self.memory.targets);
            }
        }
        let next = self.memory.next(requeue_at, must_wait);
        drop(observed);
        if let Some(status) = status {
            Arc::make_mut(&mut self.job).status = Some(status);
        }
        Ok(next)
    }

    async fn observe(&mut self) -> Observed {
        let live = self.answers.of(&self.memory.work.all_reads(&self.memory.decisions.selecting)).await;
        Observed {
            now: self.now,
            job: Some(self.job.clone()),
            records: None,
            live,
            served: self.stage.cluster.served(),
            namespace_terminating: false,
            node_operations: self.node_operations,
            tasks: Arc::default(),
        }
    }
}
