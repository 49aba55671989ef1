//! The two contexts of a round: `Round` for the job, and `Target` for one of its targets.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use oarlock_api::{OperationJob, OperationRecord};

use crate::cache::store::Store;
use crate::object::api_object::{Object, ObjectKey};
use crate::object::key::JobRef;
use crate::object::quota_key::{QUOTA_KEY, QuotaKey};
use crate::object::time::{after_seconds, milliseconds, whole};
use crate::operation_job::round::memory::{Decisions, StoredState, Targets};
use crate::operation_job::round::starts::memory::PauseState;
use crate::operation_job::round::target_memory::TargetTimeBounds;
use crate::operation_job::shared::reads::ServedKinds;
use crate::operation_job::shared::wakers::Waits;
use crate::operation_job::spec::{Invalid, ValidSpec, deadline_seconds};
use crate::operation_job::state::TargetState;
use crate::operation_job::tasks::settings::TaskSettings;
use crate::plugin::lookup::{PluginInfo, PluginLookup};
use crate::plugin::manifest::TargetKind;
use crate::plugin::visit::JobFacts;
use crate::requests::live_reads::{LiveRead, LiveReads, Sighting};
use crate::status::policy::Policy;

/// The input of a round.
#[derive(Clone)]
pub struct Observed {
    /// The host's clock, corrected by the clock of the API server.
    pub now: Timestamp,
    /// The job as stored, never older than the host's own last write to it. `None` if the job is gone.
    pub job: Option<Arc<OperationJob>>,
    /// The records of the job by number, if they were requested.
    pub records: Option<Vec<OperationRecord>>,
    /// Results of the live reads.
    pub live: LiveReads,
    /// The kinds that the cluster serves.
    pub served: ServedKinds,
    /// True if the job's namespace is being deleted.
    pub namespace_terminating: bool,
    /// True if the job's namespace has the label that jobs on nodes need.
    pub node_operations: bool,
    /// The namespace and the image for the pods of tasks.
    pub tasks: Arc<TaskSettings>,
}

/// All inputs of a round that do not change while it runs.
pub struct Round<'a> {
    /// Key and UID of the job.
    pub job: JobRef,
    /// The job as stored.
    pub object: &'a OperationJob,
    /// The time of the round.
    pub now: Timestamp,
    /// The kind of the targets.
    pub kind: TargetKind,
    /// The checked spec, or the reason why it is invalid.
    pub spec: Result<Arc<ValidSpec>, Invalid>,
    /// The reason why no target starts, if the job's namespace lacks the label for its kind of targets. Targets in
    /// flight continue.
    pub unlabelled: Option<Invalid>,
    /// The policy of the job. A job whose spec became invalid keeps the policy that its spec names.
    pub policy: Policy,
    /// The reasons that stop targets from being started or operated.
    pub pause_state: PauseState,
    /// The plugin of the action.
    pub plugin: &'a PluginLookup,
    /// The cached objects.
    pub store: &'a Arc<Store>,
    /// Results of the live reads.
    pub live: Arc<LiveReads>,
    /// The kinds that the cluster serves.
    pub served: ServedKinds,
    /// True if the job's namespace is being deleted.
    pub namespace_terminating: bool,
    /// True for a dry run: the host sends requests only as dry runs, and no other job notices this job.
    pub dry_run: bool,
    /// The namespace and the image for the pods of tasks.
    pub tasks: Arc<TaskSettings>,
    /// The number of the job's targets.
    pub target_count: usize,
    /// The time of the first round of the term. No request of an earlier term was sent later.
    pub began: Timestamp,
}

/// Returns the key whose quota a job uses, if it is not the key of its namespace.
pub fn owner(job: &OperationJob) -> Option<QuotaKey> {
    let noted = job.metadata.annotations.as_ref()?.get(QUOTA_KEY)?;
    QuotaKey::read(noted)
}

impl<'a> Round<'a> {
    /// Returns the key whose quota the job uses, if it is not the key of its namespace. Here, only the dependent of an
    /// OpsJob still has the annotation.
    pub fn owner(&self) -> Option<QuotaKey> {
        owner(self.object)
    }

    /// Returns the spec, if it is valid.
    pub fn valid(&self) -> Option<&ValidSpec> {
        self.spec.as_deref().ok()
    }

    /// Returns why no target starts, if the spec, its plugin or its namespace forbids starts.
    pub fn invalid(&self) -> Option<&Invalid> {
        self.spec.as_ref().err().or(self.unlabelled.as_ref())
    }

