//! A job's status has an epoch that the leader did not write.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use kube::api::{Patch, PatchParams};
use oarlock_sim::world::{Pause, Scope};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::ending::begun;
use super::{all_replaced, names, settled_collaset};
use crate::jobs::replace;
use crate::rig::{Rig, patiently};

/// Longer than the test takes: whoever looks at the lease before its next renewal was asked to.
const LEASE: Duration = Duration::from_secs(90);

fn lease(rig: &Rig) -> (Api<Lease>, String) {
    (Api::namespaced(rig.client.clone(), "oarlock-system"), format!("oarlock-{}", rig.namespace))
}

async fn edit_lease(rig: &Rig, spec: Value) -> anyhow::Result<()> {
    let (leases, name) = lease(rig);
    leases.patch(&name, &PatchParams::default(), &Patch::Merge(json!({"spec": spec}))).await?;
    Ok(())
}

async fn transitions(rig: &Rig) -> anyhow::Result<Option<i32>> {
    let (leases, name) = lease(rig);
    leases.get(&name).await?.spec.context("the lease has a spec").map(|spec| spec.lease_transitions)
}

async fn raise_epoch(rig: &Rig) -> anyhow::Result<()> {
    let body = Patch::Merge(json!({"status": {"epoch": 50}}));
    rig.jobs().patch_status("e", &PatchParams::default(), &body).await?;
    Ok(())
}

/// A leader with a job in flight, which renews its lease rarely.
async fn in_flight(rig: &mut Rig) -> anyhow::Result<Vec<(String, String)>> {
    let pods = settled_collaset(rig, 1).await?;
    rig.world.hold(Pause::Creation, Scope::World);
    let mut begin = rig.host_named("host");
    begin.lease = LEASE;
    rig.start(begin).await?;
    rig.create_job("e", replace(&names(&pods), json!({}))).await?;
    for (name, _) in &pods {
        begun(rig, name).await?;
    }
    Ok(pods)
}

/// Another process leads, and has raised the epoch of a job.
pub async fn a_leader_that_lost_its_lease_ends_its_term_when_a_status_has_a_higher_epoch(
    rig: &mut Rig,
) -> anyhow::Result<()> {
    let pods = in_flight(rig).await?;
    edit_lease(rig, json!({"holderIdentity": "another", "leaseTransitions": 9})).await?;
    let raised = Instant::now();
    raise_epoch(rig).await?;
    patiently("the term is over", async || Ok(!rig.running()?.leads())).await?;
    ensure!(raised.elapsed() < Duration::from_secs(5), "over after {:?}", raised.elapsed());
    edit_lease(rig, json!({"holderIdentity": ""})).await?;
    rig.world.release(Pause::Creation, Scope::World);
    rig.until_progress("e", "Succeeded").await?;
    all_replaced(rig, &pods).await
}

/// Somebody has edited the status by hand.
pub async fn a_higher_epoch_in_a_status_ends_no_term_while_the_lease_is_held(rig: &mut Rig) -> anyhow::Result<()> {
    let pods = in_flight(rig).await?;
    raise_epoch(rig).await?;
    rig.world.release(Pause::Creation, Scope::World);
    rig.until_progress("e", "Succeeded").await?;
    ensure!(transitions(rig).await? == Some(1), "one term");
    all_replaced(rig, &pods).await
}
