//! The bench of the admission policies of pods: their cost for every write of a pod.
//!
//! It measures an API server's CPU time for each create, status patch, other patch and delete of pods that no job holds, by a bare
//! client. A second API server without the policies handles the same writes.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use clap::Args;
use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use oarlock_support::accounts::Account;
use oarlock_support::control_plane::{self, ControlPlane};
use oarlock_support::install::{self, Way};
use serde_json::{Value, json};

use crate::arguments::Common;
use crate::spread;
use crate::usage::Usage;

/// Requests in flight: few, so that a server queues none.
const IN_FLIGHT: usize = 4;
/// Pods that are written on one server before the other server's turn. Other load of the machine then affects both servers.
const AT_A_TIME: u32 = 25;
const NAMESPACE: &str = "measured";
/// The pod that shows whether a policy is in force.
const PROBE: &str = "probe";
/// How long a policy may take until it is in force, or no longer in force.
const IN_FORCE_WITHIN: Duration = Duration::from_secs(60);
const ASK_EVERY: Duration = Duration::from_millis(100);
const NOTES: &str = "\
CPU of an API server's process, user and system, per request, in milliseconds, of pods with two containers and 20 annotations that
no job holds. Two control planes are written to in turn, 25 pods at a time; from round to round the other one has the policies. A
figure is the median of such turns, a ratio that of one round. `write` is a create, two patches of the status and one other patch, as a pod has them.";

/// The options of the `policies` bench.
#[derive(Args, Clone, Debug)]
pub(crate) struct Policies {
    /// Number of pods that are written in each round, on each server
    #[arg(long, default_value = "500", value_parser = clap::value_parser!(u32).range(10..=10_000))]
    pub(crate) targets: u32,
    /// Number of rounds, each without and with the policies
    #[arg(long, default_value = "6", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) rounds: u32,
    #[command(flatten)]
    pub(crate) common: Common,
}

/// A measured request.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Create,
    Status,
    Patch,
    Delete,
}

/// Each request with its word.
const KINDS: [(Kind, &str); 4] =
    [(Kind::Create, "create"), (Kind::Status, "status"), (Kind::Patch, "patch"), (Kind::Delete, "delete")];

/// CPU milliseconds of a request, by its word.
type Spent = BTreeMap<&'static str, f64>;

