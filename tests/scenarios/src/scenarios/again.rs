//! One pod and several jobs: one after the other, beside each other, and a job that names its own new pod.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use kube::api::DynamicObject;
use oarlock_sim::world::{Pause, Scope};
use serde_json::{Value, json};

use super::collaset::user_labels;
use super::deadlines::has_ended;
use super::{all_replaced, names, settled, settled_collaset};
use crate::jobs::{Told, replace};
use crate::test_cluster::TestCluster;

/// Returns the UID of a job's first target.
fn uid(job: &DynamicObject) -> anyhow::Result<String> {
    let uid = job.data.pointer("/status/targetDetails/0/uid").and_then(Value::as_str);
    Ok(uid.with_context(|| format!("no UID: {:?}", job.data))?.to_owned())
}

/// A49: the pod of a StatefulSet can be replaced again while the earlier job still exists and claims a pod of that name.
pub async fn a_stateful_sets_pod_is_replaced_again_and_again(cluster: &mut TestCluster) -> anyhow::Result<()> {
    let set = cluster.seedbed.stateful_set("db", 1).await?;
    let target = names(&settled(cluster, &set, "db").await?);
    cluster.start_host().await?;
    cluster.create_job("a", replace(&target, json!({}))).await?;
    let mut uids = vec![uid(&cluster.until_progress("a", "Succeeded").await?)?];
    cluster.world.hold(Pause::Creation, Scope::World);
    cluster.create_job("b", replace(&target, json!({}))).await?;
    cluster.world.until("the pod to be evicted once more", super::SETTLED, |pods| pods.is_empty()).await?;
    cluster.restart_host().await?;
    cluster.world.release(Pause::Creation, Scope::World);
    uids.push(uid(&cluster.until_progress("b", "Succeeded").await?)?);
    cluster.restart_host().await?;
    cluster.create_job("c", replace(&target, json!({}))).await?;
    uids.push(uid(&cluster.until_progress("c", "Succeeded").await?)?);
    ensure!(uids.iter().collect::<BTreeSet<_>>().len() == 3, "three different pods: {uids:?}");
    cluster.until_progress("a", "Succeeded").await?;
    let replaced: Vec<_> = uids.into_iter().map(|uid| (target.join(""), uid)).collect();
    all_replaced(cluster, &replaced).await
}

/// A job replaces both of its targets: a pod that is being replaced, and the pod that replaces it.
pub async fn a_job_that_names_its_own_new_pod_replaces_both(cluster: &mut TestCluster) -> anyhow::Result<()> {
    let mut pods = settled_collaset(cluster, 1).await?;
    let origin = names(&pods).join("");
    cluster.world.hold(Pause::Readiness, Scope::World);
    user_labels(cluster, &origin, json!("true")).await?;
    cluster.world.until("the new pod to appear", super::SETTLED, |pods| pods.len() == 2).await?;
    let all = super::identities(cluster, &cluster.pod_names("foo").await?).await?;
    pods.push(all.into_iter().find(|(name, _)| *name != origin).context("there are two")?);
    cluster.start_host().await?;
    cluster.create_job("n", replace(&names(&pods), json!({}))).await?;
    cluster.until("n", "both in flight", |job| job.count("processing") == 2).await?;
    cluster.world.release(Pause::Readiness, Scope::World);
    let job = cluster.until_progress("n", "Succeeded").await?;
    let new: BTreeSet<&str> = ["0", "1"]
        .into_iter()
        .filter_map(|at| job.data.pointer(&format!("/status/targetDetails/{at}/extraInfo/NewPod"))?.as_str())
        .collect();
    ensure!(!new.is_empty() && !new.contains(origin.as_str()), "{:?}", job.data);
    all_replaced(cluster, &pods).await
}

/// The steps of a job, in this order.
const STEPS: [&str; 3] = ["create", "raise", "delete"];

/// Returns every order of the steps of two jobs. Each item is the job that makes its next step.
fn orders(steps: usize) -> Vec<Vec<usize>> {
    let mut found = vec![Vec::new()];
    for _ in 0..2 * steps {
        let grown = found.iter().flat_map(|order: &Vec<usize>| {
            let more = (0..2).filter(|job| order.iter().filter(|one| *one == job).count() < steps);
            more.map(|job| [order.as_slice(), &[job]].concat()).collect::<Vec<_>>()
        });
        found = grown.collect();
    }
    found
}

