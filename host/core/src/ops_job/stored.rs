//! A stored OpsJob as the host keeps it in memory, with only the data that the next reconciles need.
//!
//! Takes a document; yields a view and a typed spec. Data that has had its effect is dropped: selectors once the targets are stored, and parameters
//! once the OperationJob is recorded. A job that is over keeps only its time to live.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::cache::object_cache::CachedObject;
use crate::object::api_object::{ObjectKey, unread};
use crate::object::fields::{at, flag, list, number, text};
use crate::object::memory::{memory_of, text_len};
use crate::object::quota_key::QuotaKey;
use crate::object::time::read_time;
use crate::ops_job::addon::StepSource;
use crate::ops_job::gone::GoneBy;
use crate::ops_job::inputs::Scope;
use crate::ops_job::names::{FINALIZER, HISTORY, ops_key};
use crate::ops_job::phases::{OpsStatus, Phase};
use crate::ops_job::quota::{OF_OBJECT, counted_key};
use crate::ops_job::spec::{Defaults, OpsSpec, OpsType, RuleBroken, time_to_live};
use crate::ops_job::summary::OpsSummary;
use crate::ops_job::targets::{Resolved, SkipReason, Skipped};
use crate::ops_job::view::OpsJobView;

/// A job with its spec.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredOps {
    /// The stored state of the job.
    pub view: OpsJobView,
    /// The fields of the job in lists.
    pub summary: OpsSummary,
    /// The quota key of the job, if the job counts against a quota.
    pub counts_for: Option<QuotaKey>,
    /// The stored bytes of the job.
    pub stored_bytes: u64,
    /// The reason why the job goes, once it is being deleted.
    pub gone_by: Option<GoneBy>,
    /// The positions of the host's finalizers, if the job has a list of finalizers.
    pub finalizers: Option<OwnFinalizers>,
    /// The checked spec, or the first field that breaks a rule.
    pub spec: Result<OpsSpec, RuleBroken>,
}

/// The positions of the host's finalizers in the job's list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OwnFinalizers {
    own: Option<usize>,
    history: Option<usize>,
}

impl OwnFinalizers {
    fn read(document: &Value) -> Option<Self> {
        let all = at(document, "/metadata/finalizers").and_then(Value::as_array)?;
        let place = |name: &str| all.iter().position(|one| one.as_str() == Some(name));
        Some(Self { own: place(FINALIZER), history: place(HISTORY) })
    }

    /// Returns the position of this finalizer.
    pub fn place(&self, name: &str) -> Option<usize> {
        match name {
            FINALIZER => self.own,
            HISTORY => self.history,
            _ => None,
        }
    }
}

impl StoredOps {
    /// Reads a stored object.
    pub fn read(document: &Value, defaults: Defaults) -> Option<Self> {
        let own = |pointer: &str| text(document, pointer).map(str::to_owned);
        let finalizers = OwnFinalizers::read(document);
        let is_held = |name: &str| finalizers.is_some_and(|all| all.place(name).is_some());
        let raw = document.get("spec").unwrap_or(&Value::Null);
        let (targets, status) = (resolved(document), at(document, "/status").map(OpsStatus::read).unwrap_or_default());
        let is_new = targets.is_none() && !status.has_ended();
        let summary = OpsSummary::read(document);
        let view = OpsJobView {
            name: own("/metadata/name")?,
            uid: own("/metadata/uid")?,
            kind: text(raw, "/type").and_then(OpsType::read),
            version: own("/metadata/resourceVersion").unwrap_or_default(),
            seq: number(document, "/status/seq"),
            first_version: text(document, "/metadata/resourceVersion").and_then(|own| own.parse().ok()).unwrap_or(0),
            created: read_time(text(document, "/metadata/creationTimestamp")),
            deleting: own("/metadata/deletionTimestamp").is_some(),
            has_ops_finalizer: is_held(FINALIZER),
            has_history_finalizer: is_held(HISTORY),
            requester: summary.user_name.clone(),
            stops: flag(raw, "/stop"),
            ttl: time_to_live(raw, defaults),
            bytes: if is_new { document.to_string().len() } else { 0 },
            targets,
            status,
        };
        let spec = match unread(document) {
            Some(why) => Err(RuleBroken::of_all(why)),
            None => OpsSpec::read(raw, defaults),
        };
        let (counts_for, gone_by) = (counted_key(document), GoneBy::of(document, defaults));
        let stored_bytes = (text_len(document) as u64).saturating_add(OF_OBJECT);
        let stored = Self { view, summary, counts_for, stored_bytes, gone_by, finalizers, spec };
        Some(stored.without_what_has_had_its_effect())
    }

