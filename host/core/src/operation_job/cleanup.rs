//! The writes that clean up after a job: before it is removed, once it is deleted, and long after it is gone.
//!
//! Before a job is removed, the host removes its holds. Other jobs could claim a pod that replaced a target of this job.
//! The host therefore marks that pod as no successor (`barred`) before the job goes. Once the job is gone, the target of
//! the replacement is unknown. The host also removes such marks that other jobs made for this job.
//!
//! A job that is gone may leave holds, and pods and outputs of tasks. A hold counts as orphaned only if two lists of
//! jobs in a row lack its job. The first list may come from the cache, which may lag behind a new job. The second list
//! began after the host saw the hold. A job is stored before it holds anything, so a job that is not stored then is
//! gone. Source: docs/operationjob.md 3.7.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use oarlock_contract::authorize::{may_be_put, printable, printable_line};

use crate::cache::store::Store;
use crate::object::api_object::{Kind, Object, ObjectKey};
use crate::object::key::{JobKey, JobRef};
use crate::object::task_pod::{JOB_UID, TASK};
use crate::operation_job::holds::{mark_not_a_successor, release, release_orphan};
use crate::operation_job::round::memory::JobMemory;
use crate::operation_job::shared::tables::Tables;
use crate::operation_job::tasks::result::output_kind;
use crate::operation_job::tasks::target_tasks::may_have_pods;
use crate::plugin::grant::Grant;
use crate::plugin::manifest::TargetKind;
use crate::requests::live_reads::LiveRead;
use crate::requests::writes::{EventNote, Write};

/// Returns the patches on pods and nodes that are due before the finalizer is removed, or once the job is gone: at most
/// one for each object. Returns none once all are made.
pub fn cleanup(job: &JobRef, store: &Store, tables: &Tables) -> Vec<Write> {
    let namespace = &job.key.namespace;
    let mut writes = held_by(store, &job.uid);
    let done: BTreeSet<ObjectKey> = writes.iter().map(|write| write.object().clone()).collect();
    let taken = tables.claims.objects(&job.key).map(|object| ObjectKey::pod(namespace, &object.name));
    let pods = taken.filter(|key| !done.contains(key)).filter_map(|key| store.get(&key));
    writes.extend(pods.filter(|pod| !pod.terminating()).filter_map(|pod| {
        let root = store.root(&pod).ok()??;
        let mut others = tables.wake.waiting(&pod, &root).into_iter().filter(|other| other.key != job.key);
        others.find_map(|other| mark_not_a_successor(&pod, &other.uid)).map(|body| Write::patch(&pod.key, body))
    }));
    writes
}

/// Returns the live reads that show what the job may have left: objects of a kind that is no longer watched, and
/// outputs of tasks, which the host never watches. Returns no read of outputs if the host removed the outputs while the
/// job was being deleted.
pub fn live_reads_of_leftovers(memory: &JobMemory, job: &JobKey, store: &Store, tasks: &str) -> Vec<LiveRead> {
    let Some(version) = &memory.stored.version else { return Vec::new() };
    let was_let_go = version.deleting && memory.housekeeping.outputs_go && memory.is_idle();
    let mut reads = Vec::new();
    if !store.keeps(&memory.stored.state.kind.kind()) {
        let begun = memory.stored.durable.processing.iter().chain(&memory.targets.releasing);
        reads.extend(begun.map(|index| LiveRead::Object(memory.stored.state.object(&job.namespace, *index))));
    }
    if !was_let_go && memory.stored.state.targets.iter().any(may_have_pods) {
        let (namespace, label, value) = (tasks.to_owned(), JOB_UID.to_owned(), version.uid.clone());
        reads.push(LiveRead::Labelled { kind: output_kind(), namespace, label, value });
    }
    reads
}

/// Objects that were read live, by key; `None` if the object is absent.
pub type SeenObjects = BTreeMap<ObjectKey, Option<Arc<Object>>>;

/// The jobs, by UID, that have something to clean up and were missing from the last list of jobs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Orphans {
    suspected: BTreeSet<String>,
    /// The UIDs of missing jobs that have pods of tasks.
    suspected_of_tasks: BTreeSet<String>,
}

