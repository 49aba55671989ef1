//! The scenario `ops-jobs`: how long an OpsJob takes to find all nodes, and what very many OpsJobs cost a host.
//!
//! It measures the time from an OpsJob for all nodes to its OperationJob. Then it creates an OpsJob for each of a fifth of the
//! nodes, and these stay in work. It measures how long a killed and restarted host takes to act, the host's memory, and its writes
//! while nothing happens.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use kube::api::{Api, DeleteParams, DynamicObject, ListParams, PostParams};
use oarlock_sim::world::{OperationTimings, Span, Timings, WorldOptions};
use oarlock_support::accounts::Account;
use serde_json::{Map, Value, json};
use tokio::time::{Instant, sleep, timeout};

use crate::arguments::Operations;
use crate::backend::{Backend, Tail};
use crate::bench_cluster::{BenchCluster, longest, quick};
use crate::children::{Dropped, HostProcess};
use crate::goals::{self, Goal};
use crate::job_watch;
use crate::node_setup::TASK_START;
use crate::ops_objects::{ASK_EVERY, resource};
use crate::requests::Request;
use crate::setup::{figures_of, run_of};
use crate::spread::round;
use crate::usage;

/// Jobs that are created at once.
const IN_FLIGHT: usize = 16;
/// Nodes per job that stays in work.
const NODES_OF_A_JOB: usize = 5;
/// The time without a write after which the host has nothing left to report.
const QUIET: Duration = Duration::from_secs(5);
/// How long the scenario observes an idle host.
const IDLE: Duration = Duration::from_secs(30);
/// The namespace of the OperationJobs.
const CHILDREN: &str = "oarlock-ops";

const GOALS: [Goal; 4] = [
    Goal {
        figure: "/host/createdToChildSeconds",
        name: "seconds from an OpsJob for all nodes to its OperationJob",
        goal: "at most 5 (5,000 nodes)",
    },
    Goal {
        figure: "/host/restartToFirstWriteSeconds",
        name: "seconds from a restart to the first write",
        goal: "at most 10 (1,000 live jobs)",
    },
    Goal { figure: "/host/peakRssMib", name: "memory, MiB", goal: "at most 150 (1,000 live jobs)" },
    Goal { figure: "/host/writesWhenIdle", name: "writes in 30 s without news", goal: "0" },
];

const NOTES: &str = "\
- createdToChildSeconds: from the reply to the create of the OpsJob until its OperationJob is there, asked for every 20 ms.
- liveJobs: OpsJobs of one node each whose reboot takes longer than the measurement; restartToFirstWriteSeconds: from the start of
  the new process until the API server had answered its first write but those of the lease; peakRssMib: of that process.
- statusWritesPerJob: of OpsJobs, from their creation until nothing was left to say.";

/// Runs the scenario.
///
/// # Errors
/// If a cluster cannot be started, or a host does not start.
pub(crate) async fn run(asked: &Operations, nodes: usize, components: &Path) -> anyhow::Result<Value> {
    let backend = Backend::for_contenders(asked.on).await?;
    backend.install(Dropped::Ops).await?;
    let mut rounds = Vec::new();
    for number in 1..=asked.rounds(1) {
        eprintln!("{nodes} nodes: round {number}");
        rounds.push(once(&backend, &format!("ops-{number}"), nodes, components).await?);
    }
    Ok(figures_of(asked, vec![goals::beside(run_of("ops-jobs", nodes, rounds), &GOALS)], NOTES))
}

