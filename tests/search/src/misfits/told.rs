//! Creates misfits, checks the messages to their owners, and removes misfits.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use http::{Method, StatusCode};
use kube::ResourceExt as _;
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::shared_cluster::grants;
use super::{Begin, Harm, Misfit, Told};
use oarlock_scenarios::components::component;
use oarlock_scenarios::jobs::{self, Told as _, replace};
use oarlock_scenarios::scenarios::many::records;
use oarlock_scenarios::test_cluster::TestCluster;
use oarlock_support::faults::Then;
use oarlock_support::orders::Order;

/// The time limit for the message to the owner.
const PATIENCE: Duration = Duration::from_secs(120);
/// The name of the plugin file of a misfit.
const FILE: &str = "bad.wasm";
/// The placeholder for the pod of a misfit in the content of its job.
pub(super) const POD: &str = "POD";
/// The deadline in seconds of a target whose release must fail.
const SHORT: i64 = 3;

/// Creates a misfit. Returns the message of a refusal if the API server or the host refuses it at once.
pub(super) async fn begin(cluster: &mut TestCluster, misfit: &Misfit, name: &str) -> anyhow::Result<Option<String>> {
    match &misfit.begin {
        Begin::Misdeed(word) => {
            cluster.seedbed.bare_pod(name).await?;
            hostile_job(cluster, name, json!({ "do": word }), 30).await?;
        }
        Begin::InRelease(word) => {
            cluster.seedbed.bare_pod(name).await?;
            let interceptor = cluster.running()?.interceptor.clone();
            interceptor.order(Order::all(Method::PATCH, &format!("/pods/{name}"), Then::Refuse(StatusCode::FORBIDDEN)));
            hostile_job(cluster, name, json!({"do": format!("{word}-in-release")}), SHORT).await?;
        }
        Begin::File(bytes) => drop(cluster.running()?.host.plugins.publish(FILE, bytes()?).await),
        Begin::Grant(spec) => return grant(cluster, name, spec).await,
        Begin::Job(data) => return store(cluster, name, data).await,
        Begin::Edit(spec) => {
            in_flight(cluster, name).await?;
            cluster.edit_job(name, spec.clone()).await?;
        }
        Begin::Pod(change, spec) => return pod(cluster, name, change, spec).await,
        Begin::Status(status) => {
            in_flight(cluster, name).await?;
            let body = Patch::Merge(json!({ "status": status }));
            return refusal(cluster.jobs().patch_status(name, &PatchParams::default(), &body).await);
        }
        Begin::Record(record) => return write_record(cluster, name, record).await,
        Begin::Harm(harm) => self::harm(cluster, *harm).await?,
    }
    Ok(None)
}

async fn hostile_job(cluster: &TestCluster, name: &str, parameters: Value, seconds: i64) -> anyhow::Result<()> {
    let spec = json!({"action": "Hostile", "targets": [{ "name": name }], "parameters": parameters,
        "activeDeadlineSeconds": seconds});
    cluster.create_job(name, spec).await?;
    Ok(())
}

async fn grant(cluster: &TestCluster, name: &str, spec: &str) -> anyhow::Result<Option<String>> {
    cluster.seedbed.bare_pod(name).await?;
    match oarlock_wasm::parse_grants(&grants(Some(spec))) {
        Ok(grants) => cluster.running()?.host.plugins.set_grants(grants).await,
        Err(error) => return Ok(Some(oarlock_kube::error_chain::error_chain(&error))),
    }
    hostile_job(cluster, name, json!({}), 30).await?;
    Ok(None)
}

/// Returns the API server's message if the API server refused the request.
fn refusal(result: kube::Result<DynamicObject>) -> anyhow::Result<Option<String>> {
    match result {
        Ok(_) => Ok(None),
        Err(kube::Error::Api(status)) => Ok(Some(status.message)),
        Err(error) => Err(error.into()),
    }
}

async fn store(cluster: &TestCluster, name: &str, data: &Value) -> anyhow::Result<Option<String>> {
    cluster.seedbed.bare_pod(name).await?;
    let data: Value = serde_json::from_str(&data.to_string().replace(POD, name))?;
    let mut job = DynamicObject::new(name, &jobs::resource()).within(&cluster.namespace).data(data);
    if let Some(metadata) = job.data.as_object_mut().and_then(|data| data.remove("metadata")) {
        let named = job.metadata.clone();
        job.metadata = serde_json::from_value(metadata)?;
        (job.metadata.name, job.metadata.namespace) = (named.name, named.namespace);
    }
    refusal(cluster.jobs().create(&PostParams::default(), &job).await)
}

async fn pod(cluster: &TestCluster, name: &str, change: &Value, spec: &Value) -> anyhow::Result<Option<String>> {
    cluster.seedbed.bare_pod(name).await?;
    let change: Value = serde_json::from_str(&change.to_string().replace(POD, name))?;
    let status = change.get("status").map(|status| json!({ "status": status }));
    let refused = match status {
        Some(status) => cluster.pods().patch_status(name, &PatchParams::default(), &Patch::Merge(status)).await.err(),
        None => cluster.pods().patch(name, &PatchParams::default(), &Patch::Merge(change)).await.err(),
    };
    if let Some(kube::Error::Api(status)) = refused {
        return Ok(Some(status.message));
    }
    cluster.create_job(name, replace(&[name.to_owned()], spec.clone())).await?;
    Ok(None)
}

/// Creates a job in flight whose target never ends by itself.
async fn in_flight(cluster: &TestCluster, name: &str) -> anyhow::Result<()> {
    cluster.seedbed.bare_pod(name).await?;
    hostile_job(cluster, name, json!({"do": "dawdle-in-progress"}), 20).await?;
    cluster.until(name, "in flight", |job| job.count("processing") == 1).await?;
    Ok(())
}

