//! The cost of a replacement in numbers that are the same on every machine: requests per target, and bytes sent and received per target.
//!
//! Each bound is a little above the count on the day it was set. A commit that raises a bound says why.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::ensure;
use http::{Method, Request};
use http_body_util::BodyExt as _;
use kube::Client;
use kube::client::Body;
use oarlock_scenarios::components::{GRANTS, component};
use oarlock_scenarios::jobs::replace;
use oarlock_scenarios::killable_host::{Birth, Mortal, Serves};
use oarlock_scenarios::mode::Mode;
use oarlock_scenarios::test_cluster::{Backend, TestCluster, published};
use serde_json::json;
use tower::ServiceExt as _;

/// Number of targets of the job, which fill four records.
const TARGETS: usize = 1_000;

/// Requests of a host so far.
#[derive(Debug, Default)]
struct Costs {
    /// Number of requests by verb and resource.
    requests: BTreeMap<String, usize>,
    /// Bytes of the bodies that the host sent.
    sent: u64,
    /// Bytes of the bodies that the host received.
    received: u64,
}

type Shared = Arc<Mutex<Costs>>;

fn noted(costs: &Shared, note: impl FnOnce(&mut Costs)) {
    note(&mut costs.lock().unwrap_or_else(PoisonError::into_inner));
}

/// Returns the verb and the resource of a request, such as `PATCH pods` and `PATCH operationjobs/status`.
fn named(request: &Request<Body>) -> String {
    let path = request.uri().path();
    let below = path
        .rsplit_once("/namespaces/")
        .map_or(path, |(_, below)| below.split_once('/').map_or(below, |(_, below)| below));
    let mut parts = below.trim_start_matches('/').split('/');
    let resource = parts.next().unwrap_or_default();
    let subresource = parts.nth(1).map(|sub| format!("/{sub}")).unwrap_or_default();
    let watches = request.uri().query().is_some_and(|query| query.contains("watch=true"));
    let verb = if request.method() == Method::GET && watches { "WATCH" } else { request.method().as_str() };
    format!("{verb} {resource}{subresource}")
}

/// Returns a client that counts its requests and bytes in `costs`.
fn client(cluster: &oarlock_sim::Cluster, costs: Shared) -> Client {
    let inner = cluster.service();
    let service = tower::service_fn(move |request: Request<Body>| {
        let (inner, costs) = (inner.clone(), costs.clone());
        async move {
            let name = named(&request);
            let (head, body) = request.into_parts();
            let body = body.collect().await?.to_bytes();
            noted(&costs, |costs| {
                *costs.requests.entry(name).or_default() += 1;
                costs.sent += body.len() as u64;
            });
            let Ok(response) = inner.oneshot(Request::from_parts(head, Body::from(body.to_vec()))).await;
            let counted = response.map(move |body| {
                body.map_frame(move |frame| {
                    let bytes = frame.data_ref().map_or(0, |data| data.len() as u64);
                    noted(&costs, |costs| costs.received += bytes);
                    frame
                })
            });
            Ok::<_, Box<dyn std::error::Error + Send + Sync>>(counted)
        }
    });
    Client::new(service, "default")
}

/// Replaces a thousand pods in memory and in paused time, and returns the costs of the host.
async fn costs_of(mode: Mode) -> anyhow::Result<Costs> {
    let cluster = TestCluster::sim(1).await?;
    let Backend::Sim(sim) = &cluster.backend else { anyhow::bail!("in memory") };
    let costs = Shared::default();
    let (client, clock) = (client(sim, costs.clone()), sim.clone());
    let clock: oarlock_kube::transport::clock::Clock = Arc::new(move || clock.now());
    let set = mode.plant(&cluster, TARGETS).await?;
    cluster.world.settled(&set, Duration::from_secs(600)).await?;
    let names = cluster.pod_names(mode.app()).await?;
    let plugins = published(&[component("replace")?], GRANTS).await?;
    let host = Mortal::start(Birth { identity: "host".to_owned(), client, clock, plugins, serves: Serves::Jobs });
    cluster.create_job("first", replace(&["missing".to_owned()], json!({}))).await?;
    cluster.until_progress("first", "Failed").await?;
    noted(&costs, |costs| *costs = Costs::default());
    cluster.create_job("all", replace(&names, json!({}))).await?;
    cluster.until_progress("all", "Succeeded").await?;
    let counted = std::mem::take(&mut *costs.lock().unwrap_or_else(PoisonError::into_inner));
    host.kill().await?;
    Ok(counted)
}

/// One request more for each target takes a busy API server a tenth of a second for a hundred targets. So the test bounds the requests and the bytes
/// of each target.
#[tokio::test(start_paused = true)]
async fn a_replacement_costs_two_patches_of_its_pod_and_little_else() -> anyhow::Result<()> {
    let costs = costs_of(Mode::CollaSet).await?;
    let of = |name: &str| costs.requests.get(name).copied().unwrap_or_default();
    println!("{costs:?}");
    ensure!(of("PATCH pods") == 2 * TARGETS, "{} patches of pods", of("PATCH pods"));
    let records = of("PATCH operationrecords") + of("POST operationrecords");
    ensure!(records <= 60 && of("PATCH operationjobs/status") <= 30, "{records} records: {costs:?}");
    let beside: usize = costs.requests.values().sum::<usize>() - of("PATCH pods") - of("POST events");
    ensure!(beside <= TARGETS / 5, "{beside} other requests: {costs:?}");
    let each = |bytes: u64| bytes / TARGETS as u64;
    ensure!(
        each(costs.sent) <= 6_500 && each(costs.received) <= 70_000,
        "{} sent, {} received",
        each(costs.sent),
        each(costs.received)
    );
    Ok(())
}
