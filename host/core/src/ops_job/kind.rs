//! OpsJob as a kind of the engine: from what a round has seen to a plan.

use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;
use serde_json::Value;

use crate::kind::locks::{ClaimOrder, TargetLock};
use crate::kind::plan::{KindPlan, NewStatus, StoreTime, Trouble};
use crate::kind::plan_kind::{PlanKind, Seen, WatchedObjects};
use crate::object::api_object::Kind;
use crate::object::own::OPS_NAMESPACE;
use crate::object::quota_key::QuotaKey;
use crate::object::time::after_seconds;
use crate::ops_job::events::events;
use crate::ops_job::facts::{FileFact, OpsFacts, facts_of, file_of};
use crate::ops_job::found::{Found, found_of};
use crate::ops_job::names::{ops_key, ops_kind};
use crate::ops_job::outcomes::{JobFile, Outcomes, stored_outcomes};
use crate::ops_job::phases::OpsStatus;
use crate::ops_job::plan::{Attempt, Effect, OpsObservation, OpsPlan, OpsRead, plan, with_refusal};
use crate::ops_job::requests::{EffectContext, request};
use crate::ops_job::spec::{Defaults, OpsType};
use crate::ops_job::stored::StoredOps;
use crate::ops_job::targets::Here;
use crate::ops_job::view::{OpsChild, OpsJobView};
use crate::requests::reads::{Pending, Read, ReadFailed};

/// Seconds until the next look at a job that a user stopped right before its targets would have started. The watch shows the change, usually earlier.
const LOOK_AGAIN: i64 = 1;

/// The kind OpsJob, with the settings of this host.
#[derive(Clone, Debug)]
pub struct OpsJobs {
    /// The values of fields that a job does not set.
    pub defaults: Defaults,
    /// The admission policies and bindings that must be installed, as Oarlock ships them.
    pub shipped: Arc<[Value]>,
    /// The namespaces whose pods keep no node busy.
    pub system: &'static [&'static str],
}

/// The results of a round's reads.
#[derive(Debug, Default)]
struct ReadSoFar {
    found: Option<Found>,
    outcomes: Option<Outcomes>,
    file: Option<FileFact>,
}

impl PlanKind for OpsJobs {
    type Object = StoredOps;
    type Child = OpsChild;
    type Memory = ();

    fn definition(&self) -> &'static str {
        oarlock_api::OPS_JOB_CRD
    }

    fn objects(&self) -> WatchedObjects {
        WatchedObjects { kind: ops_kind(), fields: &["/spec", "/status"] }
    }

    fn read(&self, document: &Value) -> Option<StoredOps> {
        StoredOps::read(document, self.defaults)
    }

    fn children(&self) -> Option<WatchedObjects> {
        Some(WatchedObjects { kind: Kind::job(), fields: &["/spec", "/status"] })
    }

    /// The namespace of an OperationJob that an OpsJob owns is the one for that, or its action is one that only the host may use, on pods of any
    /// namespace. Users may create neither.
    fn read_child(&self, document: &Value) -> Option<OpsChild> {
        let namespace = document.pointer("/metadata/namespace").and_then(Value::as_str);
        let action = document.pointer("/spec/action").and_then(Value::as_str).and_then(OpsType::read);
        let is_for_pods = action.is_some_and(|action| !action.is_for_nodes());
        OpsChild::read(document).filter(|_| namespace == Some(OPS_NAMESPACE) || is_for_pods)
    }

    /// An OperationJob with another name or namespace is not the job's child, whatever owner it names.
    fn is_child(&self, job: &StoredOps, child: &OpsChild) -> bool {
        child.is_of(&job.view)
    }

    /// OpsJobs have no namespace, so the jobs of one requester share their rounds. Jobs without a requester share one.
    fn share(&self, job: &StoredOps) -> QuotaKey {
        QuotaKey::of(&job.summary.user_name)
    }

    fn quota(&self, job: &StoredOps) -> QuotaKey {
        job.view.owner()
    }

    fn claim_order(&self, job: &StoredOps) -> ClaimOrder {
        job.view.claim_order()
    }

    fn stored_locks(&self, job: &StoredOps) -> Vec<TargetLock> {
        job.view.stored_locks()
    }

    fn plan(&self, seen: &Seen<'_, Self>) -> Result<KindPlan<()>, Pending> {
        let job = &seen.object.view;
        let facts = seen.answers.to(&facts_of(job))?.one::<OpsFacts>().unwrap_or_default();
        // A recorded OperationJob that the cache lacks may only be late there, and the answer to the read puts it there. A job that has ended keeps its
        // targets as long as its OperationJob exists.
        let is_cached = seen.children.first().is_some_and(|child| !job.has_recorded_another(child));
        if !is_cached && job.status.has_recorded_child() && seen.object.is_live() {
            seen.answers.to(&Read::one(job.child_key()))?;
        }
        let (mut read, mut trouble) = (ReadSoFar::default(), None);
        let mut planned = plan(self.observed(seen, &facts, &read), seen.locks);
        while let Some(need) = planned.pending_read {
            match self.look_up(need, seen, &mut read) {
                Ok(()) => planned = plan(self.observed(seen, &facts, &read), seen.locks),
                Err(Pending::Reads(reads)) => return Err(Pending::Reads(reads)),
                // The effects that do not need this read are made anyway, so that a stop does not wait for it.
                Err(Pending::Failed(failed)) => {
                    if failed.is_refused {
                        planned.refuse(job, Attempt::LookUp(need), &failed.message, seen.now);
                    }
                    trouble = Some(failed);
                    break;
                }
            }
        }
        self.finish(seen, &facts, planned, trouble)
    }
}

