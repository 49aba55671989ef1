//! A large DaemonJob: its time beside a smaller one's, the host's memory for nodes and children, and the cost of its nodes'
//! heartbeats after the end.
//!
//! Memory is the resident memory of a newly started host at rest. It is measured without nodes, with the nodes, and with the nodes,
//! the ended Jobs and their DaemonJob.

use std::path::Path;
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use kube::api::Api;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};

use crate::backend::Backend;
use crate::children::{Dropped, HostProcess};
use crate::flows::arguments::Flows;
use crate::flows::cluster::{FlowCluster, beat};
use crate::flows::contest::Contest;
use crate::flows::loads;
use crate::meter::Meter;
use crate::requests;
use crate::spread::{as_f64, round};
use crate::usage;

/// The interval of a node's heartbeats. A kubelet sends the status of an unchanged node this often.
const EACH_NODE: Duration = Duration::from_secs(300);
/// How long a host takes to come to rest and to release the memory of its start.
const REST: Duration = Duration::from_secs(12);

/// Runs the DaemonJob once. `own` is the smaller DaemonJob's time in seconds, and its number of nodes.
///
/// # Errors
/// If a host does not start, or the DaemonJob does not end.
pub(crate) async fn run(
    asked: &Flows,
    (backend, components): (&Backend, &Path),
    own: Option<(f64, usize)>,
) -> anyhow::Result<(usize, Value)> {
    let load = loads::daemon(usize::try_from(asked.large)?);
    let start = || async { HostProcess::start(&backend.kubeconfig()?, components, Dropped::Replace).await };
    let cluster = FlowCluster::fresh(backend, "large", load.kind).await?;
    let names = load.node_names("large");
    let empty = resting_kib(start().await?).await?;
    cluster.add_nodes(&names).await?;
    let with_nodes = resting_kib(start().await?).await?;

    let host = start().await?;
    let contest = Contest { backend, components, load: &load, word: "large" };
    let mut figures = contest.by(&cluster, host.id()).await?;
    let created = figures.get("createdSeconds").and_then(Value::as_f64);
    let to_own = own.zip(created).map(|((own, _), created)| round(created / own));
    figures.insert("createdToOwnSmaller".to_owned(), json!(to_own));

    let mut silent = Meter::start(backend, host.id())?;
    sleep(REST).await;
    silent.read()?;
    let mut meter = Meter::start(backend, host.id())?;
    let beats = heartbeats(&cluster, &names, asked.heartbeats).await?;
    meter.read()?;
    let percent = |meter: &Meter<'_>| 100.0 * meter.spent().cpu.as_secs_f64() / meter.took().as_secs_f64();
    figures.insert("silentCpuPercent".to_owned(), round(percent(&silent)).into());
    figures.insert("heartbeatsCpuPercent".to_owned(), round(percent(&meter)).into());
    figures.insert("heartbeatsPerSecond".to_owned(), round(as_f64(beats) / meter.took().as_secs_f64()).into());
    let for_beats = (percent(&meter) - percent(&silent)) / 100.0 * meter.took().as_secs_f64() * 1_000_000.0;
    figures.insert("cpuMicrosecondsPerHeartbeat".to_owned(), round(for_beats / as_f64(beats)).into());
    let idle_writes = requests::writes(silent.requests()) + requests::writes(meter.requests());
    figures.insert("writesAfterTheEnd".to_owned(), idle_writes.into());
    host.stop().await?;

    let with_children = resting_kib(start().await?).await?;
    #[allow(clippy::cast_precision_loss, reason = "far below 2^52")]
    let each = |more: u64, less: u64| round((more as f64 - less as f64) / as_f64(load.jobs));
    figures.insert("kibPerNode".to_owned(), each(with_nodes, empty).into());
    figures.insert("kibPerChild".to_owned(), each(with_children, with_nodes).into());
    cluster.remove().await?;
    Ok((load.jobs, json!({ "host": figures })))
}

/// Returns the resident memory of a host at rest, in KiB, and stops the host.
async fn resting_kib(host: HostProcess) -> anyhow::Result<u64> {
    sleep(REST).await;
    let kib = usage::rss_kib(host.id())?;
    host.stop().await?;
    Ok(kib)
}

/// Sends the nodes' heartbeats at an even pace, and returns their number.
async fn heartbeats(cluster: &FlowCluster, names: &[String], seconds: u32) -> anyhow::Result<usize> {
    let nodes: Api<Node> = Api::all(cluster.client.clone());
    let mut ticks = interval(EACH_NODE / u32::try_from(names.len())?);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let (mut flying, mut sent) = (JoinSet::new(), 0);
    let end = Instant::now() + Duration::from_secs(seconds.into());
    for name in names.iter().cycle() {
        ticks.tick().await;
        if Instant::now() >= end {
            break;
        }
        let (nodes, name) = (nodes.clone(), name.clone());
        flying.spawn(async move { beat(&nodes, &name).await });
        sent += 1;
        while let Some(done) = flying.try_join_next() {
            done??;
        }
    }
    while let Some(done) = flying.join_next().await {
        done??;
    }
    Ok(sent)
}
