//! Replies to writes of flows while a plugin watches the same kinds and keeps fewer of their fields.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use http::Method;
use oarlock_core::attempts::parent::{Parent, ParentKind};
use oarlock_core::attempts::plan::{ChildChange, Create};
use oarlock_core::attempts::view::{ChildKind, ChildView};
use oarlock_core::kind::plan::{NewStatus, StoreTime};
use oarlock_core::object::api_object::{Kind, ObjectKey};
use oarlock_core::requests::writes::Write;
use oarlock_kube::flows::Flows;
use oarlock_kube::flows::cache::ParentView;
use oarlock_kube::lease::fence::Fence;
use oarlock_kube::watch::objects::{WatchedKind, WatchedKinds};
use serde_json::{Value, json};

use crate::faults::{Then, status};
use crate::fixture::{Fixture, job};

const FLOWS: &str = "/apis/api.practice.com/v1alpha1/namespaces/default/jobflows";

/// Returns the relations of a plugin. It reads one counter of Jobs, and only metadata of OperationJobs and JobFlows.
fn relations() -> WatchedKinds {
    let job = WatchedKind { fields: BTreeSet::from(["/status/active".to_owned()]), ..WatchedKind::default() };
    let flow = Kind::new(oarlock_api::FLOW_API_VERSION, "JobFlow");
    let kinds = [(batch_job(), job), (Kind::job(), WatchedKind::default()), (flow, WatchedKind::default())];
    WatchedKinds { kinds: kinds.into(), ..WatchedKinds::default() }
}

fn batch_job() -> Kind {
    Kind::new("batch/v1", "Job")
}

/// Returns a fixture, a flow cache with one JobFlow, and the key of the JobFlow, beside a plugin with these relations.
async fn fixture() -> (Fixture, Flows, ObjectKey) {
    let fixture = Fixture::bare().await;
    for crd in oarlock_api::FLOW_CRDS {
        fixture.install(crd).await;
    }
    fixture.declare(relations()).await;
    let flows = Flows::watch(fixture.cluster.clone());
    flows.synced().await;
    let step =
        json!({"name": "a", "jobTemplate": {"template": {"spec": {"containers": [{"name": "c", "image": "i"}]}}}});
    let flow = json!({"apiVersion": oarlock_api::FLOW_API_VERSION, "kind": "JobFlow", "metadata": {"name": "f"}, "spec": {"flows": [step]}});
    fixture.post(FLOWS, &flow).await;
    let key = ParentKind::Flow.key("default", "f");
    let known = async {
        while flows.cache().view(&key).is_none() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(600), known).await.expect("the flow is known");
    (fixture, flows, key)
}

fn view(flows: &Flows, key: &ObjectKey) -> ParentView {
    flows.cache().view(key).unwrap()
}

fn create(parent: &Parent, kind: ChildKind, spec: &Value) -> Create {
    let (api_version, word) = kind.api();
    let ttl = json!({"oarlock.dev/step": "a", "oarlock.dev/ttl": "60"});
    let metadata = json!({"name": "f-a", "namespace": "default", "annotations": ttl, "ownerReferences": [parent.owner_reference()]});
    let object = json!({"apiVersion": api_version, "kind": word, "metadata": metadata, "spec": spec});
    Create { unit: "a".into(), kind, name: "f-a".into(), attempt: 0, revision: String::new(), follows: false, object }
}

/// Creates the child of the flow and returns it as the cache has it afterwards.
async fn created(flows: &Flows, key: &ObjectKey, kind: ChildKind, spec: Value) -> Arc<ChildView> {
    let parent = view(flows, key).parent;
    flows.create(&parent, &create(&parent, kind, &spec), &Fence::open()).await.unwrap();
    view(flows, key).children[0].clone()
}

