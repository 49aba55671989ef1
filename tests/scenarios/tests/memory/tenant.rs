//! A tenant with `edit` in one namespace stores as much as the API server accepts, while a neighbour runs a job. The host stays within its shipped
//! memory limit.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use kube::api::{Api, DynamicObject, Patch, PatchParams, PostParams};
use kube::core::ApiResource;
use oarlock_scenarios::components::{GRANTS, RESTART_GRANTS, component};
use oarlock_scenarios::host_process::host_binary;
use oarlock_scenarios::jobs::{replace, resource};
use oarlock_scenarios::test_cluster::{TestCluster, patiently, real_plane};
use oarlock_sim::world::Seedbed;
use oarlock_support::accounts::Account;
use oarlock_support::children::Child;
use oarlock_support::control_plane;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{Peaks, figures};

/// The limit of the Deployment that `oarlock manifests` prints.
const LIMIT: u64 = 512 << 20;
const TENANT: &str = "tenant";
/// Group with version, and plural.
const JOBS: (&str, &str) = ("apps.kusionstack.io/v1alpha1", "operationjobs");
const TEMPLATES: (&str, &str) = ("api.practice.com/v1alpha1", "jobtemplates");

/// The amount that the tenant stores. A soak stores the amounts of the issue about memory for every tenant.
struct Load {
    jobs_of_large_parameters: usize,
    steps: usize,
    annotated_pods: usize,
    wide_pods: usize,
    /// Pods of 64 long finalizers, 38 long labels and 8 KB of annotations.
    named_pods: usize,
    small_jobs: usize,
    /// Number of jobs and of flows with ten thousand labels each.
    labelled: usize,
    /// Number of pods and of Jobs whose owner reference has a UID of half a megabyte. The server stores such a UID twice.
    owned: usize,
}

