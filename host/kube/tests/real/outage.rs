//! An API server that is killed and comes back.

use std::time::Duration;

use oarlock_core::requests::writes::{Stopped, Write};
use oarlock_kube::lease::config::LeaseConfig;
use oarlock_kube::lease::elector::LeaderElector;
use serde_json::json;

use crate::fixture::{Fixture, meta, plane};

#[tokio::test]
async fn an_outage_fences_the_leader_and_afterwards_all_changes_are_seen_and_it_leads_anew() {
    let plane = plane().await.unwrap();
    let fixture = Fixture::on(&plane, "outage").await;
    let stored = fixture.pod("a", json!({})).await;
    fixture.pod("b", json!({})).await;
    fixture.job("j").await;
    let config = LeaseConfig {
        namespace: fixture.namespace.into(),
        name: "oarlock".into(),
        identity: "host-0".into(),
        duration: Duration::from_secs(6),
    };
    let elector = LeaderElector::stand(&fixture.cluster, config);
    let mut leadership = elector.leadership();
    leadership.wait_for(|now| now.leading).await.unwrap();
    let fence = elector.fence();

    plane.kill_api_server();
    let body = json!({"metadata": {"uid": meta(&stored, "uid"), "labels": {"x": "y"}}});
    let write = Write::Patch { object: fixture.at("a"), subresource: None, body };
    // The outcome is unknown on open connections. Once the port knows that all of them are broken, it sends nothing.
    loop {
        match fixture.apply(vec![write.clone()]).await.remove(0).stopped {
            Some(Stopped::Unknown { .. }) => {}
            Some(Stopped::Throttled { retry_after: None }) => break,
            other => panic!("{other:?}"),
        }
    }
    leadership.wait_for(|now| !now.leading).await.unwrap();
    assert!(!fence.allows());

    plane.start_api_server().await.unwrap();
    fixture.delete(&format!("{}/b", fixture.core("pods"))).await;
    fixture.pod("c", json!({})).await;
    fixture
        .until("what happened since", |cluster| {
            let shown = |name| cluster.store().get(&fixture.at(name)).is_some();
            shown("a") && !shown("b") && shown("c")
        })
        .await;
    leadership.wait_for(|now| now.leading && now.term == 2).await.unwrap();
    assert!(!fence.allows() && elector.fence().allows());
}
