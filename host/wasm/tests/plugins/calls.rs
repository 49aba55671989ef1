//! Calls of a well-behaved plugin, and its answers.

use std::sync::Arc;

use oarlock_core::plugin::proposal::{Mutation, RelationKey, State};
use oarlock_core::plugin::visit::{Answer, Call};
use serde_json::json;

use oarlock_wasm::{Options, PluginStatus, Plugins};

use crate::components::{World, all_of, component, found, options, pod, serving, visit, with_manifest};

#[tokio::test]
async fn setup_declares_the_kinds_that_the_plugin_reads() {
    let (plugins, info) = serving("replace").await;
    assert!(info.registration.relations.iter().any(|relation| relation.by == RelationKey::SameController));
    assert_eq!(info.registration.exclusive_extras, ["NewPod"]);
    let declared = plugins.declared();
    let pods = &declared[&oarlock_core::object::api_object::Kind::pod()];
    assert!(pods.watched && pods.fields.contains("/status/conditions"));
    assert!(pods.indexed.labels.contains("collaset.kusionstack.io/replace-pair-origin-name"));
    assert!(!declared[&oarlock_core::object::api_object::Kind::new("apps/v1", "ReplicaSet")].watched);
}

#[tokio::test]
async fn operate_proposes_an_eviction_of_the_very_pod() {
    let (plugins, info) = serving("replace").await;
    let answer = plugins.wave(&info.digest).unwrap().call(visit("Replace", Call::OperateThenProgress, json!({}))).await;
    let Answer::Proposed(proposal) = answer else { panic!("{answer:?}") };
    let [Mutation::Evict { pod, .. }] = proposal.mutations.as_slice() else { panic!("{proposal:?}") };
    assert_eq!((pod.key.name.as_str(), pod.uid.as_deref()), ("web", Some("uid-web")));
    assert_eq!(proposal.set_extra, [("Mode".to_owned(), "Evict".to_owned())]);
}

#[tokio::test]
async fn progress_follows_in_the_same_visit_where_operate_has_nothing_to_change() {
    let (plugins, info) = serving("replace").await;
    let mut gone = visit("Replace", Call::OperateThenProgress, json!({}));
    gone.target.object = None;
    gone.target.extras.insert("Mode".into(), "Evict".into());
    gone.target.extras.insert("NewPod".into(), "web-2".into());
    gone.target.extras.insert("Owner".into(), "ReplicaSet/web-1/rs-1".into());
    let related = [("new-pod", vec![pod("web-2", json!({}))]), ("partners", vec![]), ("successors", vec![])];
    let related = related.into_iter().map(|(name, pods)| (name.to_owned(), pods)).collect();
    gone.reads = Arc::new(World { related, ..World::default() });
    let answer = plugins.wave(&info.digest).unwrap().call(gone).await;
    let Answer::Reported { operate, report } = answer else { panic!("{answer:?}") };
    assert!(operate.mutations.is_empty());
    assert_eq!(report.state, State::Succeeded, "{report:?}");
}

#[tokio::test]
async fn a_missing_live_read_is_a_failure_that_is_repeated() {
    let (plugins, info) = serving("replace").await;
    let mut gone = visit("Replace", Call::Progress, json!({}));
    gone.target.object = None;
    let related = [("partners", vec![]), ("new-pod", vec![]), ("successors", vec![])];
    let related = related.into_iter().map(|(name, pods)| (name.to_owned(), pods)).collect();
    gone.reads = Arc::new(World { related, not_read_live: true, ..World::default() });
    let answer = plugins.wave(&info.digest).unwrap().call(gone).await;
    assert!(matches!(&answer, Answer::Failed(failure) if failure.retryable), "{answer:?}");
}

#[tokio::test]
async fn one_session_serves_more_calls_than_one_instance() {
    let (plugins, info) = serving("replace").await;
    let mut session = plugins.wave(&info.digest).unwrap();
    for _ in 0..200 {
        let answer = session.call(visit("Replace", Call::OperateThenProgress, json!({}))).await;
        assert!(matches!(answer, Answer::Proposed(_)), "{answer:?}");
    }
}

#[tokio::test]
async fn more_sessions_than_instances_wait_for_each_other() {
    let (plugins, info) = serving("replace").await;
    let mut calls = Vec::new();
    for _ in 0..100 {
        let (plugins, digest) = (plugins.clone(), info.digest.clone());
        calls.push(tokio::spawn(async move {
            let mut session = plugins.wave(&digest).unwrap();
            session.call(visit("Replace", Call::OperateThenProgress, json!({}))).await
        }));
    }
    for call in calls {
        assert!(matches!(call.await.unwrap(), Answer::Proposed(_)));
    }
}

#[tokio::test(start_paused = true)]
async fn calls_work_on_paused_time_and_take_none_of_it() {
    let before = tokio::time::Instant::now();
    let (plugins, info) = serving("replace").await;
    let answer = plugins.wave(&info.digest).unwrap().call(visit("Replace", Call::OperateThenProgress, json!({}))).await;
    assert!(matches!(answer, Answer::Proposed(_)));
    assert_eq!(before.elapsed(), std::time::Duration::ZERO);
}

/// Starts a host of 128 MiB, in which all plugins share 32 MiB, and publishes a plugin that may use `mib` MiB.
async fn small_host(mib: u32) -> (Plugins, PluginStatus) {
    let plugins = Plugins::start(Options { memory_limit: Some(128 << 20), ..options() }).await.unwrap();
    let bytes = with_manifest(&component("replace"), |manifest| manifest["limits"] = json!({"memoryMiB": mib}));
    let mut grant = all_of(&bytes, None);
    grant.limits.memory_mib = Some(64);
    plugins.set_grants(vec![grant]).await;
    let status = plugins.publish("replace", bytes).await.unwrap();
    (plugins, status)
}

#[tokio::test]
async fn plugins_that_run_at_once_keep_to_their_share_of_the_memory() {
    let (plugins, _) = small_host(20).await;
    let digest = found(&plugins, "Replace", None).unwrap().digest.clone();
    let operate = || visit("Replace", Call::OperateThenProgress, json!({}));
    let (mut first, mut second) = (plugins.wave(&digest).unwrap(), plugins.wave(&digest).unwrap());
    assert!(matches!(first.call(operate()).await, Answer::Proposed(_)));
    let mut waits = Box::pin(second.call(operate()));
    assert!(futures::poll!(&mut waits).is_pending() && futures::poll!(&mut waits).is_pending());
    drop(first);
    assert!(matches!(waits.await, Answer::Proposed(_)));
}

#[tokio::test]
async fn a_plugin_that_may_use_more_than_the_share_is_refused_by_what_it_needs() {
    let (_, status) = small_host(48).await;
    assert_eq!(status.reason, "MemoryLimit", "{status:?}");
    assert!(status.message.contains("48 MiB") && status.message.contains("--memory-limit 192Mi"), "{status:?}");
}