    /// Returns the share that the job's rounds and writes count against, as the text of a [`QuotaKey`]. Jobs without a requester share one.
    pub fn share(&self) -> String {
        QuotaKey::of(&self.summary.user_name).text()
    }

    /// Returns true if the job may still need its targets: until it has ended and released them.
    pub fn is_live(&self) -> bool {
        self.view.has_ops_finalizer || !self.view.status.has_ended()
    }

    /// Returns the memory of the fields that the job's author wrote, as far as the host keeps them.
    fn kept_bytes(&self) -> usize {
        let of_texts = |texts: &[String]| texts.iter().map(|text| text.len() + size_of::<String>()).sum::<usize>();
        let of_spec = self.spec.as_ref().map_or(0, |spec| {
            let Scope { nodes, hosts, workloads, .. } = &spec.scope;
            let excluded = spec.filters.excluded.iter().map(|name| name.len() + size_of::<String>()).sum::<usize>();
            let parameters: usize = spec.parameters.values().map(memory_of).sum();
            let script = spec.script.as_ref().map_or(0, String::len);
            let steps: usize = spec.steps.iter().map(StepSource::bytes).sum();
            let secrets = spec.pull_secrets.iter().map(|(namespace, name)| namespace.len() + name.len());
            let steps = steps + secrets.sum::<usize>();
            of_texts(nodes) + of_texts(hosts) + of_texts(workloads) + excluded + parameters + script + steps
        });
        let of_targets = self.view.targets.as_ref().map_or(0, |resolved| {
            let targets = resolved.targets.iter().map(|(name, uid)| name.len() + uid.len() + 2 * size_of::<String>());
            let skipped = resolved.skipped.iter().map(|skipped| skipped.node.len() + size_of::<Skipped>());
            targets.chain(skipped).sum()
        });
        let of_status: usize = self.view.status.other_fields.values().map(memory_of).sum();
        of_spec + of_targets + of_status + self.summary.bytes()
    }

    fn without_what_has_had_its_effect(mut self) -> Self {
        let is_over = !self.is_live();
        if is_over {
            (self.view.targets, self.view.status.other_fields) = (None, serde_json::Map::new());
            // There may be many conditions of targets.
            let conditions = &mut self.view.status.conditions;
            conditions.retain(|condition| Phase::ALL.iter().any(|phase| phase.word() == condition.kind));
            conditions.iter_mut().for_each(|condition| condition.message.clear());
        }
        if let Ok(spec) = &mut self.spec {
            if is_over || self.view.targets.is_some() {
                // The file of a job on pods has the name of the job's workload.
                let workloads = std::mem::take(&mut spec.scope.workloads);
                let named = if spec.kind.is_for_nodes() || is_over { Vec::new() } else { workloads };
                (spec.scope, spec.filters.excluded) = (Scope { workloads: named, ..Scope::default() }, BTreeSet::new());
            }
            if is_over || self.view.status.has_recorded_child() {
                (spec.parameters, spec.script, spec.steps) = Default::default();
            }
        }
        self
    }
}

impl CachedObject for StoredOps {
    fn key(&self) -> ObjectKey {
        ops_key(&self.view.name)
    }

    fn uid(&self) -> &str {
        &self.view.uid
    }

