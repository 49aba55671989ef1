//! Statuses with an epoch that the leader did not write.

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
use crate::test_cluster::{TestCluster, patiently};

/// A lease duration longer than the test. If the leader reads its lease before the next renewal, the higher epoch is the reason.
const LEASE: Duration = Duration::from_secs(90);

fn lease(cluster: &TestCluster) -> (Api<Lease>, String) {
    (Api::namespaced(cluster.client.clone(), "oarlock-system"), format!("oarlock-{}", cluster.namespace))
}

async fn edit_lease(cluster: &TestCluster, spec: Value) -> anyhow::Result<()> {
    let (leases, name) = lease(cluster);
    leases.patch(&name, &PatchParams::default(), &Patch::Merge(json!({"spec": spec}))).await?;
    Ok(())
}

async fn transitions(cluster: &TestCluster) -> anyhow::Result<Option<i32>> {
    let (leases, name) = lease(cluster);
    leases.get(&name).await?.spec.context("the lease has a spec").map(|spec| spec.lease_transitions)
}

async fn raise_epoch(cluster: &TestCluster) -> anyhow::Result<()> {
    let body = Patch::Merge(json!({"status": {"epoch": 50}}));
    cluster.jobs().patch_status("e", &PatchParams::default(), &body).await?;
    Ok(())
}

/// Starts a leader with a job in flight. The leader renews its lease rarely.
async fn in_flight(cluster: &mut TestCluster) -> anyhow::Result<Vec<(String, String)>> {
    let pods = settled_collaset(cluster, 1).await?;
    cluster.world.hold(Pause::Creation, Scope::World);
    let mut begin = cluster.host_named("host");
    begin.lease = LEASE;
    cluster.start(begin).await?;
    cluster.create_job("e", replace(&names(&pods), json!({}))).await?;
    for (name, _) in &pods {
        begun(cluster, name).await?;
    }
    Ok(pods)
}

/// A leader ends its term if a status has a higher epoch and another process holds the lease.
pub async fn a_leader_that_lost_its_lease_ends_its_term_when_a_status_has_a_higher_epoch(
    cluster: &mut TestCluster,
) -> anyhow::Result<()> {
    let pods = in_flight(cluster).await?;
    edit_lease(cluster, json!({"holderIdentity": "another", "leaseTransitions": 9})).await?;
    let raised = Instant::now();
    raise_epoch(cluster).await?;
    patiently("the term is over", async || Ok(!cluster.running()?.leads())).await?;
    ensure!(raised.elapsed() < Duration::from_secs(5), "over after {:?}", raised.elapsed());
    edit_lease(cluster, json!({"holderIdentity": ""})).await?;
    cluster.world.release(Pause::Creation, Scope::World);
    cluster.until_progress("e", "Succeeded").await?;
    all_replaced(cluster, &pods).await
}

/// A leader keeps its term if a user edited the epoch in a status and the leader still holds the lease.
pub async fn a_higher_epoch_in_a_status_ends_no_term_while_the_lease_is_held(
    cluster: &mut TestCluster,
) -> anyhow::Result<()> {
    let pods = in_flight(cluster).await?;
    raise_epoch(cluster).await?;
    cluster.world.release(Pause::Creation, Scope::World);
    cluster.until_progress("e", "Succeeded").await?;
    ensure!(transitions(cluster).await? == Some(1), "one term");
    all_replaced(cluster, &pods).await
}
