//! A rehearsal: the rounds of a job that is not there, on one set of lists.
//!
//! It takes the steps of `round.rs` in their order, except that nothing leaves this process. What a round would record counts
//! as durable at once; what it would write afterwards is kept as the first proposal of its target; and where a round would
//! wait for its next slot, the time of the rehearsal moves on instead. It ends once nothing more comes of it without a
//! change in the cluster. May not decide: that is `oarlock-core`.

mod answers;
mod calls;
mod doubt;
mod neighbours;
mod rehearsed_target;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use oarlock_api::OperationJob;
use oarlock_core::cluster::live_reads::LiveReads;
use oarlock_core::cluster::writes::{Priority, StoredShard, Write};
use oarlock_core::job::key::JobKey;
use oarlock_core::job::spec::Invalid;
use oarlock_core::job::time::after;
use oarlock_core::plugin::lookup::{PluginInfo, PluginLookup};
use oarlock_core::plugin::manifest::Lifecycle;
use oarlock_core::plugin::proposal::Mutation;
use oarlock_core::round::context::{Observed, Round};
use oarlock_core::round::decide::{Decision, commit, conclude};
use oarlock_core::round::memory::JobMemory;
use oarlock_core::round::plan::{BATCH, prepare};
use oarlock_core::round::refresh::refresh;
use oarlock_core::round::start_bounds::{StartBound, start_bounds};
use oarlock_core::shared::budgets::Budgets;
use oarlock_core::shared::tables::{SharedTables, lock};
use oarlock_core::shared::write_queue::WriteQueue;
use oarlock_kube::Cluster;
use oarlock_wasm::Plugins;

use self::answers::Answers;
use self::calls::call_plugin;
pub use self::doubt::Doubt;
use self::neighbours::Notes;
pub use self::rehearsed_target::RehearsedTarget;

/// The longest wait that is skipped: until the next slot for a record, or before an end is recorded. What a plugin or a spec
/// asks to wait for is longer, or brings nothing new.
const SKIPPED_WAIT: SignedDuration = SignedDuration::from_secs(2);
/// Rounds in a row that bring nothing new, after which nothing more is expected: a call that traps is made three times. Those
/// in which all targets in flight are looked at again come on top.
const IDLE_ROUNDS: usize = 4;

/// What a rehearsal runs on.
pub struct Stage {
    /// The Cluster port, whose store has what was listed.
    pub cluster: Cluster,
    /// The Plugins port.
    pub plugins: Plugins,
    /// The plugin of the action.
    pub plugin: Arc<PluginInfo>,
    /// Answers to live reads that were made already.
    pub known: LiveReads,
}

/// The rounds of one job, and what came of them.
pub struct Rehearsal<'a> {
    stage: &'a Stage,
    key: JobKey,
    job: Arc<OperationJob>,
    plugin: PluginLookup,
    memory: JobMemory,
    tables: SharedTables,
    answers: Answers,
    now: Timestamp,
    /// The namespace has the label that jobs on nodes need.
    node_operations: bool,
    doubts: Vec<Doubt>,
    /// The first writes of each target.
    writes: BTreeMap<u32, Vec<Write>>,
    /// The first mutations of each target, and the targets whose first writes were made without them.
    mutations: BTreeMap<u32, Vec<Mutation>>,
    begin_lifecycle: BTreeSet<u32>,
    /// Targets whose plugin has answered.
    answered: BTreeSet<u32>,
    bounds: BTreeMap<u32, StartBound>,
    /// Called with the number of targets that are dealt with, and of all.
    tell: Box<dyn Fn(usize, usize) + 'a>,
}

/// Why there is nothing to rehearse.
#[derive(Debug, thiserror::Error)]
pub enum RehearsalError {
    /// The namespace of the job is not there.
    #[error("there is no namespace {0}; create it, or choose another with -n")]
    NoNamespace(String),
    /// The namespace of the job is being deleted.
    #[error("namespace {0} is being deleted: no target of a job in it would start")]
    NamespaceTerminating(String),
    /// The host would not act on the spec.
    #[error("the host would not act on this job: {}: {}", .0.reason, .0.message)]
    Invalid(Invalid),
}

