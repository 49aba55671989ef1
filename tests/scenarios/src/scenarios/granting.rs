//! Grants of a plugin: changes of a grant, and a plugin that is withdrawn and put back.

use std::time::Duration;

use anyhow::ensure;
use http::Method;
use oarlock_sim::world::{Pause, Scope};
use serde_json::json;
use tokio::time::Instant;

use super::ending::begun;
use super::{all_replaced, names, settled_collaset};
use crate::components::{GRANTS, component, replace_with};
use crate::jobs::{Told, replace};
use crate::test_cluster::TestCluster;
use oarlock_support::faults::Then;
use oarlock_support::orders::{Latch, Order};

/// The time within which a job must use a new grant.
const SOON: Duration = Duration::from_secs(5);

/// Returns the usual grants, restricted to one namespace.
fn only(namespace: &str) -> String {
    GRANTS.replace("namespaces: [\"*\"]", &format!("namespaces: [{namespace}]"))
}

async fn grant(cluster: &TestCluster, grants: &str) -> anyhow::Result<()> {
    cluster.running()?.host.plugins.set_grants(oarlock_wasm::parse_grants(grants)?).await;
    Ok(())
}

/// A58: a job whose namespace has no grant starts once it gets one.
pub async fn a_job_starts_once_its_namespace_is_granted(cluster: &mut TestCluster) -> anyhow::Result<()> {
    let pods = settled_collaset(cluster, 1).await?;
    let mut begin = cluster.host_named("host");
    begin.grants = only("elsewhere");
    cluster.start(begin).await?;
    cluster.create_job("g", replace(&names(&pods), json!({}))).await?;
    let job = cluster.until("g", "refused", |job| job.condition("Valid") == "False/NamespaceNotAllowed").await?;
    ensure!(job.count("pending") == 1 && job.condition_message("Valid").contains(&cluster.namespace), "{:?}", job.data);
    cluster.pass(Duration::from_secs(120)).await;
    cluster.until_told("InvalidSpec", 1).await?;
    let widened = Instant::now();
    grant(cluster, &only(&cluster.namespace)).await?;
    cluster.until("g", "started", |job| job.count("pending") == 0).await?;
    ensure!(widened.elapsed() < SOON, "started after {:?}", widened.elapsed());
    cluster.until_progress("g", "Succeeded").await?;
    ensure!(cluster.told_times("InvalidSpec").await? == 1, "told once");
    all_replaced(cluster, &pods).await
}

/// A plugin that needs a further field of pods waits while pods cannot be listed, and no other plugin waits.
pub async fn a_plugin_that_wants_another_field_of_pods_rests_no_other(cluster: &mut TestCluster) -> anyhow::Result<()> {
    let pods = settled_collaset(cluster, 2).await?;
    let [first, second] = [pods.get(..1), pods.get(1..)].map(|part| names(part.unwrap_or_default()));
    cluster.seedbed.bare_pod("alone").await?;
    let field = "/spec/terminationGracePeriodSeconds";
    let mut begin = cluster.host_named("host");
    let wider = GRANTS.replace("name: replace", "name: wider").replace("[/status/conditions]", &format!("[{field}]"));
    begin.grants = format!("{GRANTS}\n---\n{wider}");
    cluster.start(begin).await?;
    cluster.create_job("r", replace(&first, json!({}))).await?;
    cluster.until_progress("r", "Succeeded").await?;
    let interceptor = cluster.running()?.interceptor.clone();
    interceptor.order(Order::all(Method::GET, "/pods", Then::Hold(Latch::default())));
    let component = replace_with(|manifest| {
        manifest.insert("name".to_owned(), json!("wider"));
        manifest.insert("action".to_owned(), json!("Wider"));
        if let Some(fields) = manifest.get_mut("reads").and_then(|reads| reads.pointer_mut("/0/fields")) {
            *fields = json!([field]);
        }
    })?;
    let state = cluster.running()?.host.plugins.publish("wider", component).await;
    ensure!(state.as_ref().is_some_and(|status| status.state == oarlock_wasm::PluginState::Serving), "{state:?}");
    cluster.until("r", "listing", |_| interceptor.caught() > 0).await?;
    cluster.create_job("s", replace(&second, json!({}))).await?;
    cluster.until("s", "at work", |job| job.count("processing") > 0).await?;
    cluster.create_job("w", json!({"action": "Wider", "targets": [{"name": "alone"}]})).await?;
    cluster.until("w", "told", |job| job.condition("ActionAvailable") == "False/KindNotReadable").await?;
    ensure!(cluster.jobs().get("s").await?.condition("ActionAvailable") == "True/Serving", "that one goes on");
    interceptor.lift();
    cluster.until_progress("s", "Succeeded").await?;
    cluster.until("w", "served", |job| job.condition("ActionAvailable") == "True/Serving").await?;
    cluster.delete_job("w").await?;
    cluster.until_gone("w").await?;
    all_replaced(cluster, &pods).await
}

