//! One load carried by the host, and by a bare client that makes the same creates.
//!
//! Takes a load; yields the figures of both and their ratios. Both are processes of their own with the same account, one after
//! the other on the same cluster; which comes first alternates from round to round.

use std::path::Path;

use serde_json::{Map, Value, json};
use tokio::time::Instant;

use crate::children::{BareProcess, Dropped, HostProcess};
use crate::flows::loads::Load;
use crate::flows::watch::Seen;
use crate::flows::yard::Yard;
use crate::ground::Ground;
use crate::meter::Meter;
use crate::requests::{self, Request};
use crate::site::longest;
use crate::spread::{as_f64, quantile, round};

/// Figures of which the ratio of the host's to the bare client's is told.
const RATIOS: [&str; 5] = [
    "createdSeconds",
    "decidedSeconds",
    "cpuMillisecondsPerTarget",
    "apiServerCpuMillisecondsPerTarget",
    "kibReceivedPerTarget",
];

/// Status writes of an object that may follow each other at once, and are no part of its rate.
const BURST: usize = 3;

/// A load, and where it is carried.
pub(crate) struct Contest<'a> {
    pub(crate) ground: &'a Ground,
    pub(crate) components: &'a Path,
    pub(crate) load: &'a Load,
    /// A word for the names of namespaces.
    pub(crate) word: &'a str,
}

impl Contest<'_> {
    /// One round: both, in an order that alternates.
    ///
    /// # Errors
    /// If a contender does not come to its end.
    pub(crate) async fn round(&self, number: u32) -> anyhow::Result<Value> {
        let mut order = ["bare", "host"];
        if number.is_multiple_of(2) {
            order.reverse();
        }
        let mut figures = Map::new();
        for contender in order {
            eprintln!("{}: round {number}, {contender}", self.load.label);
            let namespace = format!("{}-{contender}-{number}", self.word);
            let yard = Yard::fresh(self.ground, &namespace, self.load.kind).await?;
            yard.add_nodes(&self.load.node_names(&namespace)).await?;
            let found = if contender == "bare" { self.bare(&yard).await? } else { self.host(&yard).await? };
            figures.insert(contender.to_owned(), found.into());
            yard.remove().await?;
        }
        let figures = Value::Object(figures);
        let ratios = ratios(&figures);
        Ok(json!({"host": figures.get("host"), "bare": figures.get("bare"), "ratios": ratios}))
    }

    async fn bare(&self, yard: &Yard) -> anyhow::Result<Map<String, Value>> {
        let file = std::env::temp_dir().join(format!("oarlock-bench-{}.creates.json", std::process::id()));
        let wanted = self.load.wanted(&yard.namespace, &yard.owner().await?);
        let lines: Vec<Value> = wanted.iter().map(super::bare::Wanted::to_json).collect();
        std::fs::write(&file, Value::Array(lines).to_string())?;
        let path = file.to_string_lossy().into_owned();
        let arguments = ["bare-flows", "--namespace", &yard.namespace, "--file", &path];
        let mut process = BareProcess::start_with(&self.ground.kubeconfig()?, arguments).await?;
        std::fs::remove_file(&file)?;
        let mut meter = Meter::start(self.ground, process.id()?)?;
        let begun = Instant::now();
        process.work(longest(self.load.jobs)).await?;
        let figures = self.measured(yard, begun, &mut meter).await?;
        process.stop().await?;
        Ok(figures)
    }

    async fn host(&self, yard: &Yard) -> anyhow::Result<Map<String, Value>> {
        let host = HostProcess::start(&self.ground.kubeconfig()?, self.components, Dropped::Replace).await?;
        let figures = self.by(yard, host.id()).await?;
        host.stop().await?;
        Ok(figures)
    }

    /// Has a host that runs carry the load.
    ///
    /// # Errors
    /// If it does not come to its end.
    pub(crate) async fn by(&self, yard: &Yard, host: u32) -> anyhow::Result<Map<String, Value>> {
        let (objects, longest) = (self.load.objects.len(), longest(self.load.jobs));
        let manifests = self.load.manifests(&yard.namespace);
        let mut meter = Meter::start(self.ground, host)?;
        let begun = Instant::now();
        yard.create(self.load.kind, &manifests).await?;
        yard.watch.until("every object to succeed", longest, |seen| seen.succeeded.len() >= objects).await?;
        let succeeded = begun.elapsed().as_secs_f64();
        let mut figures = self.measured(yard, begun, &mut meter).await?;
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

    /// What is measured of either.
    async fn measured(&self, yard: &Yard, begun: Instant, meter: &mut Meter<'_>) -> anyhow::Result<Map<String, Value>> {
        let (jobs, longest) = (self.load.jobs, longest(self.load.jobs));
        yard.watch.until("every Job to be created", longest, |seen| seen.created.len() >= jobs).await?;
        yard.watch.until("every Job to be decided", longest, |seen| seen.decided.len() >= jobs).await?;
        meter.until_quiet().await?;
        let seen = yard.watch.seen();
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

    /// How long each dependant waited once its dependency was decided, in milliseconds.
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

/// True for a write of what ends so.
fn of(request: &Request, ending: &str) -> bool {
    request.is_write() && request.resource.ends_with(ending)
}

/// The host's figures divided by the bare client's.
fn ratios(figures: &Value) -> Value {
    let figure = |who: &str, name: &str| figures.get(who)?.get(name)?.as_f64();
    let ratio = |name: &&str| {
        let bare = figure("bare", name).filter(|bare| *bare > 0.0)?;
        Some(((*name).to_owned(), round(figure("host", name)? / bare).into()))
    };
    RATIOS.iter().filter_map(ratio).collect::<Map<_, _>>().into()
}