impl<'a> Rehearsal<'a> {
    /// A rehearsal of `job`, which has a name, a namespace and a UID. `tell` hears how far it is.
    pub fn new(stage: &'a Stage, job: OperationJob, tell: impl Fn(usize, usize) + 'a) -> Self {
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
            doubts: Vec::new(),
            writes: BTreeMap::new(),
            mutations: BTreeMap::new(),
            begin_lifecycle: BTreeSet::new(),
            answered: BTreeSet::new(),
            bounds: BTreeMap::new(),
            tell: Box::new(tell),
        }
    }

    /// Has the other jobs count: what they work on, and how many targets they have in flight. One of the same name counts as
    /// deleted.
    pub async fn beside_other_jobs(&mut self) {
        let notes = Notes { stage: self.stage, tables: &self.tables, now: self.now };
        let doubts = notes.take(&self.key, &self.job).await;
        self.doubts.extend(doubts);
    }

    /// What is in doubt so far.
    pub fn doubts(&self) -> &[Doubt] {
        &self.doubts
    }

    /// What starts at once: rounds until nothing more would happen without a change in the cluster. Yields the targets in
    /// the order of the job.
    ///
    /// # Errors
    ///
    /// If nothing of the job can be rehearsed.
    pub async fn first(&mut self) -> Result<Vec<RehearsedTarget>, RehearsalError> {
        self.check_namespace().await?;
        self.until_rest().await?;
        Ok(self.targets())
    }

    /// What comes later: the same once the bounds of the spec and of the plugin and the delay hold nothing back, so that all
    /// targets start that can, and then once the PodOpsLifecycle lets them go on. What [`Rehearsal::first`] gave stays.
    ///
    /// # Errors
    ///
    /// As of [`Rehearsal::first`].
    pub async fn later(&mut self) -> Result<Vec<RehearsedTarget>, RehearsalError> {
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

    /// Goes on as if the job had been edited to have no bounds, with this in place of its plugin.
    async fn go_on_with(&mut self, plugin: PluginInfo) -> Result<(), RehearsalError> {
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

    async fn check_namespace(&mut self) -> Result<(), RehearsalError> {
        let namespace = self.key.namespace.clone();
        match self.answers.namespace().await {
            None => Err(RehearsalError::NoNamespace(namespace)),
            Some(found) if found.terminating => Err(RehearsalError::NamespaceTerminating(namespace)),
            Some(found) => {
                self.node_operations = found.node_operations;
                self.doubts.extend(found.unread.map(Doubt::Namespace));
                Ok(())
            }
        }
    }

    async fn until_rest(&mut self) -> Result<(), RehearsalError> {
        let (mut known, mut idle) = (self.progress(), 0);
        while idle < IDLE_ROUNDS + self.memory.durable.processing.len().div_ceil(BATCH) {
            let next = self.round().await?;
            let now = self.progress();
            idle = if now == known { idle + 1 } else { 0 };
            known = now;
            (self.tell)(self.dealt_with(), self.memory.state.targets.len());
            match next.filter(|time| *time <= after(self.now, SKIPPED_WAIT)) {
                Some(time) => self.now = self.now.max(time),
                None => break,
            }
        }
        Ok(())
    }

    /// Numbers that move while rounds bring something new.
    fn progress(&self) -> [usize; 6] {
        let counts = self.memory.counts();
        let ended = counts.succeeded + counts.failed;
        [counts.total, counts.processing, ended, self.writes.len(), self.answered.len(), self.answers.made()]
    }

    /// Targets of which the first step is known.
    fn dealt_with(&self) -> usize {
        let durable = &self.memory.durable;
        let waiting = |index: &&u32| !self.writes.contains_key(index) && !self.answered.contains(index);
        let waiting = durable.processing.iter().filter(waiting).count();
        self.memory.state.targets.len().saturating_sub(durable.pending.len()).saturating_sub(waiting)
    }

    /// One round, whose record counts as durable. Returns the time of the next one.
    async fn round(&mut self) -> Result<Option<Timestamp>, RehearsalError> {
        let observed = self.observe().await;
        let refreshed = refresh(&mut self.memory, &self.job, &observed);
        // What holds back a plugin that is in a hurry delays here what the cluster would see anyhow.
        lock(&self.tables).budgets = Budgets::default();
        let Self { stage, key, plugin, memory, tables, .. } = self;
        let Some(round) = Round::begin(key, &observed, plugin, stage.cluster.store(), memory) else { return Ok(None) };
        if let Some(invalid) = round.invalid() {
            return Err(RehearsalError::Invalid(invalid.clone()));
        }
        let (plan, _events) = prepare(&round, memory, refreshed, tables, &mut WriteQueue::default());
        let called = call_plugin(stage, &round, &plan, memory, tables).await;
        let decision = conclude(&round, plan, called.verdicts, memory, tables);
        let Decision { record, commit: mut changes, entries, requeue, rests } = decision;
        let stored = |epoch: Option<i64>| StoredShard { epoch: epoch.unwrap_or(0), ..StoredShard::default() };
        changes.shards = record.shards.iter().map(|shard| (shard.shard, stored(shard.record.record.epoch))).collect();
        let status = changes.status.clone();
        let _events = commit(&round, changes, memory, tables, (observed.now, observed.now));
        self.bounds = start_bounds(&round, memory, &lock(tables));
        self.answered.extend(called.answered);
        for (index, mutations) in called.mutations {
            self.mutations.entry(index).or_insert(mutations);
        }
        for entry in entries.into_iter().filter(|entry| entry.priority != Priority::Bump) {
            // Writes of the job itself, or of a target that has failed, are none that its plugin begins with.
            let Some(index) = entry.index.filter(|index| !self.memory.durable.failed.contains(index)) else { continue };
            if !self.writes.contains_key(&index) {
                self.begin_lifecycle.extend((!self.mutations.contains_key(&index)).then_some(index));
                self.writes.insert(index, entry.writes);
            }
        }
        for (job, index) in std::mem::take(&mut self.memory.woken) {
            if job.key == self.key {
                self.memory.turn_to(index);
            }
        }
        let next = self.memory.next(requeue, rests);
        drop(observed);
        if let Some(status) = status {
            Arc::make_mut(&mut self.job).status = Some(status);
        }
        Ok(next)
    }

    async fn observe(&mut self) -> Observed {
        let live = self.answers.of(&self.memory.live_reads()).await;
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
