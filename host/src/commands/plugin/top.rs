//! `oarlock plugin top`: shows the use of each limit by each plugin and version, from the metrics of the leading host.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use clap::Args;
use http::Request;
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::Api;
use kube::{Client, Config};
use oarlock_kube::transport::client::connect;
use oarlock_view::escaped;
use serde::Serialize;

use super::ListFormat;
use crate::commands::host::ClusterArgs;
use crate::commands::output::{json, print};
use crate::host::LEASE;
use crate::manifests::HOST_NAMESPACE;

pub(super) const EXAMPLES: &str = "\
Examples:
  oarlock plugin top                                  the leading host of the cluster; needs `get` on pods/proxy
  oarlock plugin top --url http://127.0.0.1:8080      a host on this machine, or behind `kubectl port-forward`
  oarlock plugin top -o json | jq '.[] | select(.peaks.callMilliseconds > 80)'

A number is the highest use since the host started or the grant changed, in percent of the limit, rounded up to tens. A plugin that
reaches 100 has calls that are stopped: raise the limit in its grant, or ask its author.";

/// Arguments of `oarlock plugin top`.
#[derive(Debug, Args)]
pub(crate) struct TopArgs {
    /// Address of a host's metrics [default: the pod of the leading host, through the API server]
    #[arg(long, value_name = "URL")]
    url: Option<String>,
    /// Namespace of the host
    #[arg(long, value_name = "NAMESPACE", default_value = HOST_NAMESPACE)]
    namespace: String,
    /// Output format
    #[arg(short, long, value_enum, default_value = "text")]
    output: ListFormat,
    #[command(flatten)]
    cluster: ClusterArgs,
}

/// The limits in the order of the columns, with their headings.
const COLUMNS: [(&str, &str); 5] = [
    ("callMilliseconds", "TIME%"),
    ("memoryMiB", "MEMORY%"),
    ("outputBytes", "ANSWER%"),
    ("logBytes", "LOG%"),
    ("hostCalls", "CALLS%"),
];
/// The gauge of the peaks.
const PEAKS: &str = "oarlock_plugin_limit_peak_percent";
/// The counter of visits.
const VISITS: &str = "oarlock_plugin_visits_total";

/// The use of the limits by one version of a plugin.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
struct UseOfLimits {
    plugin: String,
    version: String,
    /// The peak use in percent, by the name of the limit.
    peaks: BTreeMap<String, u64>,
    /// The visits of all versions of the plugin since the host started.
    visits: u64,
    /// The visits that trapped or exceeded a limit.
    stopped: u64,
}

/// Prints the use.
pub(super) async fn run(args: TopArgs) -> anyhow::Result<ExitCode> {
    let TopArgs { url, namespace, output, cluster } = args;
    let text = match url {
        Some(url) => of_url(&url).await?,
        None => of_leader(&namespace, cluster).await?,
    };
    let uses = read(&text);
    match output {
        ListFormat::Text => print(&table(&uses)),
        ListFormat::Json => print(&json(&uses)?),
    }
}

async fn of_url(url: &str) -> anyhow::Result<String> {
    let address: http::Uri =
        url.parse().with_context(|| format!("cannot use {url}: write it as http://127.0.0.1:8080"))?;
    let client = Client::try_from(Config::new(address)).with_context(|| format!("cannot use {url}"))?;
    let asked = Request::get("/metrics").body(Vec::new()).context("cannot ask for the metrics")?;
    client.request_text(asked).await.with_context(|| format!("cannot read the metrics of {url}"))
}

/// Returns the metrics of the pod that leads, through the API server.
async fn of_leader(namespace: &str, cluster: ClusterArgs) -> anyhow::Result<String> {
    let (client, _server) = connect(&cluster.source()?).await?;
    let lease = Api::<Lease>::namespaced(client.clone(), namespace).get(LEASE).await;
    let lease = lease.with_context(|| format!("cannot read the lease {namespace}/{LEASE} of the host"))?;
    let Some(pod) = lease.spec.and_then(|spec| spec.holder_identity).filter(|pod| !pod.is_empty()) else {
        bail!("no host leads in {namespace}: `kubectl get pods -n {namespace}` shows whether one runs");
    };
    let path = format!("/api/v1/namespaces/{namespace}/pods/{pod}:8080/proxy/metrics");
    let asked = Request::get(path).body(Vec::new()).context("cannot ask for the metrics")?;
    client.request_text(asked).await.with_context(|| {
        format!("cannot read the metrics of the pod {namespace}/{pod}: forward a port to it, and use --url")
    })
}

