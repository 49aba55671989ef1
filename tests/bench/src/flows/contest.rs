//! Runs one load with the host and with a bare client that makes the same creates.
//!
//! It measures both contenders, and their ratios. Both are separate processes with the same account. They run one after the other
//! on the same cluster, and their order alternates from round to round.

use std::path::Path;

use serde_json::{Map, Value, json};
use tokio::time::Instant;

use crate::backend::Backend;
use crate::bench_cluster::longest;
use crate::children::{BareProcess, Dropped, HostProcess};
use crate::flows::cluster::FlowCluster;
use crate::flows::loads::Load;
use crate::flows::watch::Seen;
use crate::meter::Meter;
use crate::requests::{self, Request};
use crate::spread::{as_f64, quantile, round};

/// The figures whose ratio of host to bare client is reported.
const RATIOS: [&str; 5] = [
    "createdSeconds",
    "decidedSeconds",
    "cpuMillisecondsPerTarget",
    "apiServerCpuMillisecondsPerTarget",
    "kibReceivedPerTarget",
];

/// The burst of status writes of an object. They may follow each other at once and do not count for its rate.
const BURST: usize = 3;

/// A load and the place where it runs.
pub(crate) struct Contest<'a> {
    pub(crate) backend: &'a Backend,
    pub(crate) components: &'a Path,
    pub(crate) load: &'a Load,
    /// A word for the names of namespaces.
    pub(crate) word: &'a str,
}