/// Two jobs on one pod are created, started by their partition and deleted in every order, fast and slowly, while no new pod
/// comes. Both jobs go and leave nothing behind.
pub async fn two_jobs_on_one_pod_leave_nothing_in_whatever_order_they_come_and_go(
    cluster: &mut TestCluster,
) -> anyhow::Result<()> {
    cluster.start_host().await?;
    cluster.world.hold(Pause::Creation, Scope::World);
    let paces = [Duration::ZERO, Duration::from_millis(30), Duration::from_secs(2)];
    for (number, (order, pace)) in
        orders(3).iter().flat_map(|order| paces.map(|pace| (order.clone(), pace))).enumerate()
    {
        let app = format!("bare{number}");
        cluster.seedbed.bare_pod(&app).await?;
        let steps = made(cluster, &order, pace, &app).await;
        steps.with_context(|| format!("{order:?} at {pace:?}"))?;
        for job in 0..2 {
            cluster.until_gone(&format!("{app}-{job}")).await.with_context(|| format!("{order:?} at {pace:?}"))?;
        }
        cluster.until_nothing_is_left().await.with_context(|| format!("{order:?} at {pace:?}"))?;
        ensure!(cluster.pods().get(&app).await?.metadata.deletion_timestamp.is_none(), "{order:?}: the pod stays");
    }
    Ok(())
}

/// Two jobs on one pod are created and started in every order, and the new pod comes. Both jobs end, and at least one succeeds.
pub async fn two_jobs_on_one_pod_end_in_whatever_order_they_begin(cluster: &mut TestCluster) -> anyhow::Result<()> {
    cluster.start_host().await?;
    let paces = [Duration::ZERO, Duration::from_millis(30), Duration::from_millis(300)];
    for (number, (order, pace)) in
        orders(2).iter().flat_map(|order| paces.map(|pace| (order.clone(), pace))).enumerate()
    {
        let app = format!("set{number}");
        let set = cluster.seedbed.collaset(&app, 1).await?;
        let pods = settled(cluster, &set, &app).await?;
        let steps = made(cluster, &order, pace, &names(&pods).join("")).await;
        steps.with_context(|| format!("{order:?} at {pace:?}"))?;
        let mut succeeded = 0;
        for job in 0..2 {
            let job = cluster.until(&format!("{}-{job}", names(&pods).join("")), "ended", has_ended).await?;
            succeeded += usize::from(job.progress() == "Succeeded");
            ensure!(job.progress() == "Succeeded" || job.data.to_string().contains("PodNotFound"), "{:?}", job.data);
        }
        ensure!(succeeded > 0, "{order:?} at {pace:?}: one of them has replaced it");
        let verdict = cluster.world.ledger().verdict_within(&pods, super::HEARD).await;
        ensure!(verdict.targets.iter().all(|target| target.is_right()), "{order:?} at {pace:?}: {verdict}");
        cluster.until_nothing_is_left().await.with_context(|| format!("{order:?} at {pace:?}"))?;
    }
    Ok(())
}

/// Makes the steps of an order. The names of the jobs begin with the name of the pod.
async fn made(cluster: &TestCluster, order: &[usize], pace: Duration, pod: &str) -> anyhow::Result<()> {
    for (at, job) in order.iter().enumerate() {
        let step = order.iter().take(at).filter(|one| *one == job).count();
        let name = format!("{pod}-{job}");
        match STEPS.get(step) {
            Some(&"create") => {
                let more = json!({"partition": 0, "parameters": {"strategy": "CollaSet"}});
                cluster.create_job(&name, replace(&[pod.to_owned()], more)).await.map(drop)?;
            }
            Some(&"raise") => cluster.edit_job(&name, json!({"partition": 1})).await.map(drop)?,
            _ => cluster.delete_job(&name).await?,
        }
        tokio::time::sleep(pace).await;
    }
    Ok(())
}
