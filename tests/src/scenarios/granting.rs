//! What a plugin is granted, when that changes, and when the plugin itself goes and comes.

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
use crate::rig::Rig;
use oarlock_bed::faults::Then;
use oarlock_bed::orders::{Latch, Order};

/// Within this a job takes up what a change allows it.
const SOON: Duration = Duration::from_secs(5);

/// The usual grants, for one namespace only.
fn only(namespace: &str) -> String {
    GRANTS.replace("namespaces: [\"*\"]", &format!("namespaces: [{namespace}]"))
}

async fn grant(rig: &Rig, grants: &str) -> anyhow::Result<()> {
    rig.running()?.host.plugins.set_grants(oarlock_wasm::parse_grants(grants)?).await;
    Ok(())
}

/// A58: a job that was not allowed starts once it is.
pub async fn a_job_starts_once_its_namespace_is_granted(rig: &mut Rig) -> anyhow::Result<()> {
    let pods = settled_collaset(rig, 1).await?;
    let mut begin = rig.host_named("host");
    begin.grants = only("elsewhere");
    rig.start(begin).await?;
    rig.create_job("g", replace(&names(&pods), json!({}))).await?;
    let job = rig.until("g", "refused", |job| job.condition("Valid") == "False/NamespaceNotAllowed").await?;
    ensure!(job.count("pending") == 1 && job.condition_message("Valid").contains(&rig.namespace), "{:?}", job.data);
    rig.pass(Duration::from_secs(120)).await;
    rig.until_told("InvalidSpec", 1).await?;
    let widened = Instant::now();
    grant(rig, &only(&rig.namespace)).await?;
    rig.until("g", "started", |job| job.count("pending") == 0).await?;
    ensure!(widened.elapsed() < SOON, "started after {:?}", widened.elapsed());
    rig.until_progress("g", "Succeeded").await?;
    ensure!(rig.told_times("InvalidSpec").await? == 1, "told once");
    all_replaced(rig, &pods).await
}

/// A plugin that wants one more field of pods, dropped in while pods cannot be listed: it waits, and no other does.
pub async fn a_plugin_that_wants_another_field_of_pods_rests_no_other(rig: &mut Rig) -> anyhow::Result<()> {
    let pods = settled_collaset(rig, 2).await?;
    let [first, second] = [pods.get(..1), pods.get(1..)].map(|part| names(part.unwrap_or_default()));
    rig.seedbed.bare_pod("alone").await?;
    let field = "/spec/terminationGracePeriodSeconds";
    let mut begin = rig.host_named("host");
    let wider = GRANTS.replace("name: replace", "name: wider").replace("[/status/conditions]", &format!("[{field}]"));
    begin.grants = format!("{GRANTS}\n---\n{wider}");
    rig.start(begin).await?;
    rig.create_job("r", replace(&first, json!({}))).await?;
    rig.until_progress("r", "Succeeded").await?;
    let wire = rig.running()?.wire.clone();
    wire.order(Order::all(Method::GET, "/pods", Then::Hold(Latch::default())));
    let component = replace_with(|manifest| {
        manifest.insert("name".to_owned(), json!("wider"));
        manifest.insert("action".to_owned(), json!("Wider"));
        if let Some(fields) = manifest.get_mut("reads").and_then(|reads| reads.pointer_mut("/0/fields")) {
            *fields = json!([field]);
        }
    })?;
    let state = rig.running()?.host.plugins.publish("wider", component).await;
    ensure!(state.as_ref().is_some_and(|status| status.state == oarlock_wasm::PluginState::Serving), "{state:?}");
    rig.until("r", "listing", |_| wire.caught() > 0).await?;
    rig.create_job("s", replace(&second, json!({}))).await?;
    rig.until("s", "at work", |job| job.count("processing") > 0).await?;
    rig.create_job("w", json!({"action": "Wider", "targets": [{"name": "alone"}]})).await?;
    rig.until("w", "told", |job| job.condition("ActionAvailable") == "False/KindNotReadable").await?;
    ensure!(rig.jobs().get("s").await?.condition("ActionAvailable") == "True/Serving", "that one goes on");
    wire.lift();
    rig.until_progress("s", "Succeeded").await?;
    rig.until("w", "served", |job| job.condition("ActionAvailable") == "True/Serving").await?;
    rig.delete_job("w").await?;
    rig.until_gone("w").await?;
    all_replaced(rig, &pods).await
}

