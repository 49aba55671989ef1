//! How a misfit comes about, what its owner is told, and how it goes.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use http::{Method, StatusCode};
use kube::ResourceExt as _;
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::ground::grants;
use super::{Begin, Harm, Misfit, Told};
use crate::components::component;
use crate::jobs::{self, Told as _, replace};
use crate::rig::Rig;
use crate::scenarios::many::records;
use oarlock_bed::faults::Then;
use oarlock_bed::orders::Order;

/// How long the owner waits until he is told.
const PATIENCE: Duration = Duration::from_secs(120);
/// The name of the file that is dropped.
const FILE: &str = "bad.wasm";
/// Stands for the pod of a misfit in the content of its job.
pub(super) const POD: &str = "POD";
/// How long a target has whose release is to go wrong.
const SHORT: i64 = 3;

/// Brings a misfit about. Yields the sentence by which it was refused at once.
pub(super) async fn begin(rig: &mut Rig, misfit: &Misfit, name: &str) -> anyhow::Result<Option<String>> {
    match &misfit.begin {
        Begin::Misdeed(word) => {
            rig.seedbed.bare_pod(name).await?;
            hostile_job(rig, name, json!({ "do": word }), 30).await?;
        }
        Begin::InRelease(word) => {
            rig.seedbed.bare_pod(name).await?;
            let wire = rig.running()?.wire.clone();
            wire.order(Order::all(Method::PATCH, &format!("/pods/{name}"), Then::Refuse(StatusCode::FORBIDDEN)));
            hostile_job(rig, name, json!({"do": format!("{word}-in-release")}), SHORT).await?;
        }
        Begin::File(bytes) => drop(rig.running()?.host.plugins.publish(FILE, bytes()?).await),
        Begin::Grant(spec) => return grant(rig, name, spec).await,
        Begin::Job(data) => return store(rig, name, data).await,
        Begin::Edit(spec) => {
            in_flight(rig, name).await?;
            rig.edit_job(name, spec.clone()).await?;
        }
        Begin::Pod(change, spec) => return pod(rig, name, change, spec).await,
        Begin::Status(status) => {
            in_flight(rig, name).await?;
            let body = Patch::Merge(json!({ "status": status }));
            return refusal(rig.jobs().patch_status(name, &PatchParams::default(), &body).await);
        }
        Begin::Record(record) => return write_record(rig, name, record).await,
        Begin::Harm(harm) => self::harm(rig, *harm).await?,
    }
    Ok(None)
}

async fn hostile_job(rig: &Rig, name: &str, parameters: Value, seconds: i64) -> anyhow::Result<()> {
    let spec = json!({"action": "Hostile", "targets": [{ "name": name }], "parameters": parameters,
        "activeDeadlineSeconds": seconds});
    rig.create_job(name, spec).await?;
    Ok(())
}

async fn grant(rig: &Rig, name: &str, spec: &str) -> anyhow::Result<Option<String>> {
    rig.seedbed.bare_pod(name).await?;
    match oarlock_wasm::parse_grants(&grants(Some(spec))) {
        Ok(grants) => rig.running()?.host.plugins.set_grants(grants).await,
        Err(error) => return Ok(Some(oarlock::ports::error_chain(&error))),
    }
    hostile_job(rig, name, json!({}), 30).await?;
    Ok(None)
}

/// What the API server says against it, if it does.
fn refusal(result: kube::Result<DynamicObject>) -> anyhow::Result<Option<String>> {
    match result {
        Ok(_) => Ok(None),
        Err(kube::Error::Api(status)) => Ok(Some(status.message)),
        Err(error) => Err(error.into()),
    }
}

async fn store(rig: &Rig, name: &str, data: &Value) -> anyhow::Result<Option<String>> {
    rig.seedbed.bare_pod(name).await?;
    let data: Value = serde_json::from_str(&data.to_string().replace(POD, name))?;
    let mut job = DynamicObject::new(name, &jobs::resource()).within(&rig.namespace).data(data);
    if let Some(metadata) = job.data.as_object_mut().and_then(|data| data.remove("metadata")) {
        let named = job.metadata.clone();
        job.metadata = serde_json::from_value(metadata)?;
        (job.metadata.name, job.metadata.namespace) = (named.name, named.namespace);
    }
    refusal(rig.jobs().create(&PostParams::default(), &job).await)
}

async fn pod(rig: &Rig, name: &str, change: &Value, spec: &Value) -> anyhow::Result<Option<String>> {
    rig.seedbed.bare_pod(name).await?;
    let change: Value = serde_json::from_str(&change.to_string().replace(POD, name))?;
    let status = change.get("status").map(|status| json!({ "status": status }));
    let refused = match status {
        Some(status) => rig.pods().patch_status(name, &PatchParams::default(), &Patch::Merge(status)).await.err(),
        None => rig.pods().patch(name, &PatchParams::default(), &Patch::Merge(change)).await.err(),
    };
    if let Some(kube::Error::Api(status)) = refused {
        return Ok(Some(status.message));
    }
    rig.create_job(name, replace(&[name.to_owned()], spec.clone())).await?;
    Ok(None)
}

