//! The plan of an EchoJob: one step for each stage.

use std::collections::BTreeSet;

use oarlock_core::kind::plan::{KindPlan, NewStatus, StoreTime};
use oarlock_core::kind::plan_kind::Seen;
use oarlock_core::object::api_object::Kind;
use oarlock_core::object::fields::{at, list, text};
use oarlock_core::object::time::{after_seconds, write_time};
use oarlock_core::requests::reads::{Pending, Read, Reduction, Selected};
use oarlock_core::requests::writes::{FailedWrite, Write};
use serde_json::{Value, json};

use crate::job::{EchoJob, EchoStatus, FINALIZER, Phase, Stage};
use crate::kind::EchoJobs;
use crate::pod::{EchoPod, creation, pod_name};

/// Seconds until the next look at pods that are being deleted. The watch shows their ends, usually earlier.
const LOOK_AGAIN: i64 = 5;

/// Keeps the names of namespaces that are not being deleted.
const NAMES: Reduction = Reduction {
    name: "names of namespaces",
    fields: &["/metadata/name", "/metadata/deletionTimestamp"],
    keep: |namespace, _| {
        at(&namespace, "/metadata/deletionTimestamp").is_none().then(|| at(&namespace, "/metadata/name").cloned())?
    },
};

/// Keeps the metadata of pods whose controller is the job with this UID.
const OWNED: Reduction = Reduction {
    name: "pods of an owner",
    fields: &["/metadata"],
    keep: |pod, owner| {
        let mut owners = list(&pod, "/metadata/ownerReferences").iter().filter_map(|owner| text(owner, "/uid"));
        owners.any(|uid| owner.contains(uid)).then(|| json!({"metadata": pod.get("metadata")}))
    },
};

/// Returns what an EchoJob needs next.
pub(crate) fn plan(seen: &Seen<'_, EchoJobs>) -> Result<KindPlan<()>, Pending> {
    match seen.object.stage(seen.now) {
        Stage::Finalizer => Ok(with_finalizer(seen.object)),
        Stage::Namespaces => with_namespaces(seen),
        Stage::Pods => Ok(with_pods(seen)),
        Stage::Deadline => Ok(over(seen, Phase::Failed, "the deadline is over")),
        Stage::Invalid => Ok(over(seen, Phase::Failed, seen.object.invalid.as_deref().unwrap_or_default())),
        Stage::Stop => Ok(stopped(seen)),
        Stage::Cleanup => cleaned_up(seen),
        Stage::Nothing => Ok(KindPlan::default()),
    }
}

fn with_finalizer(job: &EchoJob) -> KindPlan<()> {
    writes(Write::add_finalizer(&job.object, FINALIZER))
}

/// Stores the namespaces before the first pod, so that a later host creates pods in the same namespaces.
fn with_namespaces(seen: &Seen<'_, EchoJobs>) -> Result<KindPlan<()>, Pending> {
    let job = seen.object;
    match seen.answers.to(&selected_namespaces(job)) {
        Ok(found) => {
            let names: BTreeSet<String> = found.parsed().collect();
            let started_at = Some(write_time(seen.now));
            let namespaces = Some(names.into_iter().collect());
            Ok(stores(job, EchoStatus { phase: Phase::Running, namespaces, started_at, ..EchoStatus::default() }))
        }
        Err(Pending::Failed(failed)) if failed.is_refused => {
            let plan = stores(job, EchoStatus { message: failed.message.clone(), ..job.status.clone() });
            Ok(KindPlan { trouble: Some(failed.into()), ..plan })
        }
        Err(pending) => Err(pending),
    }
}

/// Creates the missing pods. Ends the job once all pods have ended.
fn with_pods(seen: &Seen<'_, EchoJobs>) -> KindPlan<()> {
    let job = seen.object;
    let pod = |namespace: &str| seen.children.iter().find(|pod| pod.object.key.namespace.as_deref() == Some(namespace));
    let missing = job.namespaces().iter().filter(|namespace| pod(namespace).is_none());
    let writes: Vec<Write> = missing.map(|namespace| creation(job, namespace)).collect();
    let refusal = seen.failed.iter().find_map(FailedWrite::refusal);
    let mut pods = job.namespaces().iter().filter_map(|namespace| pod(namespace));
    if writes.is_empty() && pods.clone().all(|pod| pod.has_ended()) {
        return match pods.find(|pod| !pod.has_succeeded()) {
            None => over(seen, Phase::Succeeded, ""),
            Some(failed) => over(seen, Phase::Failed, &format!("{} failed", failed.object.key)),
        };
    }
    let message = refusal.map(str::to_owned).or_else(|| writes.is_empty().then(String::new));
    let status = message.map(|message| EchoStatus { message, ..job.status.clone() });
    let plan = status.map(|status| stores(job, status)).unwrap_or_default();
    KindPlan { writes, again: job.deadline(), ..plan }
}

/// Deletes the pods that still run after the end of the job.
fn stopped(seen: &Seen<'_, EchoJobs>) -> KindPlan<()> {
    writes(seen.children.iter().filter(|pod| !pod.has_ended()).filter_map(|pod| pod.deletion()))
}

/// Deletes all pods, and removes the finalizer once none is left. The cache may lack a pod whose creation had no answer, so the read is live.
fn cleaned_up(seen: &Seen<'_, EchoJobs>) -> Result<KindPlan<()>, Pending> {
    let job = seen.object;
    let left: Vec<Value> = seen.answers.to(&pods_of(job))?.parsed().collect();
    if left.is_empty() {
        return Ok(writes(Write::remove_finalizer(&job.object, FINALIZER)));
    }
    let left = left.iter().filter_map(EchoPod::read).filter_map(|pod| pod.deletion());
    Ok(KindPlan { again: Some(after_seconds(seen.now, LOOK_AGAIN)), ..writes(left) })
}

fn over(seen: &Seen<'_, EchoJobs>, phase: Phase, message: &str) -> KindPlan<()> {
    let finished_at = Some(write_time(seen.now));
    let status = EchoStatus { phase, finished_at, message: message.to_owned(), ..seen.object.status.clone() };
    stores(seen.object, status)
}

fn writes(writes: impl IntoIterator<Item = Write>) -> KindPlan<()> {
    KindPlan { writes: writes.into_iter().collect(), ..KindPlan::default() }
}

/// Returns the plan that stores a status, unless it is stored already.
fn stores(job: &EchoJob, status: EchoStatus) -> KindPlan<()> {
    let status = (status != job.status).then(|| NewStatus { body: json!(status), when: StoreTime::Now });
    KindPlan { status, ..KindPlan::default() }
}

pub(crate) fn selected_namespaces(job: &EchoJob) -> Read {
    let labels = Some(job.spec.namespace_selector.clone());
    Read::of(Kind::namespace(), Selected::All { namespace: None, labels, fields: None }).reduced(NAMES)
}

pub(crate) fn pods_of(job: &EchoJob) -> Read {
    let fields = Some(format!("metadata.name={}", pod_name(job)));
    let all = Read::of(Kind::pod(), Selected::All { namespace: None, labels: None, fields }).reduced(OWNED);
    Read { among: BTreeSet::from([job.object.uid.clone()]), ..all }
}