/// Runs the bench, and prints a line for each round.
///
/// # Errors
/// If a control plane does not run, or refuses a request.
pub(crate) async fn run(asked: &Policies) -> anyhow::Result<Value> {
    let sides = [Side::start().await?, Side::start().await?];
    let policies = policies()?;
    // The first measurement warms caches and connections.
    measure([&sides[0], &sides[1]], asked.targets).await?;
    let mut rounds = Vec::new();
    for round in 0..asked.rounds {
        let [with, without] = if round % 2 == 0 { [&sides[0], &sides[1]] } else { [&sides[1], &sides[0]] };
        install::install(&with.client, &policies, Way::CreateMissing).await?;
        with.until_in_force(true).await?;
        let [with_them, without_them] = measure([with, without], asked.targets).await?;
        install::remove(&with.client, &policies).await?;
        with.until_in_force(false).await?;
        let ratio =
            |(what, spent): (&&'static str, &f64)| Some((*what, spread::round(spent / without_them.get(what)?)));
        let ratios: Spent = with_them.iter().filter_map(ratio).collect();
        println!("round {}: {}", round + 1, json!(ratios));
        rounds.push(json!({"without": without_them, "with": with_them, "ratios": ratios}));
    }
    let spread = spread::of(&rounds.iter().collect::<Vec<_>>());
    Ok(json!({"rounds": rounds, "spread": spread, "notes": NOTES}))
}

/// Writes the pods on both sides in turn.
async fn measure(sides: [&Side; 2], pods: u32) -> anyhow::Result<[Spent; 2]> {
    let mut spent = [Spent::new(), Spent::new()];
    for (kind, what) in KINDS {
        let mut samples = [Vec::new(), Vec::new()];
        for (turn, from) in (0..pods).step_by(AT_A_TIME as usize).enumerate() {
            let mut turns: Vec<_> = sides.iter().zip(&mut samples).collect();
            if turn % 2 == 1 {
                turns.reverse();
            }
            for (side, samples) in turns {
                samples.push(side.phase(kind, from..pods.min(from + AT_A_TIME)).await.context(what)?);
            }
        }
        for (spent, samples) in spent.iter_mut().zip(samples) {
            spent.insert(what, spread::quantile(&samples, 0.5).unwrap_or_default());
        }
    }
    Ok(spent.map(|mut spent| {
        let of = |what: &str| spent.get(what).copied().unwrap_or_default();
        let write = of("create") + 2.0 * of("status") + of("patch");
        spent.insert("write", write);
        spent.into_iter().map(|(what, milliseconds)| (what, spread::round(milliseconds))).collect()
    }))
}

/// Returns the policies of pods for grants in every namespace. The policy that `until_in_force` tests comes last.
fn policies() -> anyhow::Result<Vec<Value>> {
    let account = Account::Host.user().trim_start_matches("system:serviceaccount:");
    let text = oarlock_api::POD_ADMISSION.replace("OARLOCK_NAMESPACE:OARLOCK_ACCOUNT", account);
    let mut documents = install::documents(&text.replace("OARLOCK_GRANTED", "{}"))?;
    documents.reverse();
    Ok(documents)
}

/// A control plane, and the pods that are written there.
struct Side {
    plane: ControlPlane,
    client: Client,
    pods: Api<Pod>,
}

impl Side {
    async fn start() -> anyhow::Result<Self> {
        let plane = control_plane::start(control_plane::Options::default()).await?;
        let client = plane.client(Account::Admin).await?;
        let side = Self { pods: Api::namespaced(client.clone(), NAMESPACE), client, plane };
        side.prepare().await?;
        Ok(side)
    }

    async fn prepare(&self) -> anyhow::Result<()> {
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}});
        let group = "rbac.authorization.k8s.io";
        let metadata = json!({"name": "host", "namespace": NAMESPACE});
        let rules = json!([{"apiGroups": [""], "resources": ["pods"], "verbs": ["patch"]}]);
        let role = json!({"apiVersion": format!("{group}/v1"), "kind": "Role", "metadata": metadata, "rules": rules});
        let binding = json!({"apiVersion": format!("{group}/v1"), "kind": "RoleBinding", "metadata": metadata,
            "roleRef": {"apiGroup": group, "kind": "Role", "name": "host"},
            "subjects": [{"apiGroup": group, "kind": "User", "name": Account::Host.user()}]});
        install::install(&self.client, &[namespace, role, binding], Way::CreateMissing).await?;
        self.pods.create(&PostParams::default(), &pod(PROBE)).await.context("cannot create the probe").map(drop)
    }

    /// Waits until the server refuses, or allows, the host's account a change of a pod's spec.
    async fn until_in_force(&self, wanted: bool) -> anyhow::Result<()> {
        let by_host: Api<Pod> = Api::namespaced(self.plane.client(Account::Host).await?, NAMESPACE);
        let (options, change) =
            (PatchParams { dry_run: true, ..PatchParams::default() }, json!({"spec": {"activeDeadlineSeconds": 100}}));
        let begun = Instant::now();
        loop {
            let tried = by_host.patch(PROBE, &options, &Patch::Merge(&change)).await;
            let refused = tried.is_err_and(|cause| cause.to_string().contains("pod-metadata.oarlock.dev"));
            if refused == wanted {
                return Ok(());
            }
            anyhow::ensure!(begun.elapsed() < IN_FORCE_WITHIN, "in force: never {wanted}");
            tokio::time::sleep(ASK_EVERY).await;
        }
    }

    /// Sends these writes. Returns the API server's CPU milliseconds per write.
    async fn phase(&self, kind: Kind, pods: std::ops::Range<u32>) -> anyhow::Result<f64> {
        let server = self.plane.api_server_id();
        let before = Usage::of(server)?;
        let count = f64::from(pods.end.saturating_sub(pods.start).max(1));
        let all = futures::stream::iter(pods).map(|index| self.write(kind, index));
        all.buffer_unordered(IN_FLIGHT).try_collect::<()>().await?;
        Ok(Usage::of(server)?.since(&before).cpu.as_secs_f64() * 1_000.0 / count)
    }

    async fn write(&self, kind: Kind, index: u32) -> kube::Result<()> {
        let (name, options) = (format!("p{index}"), PatchParams::default());
        let labels = || Patch::Merge(json!({"metadata": {"labels": {"changes": "yes"}}}));
        match kind {
            Kind::Create => self.pods.create(&PostParams::default(), &pod(&name)).await.map(drop),
            Kind::Status => self.pods.patch_status(&name, &options, &Patch::Merge(status())).await.map(drop),
            Kind::Patch => self.pods.patch(&name, &options, &labels()).await.map(drop),
            Kind::Delete => self.pods.delete(&name, &DeleteParams::default().grace_period(0)).await.map(drop),
        }
    }
}

/// Returns a pod of usual size.
fn pod(name: &str) -> Pod {
    let annotations: BTreeMap<String, String> =
        (0..20).map(|number| (format!("example.com/a{number}"), "x".repeat(40))).collect();
    let container = |name: &str| {
        let env: Vec<Value> =
            (0..10).map(|number| json!({"name": format!("E{number}"), "value": "v".repeat(20)})).collect();
        json!({"name": name, "image": "registry.example.com/app:1", "env": env,
            "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}},
            "readinessProbe": {"httpGet": {"path": "/", "port": 8080}}})
    };
    let document = json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": "web", "tier": "front"}, "annotations": annotations},
        "spec": {"nodeName": "n", "containers": [container("a"), container("b")]}});
    serde_json::from_value(document).unwrap_or_default()
}

/// Returns the status of a running pod.
fn status() -> Value {
    let conditions = ["Ready", "Initialized", "ContainersReady", "PodScheduled"]
        .map(|kind| json!({"type": kind, "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}));
    let containers =
        ["a", "b"].map(|name| json!({"name": name, "ready": true, "restartCount": 0, "image": "x", "imageID": "y"}));
    json!({"status": {"phase": "Running", "podIP": "10.0.0.1", "conditions": conditions, "containerStatuses": containers}})
}
