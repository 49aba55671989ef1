//! The scenario `ops-jobs`: how long an OpsJob takes to find all nodes, and what very many of them cost a host.
//!
//! Takes the number of nodes; yields the time from an OpsJob for all of them to its OperationJob, and of a fifth as many OpsJobs for a
//! node each, which stay in work: what a host that is killed and started again needs until it acts, its memory, and what it writes
//! while nothing happens. May not judge.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use kube::api::{Api, DeleteParams, DynamicObject, ListParams, PostParams};
use oarlock_bed::accounts::Account;
use oarlock_sim::world::{OperationTimings, Span, Timings, WorldOptions};
use serde_json::{Map, Value, json};
use tokio::time::{Instant, sleep, timeout};

use crate::arguments::Operations;
use crate::children::{Dropped, HostProcess};
use crate::goals::{self, Goal};
use crate::ground::{Ground, Tail};
use crate::job_watch;
use crate::node_scene::TASK_START;
use crate::ops_objects::{ASK_EVERY, resource};
use crate::requests::Request;
use crate::scene::{figures_of, run_of};
use crate::site::{Site, longest, quick};
use crate::spread::round;
use crate::usage;

/// Jobs that are made at once.
const IN_FLIGHT: usize = 16;
/// Nodes to a job that stays in work.
const NODES_OF_A_JOB: usize = 5;
/// No write for so long means that nothing is left to say.
const QUIET: Duration = Duration::from_secs(5);
/// For how long nothing happens.
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

/// Runs it.
///
/// # Errors
/// If a cluster cannot be started or a host does not start.
pub(crate) async fn run(asked: &Operations, nodes: usize, components: &Path) -> anyhow::Result<Value> {
    let ground = Ground::for_contenders(asked.on).await?;
    ground.install(Dropped::Ops).await?;
    let mut rounds = Vec::new();
    for number in 1..=asked.rounds(1) {
        eprintln!("{nodes} nodes: round {number}");
        rounds.push(once(&ground, &format!("ops-{number}"), nodes, components).await?);
    }
    Ok(figures_of(asked, vec![goals::beside(run_of("ops-jobs", nodes, rounds), &GOALS)], NOTES))
}

async fn once(ground: &Ground, name: &str, nodes: usize, components: &Path) -> anyhow::Result<Value> {
    // A node that goes down stays down for longer than this takes.
    let operations = OperationTimings { reboot: Span::millis(3_600_000, 3_600_000), ..OperationTimings::default() };
    let timings = Timings { start: TASK_START, ..quick() };
    let usual = WorldOptions::new(1, Arc::new(oarlock_sim::RealClock));
    let site = Site::in_world(ground, name, WorldOptions { timings, operations, nodes: 0, ..usual }).await?;
    let names = site.add_nodes(nodes).await?;
    let mut host = HostProcess::start(&ground.kubeconfig()?, components, Dropped::Ops).await?;
    let client = ground.client(Account::Admin).await?;
    let jobs: Api<DynamicObject> = Api::all_with(client.clone(), &resource("OpsJob"));
    let children: Api<DynamicObject> = Api::namespaced_with(client, CHILDREN, &job_watch::resource());

    let inputs = json!([{"name": "cluster", "value": "local"}]);
    let to_child = created_to_child((&jobs, &children), &format!("{name}-all"), inputs, longest(nodes)).await?;
    let live = nodes / NODES_OF_A_JOB;
    let mut tail = ground.tail()?;
    let made =
        stream::iter(names.iter().take(live)).map(|node| reboot(&jobs, node, json!([{"name": "node", "value": node}])));
    made.buffer_unordered(IN_FLIGHT).try_collect::<Vec<()>>().await?;
    timeout(longest(nodes), until_running(&jobs, live)).await.context("not all jobs run")??;
    let requests = until_quiet(ground, &mut tail).await?;
    let statuses = requests.iter().filter(|one| one.is_write() && one.resource == "opsjobs/status").count();
    sleep(IDLE).await;
    let idle = ground.more(&mut tail)?.iter().filter(|one| one.is_write()).count();

    host.kill();
    until_quiet(ground, &mut tail).await?;
    let begun = Instant::now();
    host.start_again()?;
    let first = timeout(longest(nodes), async {
        while !ground.more(&mut tail)?.iter().any(Request::is_write) {
            sleep(ASK_EVERY).await;
        }
        anyhow::Ok(begun.elapsed())
    });
    let first = first.await.context("the new host writes nothing")??;
    host.leads().await?;
    until_quiet(ground, &mut tail).await?;
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

/// How long a job for all nodes takes until its OperationJob is there. It is ended then.
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

/// The requests until the host has written nothing for a while.
async fn until_quiet(ground: &Ground, tail: &mut Tail) -> anyhow::Result<Vec<Request>> {
    let (mut all, mut wrote) = (Vec::new(), Instant::now());
    while wrote.elapsed() < QUIET {
        sleep(ASK_EVERY).await;
        let more = ground.more(tail)?;
        if more.iter().any(Request::is_write) {
            wrote = Instant::now();
        }
        all.extend(more);
    }
    Ok(all)
}
