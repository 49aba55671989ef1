//! The two contexts of a round: `Round` for the job, and `Target` for one of its targets.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use oarlock_api::{OperationJob, OperationRecord};

use crate::cluster::live_reads::{LiveRead, LiveReads, Sighting};
use crate::cluster::object::{Object, ObjectKey};
use crate::cluster::store::Store;
use crate::job::key::{JobKey, JobRef};
use crate::job::policy::Policy;
use crate::job::spec::{Invalid, ValidSpec, deadline_seconds};
use crate::job::state::TargetState;
use crate::job::time::{after_seconds, milliseconds, whole};
use crate::plugin::lookup::{PluginInfo, PluginLookup};
use crate::plugin::manifest::TargetKind;
use crate::plugin::visit::JobFacts;
use crate::round::brakes::Brakes;
use crate::round::fit::unlabelled;
use crate::round::memory::JobMemory;
use crate::round::selection::select;
use crate::round::target_memory::Bounds;
use crate::round::task_settings::TaskSettings;
use crate::shared::quota_key::{QUOTA_KEY, QuotaKey};
use crate::shared::reads::ServedKinds;

/// The input of a round.
#[derive(Clone)]
pub struct Observed {
    /// The host's clock, corrected by the API server's.
    pub now: Timestamp,
    /// The job as stored, never older than the host's own last write to it. `None`: it is gone.
    pub job: Option<Arc<OperationJob>>,
    /// The records of the job, if they were requested, by shard.
    pub records: Option<Vec<OperationRecord>>,
    /// Results of the live reads.
    pub live: LiveReads,
    /// The kinds that the cluster serves.
    pub served: ServedKinds,
    /// The job's namespace is being deleted.
    pub namespace_terminating: bool,
    /// The job's namespace has the label that jobs on nodes need.
    pub node_operations: bool,
    /// Where the pods of tasks are made, and of which image.
    pub tasks: Arc<TaskSettings>,
}

/// All inputs of a round that do not change while it runs.
pub struct Round<'a> {
    /// The job.
    pub job: JobRef,
    /// The job as stored.
    pub object: &'a OperationJob,
    /// The time of the round.
    pub now: Timestamp,
    /// The kind of the targets.
    pub kind: TargetKind,
    /// The checked spec, or the reason why it is invalid.
    pub spec: Result<Arc<ValidSpec>, Invalid>,
    /// The job's namespace lacks the label for its kind of targets: nothing starts, and what is in flight goes on.
    pub unlabelled: Option<Invalid>,
    /// How it goes on. One whose spec was made invalid keeps what that says of it.
    pub policy: Policy,
    /// What keeps targets from being started or operated.
    pub brakes: Brakes,
    /// The plugin of the action.
    pub plugin: &'a PluginLookup,
    /// The objects.
    pub store: &'a Arc<Store>,
    /// Results of the live reads.
    pub live: Arc<LiveReads>,
    /// The kinds that the cluster serves.
    pub served: ServedKinds,
    /// The job's namespace is being deleted.
    pub namespace_terminating: bool,
    /// Nothing is done: requests are only tried, and no other job notices this one.
    pub dry_run: bool,
    /// Where the pods of tasks are made, and of which image.
    pub tasks: Arc<TaskSettings>,
    /// The number of the job's targets.
    pub target_count: usize,
    /// The time of the first round of the term: no request of an earlier term was sent later.
    pub began: Timestamp,
}

/// Returns the key whose shares a job takes, if it is not the key of its namespace.
pub fn owner(job: &OperationJob) -> Option<QuotaKey> {
    let noted = job.metadata.annotations.as_ref()?.get(QUOTA_KEY)?;
    QuotaKey::read(noted)
}

impl<'a> Round<'a> {
    /// Puts a round together.
    pub fn begin(
        key: &JobKey,
        observed: &'a Observed,
        plugin: &'a PluginLookup,
        store: &'a Arc<Store>,
        memory: &mut JobMemory,
    ) -> Option<Self> {
        let object = observed.job.as_deref()?;
        let kind = memory.state.kind;
        let unlabelled = unlabelled(key, kind, observed.node_operations);
        let spec = memory.check(key, object, plugin).map_err(|invalid| invalid.with(unlabelled.as_ref()));
        let spec = select(key, spec, observed, memory, plugin.serving().is_some() && unlabelled.is_none());
        let policy = spec.as_deref().map(|spec| spec.policy.clone()).unwrap_or_else(|_| stored_policy(object));
        let brakes = Brakes::of(&policy, memory.counts());
        Some(Self {
            job: JobRef { key: key.clone(), uid: object.metadata.uid.clone().unwrap_or_default() },
            object,
            now: observed.now,
            kind,
            spec,
            unlabelled,
            policy,
            brakes,
            plugin,
            store,
            live: Arc::new(observed.live.clone()),
            served: observed.served.clone(),
            namespace_terminating: observed.namespace_terminating,
            dry_run: memory.state.dry_run,
            tasks: observed.tasks.clone(),
            target_count: memory.state.targets.len(),
            began: *memory.began.get_or_insert(observed.now),
        })
    }

