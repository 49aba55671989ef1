//! The bench of dumplogs: how fast a host collects the logs of a workload, beside a client that reads the same logs and drops them.
//!
//! It measures the bytes per second of both, and the rise of the host's memory.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use clap::Args;
use futures::{AsyncReadExt as _, StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use kube::api::{Api, DeleteParams, DynamicObject, ListParams, LogParams, PostParams};
use oarlock_sim::world::{World, WorldOptions};
use oarlock_support::install::{self, Way};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, timeout};

use crate::arguments::Common;
use crate::children::{Dropped, HostProcess, manifests_for};
use crate::goals::Goal;
use crate::ops_objects::{resource, until_succeeded};
use crate::served_sim::kubeconfig_of;
use crate::setup::shown_beside;
use crate::spread::round;
use crate::usage;

/// Logs that the bare reader reads at once. The host reads the same number.
const AT_ONCE: usize = 8;
/// The longest time of a step.
const PATIENCE: Duration = Duration::from_secs(600);
const MIB: f64 = 1024.0 * 1024.0;
/// The text of each line before its number.
const TEXT: &str = "the quick brown fox jumps over the lazy dog, and the lazy dog does not mind that at all, number";

const GOALS: [Goal; 3] = [
    Goal { figure: "/ofBare", name: "bytes a second, of a bare reader of the same API", goal: "at least 0.7" },
    Goal { figure: "/memoryMib", name: "memory above idle, MiB", goal: "at most 64" },
    Goal { figure: "/host/mibPerSecond", name: "MiB of logs a second, from the create to the end", goal: "told" },
];

const NOTES: &str = "\
A cluster in memory in this process makes the logs up as they are read; host and bare reader come to it by HTTP. bare: 8 logs at once, read
and dropped. host: from the create of the OpsJob to its end, the file put together and on the disk. Bytes are those of the API, with times.";

/// The options of the `logs` bench.
#[derive(Args, Clone, Debug)]
pub(crate) struct LogsBench {
    /// Number of pods
    #[arg(long, default_value = "20", value_parser = clap::value_parser!(u32).range(1..=500))]
    pub(crate) targets: u32,
    /// Number of lines of each pod, of about 130 bytes
    #[arg(long, default_value = "400000", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) lines: u32,
    /// Number of rounds
    #[arg(long, default_value = "3", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) rounds: u32,
    #[command(flatten)]
    pub(crate) common: Common,
}

/// Runs the bench, and prints each figure beside its goal.
///
/// # Errors
/// If the host does not run, or loses a line.
pub(crate) async fn run(asked: &LogsBench, components: &Path) -> anyhow::Result<Value> {
    let cluster = LogSite::start(asked).await?;
    let host = HostProcess::start(&cluster.kubeconfig, components, Dropped::Logs).await?;
    let mut rounds = Vec::new();
    for number in 1..=asked.rounds {
        let figures = cluster.measure(&host, asked, number).await?;
        println!("round {number}: {figures}");
        rounds.push(figures);
    }
    host.stop().await?;
    Ok(shown_beside(&rounds, &GOALS, NOTES))
}

/// A served in-memory cluster, with pods that have printed their lines.
struct LogSite {
    kubeconfig: PathBuf,
    client: Client,
    _world: World,
}

impl LogSite {
    async fn start(asked: &LogsBench) -> anyhow::Result<Self> {
        let clock = Arc::new(oarlock_sim::RealClock);
        let cluster = oarlock_sim::Cluster::new(oarlock_sim::Options { clock: clock.clone(), ..Default::default() });
        let inside = Client::new(cluster.service(), "default");
        install::install(&inside, &manifests_for(Dropped::Logs).await?, Way::CreateMissing).await?;
        let world = World::start(inside.clone(), WorldOptions { nodes: 3, ..WorldOptions::new(1, clock) }).await?;
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await?;
        let url = format!("http://{}", listener.local_addr()?);
        tokio::spawn(async move { cluster.serve(listener).await });
        let kubeconfig = std::env::temp_dir().join(format!("oarlock-bench-logs-{}.kubeconfig", std::process::id()));
        std::fs::write(&kubeconfig, kubeconfig_of(&url))?;
        let client = Client::try_from(kube::Config::new(url.parse()?))?;
        let cluster = Self { kubeconfig, client, _world: world };
        cluster.talk(asked).await?;
        Ok(cluster)
    }

    fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), "default")
    }

    async fn talk(&self, asked: &LogsBench) -> anyhow::Result<()> {
        let command = json!(["sh", "-c", format!("seq -f '{TEXT} %g' {}; sleep 86400", asked.lines)]);
        let labels = json!({"app": "talkers"});
        let set = json!({"metadata": {"name": "talkers"}, "spec": {"serviceName": "talkers", "replicas": asked.targets,
            "podManagementPolicy": "Parallel", "selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels},
                "spec": {"containers": [{"name": "main", "image": "busybox", "command": command}]}}}});
        let sets: Api<StatefulSet> = Api::namespaced(self.client.clone(), "default");
        sets.create(&PostParams::default(), &serde_json::from_value(set)?).await?;
        let ready = async {
            loop {
                let pods = self.pods().list(&ListParams::default().labels("app=talkers")).await?.items;
                let is_ready = |pod: &&Pod| {
                    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
                    conditions.is_some_and(|all| all.iter().any(|one| one.type_ == "Ready" && one.status == "True"))
                };
                if pods.iter().filter(is_ready).count() >= asked.targets as usize {
                    // Each line has its own time, a microsecond after the line before.
                    sleep(Duration::from_secs(1) + Duration::from_micros(asked.lines.into())).await;
                    return anyhow::Ok(());
                }
                sleep(Duration::from_millis(100)).await;
            }
        };
        timeout(PATIENCE, ready).await.context("the pods are not Ready")?
    }

    /// Reads all logs and drops them. Returns the number of bytes.
    async fn read_bare(&self) -> anyhow::Result<u64> {
        let pods = self.pods().list(&ListParams::default().labels("app=talkers")).await?.items;
        let read = stream::iter(pods).map(|pod| async move {
            let name = pod.metadata.name.context("a pod has a name")?;
            let params = LogParams { timestamps: true, ..LogParams::default() };
            let mut log = Box::pin(self.pods().log_stream(&name, &params).await?);
            let (mut piece, mut bytes) = (vec![0; 64 * 1024], 0_u64);
            loop {
                match log.read(&mut piece).await? {
                    0 => return anyhow::Ok(bytes),
                    count => bytes += count as u64,
                }
            }
        });
        let all: Vec<u64> = read.buffer_unordered(AT_ONCE).try_collect().await?;
        Ok(all.iter().sum())
    }

    async fn measure(&self, host: &HostProcess, asked: &LogsBench, number: u32) -> anyhow::Result<Value> {
        let begun = Instant::now();
        let bytes = self.read_bare().await?;
        let bare = begun.elapsed();
        let idle = usage::rss_kib(host.id())?;
        let begun = Instant::now();
        let (job, peak) = self.collect(host, &format!("logs-{number}")).await?;
        let took = begun.elapsed();
        let lines = u64::from(asked.lines) * u64::from(asked.targets);
        let outputs = job.pointer("/status/outputs").and_then(Value::as_array).cloned().unwrap_or_default();
        let told = outputs.iter().find(|output| output.get("name").is_some_and(|name| name == "lines"));
        let told = told.and_then(|output| output.get("value")?.as_str()?.parse::<u64>().ok());
        ensure!(told == Some(lines), "{told:?} lines of {lines}: {job:#}");
        #[allow(clippy::cast_precision_loss, reason = "far below 2^52")]
        let (mib, rise) = (bytes as f64 / MIB, peak.saturating_sub(idle) as f64 / 1024.0);
        let [bare, took] = [bare, took].map(|time| mib / time.as_secs_f64());
        Ok(json!({"mib": round(mib), "bare": {"mibPerSecond": round(bare)}, "host": {"mibPerSecond": round(took)},
            "ofBare": round(took / bare), "memoryMib": round(rise)}))
    }

    /// Lets the host collect all logs. Returns the job at its end, and the peak memory of the host in KiB.
    async fn collect(&self, host: &HostProcess, name: &str) -> anyhow::Result<(Value, u64)> {
        let resource = resource("OpsJob");
        let jobs: Api<DynamicObject> = Api::all_with(self.client.clone(), &resource);
        let spec = json!({"type": "dumplog", "inputs": [{"name": "workload", "value": "default/statefulset/talkers"}]});
        jobs.create(&PostParams::default(), &DynamicObject::new(name, &resource).data(json!({ "spec": spec }))).await?;
        let mut peak = 0;
        let look = || {
            peak = peak.max(usage::rss_kib(host.id())?);
            Ok(())
        };
        let job = until_succeeded(&jobs, name, PATIENCE, look).await?;
        jobs.delete(name, &DeleteParams::default()).await?;
        Ok((job, peak))
    }
}
