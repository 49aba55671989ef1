//! What a job does to other pods before it goes.
//!
//! Takes a job that is being deleted and the tables of its term; yields patches. What took the place of one of its
//! targets is *barred* for every job that has a target in flight which could take it too: without the job nobody knows
//! any more whose it is. Bars that other jobs made for this one are let go. May not write. Source: spec/operationjob.md
//! §3.7, "Claims".

use std::sync::Arc;

use crate::cluster::object::{Kind, Object, ObjectKey};
use crate::cluster::store::Store;
use crate::cluster::writes::{JobKey, Write};
use crate::shared::claims::Claims;
use crate::shared::holds::{bar, held, let_go};
use crate::shared::wake_index::Interest;

/// A job that is about to go.
#[derive(Clone, Copy)]
pub struct Parting<'a> {
    /// The job.
    pub key: &'a JobKey,
    /// Its UID.
    pub uid: &'a str,
    /// The objects.
    pub store: &'a Store,
}

/// The patches that are due before the job's finalizer goes, at most one of each pod; none once all are made.
pub fn farewell(parting: Parting<'_>, claims: &Claims, interest: &Interest) -> Vec<Write> {
    let namespace = &parting.key.namespace;
    let left = parting.store.all(&Kind::pod(), Some(namespace)).into_iter().filter(|pod| held(pod, parting.uid));
    let let_go = left.filter_map(|pod| Some(patch(&pod, let_go(&pod, parting.uid)?)));
    let taken = claims.values(parting.key).filter_map(|name| parting.store.get(&ObjectKey::pod(namespace, name)));
    let barred = taken.filter(|pod| !pod.terminating()).filter_map(|pod| {
        let root = parting.store.root(&pod).ok()??;
        let others = interest.waiting(&root.uid, pod.created).filter(|(job, _)| *job != parting.key);
        others.filter_map(|(_, uid)| bar(&pod, uid)).next().map(|body| patch(&pod, body))
    });
    let_go.chain(barred).collect()
}

fn patch(pod: &Arc<Object>, body: serde_json::Value) -> Write {
    Write::Patch { object: pod.key.clone(), subresource: None, body }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::cluster::store::Indexed;
    use crate::job::state::{Progress, TargetState};
    use crate::plugin::proposal::{Registration, Relation, RelationKey};
    use crate::shared::claims::Claim;
    use crate::shared::wake_index::Place;

    fn store(annotations: Value) -> Store {
        let store = Store::default();
        store.keep(&Kind::pod(), Indexed::default());
        let pod = json!({"metadata": {"name": "new", "namespace": "d", "uid": "n", "resourceVersion": "1",
            "creationTimestamp": "2026-01-01T00:00:05Z", "annotations": annotations,
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "s", "uid": "own", "controller": true}]}});
        store.apply(Object::slim(&pod, &Kind::pod(), &[]).unwrap());
        store
    }

    /// What the job `a` does, whose target got the pod `new`, while a target of `b` has been in flight since `start`.
    fn patches(annotations: Value, start: &str) -> Vec<Value> {
        let [a, b] = ["a", "b"].map(|name| JobKey { namespace: "d".into(), name: name.into() });
        let mut claims = Claims::default();
        claims.claim("new", Claim { job: a.clone(), index: 0, target_uid: "u".into() });
        let registration = Registration {
            relations: vec![Relation { name: "s".into(), kind: Kind::pod(), by: RelationKey::SameController }],
            exclusive_extras: vec!["NewPod".into()],
        };
        let waits = TargetState {
            progress: Progress::Processing,
            start: Some(start.parse().unwrap()),
            extra: [("Owner".to_owned(), "StatefulSet/s/own".to_owned())].into(),
            ..TargetState::default()
        };
        let mut interest = Interest::default();
        interest.set(Place { job: &b, job_uid: "b-uid", index: 0, name: "t" }, &waits, Some(&registration));
        let store = store(annotations);
        let writes = farewell(Parting { key: &a, uid: "a-uid", store: &store }, &claims, &interest);
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
