//! A healthy busy cluster: two hosts, jobs that replace pods, and flows. No alert fires.

use oarlock_scenarios::flows::{self, step};
use oarlock_scenarios::jobs::replace;
use oarlock_scenarios::scenarios::{names, settled_collaset, settled_deployment};
use serde_json::json;

use crate::coverage::are_registered;

use oarlock_scenarios::monitoring::scene::Scene;

#[tokio::test(start_paused = true)]
async fn no_alert_fires_on_a_healthy_busy_host() -> anyhow::Result<()> {
    let mut scene = Scene::begin().await?;
    let pods = names(&settled_collaset(&scene.cluster, 20).await?);
    settled_deployment(&scene.cluster, 10).await?;
    flows::begin(&mut scene.cluster).await?;
    scene.cluster.start(scene.cluster.host_named("standby")).await?;
    scene.cluster.create_job("all", replace(&pods, json!({"parallelism": 5}))).await?;
    for number in 0..8 {
        let web = scene.cluster.pod_names("web").await?;
        scene.cluster.create_job(&format!("web-{number}"), replace(&web, json!({"parallelism": 2}))).await?;
        // A target that does not exist, and a step that fails, are troubles of users.
        scene.cluster.create_job(&format!("none-{number}"), replace(&["missing".to_owned()], json!({}))).await?;
        let steps = [step("first", "sleep 30", &[]), step("next", "exit 1", &["first"])];
        scene.cluster.create_flow("JobFlow", &format!("f-{number}"), json!({ "flows": steps })).await?;
        scene.pass(10).await?;
    }
    // The leader is updated: the standby takes over.
    scene.cluster.kill_host("host").await?;
    scene.pass(10).await?;
    are_registered(&scene.timeline.names())?;
    scene.fires(&[])
}
