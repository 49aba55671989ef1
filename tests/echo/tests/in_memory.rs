//! EchoJobs in memory: how they end, and a host that is killed at each of its writes.

#![cfg(test)]

mod stories;

use std::sync::Arc;

use anyhow::ensure;
use oarlock_scenarios::test_cluster::{TestCluster, patiently};
use oarlock_support::faults::{Fault, Plan, Then, When};
use tokio::sync::Notify;
use tokio::time::Duration;

use crate::stories::EchoCluster;

async fn in_memory() -> anyhow::Result<EchoCluster> {
    EchoCluster::prepare(TestCluster::sim(1).await?).await
}

#[tokio::test(start_paused = true)]
async fn a_job_runs_one_pod_in_each_namespace_and_cleans_up() -> anyhow::Result<()> {
    stories::a_job_runs_one_pod_in_each_namespace_and_cleans_up(TestCluster::sim(1).await?).await
}

#[tokio::test(start_paused = true)]
async fn a_job_after_its_deadline_fails_and_its_pods_are_deleted() -> anyhow::Result<()> {
    let mut cluster = in_memory().await?;
    cluster.start(Plan::none()).await?;
    cluster.create("j", 600).await?;
    let status = cluster.until("j", "Failed").await?;
    ensure!(status["message"] == "the deadline is over", "{status:#}");
    patiently("no pod is left", async || Ok(cluster.pods("j").await?.is_empty())).await?;
    cluster.had_one_pod_each("j")?;
    cluster.inner.finish().await
}

#[tokio::test(start_paused = true)]
async fn the_metrics_of_the_host_show_the_watch_of_the_kind() -> anyhow::Result<()> {
    let mut cluster = in_memory().await?;
    cluster.start(Plan::none()).await?;
    cluster.create("j", 600).await?;
    cluster.until("j", "Running").await?;
    let text = cluster.inner.running()?.host.metrics.text();
    let synced = r#"oarlock_watch_synced{api_version="test.oarlock.dev/v1",kind="EchoJob"} 1"#;
    ensure!(text.contains(synced), "{text}");
    cluster.inner.finish().await
}

/// How a job of a crash run ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// Its pods succeed.
    Pods,
    /// Its deadline is over.
    Deadline,
}

/// Plays a job and its deletion with a host that is killed at a write, and then with a second host. Write 0 means no kill. Returns the number of writes
/// of the first host.
async fn killed_at(cluster: &mut EchoCluster, name: &str, end: End, (at, when): (u64, When)) -> anyhow::Result<u64> {
    let killed = Arc::new(Notify::new());
    let notify = killed.clone();
    let then = Then::Kill(Arc::new(move || notify.notify_one()));
    let plan = if at == 0 { Plan::none() } else { Plan::new([Fault { at, when, then }])? };
    cluster.start(plan).await?;
    cluster.create(name, if end == End::Pods { 5 } else { 600 }).await?;
    let over = tokio::select! {
        () = killed.notified() => false,
        ended = ends(cluster, name, end) => { ended?; true }
    };
    let writes = cluster.inner.running()?.interceptor.count();
    if !over {
        cluster.inner.kill_host("host").await?;
        cluster.start(Plan::none()).await?;
        ends(cluster, name, end).await?;
    }
    cluster.inner.kill_host("host").await?;
    cluster.inner.pass(Duration::from_secs(1)).await;
    cluster.had_one_pod_each(name)?;
    Ok(writes)
}

/// Waits until a job has ended, deletes the job, and waits until it is gone.
async fn ends(cluster: &EchoCluster, name: &str, end: End) -> anyhow::Result<()> {
    patiently("it has ended or is gone", async || {
        let is_gone = cluster.jobs().get_opt(name).await?.is_none();
        let phase = cluster.status(name).await?["phase"].clone();
        let expected = if end == End::Pods { "Succeeded" } else { "Failed" };
        Ok(is_gone || phase == expected)
    })
    .await?;
    // The first host may be killed after the deletion.
    if cluster.jobs().get_opt(name).await?.is_some() {
        cluster.jobs().delete(name, &Default::default()).await?;
    }
    cluster.until_gone(name).await
}

async fn killed_everywhere(end: End) -> anyhow::Result<()> {
    let mut cluster = in_memory().await?;
    let writes = killed_at(&mut cluster, "j0", end, (0, When::BeforeSend)).await?;
    for (at, when) in (1..=writes).flat_map(|at| [When::BeforeSend, When::AfterCommit].map(|when| (at, when))) {
        let run = killed_at(&mut cluster, &format!("j{at}-{when:?}").to_lowercase(), end, (at, when)).await;
        run.map_err(|error| error.context(format!("killed at write {at}, {when:?}")))?;
    }
    println!("{end:?}: a host was killed before and after each of {writes} writes");
    // The keys of holds, the finalizer, the namespaces, two pods, the end, two deletions, and the finalizer again.
    ensure!(writes == 9, "a run has {writes} writes");
    cluster.inner.finish().await
}

#[tokio::test(start_paused = true)]
async fn a_job_outlives_a_host_that_is_killed_at_any_write() -> anyhow::Result<()> {
    killed_everywhere(End::Pods).await
}

#[tokio::test(start_paused = true)]
async fn a_deadline_outlives_a_host_that_is_killed_at_any_write() -> anyhow::Result<()> {
    killed_everywhere(End::Deadline).await
}