#[tokio::test(start_paused = true)]
async fn a_reply_says_all_of_a_job_though_a_plugin_keeps_less_of_jobs() {
    let (fixture, flows, key) = fixture().await;
    let pod = json!({"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}});
    let spec = json!({"suspend": true, "activeDeadlineSeconds": 90, "template": pod});
    let job = created(&flows, &key, ChildKind::Job, spec).await;
    assert_eq!((job.suspended, job.deadline, job.withheld_ttl), (true, Some(90), Some(60)));
    let change = ChildChange::SetTtl(job, 60);
    flows.change(&view(&flows, &key).parent, &change, &Fence::open()).await.unwrap();
    assert_eq!(view(&flows, &key).children[0].withheld_ttl, None, "its time to live is set once");
    let kept = fixture.cluster.store().get(&ObjectKey {
        kind: batch_job(),
        namespace: Some("default".to_owned()),
        name: "f-a".to_owned(),
    });
    let kept = kept.expect("the plugin sees it too").fields.value();
    assert_eq!(kept.pointer("/spec"), None, "what it did not ask for is not kept");
}

#[tokio::test(start_paused = true)]
async fn a_reply_says_all_of_an_operation_and_of_the_flow_itself() {
    let (fixture, flows, key) = fixture().await;
    let spec = json!({"action": "Replace", "targets": [{"name": "p"}], "TTLSecondsAfterFinished": i32::MAX});
    let operation = created(&flows, &key, ChildKind::Operation, spec).await;
    assert_eq!(operation.withheld_ttl, Some(60));
    assert_eq!(fixture.cluster.action(&job("f-a")).as_deref(), Some("Replace"), "the job has its spec");
    let before = view(&flows, &key).parent;
    let status = NewStatus { body: json!({"state": "Running"}), when: StoreTime::Now };
    flows.persist(&before, &status, (), &Fence::open()).await.unwrap();
    let after = view(&flows, &key).parent;
    assert_ne!(after.version, before.version);
    assert_eq!((&after.spec, after.generation), (&before.spec, before.generation));
}

#[tokio::test(start_paused = true)]
async fn after_a_status_write_without_an_answer_the_flow_is_read_before_its_next_round() {
    let (fixture, flows, key) = fixture().await;
    let down = || Then::Answer(503, status(503, "ServiceUnavailable", "down"));
    fixture.faults.plan(Method::PATCH, "/jobflows/f/status", (1, down()));
    fixture.faults.plan(Method::GET, "/jobflows/f", (1, down()));
    let parent = view(&flows, &key).parent;
    let running = NewStatus { body: json!({"state": "Running"}), when: StoreTime::Now };
    let stopped = flows.persist(&parent, &running, (), &Fence::open()).await.unwrap_err();
    assert!(stopped.leaves_doubt(), "{stopped:?}");
    let Err(failed) = flows.certain(&key).await else { panic!("the round began with an old view") };
    assert!(failed.message.contains("down"), "{}", failed.message);
    let seen = flows.certain(&key).await.unwrap().unwrap().parent;
    assert_eq!((&seen.version, &seen.status), (&parent.version, &Value::Null));
    let reads = fixture.faults.count(Method::GET, "/jobflows/f");
    flows.certain(&key).await.unwrap();
    assert_eq!(fixture.faults.count(Method::GET, "/jobflows/f"), reads, "one read is enough");
}

#[tokio::test(start_paused = true)]
async fn a_job_that_an_entry_patches_keeps_its_spec_though_a_plugin_keeps_less_of_jobs() {
    let fixture = Fixture::bare().await;
    fixture.declare(relations()).await;
    fixture.known_job("j").await;
    let object = ObjectKey { kind: Kind::job(), namespace: Some("default".to_owned()), name: "j".to_owned() };
    let patch = Write::patch(&object, json!({"metadata": {"labels": {"a": "b"}}}));
    let results = fixture.apply(vec![patch], &Fence::open()).await;
    assert_eq!(results[0].stopped, None);
    assert_eq!(fixture.cluster.action(&job("j")).as_deref(), Some("Replace"));
}