    /// Returns true if only one job at a time may work on an object. Jobs never share nodes.
    pub fn is_exclusive(&self) -> bool {
        !self.dry_run && self.would_be_exclusive()
    }

    /// Returns true if the job would be exclusive as a real run. A dry run works on no object.
    pub(super) fn would_be_exclusive(&self) -> bool {
        self.kind == TargetKind::Node || self.serving().is_some_and(|plugin| plugin.manifest.exclusive)
    }

    /// Returns the plugin, if one serves.
    pub fn serving(&self) -> Option<&Arc<PluginInfo>> {
        self.plugin.serving()
    }

    /// Returns true if the plugin finds successors of targets by their controller.
    pub fn follows_controllers(&self) -> bool {
        self.serving().is_some_and(|plugin| plugin.registration.same_controller().is_some())
    }

    /// Returns `spec.action`, empty if absent.
    pub fn action(&self) -> &str {
        action(self.object)
    }

    /// Returns true if the job is being deleted, by itself or with its namespace.
    pub fn deleting(&self) -> bool {
        self.namespace_terminating || self.object.metadata.deletion_timestamp.is_some()
    }

    /// Returns true if writes that were decided earlier may still go out: the job stays, and the grant of its plugin
    /// allows its namespace.
    pub fn may_act(&self) -> bool {
        let granted = |plugin: &Arc<PluginInfo>| plugin.grant.allows_namespace(&self.job.key.namespace);
        !self.deleting() && self.serving().is_some_and(granted)
    }

    /// Returns `metadata.generation`.
    pub fn generation(&self) -> i64 {
        self.object.metadata.generation.unwrap_or(0)
    }

    /// Returns the deadline of a target.
    pub fn deadline(&self, target: &TargetState) -> Option<Timestamp> {
        target.start.map(|start| after_seconds(start, self.deadline_seconds()))
    }

    /// Returns the seconds that each target has: the value of the spec, and at most the limit of the grant.
    pub(super) fn deadline_seconds(&self) -> i64 {
        let granted = self.serving().and_then(|plugin| plugin.grant.limits.max_deadline_seconds);
        deadline_seconds(self.object.spec.as_ref()).min(granted.map_or(i64::MAX, i64::from))
    }

    /// Returns true if a further attempt of a target may begin once its time has come.
    pub(super) fn may_try_again(&self) -> bool {
        self.invalid().is_none() && self.serving().is_some() && !self.pause_state.pause()
    }

    /// Returns the wait before the next attempt, if another attempt follows this one.
    pub fn retry_after(&self, attempt: u32) -> Option<SignedDuration> {
        if self.deleting() || self.dry_run { None } else { self.policy.retry.wait_after(attempt) }
    }

    /// Returns a note for the error if the delay of the spec lets no target begin before its deadline.
    pub fn endless_delay(&self) -> Option<String> {
        let delay = self.valid()?.delay_seconds;
        let too_long = delay >= self.deadline_seconds();
        too_long.then(|| format!(" (operationDelaySeconds, {delay} s, is no shorter)"))
    }

    /// Returns the time of the round in whole seconds, as statuses have it.
    pub fn second(&self) -> Timestamp {
        whole(self.now)
    }

    /// Returns true if the object of a target was read live for this round.
    pub fn has_read_for(&self, index: u32, stored: &StoredState) -> bool {
        self.target(index, stored).is_some_and(|target| self.live.has(&LiveRead::Object(target.key)))
    }

    /// Returns this round's view of an object, from a live read or the cache.
    pub fn sighting(&self, key: &ObjectKey) -> Sighting<Arc<Object>> {
        self.live.sighting(key, self.store)
    }

    /// Returns the context of one target of the job.
    pub fn target<'b>(&'b self, index: u32, stored: &'b StoredState) -> Option<Target<'b>> {
        let job = &stored.state;
        let stored = job.target(index)?;
        let (name, key) = (job.name(index), job.object(&self.job.key.namespace, index));
        Some(Target { round: self, index, name, key, stored })
    }

    /// Returns the parameters of the job. A spec that became invalid keeps its parameters, by which the plugin judges
    /// the targets in flight.
    fn parameters(&self) -> Option<&serde_json::Value> {
        match self.valid() {
            Some(spec) => Some(&spec.parameters),
            None => self.object.spec.as_ref()?.parameters.as_ref().filter(|own| own.is_object()),
        }
    }

