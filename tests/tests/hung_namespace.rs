//! A webhook that hangs on the statuses of jobs in one namespace, in memory and in paused time: the jobs of other namespaces
//! go on.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::ensure;
use http::{Method, Request};
use kube::Client;
use kube::api::{Api, DynamicObject, PostParams};
use kube::client::Body;
use oarlock::controller::Controller;
use oarlock::metrics::Metrics;
use oarlock::ports::Ports;
use oarlock_kube::lease::{LeaderElector, LeaseConfig};
use oarlock_kube::{Cluster, Setup};
use oarlock_sim::world::Seedbed;
use oarlock_tests::components::{self, GRANTS, component};
use oarlock_tests::jobs::{replace, resource};
use oarlock_tests::rig::{Ground, Rig, patiently};
use oarlock_wasm::Plugins;
use serde_json::json;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

/// Jobs whose statuses cannot be written.
const HUNG: usize = 20;

/// A client whose status writes in the namespace `hung` get no answer, and how many there were.
fn client(cluster: &oarlock_sim::Cluster, hung: Arc<AtomicUsize>) -> Client {
    let inner = cluster.service();
    let service = tower::service_fn(move |request: Request<Body>| {
        let (inner, hung) = (inner.clone(), hung.clone());
        async move {
            let path = request.uri().path();
            if request.method() == Method::PATCH && path.contains("/namespaces/hung/") && path.ends_with("/status") {
                hung.fetch_add(1, Ordering::Relaxed);
                std::future::pending::<()>().await;
            }
            inner.oneshot(request).await
        }
    });
    Client::new(service, "default")
}

/// A host that sees all namespaces.
async fn host(rig: &Rig, hung: Arc<AtomicUsize>, stop: CancellationToken) -> anyhow::Result<Arc<Ports>> {
    let Ground::Sim(cluster) = &rig.ground else { anyhow::bail!("in memory") };
    let (client, clock) = (client(cluster, hung), cluster.clone());
    let clock: oarlock_kube::transport::clock::Clock = Arc::new(move || clock.now());
    let (cluster, news) = Cluster::open(Setup { client, clock, identity: "host".to_owned() });
    let cache = components::folder().join("compiled-for-scenarios");
    let options = oarlock_wasm::Options { cache_dir: Some(cache), ..oarlock_wasm::Options::in_memory() };
    let plugins = Plugins::start(options).await?;
    plugins.set_grants(oarlock_wasm::parse_grants(GRANTS)?).await;
    plugins.publish("replace", component("replace")?).await;
    let ports = Arc::new(Ports::new(cluster.clone(), plugins, Arc::new(Metrics::new(cluster.requests()))));
    let lease = LeaseConfig {
        namespace: "oarlock-system".into(),
        name: "oarlock".into(),
        identity: "host".into(),
        duration: Duration::from_secs(15),
    };
    let election = LeaderElector::stand(&cluster, lease);
    tokio::spawn(Controller::new(ports.clone(), news).run(election, stop));
    Ok(ports)
}

/// How long a job takes in the namespace where nothing hangs.
async fn took(rig: &Rig, name: &str) -> anyhow::Result<Duration> {
    let begun = Instant::now();
    rig.create_job(name, replace(&["missing".to_owned()], json!({}))).await?;
    rig.until_progress(name, "Failed").await?;
    Ok(begun.elapsed())
}

#[tokio::test(start_paused = true)]
async fn a_webhook_that_hangs_in_one_namespace_takes_the_rounds_of_no_other_for_more_than_a_second()
-> anyhow::Result<()> {
    let rig = Rig::sim(1).await?;
    Seedbed::namespace(rig.client.clone(), "hung").await?;
    let (hung, stop) = (Arc::<AtomicUsize>::default(), CancellationToken::new());
    let _ports = host(&rig, hung.clone(), stop.clone()).await?;
    let alone = took(&rig, "alone").await?;
    let jobs: Api<DynamicObject> = Api::namespaced_with(rig.client.clone(), "hung", &resource());
    for number in 0..HUNG {
        let spec = replace(&["missing".to_owned()], json!({}));
        let job = DynamicObject::new(&format!("hung-{number}"), &resource()).data(json!({ "spec": spec }));
        jobs.create(&PostParams::default(), &job).await?;
    }
    patiently("as many hang as may", async || Ok(hung.load(Ordering::Relaxed) >= 4)).await?;
    for number in 0..20 {
        let beside = took(&rig, &format!("beside-{number}")).await?;
        ensure!(beside <= alone + Duration::from_millis(1_500), "round {number}: {beside:?}, and {alone:?} alone");
        rig.pass(Duration::from_millis(1_700)).await;
    }
    ensure!(hung.load(Ordering::Relaxed) > 8, "they were tried again: {}", hung.load(Ordering::Relaxed));
    stop.cancel();
    Ok(())
}