/// A58: a narrowed grant stops starts and fails nothing. The targets in flight go on once the grant is widened again.
pub async fn a_grant_that_is_narrowed_in_flight_stops_starts_and_fails_nothing(
    cluster: &mut TestCluster,
) -> anyhow::Result<()> {
    let pods = settled_collaset(cluster, 3).await?;
    cluster.world.hold(Pause::Creation, Scope::World);
    cluster.start_host().await?;
    cluster.create_job("g", replace(&names(&pods), json!({"partition": 2}))).await?;
    for (name, _) in pods.get(..2).unwrap_or_default() {
        begun(cluster, name).await?;
    }
    grant(cluster, &only("elsewhere")).await?;
    cluster.until("g", "refused", |job| job.condition("Valid") == "False/NamespaceNotAllowed").await?;
    cluster.edit_job("g", json!({"partition": 3})).await?;
    cluster.world.release(Pause::Creation, Scope::World);
    cluster.until("g", "seen", |job| job.data.pointer("/status/observedGeneration") == Some(&json!(2))).await?;
    // The new pods exist and the old pods terminate, so the plugin now asks for their release.
    cluster.world.until("new pods", super::SETTLED, |all| all.len() >= 5).await?;
    tokio::time::sleep(Duration::from_secs(8)).await;
    let job = cluster.jobs().get("g").await?;
    ensure!(job.count("failed") == 0 && job.count("pending") == 1, "nothing fails, nothing starts: {:?}", job.data);
    let widened = Instant::now();
    grant(cluster, GRANTS).await?;
    cluster.until("g", "started", |job| job.count("pending") == 0).await?;
    ensure!(widened.elapsed() < SOON, "started after {:?}", widened.elapsed());
    cluster.until_progress("g", "Succeeded").await?;
    all_replaced(cluster, &pods).await
}

/// A58: if the plugin's file is withdrawn and put back, a job in flight goes on, and another job waits for the plugin.
pub async fn a_job_goes_on_with_a_plugin_that_is_withdrawn(cluster: &mut TestCluster) -> anyhow::Result<()> {
    let pods = settled_collaset(cluster, 2).await?;
    cluster.world.hold(Pause::Readiness, Scope::World);
    cluster.start_host().await?;
    let [first, second] = [pods.get(..1), pods.get(1..)].map(|part| names(part.unwrap_or_default()));
    cluster.create_job("began", replace(&first, json!({}))).await?;
    begun(cluster, &first.join("")).await?;
    cluster.running()?.host.plugins.withdraw("replace").await;
    cluster.create_job("later", replace(&second, json!({}))).await?;
    cluster.until("later", "without a plugin", |job| job.condition("ActionAvailable") == "False/NoPlugin").await?;
    cluster.world.release(Pause::Readiness, Scope::World);
    cluster.until_progress("began", "Succeeded").await?;
    let job = cluster.jobs().get("later").await?;
    ensure!(job.count("pending") == 1, "nothing starts: {:?}", job.data);
    put_back(cluster, "later").await?;
    cluster.until_progress("later", "Succeeded").await?;
    all_replaced(cluster, &pods).await
}

/// A58: if the plugin's file is missing when the host starts, a job in flight waits for the plugin.
pub async fn targets_in_flight_go_on_once_their_plugin_is_put_back(cluster: &mut TestCluster) -> anyhow::Result<()> {
    let pods = settled_collaset(cluster, 2).await?;
    cluster.world.hold(Pause::Readiness, Scope::World);
    cluster.start_host().await?;
    cluster.create_job("g", replace(&names(&pods), json!({"partition": 1}))).await?;
    for (name, _) in pods.get(..1).unwrap_or_default() {
        begun(cluster, name).await?;
    }
    cluster.kill_host("host").await?;
    let mut without = cluster.host_named("host");
    without.plugins.clear();
    cluster.start(without).await?;
    cluster.until("g", "without a plugin", |job| job.condition("ActionAvailable") == "False/NoPlugin").await?;
    cluster.edit_job("g", json!({"partition": 2})).await?;
    cluster.world.release(Pause::Readiness, Scope::World);
    cluster.pass(Duration::from_secs(60)).await;
    let job = cluster.jobs().get("g").await?;
    ensure!(job.count("failed") == 0 && job.count("pending") == 1, "nothing fails, nothing starts: {:?}", job.data);
    put_back(cluster, "g").await?;
    cluster.until_progress("g", "Succeeded").await?;
    all_replaced(cluster, &pods).await
}

/// Publishes the plugin and checks that the job soon starts its remaining targets.
async fn put_back(cluster: &TestCluster, job: &str) -> anyhow::Result<()> {
    cluster.running()?.host.plugins.publish("replace", component("replace")?).await;
    let back = Instant::now();
    cluster.until(job, "started", |job| job.count("pending") == 0).await?;
    ensure!(back.elapsed() < SOON, "went on after {:?}", back.elapsed());
    Ok(())
}
