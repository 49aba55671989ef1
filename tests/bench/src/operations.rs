//! What operating on many targets costs: the host as a process of its own, beside a bare client that makes the same
//! writes with no host, no plugin and no records.
//!
//! Takes the number of targets and the cluster; yields figures and ratios as JSON. Both run in one call, one after the
//! other, on the same cluster and world, so their ratio holds when the machine's speed drifts. May not judge.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use futures::StreamExt as _;
use kube::Client;
use kube::api::{Api, Patch, PatchParams};
use oarlock_bed::accounts::Account;
use oarlock_bed::audit::Audit;
use oarlock_bed::control_plane::{self, ControlPlane};
use oarlock_bed::install::{self, Way};
use oarlock_sim::world::{SetKey, Span, Timings};
use serde_json::{Value, json};

use crate::ground::Site;
use crate::process::{HostProcess, ServedSim, manifests};

/// Requests in flight of the bare client: as many as the host may have.
const IN_FLIGHT: usize = 32;
/// Longest that one run may take.
const LONGEST: Duration = Duration::from_secs(600);

/// How targets are replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Evict and wait for the controller.
    Evict,
    /// The CollaSet's protocol.
    CollaSet,
}

impl Mode {
    fn word(self) -> &'static str {
        match self {
            Self::Evict => "evict",
            Self::CollaSet => "collaset",
        }
    }
}

/// A world that reacts at once: the figures are to be the host's and the server's.
pub(crate) fn quick() -> Timings {
    let soon = Span::millis(1, 10);
    Timings { react: soon, start: soon, ready: soon, available: soon, terminate: soon }
}

/// Runs host and bare client in both modes.
///
/// # Errors
/// If a cluster cannot be started or a run does not end.
pub(crate) async fn run(targets: usize, real: bool, components: &Path) -> anyhow::Result<Value> {
    let mut rows = Vec::new();
    for mode in [Mode::Evict, Mode::CollaSet] {
        let ground = Ground::start(real).await?;
        let bare = bare(&ground, mode, targets).await?;
        let host = host(&ground, mode, targets, components).await?;
        let rate = |row: &Value| row.get("targetsPerSecond").and_then(Value::as_f64).unwrap_or(0.0);
        let ratio = rate(&host) / rate(&bare).max(f64::MIN_POSITIVE);
        rows.push(json!({"mode": mode.word(), "targets": targets, "bare": bare, "host": host, "rateHostToBare": round(ratio)}));
    }
    Ok(json!({"bench": "operations", "on": if real { "real" } else { "sim" }, "runs": rows}))
}

/// A cluster that outlives both runs of a mode.
pub(crate) struct Ground {
    pub(crate) plane: Option<Arc<ControlPlane>>,
    sim: Option<ServedSim>,
}

impl Ground {
    async fn start(real: bool) -> anyhow::Result<Self> {
        if real {
            let options = control_plane::Options {
                durable_store: true,
                audit: Audit::Writes,
                ..control_plane::Options::default()
            };
            return Ok(Self { plane: Some(Arc::new(furnished(options).await?)), sim: None });
        }
        Ok(Self { plane: None, sim: Some(ServedSim::start().await?) })
    }

    async fn site(&self, namespace: &str) -> anyhow::Result<Site> {
        match (&self.plane, &self.sim) {
            (Some(plane), _) => Site::real(plane, namespace).await,
            (None, Some(sim)) => Site::sim(&sim.cluster, namespace).await,
            (None, None) => anyhow::bail!("the bench has no cluster"),
        }
    }

    fn kubeconfig(&self) -> anyhow::Result<std::path::PathBuf> {
        match (&self.plane, &self.sim) {
            (Some(plane), _) => plane.kubeconfig(Account::Host),
            (None, Some(sim)) => Ok(sim.kubeconfig.clone()),
            (None, None) => anyhow::bail!("the bench has no cluster"),
        }
    }

    /// Writes of the host's account so far: verb, resource with subresource, code.
    fn writes(&self) -> anyhow::Result<Vec<(String, String, u64)>> {
        match (&self.plane, &self.sim) {
            (Some(plane), _) => {
                let audited = plane.audited()?.into_iter().filter(|write| write.user == Account::Host.user());
                Ok(audited.map(|write| (write.verb, join(&write.resource, &write.subresource), write.code)).collect())
            }
            (None, Some(sim)) => Ok(sim.writes()),
            (None, None) => Ok(Vec::new()),
        }
    }
}