    /// Returns the key whose shares the job takes, if it is not the key of its namespace. Only the child of an OpsJob still has the
    /// annotation here.
    pub fn owner(&self) -> Option<QuotaKey> {
        owner(self.object)
    }

    /// The spec, if it is valid.
    pub fn valid(&self) -> Option<&ValidSpec> {
        self.spec.as_deref().ok()
    }

    /// Why nothing starts, if the spec, its plugin or its namespace forbids that.
    pub fn invalid(&self) -> Option<&Invalid> {
        self.spec.as_ref().err().or(self.unlabelled.as_ref())
    }

    /// True if one job at a time works on an object: nodes are never shared.
    pub fn is_exclusive(&self) -> bool {
        !self.dry_run && self.would_be_exclusive()
    }

    /// The same, of a job in earnest: a dry run works on nothing.
    pub(super) fn would_be_exclusive(&self) -> bool {
        self.kind == TargetKind::Node || self.serving().is_some_and(|plugin| plugin.manifest.exclusive)
    }

    /// The plugin, if one serves.
    pub fn serving(&self) -> Option<&Arc<PluginInfo>> {
        self.plugin.serving()
    }

    /// True if successors of targets are found by their controller.
    pub fn follows_controllers(&self) -> bool {
        self.serving().is_some_and(|plugin| plugin.registration.same_controller().is_some())
    }

    /// `spec.action`, empty if absent.
    pub fn action(&self) -> &str {
        action(self.object)
    }

    /// True if the job is being deleted, by itself or with its namespace.
    pub fn deleting(&self) -> bool {
        self.namespace_terminating || self.object.metadata.deletion_timestamp.is_some()
    }

    /// True if writes that were decided before may still go out: the job stays, and its plugin is granted its namespace.
    pub fn may_act(&self) -> bool {
        let granted = |plugin: &Arc<PluginInfo>| plugin.grant.allows_namespace(&self.job.key.namespace);
        !self.deleting() && self.serving().is_some_and(granted)
    }

    /// `metadata.generation`.
    pub fn generation(&self) -> i64 {
        self.object.metadata.generation.unwrap_or(0)
    }

    /// The deadline of a target.
    pub fn deadline(&self, target: &TargetState) -> Option<Timestamp> {
        target.start.map(|start| after_seconds(start, self.deadline_seconds()))
    }

    /// Seconds that each target has: as many as the spec says, and no more than the grant allows.
    pub(super) fn deadline_seconds(&self) -> i64 {
        let granted = self.serving().and_then(|plugin| plugin.grant.limits.max_deadline_seconds);
        deadline_seconds(self.object.spec.as_ref()).min(granted.map_or(i64::MAX, i64::from))
    }

    /// True if a further attempt of a target may begin once its time has come.
    pub(super) fn may_try_again(&self) -> bool {
        self.invalid().is_none() && self.serving().is_some() && !self.brakes.pause()
    }

    /// The wait before the attempt that follows this one, if another one follows.
    pub fn retry_after(&self, attempt: u32) -> Option<SignedDuration> {
        if self.deleting() || self.dry_run { None } else { self.policy.retry.wait_after(attempt) }
    }

    /// Says that no target can begin before its deadline, where the spec asks for that.
    pub fn endless_delay(&self) -> Option<String> {
        let delay = self.valid()?.delay_seconds;
        let too_long = delay >= self.deadline_seconds();
        too_long.then(|| format!(" (operationDelaySeconds, {delay} s, is no shorter)"))
    }

    /// The time in whole seconds, as statuses have it.
    pub fn second(&self) -> Timestamp {
        whole(self.now)
    }

    /// True if the object of a target was read live for this round.
    pub fn has_read_for(&self, index: u32, memory: &JobMemory) -> bool {
        self.target(index, memory).is_some_and(|target| self.live.has(&LiveRead::Object(target.key)))
    }

