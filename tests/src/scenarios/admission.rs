//! What the API server refuses, and what it fills in, before a host sees a job.

use anyhow::ensure;
use serde_json::{Value, json};

use crate::jobs::replace;
use crate::rig::Rig;

fn names(list: &[&str]) -> Vec<String> {
    list.iter().map(|name| (*name).to_owned()).collect()
}

/// Fails unless the answer is a refusal whose message has each of these words.
pub(super) fn refused<T>(answer: Result<T, kube::Error>, words: &[&str]) -> anyhow::Result<()> {
    match answer {
        Err(kube::Error::Api(status)) => {
            let missing: Vec<_> = words.iter().filter(|word| !status.message.contains(**word)).collect();
            ensure!(missing.is_empty(), "{missing:?} is not in {:?}", status.message);
            Ok(())
        }
        Err(other) => Err(other.into()),
        Ok(_) => anyhow::bail!("accepted, though {words:?}"),
    }
}

/// A1: null means absent, and absent means the default.
pub async fn absent_and_null_fields_get_their_defaults(rig: &mut Rig) -> anyhow::Result<()> {
    let nulls = json!({
        "action": "Replace", "targets": [{"name": "a", "containers": null}], "partition": null,
        "activeDeadlineSeconds": null, "TTLSecondsAfterFinished": null, "operationDelaySeconds": null,
    });
    for (name, spec) in [("nulls", nulls), ("absent", replace(&names(&["a"]), json!({})))] {
        let job = rig.create_job(name, spec).await?;
        let field = |name: &str| job.data.pointer(&format!("/spec/{name}")).cloned().unwrap_or(Value::Null);
        ensure!(field("activeDeadlineSeconds") == json!(10_800), "{:?}", job.data);
        ensure!(field("TTLSecondsAfterFinished") == json!(1800), "{:?}", job.data);
        ensure!(field("partition").is_null() && field("operationDelaySeconds").is_null(), "{:?}", job.data);
    }
    Ok(())
}

/// Each rule of a new job.
pub async fn a_bad_spec_is_refused_in_words_that_name_field_and_rule(rig: &mut Rig) -> anyhow::Result<()> {
    let with = |more: Value| replace(&names(&["a"]), more);
    let cases = [
        (json!({}), "spec.action: required"),
        (json!({"action": "Replace"}), "spec.targets: name at least one target"),
        (replace(&[], json!({})), "spec.targets: name at least one target"),
        (replace(&names(&["a", "b", "a"]), json!({})), "spec.targets[0].name: \"a\" is there twice"),
        (
            replace(&names(&["a", "p4/status"]), json!({})),
            "spec.targets[1].name: \"p4/status\" must be a DNS-1123 subdomain",
        ),
        (json!({"action": "Replace", "targets": [{}]}), "spec.targets[0].name: required"),
        (json!({"action": "Replace", "targets": [{"name": "a"}, {"name": "b", "uid": "b/c"}]}), "spec.targets[1].uid"),
        (json!({"action": "Replace", "targets": [{"name": "a", "uid": "u".repeat(64)}]}), "spec.targets[0].uid"),
        (with(json!({"partition": -1})), "spec.partition: must be >= 0, and is -1"),
        (with(json!({"activeDeadlineSeconds": 0})), "spec.activeDeadlineSeconds: must be > 0, and is 0"),
        (with(json!({"TTLSecondsAfterFinished": 0})), "spec.TTLSecondsAfterFinished: must be > 0, and is 0"),
        (
            json!({"action": "Replace", "targets": [{"name": "a", "containers": ["c", "c"]}]}),
            "spec.targets[0].containers: \"c\" is there twice",
        ),
    ];
    for (number, (spec, words)) in cases.into_iter().enumerate() {
        refused(rig.create_job(&format!("bad-{number}"), spec).await, &[words])?;
    }
    Ok(())
}

/// A2: the message names the duplicate.
pub async fn a_duplicate_among_300_targets_is_named(rig: &mut Rig) -> anyhow::Result<()> {
    let mut targets: Vec<String> = (0..299).map(|number| format!("pod-{number}")).collect();
    targets.push("pod-117".to_owned());
    refused(rig.create_job("twice", replace(&targets, json!({}))).await, &["pod-117"])
}

/// A3: a partition only rises.
pub async fn a_partition_is_never_lowered_nor_removed(rig: &mut Rig) -> anyhow::Result<()> {
    rig.create_job("j", replace(&names(&["a", "b", "c", "d"]), json!({"partition": 3}))).await?;
    let rule = ["spec.partition: must not be lowered or removed, and was 3"];
    refused(rig.edit_job("j", json!({"partition": null})).await, &rule)?;
    refused(rig.edit_job("j", json!({"partition": 2})).await, &rule)?;
    rig.edit_job("j", json!({"partition": 4})).await?;
    rig.create_job("k", replace(&names(&["a", "b", "c"]), json!({}))).await?;
    rig.edit_job("k", json!({"partition": 2})).await?;
    Ok(())
}

/// What a job is about is decided when it is created.
pub async fn action_targets_and_parameters_never_change(rig: &mut Rig) -> anyhow::Result<()> {
    rig.create_job("j", replace(&names(&["a", "b"]), json!({"parameters": {"minReadySeconds": 1}}))).await?;
    refused(rig.edit_job("j", json!({"action": "Restart"})).await, &["spec.action: immutable"])?;
    for targets in [json!([{"name": "b"}, {"name": "a"}]), json!([{"name": "a", "uid": "1"}, {"name": "b"}])] {
        let edited = rig.edit_job("j", json!({ "targets": targets })).await;
        refused(edited, &["spec.targets: immutable, order too"])?;
    }
    refused(rig.edit_job("j", json!({"parameters": {"minReadySeconds": 2}})).await, &["spec.parameters: immutable"])?;
    refused(
        rig.edit_job("j", json!({"activeDeadlineSeconds": 0})).await,
        &["spec.activeDeadlineSeconds: must be > 0"],
    )?;
    Ok(())
}