/// A job in flight, whose target waits for what never comes.
async fn in_flight(rig: &Rig, name: &str) -> anyhow::Result<()> {
    rig.seedbed.bare_pod(name).await?;
    hostile_job(rig, name, json!({"do": "dawdle-in-progress"}), 20).await?;
    rig.until(name, "in flight", |job| job.count("processing") == 1).await?;
    Ok(())
}

/// A job of 251 targets with one in flight, whose first record is overwritten.
async fn write_record(rig: &Rig, name: &str, record: &Value) -> anyhow::Result<Option<String>> {
    rig.seedbed.bare_pod(name).await?;
    let missing = (0..250).map(|number| json!({"name": format!("missing-{number}")}));
    let targets: Vec<_> = [json!({ "name": name })].into_iter().chain(missing).collect();
    let spec = json!({"action": "Hostile", "targets": targets, "parameters": {"do": "dawdle-in-progress"},
        "activeDeadlineSeconds": 20, "partition": 1});
    rig.create_job(name, spec).await?;
    let job = rig.until(name, "in flight", |job| job.count("processing") == 1).await?;
    let start: String = job.uid().unwrap_or_default().chars().take(8).collect();
    let shard = format!("{name}-{start}-0");
    refusal(records(rig).patch(&shard, &PatchParams::default(), &Patch::Merge(record)).await)
}

async fn harm(rig: &Rig, harm: Harm) -> anyhow::Result<()> {
    match harm {
        Harm::Delay => {
            let late = Then::Delay(Duration::from_millis(500));
            rig.running()?.wire.order(Order::all(Method::PATCH, "/operationjobs/good-job", late).after_commit());
        }
        Harm::Touch => {
            let body = json!({"metadata": {"labels": {"touched": "true"}}});
            rig.pods().patch("bystander", &PatchParams::default(), &Patch::Merge(body)).await?;
        }
        Harm::Silence => {}
    }
    Ok(())
}

/// Waits until the owner of the misfit is told.
pub(super) async fn check(rig: &Rig, misfit: &Misfit, name: &str, refusal: Option<&str>) -> anyhow::Result<()> {
    if let Told::Refused(words) = misfit.told {
        let sentence = refusal.context("it was not refused")?;
        ensure!(sentence.contains(words), "it was refused by: {sentence}");
        return Ok(());
    }
    ensure!(refusal.is_none(), "it was refused: {refusal:?}");
    let begun = Instant::now();
    loop {
        let seen = seen(rig, misfit, name).await?;
        if seen.is_none() {
            return Ok(());
        }
        ensure!(begun.elapsed() < PATIENCE, "its owner was not told: {}", seen.unwrap_or_default());
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// What is seen in place of what the owner is to be told; `None` if that is there.
async fn seen(rig: &Rig, misfit: &Misfit, name: &str) -> anyhow::Result<Option<String>> {
    let job = rig.jobs().get_opt(name).await?;
    let is = |found: String, wanted: &str| (found != wanted).then_some(found);
    let told = match (&misfit.told, job) {
        (Told::Plugin(reason), _) => {
            let list = rig.running()?.host.plugins.list();
            let file = matches!(misfit.begin, Begin::File(_));
            let mine = list.into_iter().find(|status| status.source == if file { FILE } else { "hostile" });
            let status = mine.context("no such plugin is listed")?;
            let sentence = status.message.len() > 10 && !status.message.chars().any(char::is_control);
            (status.reason != *reason || !sentence).then(|| format!("{status:?}"))
        }
        (Told::Nothing, _) => None,
        (Told::Event(reason), _) => (!told_of(rig, name, reason).await?).then(|| format!("no event {reason}")),
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

async fn told_of(rig: &Rig, name: &str, reason: &str) -> anyhow::Result<bool> {
    Ok(rig.events().await?.iter().any(|event| {
        let about = event.regarding.as_ref().and_then(|object| object.name.as_deref());
        about == Some(name) && event.reason.as_deref() == Some(reason)
    }))
}

/// Takes a misfit away, but for jobs that were stored past admission: they stay for the next host.
pub(super) async fn end(rig: &mut Rig, misfit: &Misfit, name: &str) -> anyhow::Result<()> {
    rig.running()?.wire.lift();
    match &misfit.begin {
        Begin::File(_) => rig.running()?.host.plugins.withdraw(FILE).await,
        Begin::Grant(_) => {
            let grants = oarlock_wasm::parse_grants(&grants(None))?;
            let plugins = &rig.running()?.host.plugins;
            plugins.set_grants(grants).await;
            // Its code went with its grant, and there is no file to take it from.
            plugins.publish("hostile", component("hostile")?).await;
        }
        Begin::Job(_) => return Ok(()),
        _ => {}
    }
    if rig.jobs().get_opt(name).await?.is_some() {
        rig.delete_job(name).await?;
        rig.until_gone(name).await?;
    }
    if rig.pods().get_opt(name).await?.is_some() {
        let body = json!({"metadata": {"finalizers": null}});
        rig.pods().patch(name, &PatchParams::default(), &Patch::Merge(body)).await?;
        rig.pods().delete(name, &DeleteParams::default().grace_period(0)).await?;
    }
    Ok(())
}