fn join(resource: &str, subresource: &str) -> String {
    if subresource.is_empty() { resource.to_owned() } else { format!("{resource}/{subresource}") }
}

async fn plant(site: &Site, mode: Mode, targets: usize) -> anyhow::Result<(SetKey, Vec<String>)> {
    let set = match mode {
        Mode::Evict => site.seedbed.deployment("set", targets).await?,
        Mode::CollaSet => site.seedbed.collaset("set", targets).await?,
    };
    site.world.settled(&set, LONGEST).await?;
    let names = site.pod_names("set").await?;
    Ok((set, names))
}

/// The same writes with nothing around them.
async fn bare(ground: &Ground, mode: Mode, targets: usize) -> anyhow::Result<Value> {
    let site = ground.site(&format!("bare-{}", mode.word())).await?;
    let (set, names) = plant(&site, mode, targets).await?;
    let identities = site.identities(&names).await?;
    let begun = Instant::now();
    match mode {
        Mode::Evict => each(&names, |name| evict(site.client.clone(), site.namespace.clone(), name)).await?,
        Mode::CollaSet => {
            each(&names, |name| mark(site.client.clone(), site.namespace.clone(), name, true)).await?;
            unmark_as_they_go(&site, &names).await?;
        }
    }
    site.world.settled(&set, LONGEST).await?;
    gone(&site, &identities).await?;
    let seconds = begun.elapsed().as_secs_f64();
    site.world.stop().await;
    Ok(json!({"seconds": round(seconds), "targetsPerSecond": round(as_f64(targets) / seconds)}))
}

async fn each<F>(names: &[String], act: impl Fn(String) -> F) -> anyhow::Result<()>
where
    F: Future<Output = anyhow::Result<()>>,
{
    let acts: Vec<_> = names.iter().cloned().map(act).collect();
    let mut done = futures::stream::iter(acts).buffer_unordered(IN_FLIGHT);
    while let Some(outcome) = done.next().await {
        outcome?;
    }
    Ok(())
}

async fn evict(client: Client, namespace: String, name: String) -> anyhow::Result<()> {
    let body =
        json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": namespace}});
    let request = http::Request::post(format!("/api/v1/namespaces/{namespace}/pods/{name}/eviction"))
        .header("Content-Type", "application/json")
        .body(serde_json::to_vec(&body)?)?;
    client.request_text(request).await.with_context(|| format!("cannot evict {name}"))?;
    Ok(())
}

/// One patch that marks, or one that lets the finalizer go: what the host sends.
async fn mark(client: Client, namespace: String, name: String, on: bool) -> anyhow::Result<()> {
    let pods: Api<k8s_openapi::api::core::v1::Pod> = Api::namespaced(client, &namespace);
    let finalizer = "finalizer.operationjob.kusionstack.io/replace-protected";
    let metadata = if on {
        json!({"labels": {"collaset.kusionstack.io/to-replace": "true"}, "finalizers": [finalizer],
            "annotations": {"hold.oarlock.dev/bare": "[]"}})
    } else {
        json!({"finalizers": null, "annotations": {"hold.oarlock.dev/bare": null}})
    };
    match pods.patch(&name, &PatchParams::default(), &Patch::Merge(json!({ "metadata": metadata }))).await {
        Err(kube::Error::Api(status)) if status.code == 404 && !on => Ok(()),
        outcome => outcome.map(drop).with_context(|| format!("cannot patch {name}")),
    }
}

/// Lets the finalizer go of each origin that terminates.
async fn unmark_as_they_go(site: &Site, names: &[String]) -> anyhow::Result<()> {
    use kube::runtime::{WatchStreamExt as _, watcher};
    let mut left: std::collections::BTreeSet<String> = names.iter().cloned().collect();
    let begun = Instant::now();
    let mut changes = std::pin::pin!(watcher(site.pods(), watcher::Config::default()).applied_objects());
    let mut flying = futures::stream::FuturesUnordered::new();
    while !left.is_empty() && begun.elapsed() < LONGEST {
        tokio::select! {
            Some(pod) = changes.next() => {
                let pod = pod?;
                let name = pod.metadata.name.clone().unwrap_or_default();
                if pod.metadata.deletion_timestamp.is_some() && left.remove(&name) {
                    flying.push(mark(site.client.clone(), site.namespace.clone(), name, false));
                }
            }
            Some(outcome) = flying.next(), if !flying.is_empty() => outcome?,
        }
    }
    while let Some(outcome) = flying.next().await {
        outcome?;
    }
    Ok(())
}

