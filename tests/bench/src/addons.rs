//! The scenario `addons`: one OpsJob runs the script of a template on each node, twenty nodes at a time.
//!
//! It measures the time of the job beside the *pipeline bound* (`pipeline.rs`), which no host can beat, and checks that each script
//! ran once. A script lasts from the creation of its pod until its container has ended.

use std::path::Path;
use std::sync::Arc;

use anyhow::Context as _;
use kube::api::{Api, DeleteParams, DynamicObject, PostParams};
use oarlock_core::object::own::{OPS_NAMESPACE, TASKS_NAMESPACE};
use oarlock_sim::world::{Span, Timings, WorldOptions};
use oarlock_support::accounts::Account;
use serde_json::{Map, Value, json};
use tokio::time::Instant;

use crate::arguments::Operations;
use crate::backend::Backend;
use crate::bench_cluster::{BenchCluster, longest, quick};
use crate::checks;
use crate::children::{Dropped, HostProcess};
use crate::cleanup;
use crate::goals::{self, Goal};
use crate::ideal::Ideal;
use crate::node_setup::TASK_START;
use crate::ops_objects::{resource, until_succeeded};
use crate::pipeline::Operation;
use crate::setup::{figures_of, run_of};
use crate::usage;

/// Nodes in work at once, unless `--parallelism` gives another number.
const BATCH: u32 = 20;
/// How many seconds a script takes: like a short check, and like an installation.
const TAKES: [u64; 2] = [1, 5];

const GOALS: [Goal; 3] = [
    Goal {
        figure: "/host/timeToPipelineBound",
        name: "time of the job to the least that is possible",
        goal: "at most 1.15",
    },
    Goal { figure: "/host/notOnce", name: "nodes on which the script did not run once", goal: "0" },
    Goal { figure: "/host/peakRssMib", name: "memory, MiB", goal: "told" },
];

const NOTES: &str = "\
seconds: from the create of the OpsJob until its status said that it has ended, asked for every 20 ms. pipelineBoundSeconds: the greater of
the sum of all scripts' durations divided by the batch and the longest of them; a script lasts from the creation of its pod until its
container has ended, by the world's ledger of this very run. Beside its script, a node is tainted and gets rid of the taint.";

/// Runs the scenario.
///
/// # Errors
/// If a cluster cannot be started, or a host does not start.
pub(crate) async fn run(asked: &Operations, nodes: usize, components: &Path) -> anyhow::Result<Value> {
    let backend = Backend::for_contenders(asked.on).await?;
    backend.install(Dropped::Addon).await?;
    let mut runs = Vec::new();
    for seconds in TAKES {
        let mut rounds = Vec::new();
        for number in 1..=asked.rounds(1) {
            eprintln!("{nodes} nodes, scripts of {seconds} s: round {number}");
            let (name, batch) = (format!("addon-{seconds}-{number}"), asked.parallelism.unwrap_or(BATCH));
            rounds.push(Addon { backend: &backend, components, nodes, batch, seconds }.played(&name).await?);
        }
        let title = format!("addons, scripts of {seconds} s");
        runs.push(goals::beside(run_of(&title, nodes, rounds), &GOALS));
    }
    Ok(figures_of(asked, runs, NOTES))
}

/// One job and its cluster.
struct Addon<'a> {
    backend: &'a Backend,
    components: &'a Path,
    nodes: usize,
    batch: u32,
    /// How many seconds the script takes.
    seconds: u64,
}

impl Addon<'_> {
    async fn played(&self, name: &str) -> anyhow::Result<Value> {
        let Self { backend, components, nodes, batch, seconds } = *self;
        let script = format!("# sim: sleep {seconds}\n# sim: output done");
        let takes = Span::millis(1_000 * seconds, 1_000 * seconds);
        let timings = Timings { start: TASK_START, ..quick() };
        let usual = WorldOptions::new(1, Arc::new(oarlock_sim::RealClock));
        let cluster = BenchCluster::in_world(
            backend,
            name,
            WorldOptions { timings, namespaces: vec![OPS_NAMESPACE.to_owned()], nodes: 0, ..usual },
        )
        .await?;
        let names = cluster.add_nodes(nodes).await?;
        let host = HostProcess::start(&backend.kubeconfig()?, components, Dropped::Addon).await?;
        let client = backend.client(Account::Admin).await?;
        let of = |kind: &str| Api::<DynamicObject>::all_with(client.clone(), &resource(kind));
        let template = DynamicObject::new(name, &resource("AddonTemplate")).data(json!({"spec": {"script": script}}));
        of("AddonTemplate").create(&PostParams::default(), &template).await.context("cannot make the template")?;
        let (jobs, inputs) = (of("OpsJob"), [("cluster", "local"), ("addon.template", name)]);
        let inputs: Vec<Value> = inputs.iter().map(|(name, value)| json!({"name": name, "value": value})).collect();
        let spec = json!({"type": "addon", "batchCount": batch, "inputs": inputs});
        let begun = Instant::now();
        jobs.create(
            &PostParams::default(),
            &DynamicObject::new(name, &resource("OpsJob")).data(json!({ "spec": spec })),
        )
        .await?;
        until_succeeded(&jobs, name, longest(nodes), || Ok(())).await?;
        let took = begun.elapsed();
        let scripts = checks::of(&cluster.world.ledger().entries());
        let operations: Vec<Operation> = scripts.values().flatten().map(|script| script.operation).collect();
        let not_once = names.iter().filter(|name| cluster.world.commands_begun(name) != 1).count();
        #[allow(clippy::cast_precision_loss, reason = "far below 2^52")]
        let peak = usage::peak_rss_kib(host.id())? as f64 / 1024.0;
        let mut figures: Map<String, Value> =
            Ideal { targets: nodes, at_once: batch, configured: &[TASK_START, takes] }.figures(&operations, took);
        figures.insert("notOnce".to_owned(), json!(not_once));
        figures.insert("peakRssMib".to_owned(), json!(crate::spread::round(peak)));
        jobs.delete(name, &DeleteParams::default()).await?;
        of("AddonTemplate").delete(name, &DeleteParams::default()).await?;
        host.stop().await?;
        cluster.remove().await?;
        cleanup::remove_nodes(&client, TASKS_NAMESPACE).await?;
        Ok(figures.into())
    }
}