impl Load {
    fn of_this_run() -> Self {
        if std::env::var_os("OARLOCK_SOAK").is_some() {
            Self {
                jobs_of_large_parameters: 20,
                steps: 500,
                annotated_pods: 2_000,
                wide_pods: 450,
                named_pods: 6_000,
                small_jobs: 10_000,
                labelled: 60,
                owned: 100,
            }
        } else {
            Self {
                jobs_of_large_parameters: 20,
                steps: 500,
                annotated_pods: 300,
                wide_pods: 60,
                named_pods: 1_000,
                small_jobs: 500,
                labelled: 5,
                owned: 25,
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_who_stores_what_he_may_ends_no_host_and_holds_up_no_neighbour() -> anyhow::Result<()> {
    let plane = real_plane(control_plane::Options::default()).await?;
    let cluster = TestCluster::real(plane.clone(), "neighbour").await?;
    Seedbed::namespace(cluster.client.clone(), TENANT).await?;
    let folder = plane.folder().join("tenant");
    let plugins = folder.join("plugins");
    std::fs::create_dir_all(&plugins)?;
    // The plugin restart reads the containers of pods, which are as large as their owner likes.
    for plugin in ["replace", "restart"] {
        std::fs::write(plugins.join(format!("{plugin}.wasm")), component(plugin)?)?;
    }
    std::fs::write(folder.join("grants.yaml"), format!("{GRANTS}{RESTART_GRANTS}"))?;
    let mut command = std::process::Command::new(host_binary()?);
    command.args(["host", "--identity", "tenant", "--listen", "127.0.0.1:0", "--memory-limit", "512Mi"]);
    command.arg("--plugins").arg(&plugins).arg("--kubeconfig").arg(plane.kubeconfig(Account::Host)?);
    command.env("XDG_CACHE_HOME", folder.join("cache"));
    let log = folder.join("host.log");
    let start = move || {
        let mut again = std::process::Command::new(command.get_program());
        again.args(command.get_args()).env("XDG_CACHE_HOME", folder.join("cache"));
        Child::spawn("oarlock", again, log.clone())
    };
    let mut host = start()?;
    let set = cluster.seedbed.deployment("web", 6).await?;
    cluster.world.settled(&set, Duration::from_secs(180)).await?;
    let alone = neighbour(&cluster, "alone").await.with_context(|| host.tail(20))?;
    let peaks = Arc::<Peaks>::default();
    let (watching, id) = (peaks.clone(), host.id());
    let (stop, stopped) = mpsc::channel();
    let watcher = std::thread::spawn(move || watching.watch(id, &stopped));

    let load = Load::of_this_run();
    large_parameters(&cluster.client, load.jobs_of_large_parameters).await?;
    println!("{} jobs of 1.4 MB parameters: {}", load.jobs_of_large_parameters, figures(&peaks));
    large_template(&cluster.client, load.steps).await?;
    println!("a template of 1 MB in {} steps: {}", load.steps, figures(&peaks));
    annotated_pods(&cluster.client, load.annotated_pods).await?;
    println!("{} pods of 256 KiB annotations: {}", load.annotated_pods, figures(&peaks));
    wide_pods(&cluster.client, load.wide_pods).await?;
    println!(
        "{} pods of containers of 1 MB, and one of 8 MB as the server writes it: {}",
        load.wide_pods,
        figures(&peaks)
    );
    named_pods(&cluster.client, load.named_pods).await?;
    println!("{} pods of long finalizers and labels: {}", load.named_pods, figures(&peaks));
    nested(&cluster.client).await?;
    small_jobs(&cluster.client, load.small_jobs).await?;
    println!("{} jobs: {}", load.small_jobs, figures(&peaks));
    labelled(&cluster.client, load.labelled).await?;
    println!("{} jobs and flows of 10,000 labels: {}", load.labelled, figures(&peaks));
    owned(&cluster.client, load.owned).await?;
    println!("{} pods and Jobs of an owner whose UID has half a megabyte: {}", load.owned, figures(&peaks));
    let beside = neighbour(&cluster, "beside").await.with_context(|| host.tail(20))?;
    println!(
        "the neighbour's job: {alone:?} alone, {beside:?} beside all this, {:.2} times",
        beside.as_secs_f64() / alone.as_secs_f64()
    );
    is_told(&cluster.client).await?;
    ensure!(host.ended()?.is_none(), "the host ended:\n{}", host.tail(20));
    drop(stop);
    ensure!(watcher.join().is_ok(), "nobody looked on");
    let first = peaks.both.load(Ordering::Relaxed);

    // A host lists every object when it starts.
    drop(host);
    let mut host = start()?;
    let peaks = Arc::<Peaks>::default();
    let (watching, id) = (peaks.clone(), host.id());
    let (stop, stopped) = mpsc::channel();
    let watcher = std::thread::spawn(move || watching.watch(id, &stopped));
    let again = neighbour(&cluster, "again").await.with_context(|| host.tail(20))?;
    println!("after a restart: {again:?}, {}", figures(&peaks));
    ensure!(host.ended()?.is_none(), "the host ended:\n{}", host.tail(20));
    drop(stop);
    ensure!(watcher.join().is_ok(), "nobody looked on");
    let second = peaks.both.load(Ordering::Relaxed);
    ensure!(first <= LIMIT && second <= LIMIT, "the host had {} and {} MiB", first >> 20, second >> 20);
    Ok(())
}

/// Returns the time that a neighbour's job takes.
async fn neighbour(cluster: &TestCluster, name: &str) -> anyhow::Result<Duration> {
    let begun = Instant::now();
    cluster.create_job(name, replace(&cluster.pod_names("web").await?, json!({}))).await?;
    cluster.until_progress(name, "Succeeded").await?;
    Ok(begun.elapsed())
}

fn kind(kind: &str, plural: &str) -> ApiResource {
    ApiResource {
        group: "api.practice.com".into(),
        version: "v1alpha1".into(),
        api_version: "api.practice.com/v1alpha1".into(),
        kind: kind.into(),
        plural: plural.into(),
    }
}

async fn create(client: &Client, resource: &ApiResource, name: &str, spec: Value) -> anyhow::Result<()> {
    let objects: Api<DynamicObject> = Api::namespaced_with(client.clone(), TENANT, resource);
    let object = DynamicObject::new(name, resource).data(json!({ "spec": spec }));
    objects.create(&PostParams::default(), &object).await.with_context(|| name.to_owned())?;
    Ok(())
}

/// Creates paused jobs whose parameters are a long list of zeros.
async fn large_parameters(client: &Client, count: usize) -> anyhow::Result<()> {
    let parameters = json!({ "a": vec![0; 700_000] });
    for number in 0..count {
        let targets = json!([{"name": "missing"}]);
        let spec = json!({"action": "Replace", "targets": targets, "paused": true, "parameters": parameters});
        create(client, &resource(), &format!("large-{number}"), spec).await?;
    }
    Ok(())
}

/// Creates a flow whose steps all start from one large template.
async fn large_template(client: &Client, steps: usize) -> anyhow::Result<()> {
    let container = json!({"name": "c", "image": "i", "args": ["x".repeat(1_000_000)]});
    let job = json!({"template": {"spec": {"containers": [container]}}});
    create(client, &kind("JobTemplate", "jobtemplates"), "large", json!({ "jobTemplate": job })).await?;
    let steps: Vec<Value> =
        (0..steps).map(|number| json!({"name": format!("s{number}"), "jobTemplateRef": "large"})).collect();
    create(client, &kind("JobFlow", "jobflows"), "large", json!({ "flows": steps })).await
}

async fn annotated_pods(client: &Client, count: usize) -> anyhow::Result<()> {
    let text = "x".repeat(250_000);
    let pods = (0..count).map(|number| pod(&format!("p-{number}"), &json!({"a": text}), &json!({})));
    create_pods(client, pods).await
}

/// Creates pods with large containers, and a pod of a character that the server stores as one byte and writes as six.
async fn wide_pods(client: &Client, count: usize) -> anyhow::Result<()> {
    let args = |text: String| json!({"args": [text]});
    let wide = (0..count).map(|number| pod(&format!("w-{number}"), &json!({}), &args("x".repeat(1_000_000))));
    create_pods(client, wide).await?;
    create_pods(client, [pod("escaped", &json!({}), &args("<".repeat(1_420_000)))].into_iter()).await
}

/// Creates pods with as many finalizers, labels and annotations as the server accepts.
async fn named_pods(client: &Client, count: usize) -> anyhow::Result<()> {
    let domain = |name: &str| [name, &"x".repeat(61), &"y".repeat(61), &"z".repeat(61), &"w".repeat(55)].join(".");
    let finalizers: Vec<String> =
        (0..64).map(|number| format!("{}/n{number:02}{}", domain(&format!("f{number:02}")), "n".repeat(60))).collect();
    let labels: Value = (0..38)
        .map(|number| (format!("l{number:03}.{}/{}", "a".repeat(60), "k".repeat(60)), json!("v".repeat(63))))
        .collect();
    let annotations: Value = (0..4).map(|number| (format!("a{number}"), json!("x".repeat(2_000)))).collect();
    let pods = (0..count).map(|number| {
        let mut pod = pod(&format!("named-{number}"), &annotations, &json!({}));
        let metadata = pod.get_mut("metadata").and_then(Value::as_object_mut);
        metadata.into_iter().for_each(|metadata| {
            metadata.extend([("finalizers".to_owned(), json!(finalizers)), ("labels".to_owned(), labels.clone())]);
        });
        pod
    });
    create_pods(client, pods).await
}

/// Creates an object of each kind that is nested deeper than JSON readers accept. The test sends them as text, because serde_json does not accept
/// them either.
async fn nested(client: &Client) -> anyhow::Result<()> {
    let deep = format!("{}1{}", r#"{"a":"#.repeat(150), "}".repeat(150));
    let job = format!(r#"{{"action":"Replace","targets":[{{"name":"missing"}}],"parameters":{deep}}}"#);
    let template = format!(r#"{{"jobTemplate":{{"x":{deep}}}}}"#);
    for ((version, plural), kind, spec) in [(JOBS, "OperationJob", job), (TEMPLATES, "JobTemplate", template)] {
        let body =
            format!(r#"{{"apiVersion":"{version}","kind":"{kind}","metadata":{{"name":"nested"}},"spec":{spec}}}"#);
        let request = http::Request::post(format!("/apis/{version}/namespaces/{TENANT}/{plural}"))
            .header("content-type", "application/json")
            .body(body.into_bytes())?;
        client.request_text(request).await.with_context(|| kind.to_owned())?;
    }
    Ok(())
}

/// Returns a pod that never starts.
fn pod(name: &str, annotations: &Value, container: &Value) -> Value {
    let mut of_pod = json!({"name": "c", "image": "i"});
    of_pod
        .as_object_mut()
        .into_iter()
        .for_each(|fields| fields.extend(container.as_object().cloned().unwrap_or_default()));
    let spec = json!({"containers": [of_pod], "schedulingGates": [{"name": "never/comes"}]});
    json!({"metadata": {"name": name, "annotations": annotations}, "spec": spec})
}

async fn create_pods(client: &Client, made: impl Iterator<Item = Value>) -> anyhow::Result<()> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), TENANT);
    let made = futures::stream::iter(made).map(|pod| {
        let pods = pods.clone();
        async move { anyhow::Ok(pods.create(&PostParams::default(), &serde_json::from_value(pod)?).await.map(drop)?) }
    });
    made.buffer_unordered(8).try_collect::<Vec<()>>().await.map(drop)
}

async fn small_jobs(client: &Client, count: usize) -> anyhow::Result<()> {
    let made = futures::stream::iter(0..count).map(|number| async move {
        let spec = json!({"action": "Replace", "targets": [{"name": "missing"}], "paused": true});
        create(client, &resource(), &format!("small-{number}"), spec).await
    });
    made.buffer_unordered(8).try_collect::<Vec<()>>().await.map(drop)
}

/// Creates small jobs and small flows, then puts many labels on them. A change of labels does not change the generation.
async fn labelled(client: &Client, count: usize) -> anyhow::Result<()> {
    let labels: Value = (0..10_000).map(|number| (format!("k{number:05}"), json!(""))).collect();
    let job = json!({"action": "Replace", "targets": [{"name": "missing"}], "paused": true, "parameters": {"a": "x".repeat(15_000)}});
    let steps = json!([{"name": "s", "jobTemplateRef": "none"}]);
    let flow = json!({"suspend": true, "flows": steps});
    for (resource, spec) in [(resource(), job), (kind("JobFlow", "jobflows"), flow)] {
        let objects: Api<DynamicObject> = Api::namespaced_with(client.clone(), TENANT, &resource);
        for number in 0..count {
            let name = format!("labelled-{number}");
            create(client, &resource, &name, spec.clone()).await?;
            let body = Patch::Merge(json!({"metadata": {"labels": labels}}));
            objects.patch(&name, &PatchParams::default(), &body).await.with_context(|| name.clone())?;
        }
    }
    Ok(())
}

/// Creates pods whose controller does not exist and Jobs whose flow does not exist. A finalizer keeps them from the garbage collector.
async fn owned(client: &Client, count: usize) -> anyhow::Result<()> {
    let uid = "x".repeat(500_000);
    let owned = |mut object: Value, (api_version, kind): (&str, &str)| {
        let owner = json!({"apiVersion": api_version, "kind": kind, "name": "x", "uid": uid, "controller": true});
        let more = json!({"finalizers": ["tenant.example/kept"], "ownerReferences": [owner]});
        let metadata = object.get_mut("metadata").and_then(Value::as_object_mut);
        metadata.into_iter().for_each(|metadata| metadata.extend(more.as_object().cloned().unwrap_or_default()));
        object
    };
    let pods = (0..count).map(|number| pod(&format!("owned-{number}"), &json!({}), &json!({})));
    create_pods(client, pods.map(|pod| owned(pod, ("x/v1", "X")))).await?;
    let jobs: Api<Job> = Api::namespaced(client.clone(), TENANT);
    for number in 0..count {
        let template = json!({"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}});
        let job =
            json!({"metadata": {"name": format!("owned-{number}")}, "spec": {"suspend": true, "template": template}});
        let job = owned(job, ("api.practice.com/v1alpha1", "JobFlow"));
        jobs.create(&PostParams::default(), &serde_json::from_value(job)?).await?;
    }
    Ok(())
}

/// The status of an object. The spec is not read, because it may be nested too deep.
#[derive(Deserialize)]
struct Told {
    #[serde(default)]
    status: Value,
}

/// Waits until the status of each object tells the tenant why the host refuses the object.
async fn is_told(client: &Client) -> anyhow::Result<()> {
    let told = [
        (JOBS, "large-0", "KiB"),
        (JOBS, "nested", "deeper than the 100 levels"),
        (TEMPLATES, "large", "KiB"),
        (TEMPLATES, "nested", "deeper than the 100 levels"),
    ];
    for ((version, plural), name, words) in told {
        let path = format!("/apis/{version}/namespaces/{TENANT}/{plural}/{name}");
        patiently("the owner is told", async || {
            let text = client.request_text(http::Request::get(&path).body(Vec::new())?).await?;
            let Told { status } = serde_json::from_str(&text)?;
            let conditions = status.pointer("/conditions").and_then(Value::as_array).cloned();
            let mut conditions = conditions.unwrap_or_default().into_iter();
            let valid = conditions.find(|one| one["type"] == "Valid" && one["status"] == "False");
            Ok(valid.is_some_and(|valid| {
                valid.pointer("/message").and_then(Value::as_str).is_some_and(|message| message.contains(words))
            }))
        })
        .await
        .with_context(|| path.clone())?;
    }
    Ok(())
}