async fn once(backend: &Backend, name: &str, nodes: usize, components: &Path) -> anyhow::Result<Value> {
    // A node that goes down stays down for longer than the measurement.
    let operations = OperationTimings { reboot: Span::millis(3_600_000, 3_600_000), ..OperationTimings::default() };
    let timings = Timings { start: TASK_START, ..quick() };
    let usual = WorldOptions::new(1, Arc::new(oarlock_sim::RealClock));
    let cluster =
        BenchCluster::in_world(backend, name, WorldOptions { timings, operations, nodes: 0, ..usual }).await?;
    let names = cluster.add_nodes(nodes).await?;
    let mut host = HostProcess::start(&backend.kubeconfig()?, components, Dropped::Ops).await?;
    let client = backend.client(Account::Admin).await?;
    let jobs: Api<DynamicObject> = Api::all_with(client.clone(), &resource("OpsJob"));
    let children: Api<DynamicObject> = Api::namespaced_with(client, CHILDREN, &job_watch::resource());

    let inputs = json!([{"name": "cluster", "value": "local"}]);
    let to_child = created_to_child((&jobs, &children), &format!("{name}-all"), inputs, longest(nodes)).await?;
    let live = nodes / NODES_OF_A_JOB;
    let mut tail = backend.tail()?;
    let made =
        stream::iter(names.iter().take(live)).map(|node| reboot(&jobs, node, json!([{"name": "node", "value": node}])));
    made.buffer_unordered(IN_FLIGHT).try_collect::<Vec<()>>().await?;
    timeout(longest(nodes), until_running(&jobs, live)).await.context("not all jobs run")??;
    let requests = until_quiet(backend, &mut tail).await?;
    let statuses = requests.iter().filter(|one| one.is_write() && one.resource == "opsjobs/status").count();
    sleep(IDLE).await;
    let idle = backend.more(&mut tail)?.iter().filter(|one| one.is_write()).count();

    host.kill();
    until_quiet(backend, &mut tail).await?;
    let begun = Instant::now();
    host.start_again()?;
    let first = timeout(longest(nodes), async {
        while !backend.more(&mut tail)?.iter().any(Request::is_write) {
            sleep(ASK_EVERY).await;
        }
        anyhow::Ok(begun.elapsed())
    });
    let first = first.await.context("the new host writes nothing")??;
    host.leads().await?;
    until_quiet(backend, &mut tail).await?;
    #[allow(clippy::cast_precision_loss, reason = "far below 2^52")]
    let [peak, statuses] = [usage::peak_rss_kib(host.id())? as f64 / 1024.0, statuses as f64 / live.max(1) as f64];
    let figures: Map<String, Value> = [
        ("createdToChildSeconds", json!(round(to_child.as_secs_f64()))),
        ("liveJobs", json!(live)),
        ("restartToFirstWriteSeconds", json!(round(first.as_secs_f64()))),
        ("peakRssMib", json!(round(peak))),
        ("statusWritesPerJob", json!(round(statuses))),
        ("writesWhenIdle", json!(idle)),
    ]
    .into_iter()
    .map(|(name, figure)| (name.to_owned(), figure))
    .collect();
    let gone = stream::iter(names.iter().take(live)).map(|node| end(&jobs, node));
    gone.buffer_unordered(IN_FLIGHT).try_collect::<Vec<()>>().await?;
    host.stop().await?;
    Ok(figures.into())
}

async fn reboot(jobs: &Api<DynamicObject>, name: &str, inputs: Value) -> anyhow::Result<()> {
    let object =
        DynamicObject::new(name, &resource("OpsJob")).data(json!({"spec": {"type": "reboot", "inputs": inputs}}));
    jobs.create(&PostParams::default(), &object).await.map(drop).with_context(|| format!("cannot create OpsJob {name}"))
}

/// Deletes a job, which ends it by force, and waits until it is gone.
async fn end(jobs: &Api<DynamicObject>, name: &str) -> anyhow::Result<()> {
    jobs.delete(name, &DeleteParams::default()).await?;
    while jobs.get_opt(name).await?.is_some() {
        sleep(ASK_EVERY).await;
    }
    Ok(())
}

/// Returns how long a job for all nodes takes until its OperationJob exists. The job is ended then.
async fn created_to_child(
    (jobs, children): (&Api<DynamicObject>, &Api<DynamicObject>),
    name: &str,
    inputs: Value,
    longest: Duration,
) -> anyhow::Result<Duration> {
    reboot(jobs, name, inputs).await?;
    let begun = Instant::now();
    let made = timeout(longest, async {
        while children.get_opt(name).await?.is_none() {
            sleep(ASK_EVERY).await;
        }
        anyhow::Ok(begun.elapsed())
    });
    let made = made.await.context("no OperationJob is made")??;
    timeout(longest, end(jobs, name)).await.context("the job for all nodes does not end")??;
    Ok(made)
}

async fn until_running(jobs: &Api<DynamicObject>, live: usize) -> anyhow::Result<()> {
    loop {
        let all = jobs.list(&ListParams::default()).await?.items;
        let is_running =
            |job: &&DynamicObject| job.data.pointer("/status/phase").is_some_and(|phase| phase == "Running");
        if all.iter().filter(is_running).count() >= live {
            return Ok(());
        }
        sleep(Duration::from_secs(1)).await;
    }
}

/// Waits until the host has written nothing for a while, and returns the requests until then.
async fn until_quiet(backend: &Backend, tail: &mut Tail) -> anyhow::Result<Vec<Request>> {
    let (mut all, mut wrote) = (Vec::new(), Instant::now());
    while wrote.elapsed() < QUIET {
        sleep(ASK_EVERY).await;
        let more = backend.more(tail)?;
        if more.iter().any(Request::is_write) {
            wrote = Instant::now();
        }
        all.extend(more);
    }
    Ok(all)
}