async fn gone(site: &Site, identities: &[(String, String)]) -> anyhow::Result<()> {
    let uids: std::collections::HashSet<&str> = identities.iter().map(|(_, uid)| uid.as_str()).collect();
    let left = |pods: &[Arc<k8s_openapi::api::core::v1::Pod>]| {
        !pods.iter().any(|pod| pod.metadata.uid.as_deref().is_some_and(|uid| uids.contains(uid)))
    };
    site.world.until("every target gone", LONGEST, left).await?;
    Ok(())
}

/// The host, as a process of its own.
async fn host(ground: &Ground, mode: Mode, targets: usize, components: &Path) -> anyhow::Result<Value> {
    let site = ground.site(&format!("host-{}", mode.word())).await?;
    let (_, names) = plant(&site, mode, targets).await?;
    let identities = site.identities(&names).await?;
    let process = HostProcess::start(&ground.kubeconfig()?, components).await?;
    let writes_before = ground.writes()?.len();
    let cpu_before = process.cpu()?;
    let begun = Instant::now();
    site.create_job("bench", &names).await?;
    site.until_ended("bench", LONGEST).await?;
    let seconds = begun.elapsed().as_secs_f64();
    let cpu = process.cpu()?.saturating_sub(cpu_before);
    let rss = process.peak_rss_kib()?;
    let writes: Vec<_> = ground.writes()?.into_iter().skip(writes_before).collect();
    let idle = idle_writes(ground).await?;
    let verdict = site.world.ledger().verdict(&identities);
    let figures = json!({
        "seconds": round(seconds),
        "targetsPerSecond": round(as_f64(targets) / seconds),
        "verdict": if verdict.is_clean() { "clean".to_owned() } else { verdict.to_string() },
        "writes": by_kind(&writes, targets),
        "writesPerTargetBesidesStatus": round(besides_status(&writes) / as_f64(targets)),
        "statusWrites": count(&writes, "operationjobs/status"),
        "recordWrites": count(&writes, "operationrecords"),
        "conflictsPercent": round(100.0 * as_f64(writes.iter().filter(|(.., code)| *code == 409).count()) / as_f64(writes.len().max(1))),
        "hostCpuMillisecondsPerTarget": round(cpu.as_secs_f64() * 1000.0 / as_f64(targets)),
        "peakRssMib": round(as_f64(rss) / 1024.0),
        "eventToActionP99Milliseconds": process.event_to_action_p99().await?,
        "writesInTenIdleSeconds": idle,
    });
    process.stop().await?;
    site.world.stop().await;
    Ok(figures)
}

/// Writes but leases within ten seconds of a finished job.
async fn idle_writes(ground: &Ground) -> anyhow::Result<usize> {
    tokio::time::sleep(Duration::from_secs(2)).await;
    let quiet =
        |writes: Vec<(String, String, u64)>| writes.into_iter().filter(|(_, resource, _)| resource != "leases").count();
    let before = quiet(ground.writes()?);
    tokio::time::sleep(Duration::from_secs(10)).await;
    Ok(quiet(ground.writes()?) - before)
}

fn besides_status(writes: &[(String, String, u64)]) -> f64 {
    let status = ["operationjobs/status", "operationrecords", "leases"];
    as_f64(writes.iter().filter(|(_, resource, _)| !status.contains(&resource.as_str())).count())
}

fn count(writes: &[(String, String, u64)], resource: &str) -> usize {
    writes.iter().filter(|(_, found, _)| found == resource).count()
}

fn by_kind(writes: &[(String, String, u64)], targets: usize) -> Value {
    let mut counts = std::collections::BTreeMap::<String, usize>::new();
    for (verb, resource, code) in writes.iter().filter(|(_, resource, _)| resource != "leases") {
        *counts.entry(format!("{verb} {resource} {code}")).or_default() += 1;
    }
    counts
        .into_iter()
        .map(|(kind, n)| (kind, json!({"count": n, "perTarget": round(as_f64(n) / as_f64(targets))})))
        .collect()
}

#[allow(clippy::cast_precision_loss, reason = "counts here are far below 2^52")]
fn as_f64(n: usize) -> f64 {
    n as f64
}

fn round(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

/// A real control plane with everything installed that `oarlock manifests` prints.
async fn furnished(options: control_plane::Options) -> anyhow::Result<ControlPlane> {
    let plane = control_plane::start(options).await?;
    let client = plane.client(Account::Admin).await?;
    install::install(&client, &manifests().await?, Way::Apply).await?;
    Ok(plane)
}