    /// Returns the names that the parameters give to objects of the plugin's relations.
    pub fn named_by_parameters(&self) -> Vec<String> {
        let named = self.serving().zip(self.parameters());
        let named = named.map(|(plugin, parameters)| plugin.registration.named_by_parameters(parameters));
        named.into_iter().flat_map(BTreeMap::into_values).collect()
    }

    /// Returns the times of the job that bound those of a target.
    pub(super) fn bounds(
        &self,
        index: u32,
        stored: &StoredState,
        decisions: &Decisions,
        targets: &Targets,
    ) -> TargetTimeBounds {
        let Some(target) = decisions.latest(stored, index) else { return TargetTimeBounds::default() };
        let operated = || {
            let (known, of_round) = (targets.known.get(&index)?, self.target(index, stored)?);
            Some(of_round.was_operated(known, of_round.object().as_deref()))
        };
        let begin = match target.between_attempts() {
            true => {
                let free = || self.target(index, stored).is_some_and(|own| own.busy(own.object().as_deref()).is_none());
                target.next_attempt.filter(|_| !target.owes_release() && self.may_try_again() && free())
            }
            false => {
                let of_round = self.target(index, stored);
                let begin = of_round.and_then(|of_round| of_round.begin_after(target, of_round.object().as_deref()));
                begin.filter(|_| operated() != Some(true))
            }
        };
        TargetTimeBounds { begin, deadline: self.deadline(target), visits: self.serving().is_some() }
    }

    /// Returns the job as its plugin sees it.
    pub fn job_facts(&self, stored: &StoredState) -> Arc<JobFacts> {
        let parameters = self.parameters().cloned().unwrap_or_else(|| serde_json::json!({}));
        Arc::new(JobFacts {
            namespace: self.job.key.namespace.clone(),
            name: self.job.key.name.clone(),
            uid: self.job.uid.clone(),
            action: self.action().to_owned(),
            now_ms: milliseconds(self.now),
            parameters,
            target_count: u32::try_from(stored.state.targets.len()).unwrap_or(u32::MAX),
            cancelled: self.deleting(),
        })
    }
}

/// The context of a round for one target.
#[derive(Clone)]
pub struct Target<'a> {
    /// The round that works on the target.
    pub round: &'a Round<'a>,
    /// Position of the target in the job.
    pub index: u32,
    /// Name of the target.
    pub name: &'a str,
    /// Key of the target's object.
    pub key: ObjectKey,
    /// Durable state of the target.
    pub stored: &'a TargetState,
}

impl Target<'_> {
    /// Returns the object with the recorded UID. A namesake with another UID is another object. If the host does not
    /// watch the kind any more, because its plugin is gone, only a live read of this round shows the object.
    pub fn object(&self) -> Option<Arc<Object>> {
        self.round.sighting(&self.key).found().filter(|object| Some(&object.uid) == self.stored.uid.as_ref())
    }

    /// Returns the same target with the state that the round will store. In the round of its start, the stored state
    /// has no UID yet.
    pub(crate) fn planned<'b>(&'b self, state: &'b TargetState) -> Target<'b> {
        Target { stored: state, key: self.key.clone(), ..*self }
    }

    /// Returns true if the host does not cache the target's object. Without a live read, the object may exist although
    /// no view shows it.
    pub(super) fn is_unwatched(&self) -> bool {
        !self.round.store.keeps(&self.key.kind)
    }
}

/// Returns `spec.action` of a job, empty if absent.
pub fn action(job: &OperationJob) -> &str {
    job.spec.as_ref().and_then(|spec| spec.action.as_deref()).unwrap_or_default()
}

/// Returns the objects that a target waits for, apart from its state.
pub(super) fn waits<'a>(
    round: &Round<'a>,
    stored: &'a StoredState,
    decisions: &Decisions,
    targets: &Targets,
    index: u32,
) -> Waits<'a> {
    let name = stored.state.name(index);
    let there = || round.store.get(&round.kind.object(&round.job.key.namespace, name));
    let uid = decisions.latest(stored, index).and_then(|state| state.uid.as_ref());
    let gone = uid.is_some_and(|uid| there().is_none_or(|object| object.uid != *uid));
    let waits = targets.known.get(&index).is_some_and(|known| known.waits_for_object);
    let releasing = targets.releasing.contains(&index);
    let watched = waits || targets.availability.is_tracked();
    // A target of a dry run takes no object of others.
    let registration = round.plugin.serving().filter(|_| !round.dry_run).map(|plugin| &plugin.registration);
    Waits { kind: round.kind, name, registration, parameters: &[], watched, gone, releasing }
}
