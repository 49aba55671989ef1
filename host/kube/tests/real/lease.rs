//! Leadership and events on a real API server.

use std::time::Duration;

use oarlock_core::requests::writes::EventNote;
use oarlock_kube::lease::config::LeaseConfig;
use oarlock_kube::lease::elector::LeaderElector;
use serde_json::json;

use crate::fixture::{Fixture, meta};

#[tokio::test]
async fn a_lease_is_made_renewed_given_back_and_taken_again() {
    let fixture = Fixture::set("lease").await;
    let config = LeaseConfig {
        namespace: fixture.namespace.into(),
        name: "oarlock".into(),
        identity: "host-0".into(),
        duration: Duration::from_secs(5),
    };
    let path = format!("/apis/coordination.k8s.io/v1/namespaces/{}/leases/oarlock", fixture.namespace);
    for term in 1..=2 {
        let elector = LeaderElector::stand(&fixture.cluster, config.clone());
        let mut leadership = elector.leadership();
        let begun = leadership.wait_for(|now| now.leading).await.unwrap().renewed;
        leadership.wait_for(|now| now.renewed > begun).await.unwrap();
        assert!(elector.fence().allows());
        let lease = fixture.get(&path).await.unwrap();
        assert_eq!(
            (&lease["spec"]["holderIdentity"], &lease["spec"]["leaseTransitions"]),
            (&json!("host-0"), &json!(term))
        );
        elector.resign().await.unwrap();
        let lease = fixture.get(&path).await.unwrap();
        assert!(lease["spec"]["holderIdentity"].as_str().unwrap_or_default().is_empty());
    }
}

#[tokio::test]
async fn an_event_is_accepted_and_its_repetition_too() {
    let fixture = Fixture::set("events").await;
    let pod = fixture.pod("a", json!({})).await;
    let note = EventNote {
        name: "j.1".into(),
        regarding: fixture.at("a"),
        regarding_uid: meta(&pod, "uid"),
        warning: true,
        reason: "TargetFailed".into(),
        action: "Replace".into(),
        message: "it failed".into(),
    };
    fixture.cluster.emit(vec![note.clone(), note]);
    fixture.cluster.stop(Duration::from_secs(10)).await;
    assert_eq!(fixture.cluster.events().emitted, 2);
    let event = fixture.get(&fixture.core("events/j.1")).await.unwrap();
    assert_eq!((&event["reason"], &event["involvedObject"]["name"]), (&json!("TargetFailed"), &json!("a")));
}
