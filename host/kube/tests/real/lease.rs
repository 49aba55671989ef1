//! Leadership and events on a real API server.

use std::time::Duration;

use oarlock_core::cluster::writes::EventNote;
use oarlock_kube::lease::{LeaderElector, LeaseConfig};
use serde_json::json;

use crate::stage::{Stage, meta};

#[tokio::test]
async fn a_lease_is_made_renewed_given_back_and_taken_again() {
    let stage = Stage::set("lease").await;
    let config = LeaseConfig {
        namespace: stage.namespace.into(),
        name: "oarlock".into(),
        identity: "host-0".into(),
        duration: Duration::from_secs(5),
    };
    let path = format!("/apis/coordination.k8s.io/v1/namespaces/{}/leases/oarlock", stage.namespace);
    for term in 1..=2 {
        let elector = LeaderElector::stand(&stage.cluster, config.clone());
        let mut leadership = elector.leadership();
        let begun = leadership.wait_for(|now| now.leading).await.unwrap().renewed;
        leadership.wait_for(|now| now.renewed > begun).await.unwrap();
        assert!(elector.fence().allows());
        let lease = stage.get(&path).await.unwrap();
        assert_eq!(
            (&lease["spec"]["holderIdentity"], &lease["spec"]["leaseTransitions"]),
            (&json!("host-0"), &json!(term))
        );
        elector.resign().await.unwrap();
        let lease = stage.get(&path).await.unwrap();
        assert!(lease["spec"]["holderIdentity"].as_str().unwrap_or_default().is_empty());
    }
}

#[tokio::test]
async fn an_event_is_accepted_and_its_repetition_too() {
    let stage = Stage::set("events").await;
    let pod = stage.pod("a", json!({})).await;
    let note = EventNote {
        name: "j.1".into(),
        regarding: stage.at("a"),
        regarding_uid: meta(&pod, "uid"),
        warning: true,
        reason: "TargetFailed".into(),
        action: "Replace".into(),
        message: "it failed".into(),
    };
    stage.cluster.emit(vec![note.clone(), note]);
    stage.cluster.stop(Duration::from_secs(10)).await;
    assert_eq!(stage.cluster.events().emitted, 2);
    let event = stage.get(&stage.core("events/j.1")).await.unwrap();
    assert_eq!((&event["reason"], &event["involvedObject"]["name"]), (&json!("TargetFailed"), &json!("a")));
}