    /// What this round knows of an object.
    pub fn sighting(&self, key: &ObjectKey) -> Sighting<Arc<Object>> {
        self.live.sighting(key, self.store)
    }

    /// One target of the job.
    pub fn target<'b>(&'b self, index: u32, memory: &'b JobMemory) -> Option<Target<'b>> {
        let stored = memory.state.target(index)?;
        let (name, key) = (memory.state.name(index), memory.state.object(&self.job.key.namespace, index));
        Some(Target { round: self, index, name, key, stored })
    }

    /// The parameters of the job. A spec that was made invalid in flight still has those that its targets are judged by.
    fn parameters(&self) -> Option<&serde_json::Value> {
        match self.valid() {
            Some(spec) => Some(&spec.parameters),
            None => self.object.spec.as_ref()?.parameters.as_ref().filter(|own| own.is_object()),
        }
    }

    /// The names that the parameters give to objects of the plugin's relations.
    pub fn named_by_parameters(&self) -> Vec<String> {
        let named = self.serving().zip(self.parameters());
        let named = named.map(|(plugin, parameters)| plugin.registration.named_by_parameters(parameters));
        named.into_iter().flat_map(BTreeMap::into_values).collect()
    }

    /// The times that bound those of a target.
    pub(super) fn bounds(&self, index: u32, memory: &JobMemory) -> Bounds {
        let Some(target) = memory.latest(index) else { return Bounds::default() };
        let operated = || {
            let (known, of_round) = (memory.targets.get(&index)?, self.target(index, memory)?);
            Some(of_round.was_operated(known, of_round.object().as_deref()))
        };
        let begin = match target.between_attempts() {
            true => {
                let free = || self.target(index, memory).is_some_and(|own| own.busy(own.object().as_deref()).is_none());
                target.next_attempt.filter(|_| !target.owes_release() && self.may_try_again() && free())
            }
            false => {
                let of_round = self.target(index, memory);
                let begin = of_round.and_then(|of_round| of_round.begin_after(target, of_round.object().as_deref()));
                begin.filter(|_| operated() != Some(true))
            }
        };
        Bounds { begin, deadline: self.deadline(target), visits: self.serving().is_some() }
    }

    /// The job as its plugin sees it.
    pub fn job_facts(&self, memory: &JobMemory) -> Arc<JobFacts> {
        let parameters = self.parameters().cloned().unwrap_or_else(|| serde_json::json!({}));
        Arc::new(JobFacts {
            namespace: self.job.key.namespace.clone(),
            name: self.job.key.name.clone(),
            uid: self.job.uid.clone(),
            action: self.action().to_owned(),
            now_ms: milliseconds(self.now),
            parameters,
            target_count: u32::try_from(memory.state.targets.len()).unwrap_or(u32::MAX),
            cancelled: self.deleting(),
        })
    }
}

/// A round, for one target.
#[derive(Clone)]
pub struct Target<'a> {
    /// The round.
    pub round: &'a Round<'a>,
    /// Its position in the job.
    pub index: u32,
    /// Its name.
    pub name: &'a str,
    /// Its object's key.
    pub key: ObjectKey,
    /// Its durable state.
    pub stored: &'a TargetState,
}

impl Target<'_> {
    /// The object of the recorded UID. A namesake is another object. Of a kind that is not watched, since its plugin is gone,
    /// only a live read of this round shows it.
    pub fn object(&self) -> Option<Arc<Object>> {
        self.round.sighting(&self.key).found().filter(|object| Some(&object.uid) == self.stored.uid.as_ref())
    }

    /// The same target as it will be stored: in the round that starts it, it has no UID before.
    pub(super) fn planned<'b>(&'b self, state: &'b TargetState) -> Target<'b> {
        Target { stored: state, key: self.key.clone(), ..*self }
    }

    /// True if no view of its object is kept: what a live read does not show may be there.
    pub(super) fn is_unwatched(&self) -> bool {
        !self.round.store.keeps(&self.key.kind)
    }
}

/// `spec.action`, empty if absent.
pub fn action(job: &OperationJob) -> &str {
    job.spec.as_ref().and_then(|spec| spec.action.as_deref()).unwrap_or_default()
}

/// The policy of a job whose spec is invalid in another respect.
fn stored_policy(job: &OperationJob) -> Policy {
    job.spec.as_ref().and_then(|spec| Policy::read(spec).ok()).unwrap_or_default()
}