/// The changes that a cleanup of orphans asks for.
#[derive(Clone, Debug, Default)]
pub struct OrphanCleanup {
    /// The patches that remove orphaned holds.
    pub writes: Vec<Write>,
    /// The events on objects whose hold lists marks that no plugin may put there. These marks stay.
    pub events: Vec<EventNote>,
}

impl Orphans {
    /// Suspects the jobs that have something to clean up and are missing from `jobs`, which may be a stale list.
    /// Returns true if there are any.
    pub fn suspect(&mut self, store: &Store, jobs: &BTreeSet<String>, namespace: &str) -> bool {
        *self = Self::default();
        drop(self.sweep(store, jobs, &[]));
        drop(self.sweep_tasks(store, jobs, namespace));
        !(self.suspected.is_empty() && self.suspected_of_tasks.is_empty())
    }

    /// Returns the changes that clean up orphaned holds. `jobs` are the UIDs of all jobs that exist. An orphaned hold
    /// of a pod is proved, so all of its marks go, whatever is granted today. A hold of a node loses only the marks
    /// that a plugin under `grants` may have put there. A forged hold must not make the host remove other marks.
    pub fn sweep(&mut self, store: &Store, jobs: &BTreeSet<String>, grants: &[Grant]) -> OrphanCleanup {
        let holders: BTreeSet<String> = TargetKind::ALL.iter().flat_map(|kind| store.holders(&kind.kind())).collect();
        let missing: BTreeSet<String> = holders.difference(jobs).cloned().collect();
        let mut swept = OrphanCleanup::default();
        for uid in missing.intersection(&self.suspected) {
            for object in objects_held_by(store, uid) {
                let is_proved = object.key.kind == Kind::pod();
                // Without grants, the host cannot tell which marks may be its own, and a later grant may name them.
                if !is_proved && grants.is_empty() {
                    continue;
                }
                let may_be_ours = |mark: &str| is_proved || may_be_put(mark, &object.key.kind, grants);
                let Some((body, foreign)) = release_orphan(&object, uid, may_be_ours) else { continue };
                swept.writes.push(Write::patch(&object.key, body));
                swept
                    .events
                    .extend(Some(foreign).filter(|marks| !marks.is_empty()).map(|marks| left(&object, uid, &marks)));
            }
        }
        self.suspected = missing;
        swept
    }

    /// Returns the deletions of orphaned task pods in their namespace. `jobs` are the UIDs of all jobs that exist.
    pub fn sweep_tasks(&mut self, store: &Store, jobs: &BTreeSet<String>, namespace: &str) -> Vec<Write> {
        let of_kind = |kind: Kind| store.all(&kind, Some(namespace));
        let mut pods = [of_kind(Kind::pod()), of_kind(Kind::host_task())].concat();
        pods.retain(|pod| pod.task.is_some() && pod.labels.get(JOB_UID).is_some_and(|uid| !jobs.contains(uid)));
        let of_job = |pod: &Object| pod.labels.get(JOB_UID).unwrap_or_default().to_owned();
        let missing: BTreeSet<String> = pods.iter().map(|pod| of_job(pod)).collect();
        let known = pods.iter().filter(|pod| !pod.terminating() && self.suspected_of_tasks.contains(&of_job(pod)));
        let writes = known.map(|pod| deletion(pod)).collect();
        self.suspected_of_tasks = missing;
        writes
    }
}

/// Returns the patches that remove all holds of a job.
pub fn held_by(store: &Store, job_uid: &str) -> Vec<Write> {
    let held = objects_held_by(store, job_uid);
    held.filter_map(|object| Some(Write::patch(&object.key, release(&object, job_uid)?))).collect()
}

/// Returns the writes that remove everything of a deleted job except its cached holds: its task pods, its holds on
/// uncached objects, and the outputs of its tasks. `tasks` is the namespace of the task pods. The live reads in `seen`
/// show the uncached objects and the outputs.
pub fn beside_holds(job_uid: &str, store: &Store, tasks: &str, seen: &SeenObjects) -> Vec<Write> {
    let of_kind = |kind: Kind| store.labelled(&kind, tasks, JOB_UID, job_uid);
    let pods = [of_kind(Kind::pod()), of_kind(Kind::host_task())].concat();
    let pods = pods.iter().filter(|pod| pod.task.is_some() && !pod.terminating()).map(|pod| deletion(pod));
    let unwatched = seen.values().flatten().filter(|object| !store.keeps(&object.key.kind) && !object.terminating());
    let unwatched = unwatched.filter_map(|object| {
        let is_of_tasks = object.key.namespace.as_deref() == Some(tasks) && object.labels.get(TASK).is_some();
        if is_of_tasks {
            return (object.labels.get(JOB_UID) == Some(job_uid)).then(|| deletion(object));
        }
        Some(Write::patch(&object.key, release(object, job_uid)?))
    });
    pods.chain(unwatched).collect()
}

