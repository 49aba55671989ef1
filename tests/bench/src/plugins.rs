//! The bench of plugin calls: fresh instances and warm ones, on small pods and large ones.
//!
//! One thread makes the calls one after the other, as a round does.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use hdrhistogram::Histogram;
use oarlock_core::object::api_object::{Kind, Object, ObjectKey};
use oarlock_core::plugin::visit::{Answer, Call, JobFacts, ReadRefusal, Reads, TargetFacts, Visit};
use oarlock_wasm::{Options, Plugins};
use serde_json::{Value, json};

/// Calls before the measurement: they fill caches and touch the pool's slots.
const WARM_UP: usize = 2_000;
/// Measured calls. The 99th percentile is then the two hundredth call from the top.
const CALLS: usize = 20_000;
/// Sizes of pods: a bare pod, and a pod with several containers and volumes.
const POD_BYTES: [usize; 2] = [2 << 10, 13 << 10];

/// Measures `operate` of Replace.
///
/// # Errors
/// If the component is missing, or does not propose an eviction.
pub(crate) async fn run(components: &Path) -> anyhow::Result<Value> {
    let path = components.join("replace.wasm");
    let bytes = std::fs::read(&path)
        .with_context(|| format!("cannot read {}: run `cargo xtask plugins` first", path.display()))?;
    let size = bytes.len();
    let plugins = Plugins::start(Options::in_memory()).await?;
    plugins.set_grants(oarlock_wasm::parse_grants(crate::children::GRANTS)?).await;
    let begun = Instant::now();
    let status = plugins.publish("replace", bytes).await.context("the component was not taken")?;
    let published = begun.elapsed();
    let digest = status.digest.context("the component has no digest")?;
    let mut rows = Vec::new();
    for pod_bytes in POD_BYTES {
        let visit = visit(pod_bytes)?;
        let fresh = measure(&plugins, &digest, &visit, Instances::Fresh).await?;
        let warm = measure(&plugins, &digest, &visit, Instances::Warm).await?;
        rows.push(json!({"podBytes": pod_bytes, "fresh": fresh, "warm": warm}));
    }
    Ok(json!({"component": "replace", "componentBytes": size, "calls": CALLS,
        "vetAndCompileMilliseconds": published.as_millis() as u64, "operate": rows}))
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Instances {
    /// A new instance for each call.
    Fresh,
    /// One instance for as many calls as the host allows.
    Warm,
}

async fn measure(plugins: &Plugins, digest: &str, visit: &Visit, instances: Instances) -> anyhow::Result<Value> {
    let mut times: Histogram<u64> = Histogram::new(3)?;
    let begin = || plugins.wave(digest).context("the component does not serve");
    let mut wave = begin()?;
    for call in 0..WARM_UP + CALLS {
        let visit = visit.clone();
        let begun = Instant::now();
        if instances == Instances::Fresh {
            wave = begin()?;
        }
        let answer = wave.call(visit).await;
        if instances == Instances::Fresh {
            // The end of an instance is a part of its cost.
            wave = begin()?;
        }
        let took = begun.elapsed();
        if !matches!(&answer, Answer::Proposed(proposal) if proposal.mutations.len() == 1) {
            bail!("the plugin did not propose an eviction: {answer:?}");
        }
        if call >= WARM_UP {
            times.record(u64::try_from(took.as_nanos())?)?;
        }
    }
    let microseconds = |quantile| Duration::from_nanos(times.value_at_quantile(quantile)).as_nanos() as f64 / 1000.0;
    Ok(
        json!({"p50Microseconds": microseconds(0.5), "p99Microseconds": microseconds(0.99), "p999Microseconds": microseconds(0.999)}),
    )
}

/// Reads of a cluster with nothing but the pod.
struct Alone;

impl Reads for Alone {
    fn related(&self, _relation: &str, _live: bool) -> Result<Vec<Arc<Object>>, ReadRefusal> {
        Ok(Vec::new())
    }

    fn get(&self, _key: &ObjectKey, _live: bool) -> Result<Option<Arc<Object>>, ReadRefusal> {
        Ok(None)
    }

    fn serves(&self, _kind: &Kind) -> Result<bool, ReadRefusal> {
        Ok(false)
    }
}

/// Returns a visit to a pod of about `bytes`. The host keeps the whole pod.
fn visit(bytes: usize) -> anyhow::Result<Visit> {
    let container = |n: usize| {
        json!({"name": format!("container-{n}"), "image": format!("registry.example/shop/web-{n}:1.27.3"),
            "env": [{"name": "MODE", "value": "production"}], "resources": {"limits": {"cpu": "1", "memory": "1Gi"}},
            "volumeMounts": [{"name": "data", "mountPath": "/data"}, {"name": "tmp", "mountPath": "/tmp"}]})
    };
    let mut document = json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "web-1", "namespace": "shop", "uid": "5f8b7f3e-0d4f-4a52-9d0c-3a1c8f2b7a10", "resourceVersion": "7",
            "labels": {"app": "web", "pod-template-hash": "6d4cf56db6"}, "creationTimestamp": "2026-01-01T00:00:00Z",
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "rs-1", "controller": true}]},
        "spec": {"nodeName": "node-1", "containers": []},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:10Z"}]}});
    let mut containers = Vec::new();
    while document.to_string().len() + containers.len() * container(0).to_string().len() < bytes {
        containers.push(container(containers.len()));
    }
    if let Some(slot) = document.pointer_mut("/spec/containers") {
        *slot = Value::Array(containers);
    }
    let kept = ["/spec".to_owned(), "/status".to_owned()];
    let object = Object::slim(&document, &Kind::pod(), &kept).context("the pod has no name")?;
    let job = JobFacts {
        namespace: "shop".to_owned(),
        name: "bench".to_owned(),
        uid: "job-1".to_owned(),
        action: "Replace".to_owned(),
        now_ms: 1_800_000_000_000,
        parameters: json!({}),
        target_count: 1,
        cancelled: false,
    };
    let target = TargetFacts {
        name: "web-1".to_owned(),
        index: 0,
        kind: "Pod".to_owned(),
        uid: Some("uid-web".into()),
        object: Some(Arc::new(object)),
        containers: Vec::new(),
        extras: BTreeMap::new(),
        attempt: 1,
        call_try: 1,
        started_ms: 1_800_000_000_000,
        deadline_ms: None,
        tasks: BTreeMap::new(),
    };
    Ok(Visit { job: Arc::new(job), target, call: Call::OperateThenProgress, reads: Arc::new(Alone) })
}
