//! One pod and several jobs: one after the other, beside each other, and a job that meets its own new pod.

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
use crate::rig::Rig;

/// The UID of a job's first target.
fn uid(job: &DynamicObject) -> anyhow::Result<String> {
    let uid = job.data.pointer("/status/targetDetails/0/uid").and_then(Value::as_str);
    Ok(uid.with_context(|| format!("no UID: {:?}", job.data))?.to_owned())
}

/// A49: the job that replaced the pod first still exists, and claims a pod of that name.
pub async fn a_stateful_sets_pod_is_replaced_again_and_again(rig: &mut Rig) -> anyhow::Result<()> {
    let set = rig.seedbed.stateful_set("db", 1).await?;
    let target = names(&settled(rig, &set, "db").await?);
    rig.start_host().await?;
    rig.create_job("a", replace(&target, json!({}))).await?;
    let mut uids = vec![uid(&rig.until_progress("a", "Succeeded").await?)?];
    rig.world.hold(Pause::Creation, Scope::World);
    rig.create_job("b", replace(&target, json!({}))).await?;
    rig.world.until("the pod to be evicted once more", super::SETTLED, |pods| pods.is_empty()).await?;
    rig.restart_host().await?;
    rig.world.release(Pause::Creation, Scope::World);
    uids.push(uid(&rig.until_progress("b", "Succeeded").await?)?);
    rig.restart_host().await?;
    rig.create_job("c", replace(&target, json!({}))).await?;
    uids.push(uid(&rig.until_progress("c", "Succeeded").await?)?);
    ensure!(uids.iter().collect::<BTreeSet<_>>().len() == 3, "three different pods: {uids:?}");
    rig.until_progress("a", "Succeeded").await?;
    let replaced: Vec<_> = uids.into_iter().map(|uid| (target.join(""), uid)).collect();
    all_replaced(rig, &replaced).await
}

/// The targets of a job are a pod that is being replaced and the very pod that takes its place.
pub async fn a_job_that_names_its_own_new_pod_replaces_both(rig: &mut Rig) -> anyhow::Result<()> {
    let mut pods = settled_collaset(rig, 1).await?;
    let origin = names(&pods).join("");
    rig.world.hold(Pause::Readiness, Scope::World);
    user_labels(rig, &origin, json!("true")).await?;
    rig.world.until("the new pod to appear", super::SETTLED, |pods| pods.len() == 2).await?;
    let all = super::identities(rig, &rig.pod_names("foo").await?).await?;
    pods.push(all.into_iter().find(|(name, _)| *name != origin).context("there are two")?);
    rig.start_host().await?;
    rig.create_job("n", replace(&names(&pods), json!({}))).await?;
    rig.until("n", "both in flight", |job| job.count("processing") == 2).await?;
    rig.world.release(Pause::Readiness, Scope::World);
    let job = rig.until_progress("n", "Succeeded").await?;
    let new: BTreeSet<&str> = ["0", "1"]
        .into_iter()
        .filter_map(|at| job.data.pointer(&format!("/status/targetDetails/{at}/extraInfo/NewPod"))?.as_str())
        .collect();
    ensure!(!new.is_empty() && !new.contains(origin.as_str()), "{:?}", job.data);
    all_replaced(rig, &pods).await
}

/// What happens to a job, in this order.
const STEPS: [&str; 3] = ["create", "raise", "delete"];

/// Every order in which the steps of two jobs can happen: which job makes its next step.
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

/// Two jobs on one pod are created, begun by their partition and deleted in every order, fast and slowly, while no new pod
/// comes: both go, and nothing of them is left.
pub async fn two_jobs_on_one_pod_leave_nothing_in_whatever_order_they_come_and_go(rig: &mut Rig) -> anyhow::Result<()> {
    rig.start_host().await?;
    rig.world.hold(Pause::Creation, Scope::World);
    let paces = [Duration::ZERO, Duration::from_millis(30), Duration::from_secs(2)];
    for (number, (order, pace)) in
        orders(3).iter().flat_map(|order| paces.map(|pace| (order.clone(), pace))).enumerate()
    {
        let app = format!("bare{number}");
        rig.seedbed.bare_pod(&app).await?;
        let steps = made(rig, &order, pace, &app).await;
        steps.with_context(|| format!("{order:?} at {pace:?}"))?;
        for job in 0..2 {
            rig.until_gone(&format!("{app}-{job}")).await.with_context(|| format!("{order:?} at {pace:?}"))?;
        }
        rig.until_nothing_is_left().await.with_context(|| format!("{order:?} at {pace:?}"))?;
        ensure!(rig.pods().get(&app).await?.metadata.deletion_timestamp.is_none(), "{order:?}: the pod stays");
    }
    Ok(())
}

/// Two jobs on one pod are created and begun in every order, and the new pod comes: both end, and one has succeeded.
pub async fn two_jobs_on_one_pod_end_in_whatever_order_they_begin(rig: &mut Rig) -> anyhow::Result<()> {
    rig.start_host().await?;
    let paces = [Duration::ZERO, Duration::from_millis(30), Duration::from_millis(300)];
    for (number, (order, pace)) in
        orders(2).iter().flat_map(|order| paces.map(|pace| (order.clone(), pace))).enumerate()
    {
        let app = format!("set{number}");
        let set = rig.seedbed.collaset(&app, 1).await?;
        let pods = settled(rig, &set, &app).await?;
        let steps = made(rig, &order, pace, &names(&pods).join("")).await;
        steps.with_context(|| format!("{order:?} at {pace:?}"))?;
        let mut succeeded = 0;
        for job in 0..2 {
            let job = rig.until(&format!("{}-{job}", names(&pods).join("")), "ended", has_ended).await?;
            succeeded += usize::from(job.progress() == "Succeeded");
            ensure!(job.progress() == "Succeeded" || job.data.to_string().contains("PodNotFound"), "{:?}", job.data);
        }
        ensure!(succeeded > 0, "{order:?} at {pace:?}: one of them has replaced it");
        let verdict = rig.world.ledger().verdict_within(&pods, super::HEARD).await;
        ensure!(verdict.targets.iter().all(|target| target.is_right()), "{order:?} at {pace:?}: {verdict}");
        rig.until_nothing_is_left().await.with_context(|| format!("{order:?} at {pace:?}"))?;
    }
    Ok(())
}

/// Makes the steps of an order on jobs that are named after the pod.
async fn made(rig: &Rig, order: &[usize], pace: Duration, pod: &str) -> anyhow::Result<()> {
    for (at, job) in order.iter().enumerate() {
        let step = order.iter().take(at).filter(|one| *one == job).count();
        let name = format!("{pod}-{job}");
        match STEPS.get(step) {
            Some(&"create") => {
                let more = json!({"partition": 0, "parameters": {"strategy": "CollaSet"}});
                rig.create_job(&name, replace(&[pod.to_owned()], more)).await.map(drop)?;
            }
            Some(&"raise") => rig.edit_job(&name, json!({"partition": 1})).await.map(drop)?,
            _ => rig.delete_job(&name).await?,
        }
        tokio::time::sleep(pace).await;
    }
    Ok(())
}
