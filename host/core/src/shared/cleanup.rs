//! The patches that a job owes to pods of others before it is removed.
//!
//! A replacement of one of its targets is *barred* for every job with a target in flight that could claim it too: once
//! the job is gone, its target is unknown. Bars that other jobs made for this one are removed. Source:
//! docs/operationjob.md 3.7.

use std::collections::BTreeSet;

use crate::cluster::object::ObjectKey;
use crate::cluster::store::Store;
use crate::cluster::writes::Write;
use crate::job::key::JobRef;
use crate::shared::holds::bar;
use crate::shared::orphans::held_by;
use crate::shared::tables::Tables;

/// The patches that are due before the finalizer is removed, at most one for each pod; none once all are made.
pub fn cleanup(job: &JobRef, store: &Store, tables: &Tables) -> Vec<Write> {
    let namespace = &job.key.namespace;
    let mut writes = held_by(store, &job.uid);
    let done: BTreeSet<ObjectKey> = writes.iter().map(|write| write.object().clone()).collect();
    let taken = tables.claims.objects(&job.key).map(|object| ObjectKey::pod(namespace, &object.name));
    let pods = taken.filter(|key| !done.contains(key)).filter_map(|key| store.get(&key));
    writes.extend(pods.filter(|pod| !pod.terminating()).filter_map(|pod| {
        let root = store.root(&pod).ok()??;
        let mut others = tables.wake.waiting(&pod, &root).into_iter().filter(|other| other.key != job.key);
        others.find_map(|other| bar(&pod, &other.uid)).map(|body| Write::patch(&pod.key, body))
    }));
    writes
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::cluster::object::{Kind, Object};
    use crate::cluster::store::Indexed;
    use crate::job::key::JobKey;
    use crate::job::state::{Progress, TargetState};
    use crate::plugin::manifest::TargetKind;
    use crate::plugin::proposal::{Registration, Relation, RelationKey};
    use crate::shared::claims::Claim;
    use crate::shared::claims::ClaimedObject;
    use crate::shared::wakers::Waits;

    fn store(annotations: Value) -> Store {
        let store = Store::default();
        store.keep(&Kind::pod(), Indexed::default());
        let pod = json!({"metadata": {"name": "new", "namespace": "d", "uid": "n", "resourceVersion": "1",
            "creationTimestamp": "2026-01-01T00:00:05Z", "labels": {"oarlock.dev/held": "true"}, "annotations": annotations,
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "s", "uid": "own", "controller": true}]}});
        store.apply(Object::slim(&pod, &Kind::pod(), &[]).unwrap());
        store
    }

    /// The patches that job `a`, whose target got the pod `new`, makes while a target of `b` has been in flight since
    /// `start`.
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
}