/// Creates a job of 251 targets with one in flight, and overwrites its first record.
async fn write_record(cluster: &TestCluster, name: &str, record: &Value) -> anyhow::Result<Option<String>> {
    cluster.seedbed.bare_pod(name).await?;
    let missing = (0..250).map(|number| json!({"name": format!("missing-{number}")}));
    let targets: Vec<_> = [json!({ "name": name })].into_iter().chain(missing).collect();
    let spec = json!({"action": "Hostile", "targets": targets, "parameters": {"do": "dawdle-in-progress"},
        "activeDeadlineSeconds": 20, "partition": 1});
    cluster.create_job(name, spec).await?;
    let job = cluster.until(name, "in flight", |job| job.count("processing") == 1).await?;
    let start: String = job.uid().unwrap_or_default().chars().take(8).collect();
    let shard = format!("{name}-{start}-0");
    refusal(records(cluster).patch(&shard, &PatchParams::default(), &Patch::Merge(record)).await)
}

async fn harm(cluster: &TestCluster, harm: Harm) -> anyhow::Result<()> {
    match harm {
        Harm::Delay => {
            let late = Then::Delay(Duration::from_millis(500));
            cluster
                .running()?
                .interceptor
                .order(Order::all(Method::PATCH, "/operationjobs/good-job", late).after_commit());
        }
        Harm::Touch => {
            let body = json!({"metadata": {"labels": {"touched": "true"}}});
            cluster.pods().patch("bystander", &PatchParams::default(), &Patch::Merge(body)).await?;
        }
        Harm::Silence => {}
    }
    Ok(())
}

/// Waits until the owner of the misfit gets the message.
pub(super) async fn check(
    cluster: &TestCluster,
    misfit: &Misfit,
    name: &str,
    refusal: Option<&str>,
) -> anyhow::Result<()> {
    if let Told::Refused(words) = misfit.told {
        let sentence = refusal.context("it was not refused")?;
        ensure!(sentence.contains(words), "it was refused by: {sentence}");
        return Ok(());
    }
    ensure!(refusal.is_none(), "it was refused: {refusal:?}");
    let begun = Instant::now();
    loop {
        let seen = seen(cluster, misfit, name).await?;
        if seen.is_none() {
            return Ok(());
        }
        ensure!(begun.elapsed() < PATIENCE, "its owner was not told: {}", seen.unwrap_or_default());
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// Returns what the owner sees instead of the expected message, or `None` if the message is there.
async fn seen(cluster: &TestCluster, misfit: &Misfit, name: &str) -> anyhow::Result<Option<String>> {
    let job = cluster.jobs().get_opt(name).await?;
    let is = |found: String, wanted: &str| (found != wanted).then_some(found);
    let told = match (&misfit.told, job) {
        (Told::Plugin(reason), _) => {
            let list = cluster.running()?.host.plugins.list();
            let file = matches!(misfit.begin, Begin::File(_));
            let mine = list.into_iter().find(|status| status.source == if file { FILE } else { "hostile" });
            let status = mine.context("no such plugin is listed")?;
            let sentence = status.message.len() > 10 && !status.message.chars().any(char::is_control);
            (status.reason != *reason || !sentence).then(|| format!("{status:?}"))
        }
        (Told::Nothing, _) => None,
        (Told::Event(reason), _) => (!told_of(cluster, name, reason).await?).then(|| format!("no event {reason}")),
        (_, None) => Some("no job".to_owned()),
        (Told::Target(wanted), Some(job)) => {
            let details = job.targets().get(name).cloned();
            let found = job.target(name);
            (!found.starts_with(wanted)).then(|| format!("{found}: {details:?}"))
        }
        (Told::Condition(kind, wanted, words), Some(job)) => {
            let (found, message) = (job.condition(kind), job.condition_message(kind));
            (found != *wanted || !message.contains(words)).then(|| format!("{found}: {message}"))
        }
        (Told::Ends(wanted), Some(job)) => {
            is(job.progress().to_owned(), wanted).map(|it| format!("{it}: {:?}", job.data))
        }
        (Told::Refused(_), Some(_)) => None,
    };
    Ok(told)
}

async fn told_of(cluster: &TestCluster, name: &str, reason: &str) -> anyhow::Result<bool> {
    Ok(cluster.events().await?.iter().any(|event| {
        let about = event.regarding.as_ref().and_then(|object| object.name.as_deref());
        about == Some(name) && event.reason.as_deref() == Some(reason)
    }))
}

/// Removes a misfit. Jobs that were stored without admission stay for the next host.
pub(super) async fn end(cluster: &mut TestCluster, misfit: &Misfit, name: &str) -> anyhow::Result<()> {
    cluster.running()?.interceptor.lift();
    match &misfit.begin {
        Begin::File(_) => cluster.running()?.host.plugins.withdraw(FILE).await,
        Begin::Grant(_) => {
            let grants = oarlock_wasm::parse_grants(&grants(None))?;
            let plugins = &cluster.running()?.host.plugins;
            plugins.set_grants(grants).await;
            // The withdrawn grant unloaded the code, and there is no file from which the host could load it again.
            plugins.publish("hostile", component("hostile")?).await;
        }
        Begin::Job(_) => return Ok(()),
        _ => {}
    }
    if cluster.jobs().get_opt(name).await?.is_some() {
        cluster.delete_job(name).await?;
        cluster.until_gone(name).await?;
    }
    if cluster.pods().get_opt(name).await?.is_some() {
        let body = json!({"metadata": {"finalizers": null}});
        cluster.pods().patch(name, &PatchParams::default(), &Patch::Merge(body)).await?;
        cluster.pods().delete(name, &DeleteParams::default().grace_period(0)).await?;
    }
    Ok(())
}