/// One sample: its name, labels and value.
struct Sample<'a> {
    name: &'a str,
    labels: BTreeMap<&'a str, &'a str>,
    value: f64,
}

/// Parses a line of metrics. The labels of a plugin have no escaped characters.
fn sample(line: &str) -> Option<Sample<'_>> {
    let (series, value) = line.rsplit_once(' ')?;
    let (name, labels) = series.strip_suffix('}')?.split_once('{')?;
    let pairs = labels.split("\",").filter_map(|pair| pair.split_once("=\""));
    let labels = pairs.map(|(name, value)| (name.trim_start_matches(','), value.trim_end_matches('"'))).collect();
    Some(Sample { name, labels, value: value.parse().ok()? })
}

/// Returns the use of each plugin and version in a text of metrics.
fn read(text: &str) -> Vec<UseOfLimits> {
    let mut uses: BTreeMap<(&str, &str), UseOfLimits> = BTreeMap::new();
    let mut visits: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    for Sample { name, labels, value } in text.lines().filter_map(sample) {
        let of = |label: &str| labels.get(label).copied().unwrap_or_default();
        // A gauge of percents and a counter are whole numbers.
        let number = value as u64;
        if name == PEAKS {
            let entry = uses.entry((of("plugin"), of("version"))).or_default();
            entry.peaks.insert(of("limit").to_owned(), number);
        } else if name == VISITS {
            let (all, stopped) = visits.entry(of("plugin")).or_default();
            *all += number;
            *stopped += if ["Trapped", "LimitExceeded"].contains(&of("outcome")) { number } else { 0 };
        }
    }
    let named = uses.into_iter().map(|((plugin, version), found)| {
        let (visits, stopped) = visits.get(plugin).copied().unwrap_or_default();
        UseOfLimits { plugin: plugin.to_owned(), version: version.to_owned(), visits, stopped, ..found }
    });
    named.collect()
}

fn table(uses: &[UseOfLimits]) -> String {
    if uses.is_empty() {
        return "no plugin serves\n".to_owned();
    }
    let names = uses.iter().map(|one| one.plugin.chars().count()).max().unwrap_or_default().max(6);
    let versions = uses.iter().map(|one| one.version.chars().count()).max().unwrap_or_default().max(7);
    let mut text = format!("{:names$}  {:versions$}", "PLUGIN", "VERSION");
    for (_, heading) in COLUMNS {
        // Writing to a string cannot fail, here and below.
        let _ = write!(text, "  {heading:>7}");
    }
    text.push_str("    VISITS   STOPPED\n");
    for one in uses {
        let (plugin, version) = (escaped(&one.plugin), escaped(&one.version));
        let _ = write!(text, "{plugin:names$}  {version:versions$}");
        for (limit, _) in COLUMNS {
            let peak = one.peaks.get(limit).copied().unwrap_or_default();
            let _ = write!(text, "  {peak:>7}");
        }
        let _ = writeln!(text, "  {:>8}  {:>8}", one.visits, one.stopped);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_metrics_of_a_host_become_one_line_for_each_plugin_and_version() {
        let text = "# HELP oarlock_plugin_limit_peak_percent x\n\
                    oarlock_plugin_limit_peak_percent{plugin=\"replace\",version=\"0.1.0\",limit=\"hostCalls\"} 40\n\
                    oarlock_plugin_limit_peak_percent{plugin=\"replace\",version=\"0.1.0\",limit=\"memoryMiB\"} 10\n\
                    oarlock_plugin_visits_total{plugin=\"replace\",outcome=\"Answered\"} 12\n\
                    oarlock_plugin_visits_total{plugin=\"replace\",outcome=\"Trapped\"} 3\n# EOF\n";
        let uses = read(text);
        assert_eq!((uses.len(), uses[0].visits, uses[0].stopped), (1, 15, 3));
        let table = table(&uses);
        let line: Vec<&str> = table.lines().nth(1).unwrap().split_whitespace().collect();
        assert_eq!(line, ["replace", "0.1.0", "0", "10", "0", "0", "40", "15", "3"], "{table}");
        assert_eq!(super::table(&read("")), "no plugin serves\n");
    }
}
