//! An API server that is killed and comes back.

use std::time::Duration;

use oarlock_core::cluster::writes::{Stopped, Write};
use oarlock_kube::lease::{LeaderElector, LeaseConfig};
use serde_json::json;

use crate::stage::{Stage, meta, plane};

#[tokio::test]
async fn an_outage_fences_the_leader_and_afterwards_all_changes_are_seen_and_it_leads_anew() {
    let plane = plane().await.unwrap();
    let stage = Stage::on(&plane, "outage").await;
    let stored = stage.pod("a", json!({})).await;
    stage.pod("b", json!({})).await;
    stage.job("j").await;
    let config = LeaseConfig {
        namespace: stage.namespace.into(),
        name: "oarlock".into(),
        identity: "host-0".into(),
        duration: Duration::from_secs(6),
    };
    let elector = LeaderElector::stand(&stage.cluster, config);
    let mut leadership = elector.leadership();
    leadership.wait_for(|now| now.leading).await.unwrap();
    let fence = elector.fence();

    plane.kill_api_server();
    let body = json!({"metadata": {"uid": meta(&stored, "uid"), "labels": {"x": "y"}}});
    let write = Write::Patch { object: stage.at("a"), subresource: None, body };
    let results = stage.apply(vec![write]).await;
    assert!(matches!(results[0].stopped, Some(Stopped::Unknown { .. })), "{results:?}");
    leadership.wait_for(|now| !now.leading).await.unwrap();
    assert!(!fence.allows());

    plane.start_api_server().await.unwrap();
    stage.delete(&format!("{}/b", stage.core("pods"))).await;
    stage.pod("c", json!({})).await;
    stage
        .until("what happened since", |cluster| {
            let shown = |name| cluster.store().get(&stage.at(name)).is_some();
            shown("a") && !shown("b") && shown("c")
        })
        .await;
    leadership.wait_for(|now| now.leading && now.term == 2).await.unwrap();
    assert!(!fence.allows() && elector.fence().allows());
}
