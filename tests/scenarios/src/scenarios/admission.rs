//! Fields that the API server refuses or defaults before a host sees a job.

use anyhow::ensure;
use serde_json::{Value, json};

use crate::jobs::replace;
use crate::test_cluster::TestCluster;

fn names(list: &[&str]) -> Vec<String> {
    list.iter().map(|name| (*name).to_owned()).collect()
}

/// Fails unless the API server refused the request with a message that has each of these words.
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

/// A1: a null field means an absent field, and an absent field gets its default.
pub async fn absent_and_null_fields_get_their_defaults(cluster: &mut TestCluster) -> anyhow::Result<()> {
    let nulls = json!({
        "action": "Replace", "targets": [{"name": "a", "containers": null}], "partition": null,
        "activeDeadlineSeconds": null, "TTLSecondsAfterFinished": null, "operationDelaySeconds": null,
    });
    for (name, spec) in [("nulls", nulls), ("absent", replace(&names(&["a"]), json!({})))] {
        let job = cluster.create_job(name, spec).await?;
        let field = |name: &str| job.data.pointer(&format!("/spec/{name}")).cloned().unwrap_or(Value::Null);
        ensure!(field("activeDeadlineSeconds") == json!(10_800), "{:?}", job.data);
        ensure!(field("TTLSecondsAfterFinished") == json!(1800), "{:?}", job.data);
        ensure!(field("partition").is_null() && field("operationDelaySeconds").is_null(), "{:?}", job.data);
    }
    Ok(())
}

/// The API server refuses a new job that breaks a rule, and its message names the field and the rule.
pub async fn a_bad_spec_is_refused_in_words_that_name_field_and_rule(cluster: &mut TestCluster) -> anyhow::Result<()> {
    let with = |more: Value| replace(&names(&["a"]), more);
    let many: Vec<String> = (0..10_001).map(|number| format!("pod-{number}")).collect();
    let cases = [
        (json!({}), "spec.action: required"),
        (json!({"action": "Replace"}), "spec.targets: name at least one target"),
        (replace(&[], json!({})), "spec.targets: name at least one target"),
        (replace(&names(&["a", "b", "a"]), json!({})), "spec.targets[0].name: duplicate \"a\""),
        (
            replace(&names(&["a", "p4/status"]), json!({})),
            "spec.targets[1].name: \"p4/status\" must be a DNS-1123 subdomain",
        ),
        (json!({"action": "Replace", "targets": [{}]}), "spec.targets[0].name: required"),
        (json!({"action": "Replace", "targets": [{"name": "a"}, {"name": "b", "uid": "b/c"}]}), "spec.targets[1].uid"),
        (json!({"action": "Replace", "targets": [{"name": "a", "uid": "u".repeat(64)}]}), "spec.targets[0].uid"),
        (replace(&many, json!({})), "spec.targets: at most 10000; split the job"),
        (with(json!({"targetKind": "Tree"})), "spec.targetKind: Unsupported value: \"Tree\""),
        (with(json!({"parallelism": 0})), "spec.parallelism: must be an integer >= 1 or 1% to 100%"),
        (with(json!({"partition": -1})), "spec.partition: must be >= 0, but is -1"),
        (with(json!({"activeDeadlineSeconds": 0})), "spec.activeDeadlineSeconds: must be > 0, but is 0"),
        (with(json!({"TTLSecondsAfterFinished": 0})), "spec.TTLSecondsAfterFinished: must be > 0, but is 0"),
        (
            json!({"action": "Replace", "targets": [{"name": "a", "containers": ["c", "c"]}]}),
            "spec.targets[0].containers: duplicate \"c\"",
        ),
    ];
    for (number, (spec, words)) in cases.into_iter().enumerate() {
        refused(cluster.create_job(&format!("bad-{number}"), spec).await, &[words])?;
    }
    Ok(())
}

/// A2: the refusal names the duplicate target.
pub async fn a_duplicate_among_300_targets_is_named(cluster: &mut TestCluster) -> anyhow::Result<()> {
    let mut targets: Vec<String> = (0..299).map(|number| format!("pod-{number}")).collect();
    targets.push("pod-117".to_owned());
    refused(cluster.create_job("twice", replace(&targets, json!({}))).await, &["pod-117"])
}

/// A3: a partition can only rise.
pub async fn a_partition_is_never_lowered_nor_removed(cluster: &mut TestCluster) -> anyhow::Result<()> {
    cluster.create_job("j", replace(&names(&["a", "b", "c", "d"]), json!({"partition": 3}))).await?;
    let rule = ["spec.partition: must not be lowered or removed; the stored value is 3"];
    refused(cluster.edit_job("j", json!({"partition": null})).await, &rule)?;
    refused(cluster.edit_job("j", json!({"partition": 2})).await, &rule)?;
    cluster.edit_job("j", json!({"partition": 4})).await?;
    cluster.create_job("k", replace(&names(&["a", "b", "c"]), json!({}))).await?;
    cluster.edit_job("k", json!({"partition": 2})).await?;
    Ok(())
}

/// The action, the targets and the parameters of a job are immutable.
pub async fn action_targets_and_parameters_never_change(cluster: &mut TestCluster) -> anyhow::Result<()> {
    cluster.create_job("j", replace(&names(&["a", "b"]), json!({"parameters": {"minReadySeconds": 1}}))).await?;
    refused(cluster.edit_job("j", json!({"action": "Restart"})).await, &["spec.action: immutable"])?;
    refused(cluster.edit_job("j", json!({"dryRun": true})).await, &["spec.dryRun: immutable"])?;
    for targets in [json!([{"name": "b"}, {"name": "a"}]), json!([{"name": "a", "uid": "1"}, {"name": "b"}])] {
        let edited = cluster.edit_job("j", json!({ "targets": targets })).await;
        refused(edited, &["spec.targets: immutable, including their order"])?;
    }
    refused(
        cluster.edit_job("j", json!({"parameters": {"minReadySeconds": 2}})).await,
        &["spec.parameters: immutable"],
    )?;
    refused(
        cluster.edit_job("j", json!({"activeDeadlineSeconds": 0})).await,
        &["spec.activeDeadlineSeconds: must be > 0"],
    )?;
    Ok(())
}