impl Contest<'_> {
    /// Runs one round with both contenders, in an order that alternates.
    ///
    /// # Errors
    /// If a contender does not finish.
    pub(crate) async fn round(&self, number: u32) -> anyhow::Result<Value> {
        let mut order = ["bare", "host"];
        if number.is_multiple_of(2) {
            order.reverse();
        }
        let mut figures = Map::new();
        for contender in order {
            eprintln!("{}: round {number}, {contender}", self.load.label);
            let namespace = format!("{}-{contender}-{number}", self.word);
            let cluster = FlowCluster::fresh(self.backend, &namespace, self.load.kind).await?;
            cluster.add_nodes(&self.load.node_names(&namespace)).await?;
            let found = if contender == "bare" { self.bare(&cluster).await? } else { self.host(&cluster).await? };
            figures.insert(contender.to_owned(), found.into());
            cluster.remove().await?;
        }
        let figures = Value::Object(figures);
        let ratios = ratios(&figures);
        Ok(json!({"host": figures.get("host"), "bare": figures.get("bare"), "ratios": ratios}))
    }

    async fn bare(&self, cluster: &FlowCluster) -> anyhow::Result<Map<String, Value>> {
        let file = std::env::temp_dir().join(format!("oarlock-bench-{}.creates.json", std::process::id()));
        let wanted = self.load.wanted(&cluster.namespace, &cluster.owner().await?);
        let lines: Vec<Value> = wanted.iter().map(super::bare::Wanted::to_json).collect();
        std::fs::write(&file, Value::Array(lines).to_string())?;
        let path = file.to_string_lossy().into_owned();
        let arguments = ["bare-flows", "--namespace", &cluster.namespace, "--file", &path];
        let mut process = BareProcess::start_with(&self.backend.kubeconfig()?, arguments).await?;
        std::fs::remove_file(&file)?;
        let mut meter = Meter::start(self.backend, process.id()?)?;
        let begun = Instant::now();
        process.work(longest(self.load.jobs)).await?;
        let figures = self.measured(cluster, begun, &mut meter).await?;
        process.stop().await?;
        Ok(figures)
    }

    async fn host(&self, cluster: &FlowCluster) -> anyhow::Result<Map<String, Value>> {
        let host = HostProcess::start(&self.backend.kubeconfig()?, self.components, Dropped::Replace).await?;
        let figures = self.by(cluster, host.id()).await?;
        host.stop().await?;
        Ok(figures)
    }

    /// Runs the load with a running host, and returns its figures.
    ///
    /// # Errors
    /// If the host does not finish.
    pub(crate) async fn by(&self, cluster: &FlowCluster, host: u32) -> anyhow::Result<Map<String, Value>> {
        let (objects, longest) = (self.load.objects.len(), longest(self.load.jobs));
        let manifests = self.load.manifests(&cluster.namespace);
        let mut meter = Meter::start(self.backend, host)?;
        let begun = Instant::now();
        cluster.create(self.load.kind, &manifests).await?;
        cluster.watch.until("every object to succeed", longest, |seen| seen.succeeded.len() >= objects).await?;
        let succeeded = begun.elapsed().as_secs_f64();
        let mut figures = self.measured(cluster, begun, &mut meter).await?;
        figures.insert("succeededSeconds".to_owned(), round(succeeded).into());
        figures.insert("objectsPerMinute".to_owned(), round(60.0 * as_f64(objects) / succeeded).into());
        let writes = |ending: &str| meter.requests().iter().filter(|one| of(one, ending)).count();
        let beyond = writes("/status").saturating_sub(BURST * objects);
        let per_second = |count: usize, of: f64| round(as_f64(count) / (succeeded * of));
        figures.insert("statusWritesPerSecondAndObject".to_owned(), per_second(beyond, as_f64(objects)).into());
        let records = as_f64(self.load.jobs / objects.max(1)).max(250.0) / 250.0;
        figures.insert(
            "recordWritesPerSecondAndRecord".to_owned(),
            per_second(writes("jobrecords"), records.ceil()).into(),
        );
        Ok(figures)
    }

    /// Returns the figures that both contenders have.
    async fn measured(
        &self,
        cluster: &FlowCluster,
        begun: Instant,
        meter: &mut Meter<'_>,
    ) -> anyhow::Result<Map<String, Value>> {
        let (jobs, longest) = (self.load.jobs, longest(self.load.jobs));
        cluster.watch.until("every Job to be created", longest, |seen| seen.created.len() >= jobs).await?;
        cluster.watch.until("every Job to be decided", longest, |seen| seen.decided.len() >= jobs).await?;
        meter.until_quiet().await?;
        let seen = cluster.watch.seen();
        let last = |times: &std::collections::BTreeMap<String, Instant>| {
            times.values().max().map(|at| round(at.saturating_duration_since(begun).as_secs_f64()))
        };
        let mut figures = Map::new();
        figures.insert("createdSeconds".to_owned(), json!(last(&seen.created)));
        figures.insert("decidedSeconds".to_owned(), json!(last(&seen.decided)));
        figures.extend(self.waits(&seen));
        figures.extend(meter.figures(jobs)?);
        figures.remove("writes");
        figures.insert("requests".to_owned(), requests::by_verb(meter.requests(), jobs));
        Ok(figures)
    }

    /// Returns how long each dependent waited after its dependency was decided, in milliseconds.
    fn waits(&self, seen: &Seen) -> Map<String, Value> {
        let wait = |(dependant, dependency): &(String, String)| {
            let waited = seen.created.get(dependant)?.saturating_duration_since(*seen.decided.get(dependency)?);
            Some(waited.as_secs_f64() * 1000.0)
        };
        let waits: Vec<f64> = self.load.edges.iter().filter_map(wait).collect();
        let figure = |name: &str, share: f64| Some((name.to_owned(), round(quantile(&waits, share)?).into()));
        [figure("decidedToCreatedP50Milliseconds", 0.5), figure("decidedToCreatedP99Milliseconds", 0.99)]
            .into_iter()
            .flatten()
            .collect()
    }
}

/// Returns true if the request is a write of a resource with this ending.
fn of(request: &Request, ending: &str) -> bool {
    request.is_write() && request.resource.ends_with(ending)
}

/// Returns the host's figures divided by the bare client's.
fn ratios(figures: &Value) -> Value {
    let figure = |who: &str, name: &str| figures.get(who)?.get(name)?.as_f64();
    let ratio = |name: &&str| {
        let bare = figure("bare", name).filter(|bare| *bare > 0.0)?;
        Some(((*name).to_owned(), round(figure("host", name)? / bare).into()))
    };
    RATIOS.iter().filter_map(ratio).collect::<Map<_, _>>().into()
}