impl OpsJobs {
    /// Returns the inputs of a plan, with what was read so far.
    fn observed<'a>(&self, seen: &Seen<'a, Self>, facts: &'a OpsFacts, read: &'a ReadSoFar) -> OpsObservation<'a> {
        let file = match (&read.file, facts.keeps_files) {
            (_, false) => JobFile::NotKept,
            (None, _) => facts.scarce.as_deref().map_or(JobFile::Due, JobFile::NoRoom),
            (Some(FileFact::Underway(how)), _) => JobFile::Underway(how),
            (Some(FileFact::Stored(file)), _) => JobFile::Stored(file),
            (Some(FileFact::Lost(why)), _) => JobFile::Lost(why),
        };
        OpsObservation {
            job: &seen.object.view,
            spec: seen.object.spec.as_ref(),
            child: seen.children.first().map(|child| &**child),
            found: read.found.as_ref(),
            outcomes: read.outcomes.as_ref(),
            file,
            history_row: facts.history_row,
            exports: facts.exports.as_deref(),
            ungranted: facts.ungranted.as_deref(),
            here: Here { cluster: &facts.cluster, node: facts.node.as_deref() },
            now: seen.now,
        }
    }

    fn look_up(&self, need: OpsRead, seen: &Seen<'_, Self>, read: &mut ReadSoFar) -> Result<(), Pending> {
        let job = &seen.object.view;
        match need {
            OpsRead::Targets => read.found = Some(found_of(seen.object, &self.shipped, self.system, seen.answers)?),
            OpsRead::Outcomes => {
                let uid = seen.children.first().map_or("", |child| &child.uid);
                let (_, outcomes) = stored_outcomes(job, uid, seen.answers)?
                    .ok_or_else(|| Pending::failed("the OperationJob was made anew meanwhile"))?;
                read.outcomes = Some(outcomes);
            }
            OpsRead::File => {
                let file = seen.answers.to(&file_of(job))?.one();
                read.file = Some(file.ok_or_else(|| Pending::failed("the host does not say how far the file is"))?);
            }
        }
        Ok(())
    }

    /// Returns the plan of the engine: the requests of the effects, the status with its events, and when to store it.
    fn finish(
        &self,
        seen: &Seen<'_, Self>,
        facts: &OpsFacts,
        mut planned: OpsPlan,
        trouble: Option<ReadFailed>,
    ) -> Result<KindPlan<()>, Pending> {
        let (stored, job) = (seen.object, &seen.object.view);
        let context = EffectContext {
            job: stored,
            child: seen.children.first().map(|child| &**child),
            tasks_namespace: &facts.tasks_namespace,
        };
        let (mut again, mut trouble) = (planned.requeue_at, trouble);
        if planned.effects.contains(&Effect::UnpauseChild) {
            let is_as_seen = match self.is_as_seen(seen) {
                Ok(is_as_seen) => is_as_seen,
                Err(Pending::Failed(failed)) => {
                    trouble = Some(failed);
                    false
                }
                Err(pending) => return Err(pending),
            };
            if !is_as_seen {
                planned.effects.retain(|effect| *effect != Effect::UnpauseChild);
                again = Some(after_seconds(seen.now, LOOK_AGAIN));
            }
        }
        for failed in seen.failed {
            let effect = planned.effects.iter().find(|effect| request(effect, context).as_ref() == Some(&failed.write));
            if let (Some(effect), Some(message)) = (effect.cloned(), failed.refusal()) {
                planned.refuse(job, Attempt::Make(&effect), message, seen.now);
            }
        }
        let status = planned.status.filter(|_| !job.status.has_ended());
        let changed = status.and_then(|status| status.changed_from(&job.status));
        Ok(KindPlan {
            locks: planned.locks,
            writes: planned.effects.iter().filter_map(|effect| request(effect, context)).collect(),
            events: changed.as_ref().map(|status| events(job, status)).unwrap_or_default(),
            status: changed.map(|status| new_status(&status, &job.status, facts)),
            again,
            trouble: trouble.map(Trouble::from),
            ..KindPlan::default()
        })
    }

    /// Returns true unless a user has stopped or deleted the job since the host saw it.
    fn is_as_seen(&self, seen: &Seen<'_, Self>) -> Result<bool, Pending> {
        let job = &seen.object.view;
        let stored = seen.answers.to(&Read::one(ops_key(&job.name)))?.one::<Value>();
        let stored = stored.and_then(|document| self.read(&document)).filter(|stored| stored.view.uid == job.uid);
        Ok(stored.is_some_and(|stored| !stored.view.deleting && !stored.view.stops))
    }
}

impl OpsPlan {
    /// Puts a refusal of the API server into the status.
    fn refuse(&mut self, job: &OpsJobView, attempt: Attempt<'_>, message: &str, now: Timestamp) {
        let told = self.status.take().unwrap_or_else(|| job.status.clone());
        self.status = Some(with_refusal(&told, attempt, message, now));
    }
}

/// Returns the status to store. A status that shows a user nothing new can wait.
fn new_status(status: &OpsStatus, before: &OpsStatus, facts: &OpsFacts) -> NewStatus {
    let when = match status.differs_visibly_from(before) {
        true => StoreTime::Now,
        false => StoreTime::InTurn(facts.status_not_before.filter(|_| !status.has_ended())),
    };
    NewStatus { body: status.write(), when }
}