    fn version(&self) -> u64 {
        self.view.version.parse().unwrap_or(0)
    }

    fn bytes(&self) -> usize {
        self.kept_bytes()
    }

    /// A job that has its targets stays whole. A node belongs to one job, so all such jobs together are no larger than the cluster. A job that was whole
    /// stays whole too, because it must not end when the host itself adds to it.
    fn is_admitted(&self, before: Option<&Self>) -> bool {
        self.view.status.has_locked_targets() || before.is_some_and(|before| before.spec.is_ok())
    }

    fn without_spec(self, why: &str) -> Self {
        Self { spec: Err(RuleBroken::of_all(why)), ..self }
    }

    fn after(mut self, before: &Self) -> Self {
        self.view.first_version = before.view.first_version;
        self
    }
}

/// Returns the targets and the skipped nodes of a job, if they are stored.
pub(super) fn resolved(document: &Value) -> Option<Resolved> {
    let targets = at(document, "/spec/targets")?.as_array()?;
    let target = |target: &Value| Some((text(target, "/name")?.to_owned(), text(target, "/uid")?.to_owned()));
    let skipped = |skipped: &Value| {
        let reason = SkipReason::read(text(skipped, "/reason")?)?;
        Some(Skipped { node: text(skipped, "/node")?.to_owned(), reason })
    };
    let resolved = Resolved {
        namespace: targets.first().and_then(|target| text(target, "/namespace")).map(str::to_owned),
        targets: targets.iter().filter_map(target).collect(),
        skipped: list(document, "/spec/skipped").iter().filter_map(skipped).collect(),
    };
    (!resolved.targets.is_empty()).then_some(resolved)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn stored(spec: &Value, status: &Value, finalizers: &Value) -> StoredOps {
        let document = json!({"metadata": {"name": "j", "uid": "u", "resourceVersion": "7", "finalizers": finalizers},
            "spec": spec, "status": status});
        StoredOps::read(&document, Defaults::default()).unwrap()
    }

    fn spec() -> Value {
        json!({"type": "reboot", "inputs": [{"name": "node", "value": "a"}, {"name": "drain", "value": "true"}],
            "excludedNodes": ["b"], "targets": [{"name": "a", "uid": "1"}], "skipped": [{"node": "b", "reason": "Excluded"}]})
    }

    #[test]
    fn targets_that_are_stored_take_the_place_of_the_selectors() {
        let job = stored(&spec(), &json!({}), &json!([FINALIZER]));
        let resolved = job.view.targets.clone().unwrap();
        assert_eq!(resolved.targets, [("a".to_owned(), "1".to_owned())]);
        assert_eq!(resolved.skipped, [Skipped { node: "b".to_owned(), reason: SkipReason::Excluded }]);
        let spec = job.spec.unwrap();
        assert_eq!((spec.scope, spec.filters.excluded.len()), (Scope::default(), 0));
        assert_eq!(spec.parameters.len(), 1, "its child is not recorded");
    }

    #[test]
    fn a_job_has_the_place_in_its_second_that_the_controller_gave_it_or_its_version() {
        let placed = |status: &Value| stored(&spec(), status, &json!([])).view.place_in_second();
        assert_eq!((placed(&json!({})), placed(&json!({"seq": 3, "phase": "Running"}))), (7, 3));
        let over = json!({"seq": 3, "phase": "Failed", "finishedAt": "2026-01-01T00:00:00Z"});
        assert_eq!(placed(&over), 3, "also of one that is over");
    }

    #[test]
    fn of_a_job_that_is_over_little_is_held_and_its_status_is_not_written_again() {
        let status = json!({"phase": "Failed", "finishedAt": "2026-01-01T00:00:00Z", "revision": 3, "outputs": [1, 2]});
        let job = stored(&spec(), &status, &json!([]));
        assert!(!job.is_live() && job.bytes() < 16 && job.view.targets.is_none());
        assert!(stored(&spec(), &status, &json!([FINALIZER])).view.targets.is_some(), "it still releases them");
    }
}