/// A58: a narrowed grant stops starts and fails nothing, and what is in flight goes on once it is widened again.
pub async fn a_grant_that_is_narrowed_in_flight_stops_starts_and_fails_nothing(rig: &mut Rig) -> anyhow::Result<()> {
    let pods = settled_collaset(rig, 3).await?;
    rig.world.hold(Pause::Creation, Scope::World);
    rig.start_host().await?;
    rig.create_job("g", replace(&names(&pods), json!({"partition": 2}))).await?;
    for (name, _) in pods.get(..2).unwrap_or_default() {
        begun(rig, name).await?;
    }
    grant(rig, &only("elsewhere")).await?;
    rig.until("g", "refused", |job| job.condition("Valid") == "False/NamespaceNotAllowed").await?;
    rig.edit_job("g", json!({"partition": 3})).await?;
    rig.world.release(Pause::Creation, Scope::World);
    rig.until("g", "seen", |job| job.data.pointer("/status/observedGeneration") == Some(&json!(2))).await?;
    // The new pods are there and the old ones are going: the plugin wants to let them go.
    rig.world.until("new pods", super::SETTLED, |all| all.len() >= 5).await?;
    tokio::time::sleep(Duration::from_secs(8)).await;
    let job = rig.jobs().get("g").await?;
    ensure!(job.count("failed") == 0 && job.count("pending") == 1, "nothing fails, nothing starts: {:?}", job.data);
    let widened = Instant::now();
    grant(rig, GRANTS).await?;
    rig.until("g", "started", |job| job.count("pending") == 0).await?;
    ensure!(widened.elapsed() < SOON, "started after {:?}", widened.elapsed());
    rig.until_progress("g", "Succeeded").await?;
    all_replaced(rig, &pods).await
}

/// A58: the plugin's file goes while targets are in flight, and is put back: a job that began with it goes on, another one
/// waits for it.
pub async fn a_job_goes_on_with_a_plugin_that_is_withdrawn(rig: &mut Rig) -> anyhow::Result<()> {
    let pods = settled_collaset(rig, 2).await?;
    rig.world.hold(Pause::Readiness, Scope::World);
    rig.start_host().await?;
    let [first, second] = [pods.get(..1), pods.get(1..)].map(|part| names(part.unwrap_or_default()));
    rig.create_job("began", replace(&first, json!({}))).await?;
    begun(rig, &first.join("")).await?;
    rig.running()?.host.plugins.withdraw("replace").await;
    rig.create_job("later", replace(&second, json!({}))).await?;
    rig.until("later", "without a plugin", |job| job.condition("ActionAvailable") == "False/NoPlugin").await?;
    rig.world.release(Pause::Readiness, Scope::World);
    rig.until_progress("began", "Succeeded").await?;
    let job = rig.jobs().get("later").await?;
    ensure!(job.count("pending") == 1, "nothing starts: {:?}", job.data);
    put_back(rig, "later").await?;
    rig.until_progress("later", "Succeeded").await?;
    all_replaced(rig, &pods).await
}

/// A58: the file was gone when the host started, so the job in flight waits for it.
pub async fn targets_in_flight_go_on_once_their_plugin_is_put_back(rig: &mut Rig) -> anyhow::Result<()> {
    let pods = settled_collaset(rig, 2).await?;
    rig.world.hold(Pause::Readiness, Scope::World);
    rig.start_host().await?;
    rig.create_job("g", replace(&names(&pods), json!({"partition": 1}))).await?;
    for (name, _) in pods.get(..1).unwrap_or_default() {
        begun(rig, name).await?;
    }
    rig.kill_host("host").await?;
    let mut without = rig.host_named("host");
    without.plugins.clear();
    rig.start(without).await?;
    rig.until("g", "without a plugin", |job| job.condition("ActionAvailable") == "False/NoPlugin").await?;
    rig.edit_job("g", json!({"partition": 2})).await?;
    rig.world.release(Pause::Readiness, Scope::World);
    rig.pass(Duration::from_secs(60)).await;
    let job = rig.jobs().get("g").await?;
    ensure!(job.count("failed") == 0 && job.count("pending") == 1, "nothing fails, nothing starts: {:?}", job.data);
    put_back(rig, "g").await?;
    rig.until_progress("g", "Succeeded").await?;
    all_replaced(rig, &pods).await
}

/// Publishes the plugin, by which the job starts what it has left soon.
async fn put_back(rig: &Rig, job: &str) -> anyhow::Result<()> {
    rig.running()?.host.plugins.publish("replace", component("replace")?).await;
    let back = Instant::now();
    rig.until(job, "started", |job| job.count("pending") == 0).await?;
    ensure!(back.elapsed() < SOON, "went on after {:?}", back.elapsed());
    Ok(())
}