fn deletion(object: &Object) -> Write {
    Write::Delete {
        object: object.key.clone(),
        uid: object.uid.clone(),
        resource_version: None,
        grace_seconds: None,
        propagation: None,
    }
}

fn objects_held_by(store: &Store, job_uid: &str) -> impl Iterator<Item = Arc<Object>> {
    TargetKind::ALL.iter().flat_map(move |kind| store.held_by(&kind.kind(), job_uid))
}

/// Returns the event about the marks of a hold that stay on an object.
fn left(object: &Object, job_uid: &str, marks: &[String]) -> EventNote {
    let text = format!("{}/{job_uid}/HoldRefused", object.uid);
    let message = format!(
        "removed a hold of the deleted job {}, but left {}: no grant of a plugin allows these marks; check who wrote the hold, and remove unwanted marks",
        printable(job_uid),
        printable_line(&marks.join(", "))
    );
    EventNote {
        name: EventNote::name_of(&object.key.name, &text),
        regarding: object.key.clone(),
        regarding_uid: object.uid.clone(),
        warning: true,
        reason: "HoldRefused".to_owned(),
        action: "Sweep".to_owned(),
        message,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::cache::store::Indexed;
    use crate::operation_job::shared::claims::{Claim, ClaimedObject};
    use crate::operation_job::shared::wakers::Waits;
    use crate::operation_job::state::{Progress, TargetState};
    use crate::plugin::proposal::{Registration, Relation, RelationKey};

    fn store(annotations: Value) -> Store {
        let store = Store::default();
        store.keep(&Kind::pod(), Indexed::default());
        let pod = json!({"metadata": {"name": "new", "namespace": "d", "uid": "n", "resourceVersion": "1",
            "creationTimestamp": "2026-01-01T00:00:05Z", "labels": {"oarlock.dev/held": "true"}, "annotations": annotations,
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "s", "uid": "own", "controller": true}]}});
        store.apply(Object::slim(&pod, &Kind::pod(), &[]).unwrap());
        store
    }

    /// Returns the patches that job `a` makes, whose target got the pod `new`, while a target of `b` has been in flight
    /// since `start`.
    fn patches(annotations: Value, start: &str) -> Vec<Value> {
        let [a, b] = ["a", "b"].map(|name| JobRef {
            key: JobKey { namespace: "d".into(), name: name.into() },
            uid: format!("{name}-uid"),
        });
        let mut tables = Tables::default();
        let new = ClaimedObject { kind: "Pod".into(), name: "new".into(), uid: "n".into() };
        tables.claims.claim(&new, Claim { job: a.key.clone(), index: 0, target_uid: "u".into() });
        let registration = Registration {
            relations: vec![Relation { name: "s".into(), kind: Kind::pod(), by: RelationKey::SameController }],
            exclusive_extras: vec!["NewPod".into()],
        };
        let state = TargetState {
            progress: Progress::Processing,
            start: Some(start.parse().unwrap()),
            extra: [("Owner".to_owned(), "StatefulSet/s/own".to_owned())].into(),
            ..TargetState::default()
        };
        tables.wake.set(
            &b,
            0,
            &state,
            Waits {
                kind: TargetKind::Pod,
                name: "t",
                registration: Some(&registration),
                parameters: &[],
                watched: false,
                gone: false,
                releasing: false,
            },
        );
        let writes = cleanup(&a, &store(annotations), &tables);
        let body = |write| if let Write::Patch { body, .. } = write { body } else { Value::Null };
        writes.into_iter().map(body).collect()
    }

    #[test]
    fn what_another_jobs_target_could_take_is_barred_for_it_once() {
        let done = patches(json!({}), "2026-01-01T00:00:00Z");
        assert_eq!(done[0]["metadata"]["annotations"], json!({"hold.oarlock.dev/b-uid": "[\"barred\"]"}));
        let again = patches(json!({"hold.oarlock.dev/b-uid": "[\"barred\"]"}), "2026-01-01T00:00:00Z");
        assert_eq!(again, Vec::<Value>::new());
    }

    #[test]
    fn what_is_older_than_every_target_in_flight_needs_no_bar() {
        assert_eq!(patches(json!({}), "2026-01-01T00:00:06Z"), Vec::<Value>::new());
    }

    #[test]
    fn bars_that_were_made_for_the_job_go_with_it() {
        let done = patches(json!({"hold.oarlock.dev/a-uid": "[\"barred\"]"}), "2026-01-01T00:00:06Z");
        assert_eq!(done[0]["metadata"]["annotations"], json!({"hold.oarlock.dev/a-uid": null}));
    }

    #[test]
    fn a_forged_hold_of_a_job_that_never_was_takes_off_nothing_that_no_plugin_may_put_there() {
        let store = Store::default();
        store.keep(&Kind::node(), Indexed::default());
        let forged = json!(["cordon", "label:node-restriction.kubernetes.io/team", "taint:quarantine:NoExecute"]);
        let node = json!({"metadata": {"name": "n", "uid": "u", "resourceVersion": "1",
            "labels": {"node-restriction.kubernetes.io/team": "a"},
            "annotations": {"hold.oarlock.dev/never": forged.to_string()}},
            "spec": {"unschedulable": true, "taints": [{"key": "quarantine", "effect": "NoExecute"}]}});
        store.apply(Object::slim(&node, &Kind::node(), &[]).unwrap());
        let grants =
            grants(&json!([{"verb": "metadata", "apiVersion": "v1", "kind": "Node", "labels": ["example.com/*"]}]));
        let mut orphans = Orphans::default();
        orphans.sweep(&store, &BTreeSet::new(), &grants);
        let swept = orphans.sweep(&store, &BTreeSet::new(), &grants);
        let [Write::Patch { body, .. }] = swept.writes.as_slice() else { panic!("{swept:?}") };
        let only_the_hold = json!({"annotations": {"hold.oarlock.dev/never": null, "left.oarlock.dev/never": forged.to_string()},
            "uid": "u", "resourceVersion": "1"});
        assert_eq!(*body, json!({"metadata": only_the_hold}), "exclusive jobs may come, and nothing else is different");
        let [event] = swept.events.as_slice() else { panic!("{swept:?}") };
        assert_eq!((event.reason.as_str(), &event.regarding), ("HoldRefused", &ObjectKey::node("n")));
        assert!(event.message.contains("taint:quarantine:NoExecute"), "{}", event.message);
    }

    fn grants(writes: &Value) -> [Grant; 1] {
        [serde_json::from_value(json!({"namespaces": ["*"], "writes": writes})).unwrap()]
    }

    #[test]
    fn a_hold_goes_when_its_job_is_gone_in_two_sweeps_and_not_before() {
        let store = Store::default();
        store.keep(&Kind::pod(), Indexed::default());
        let pod = json!({"metadata": {"name": "a", "namespace": "d", "uid": "u", "resourceVersion": "1", "finalizers": ["f"],
            "labels": {"oarlock.dev/held": "true"},
            "annotations": {"hold.oarlock.dev/gone": "[\"finalizer:f\"]", "hold.oarlock.dev/there": "[]"}}});
        store.apply(Object::slim(&pod, &Kind::pod(), &[]).unwrap());
        let mut orphans = Orphans::default();
        let jobs = ["there".to_owned()].into();
        assert!(orphans.sweep(&store, &jobs, &[]).writes.is_empty());
        let swept = orphans.sweep(&store, &jobs, &[]);
        let [Write::Patch { body, .. }] = swept.writes.as_slice() else { panic!("{swept:?}") };
        let metadata = json!({"annotations": {"hold.oarlock.dev/gone": null}, "finalizers": [], "uid": "u", "resourceVersion": "1"});
        assert_eq!(
            (body, swept.events.len()),
            (&json!({ "metadata": metadata }), 0),
            "a narrowed grant leaves nothing behind"
        );
    }
}
