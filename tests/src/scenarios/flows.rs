//! JobFlows: steps in their order, failures and what follows them, times to live, and hosts that end meanwhile.

#![expect(clippy::indexing_slicing, reason = "a test fails loudly")]

use std::time::Duration;

use anyhow::ensure;
use k8s_openapi::api::batch::v1::Job;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use oarlock_sim::world::Seedbed;
use serde_json::{Value, json};

use crate::flows::{begin, is_true, prepare, step, unit, work};
use crate::rig::{Rig, patiently};

const FLOW: &str = "JobFlow";

fn created(job: &Job) -> Option<String> {
    job.metadata.creation_timestamp.as_ref().map(|time| time.0.to_string())
}

/// Five steps, two of them roots: each Job is made once those that it depends on have succeeded.
pub async fn the_five_steps_of_the_example_run_in_their_order(rig: &mut Rig) -> anyhow::Result<()> {
    begin(rig).await?;
    let steps = [
        step("1", "sleep 1", &[]),
        step("2", "sleep 1", &["1"]),
        step("3", "true", &["1", "2"]),
        step("4", "true", &[]),
        step("5", "true", &["4", "2"]),
    ];
    rig.create_flow(FLOW, "f", json!({"flows": steps, "globalParams": {"labels": {"of": "f"}}})).await?;
    let flow = rig.until_state(FLOW, "f", "Succeed").await?;
    ensure!(rig.batch_job_names().await? == ["f-1", "f-2", "f-3", "f-4", "f-5"]);
    let mut ended = Vec::new();
    for (job, needs) in [("f-2", "f-1"), ("f-3", "f-2"), ("f-5", "f-2"), ("f-5", "f-4")] {
        let (job, needed) = (rig.batch_jobs().get(job).await?, rig.batch_jobs().get(needs).await?);
        let done = needed.status.and_then(|status| status.completion_time).map(|time| time.0.to_string());
        ensure!(created(&job) >= done, "{job:?} came before {needs} ended at {done:?}");
        ended.push(job.metadata.labels.is_some_and(|labels| labels.get("of").is_some_and(|of| of == "f")));
    }
    ensure!(ended.iter().all(|labelled| *labelled) && is_true(&flow, "Complete"), "{flow:#}");
    ensure!(flow.pointer("/status/jobStatusList").and_then(Value::as_object).is_some_and(|list| list.len() == 5));
    Ok(())
}

/// A step whose JobTemplate is absent is blocked alone, and starts unasked once there is one. The template lists its Job.
pub async fn a_missing_template_blocks_one_step_and_heals(rig: &mut Rig) -> anyhow::Result<()> {
    begin(rig).await?;
    let steps = json!([{"name": "late", "jobTemplateRef": "a.b"}, step("root", "true", &[])]);
    rig.create_flow(FLOW, "f", json!({ "flows": steps })).await?;
    let blocked = |flow: &Value| unit(flow, "late") == "Blocked/JobTemplateNotFound" && unit(flow, "root") == "Succeed";
    rig.until_flow((FLOW, "f"), "one blocked", blocked).await?;
    rig.create_flow("JobTemplate", "a.b", json!({"jobTemplate": work("true")})).await?;
    rig.until_state(FLOW, "f", "Succeed").await?;
    let job = rig.batch_jobs().get("f-late").await?;
    let wanted = format!("{}.a.b", rig.namespace);
    ensure!(job.metadata.annotations.is_some_and(|all| all.get("createByJobTemplate") == Some(&wanted)));
    let lists = |template: &Value, names: Value| template.pointer("/status/dependencyList") == Some(&names);
    rig.until_flow(("JobTemplate", "a.b"), "it lists the Job", |one| lists(one, json!(["f-late"]))).await?;
    rig.delete_batch_job("f-late").await?;
    rig.until_flow(("JobTemplate", "a.b"), "it lists nothing", |one| lists(one, json!([]))).await?;
    ensure!(rig.batch_job_names().await? == ["f-root"], "what has ended is not made again");
    Ok(())
}

/// One of two roots fails: the flow fails at once, the other root ends, and a retry by hand runs what failed or was omitted.
pub async fn a_failed_flow_is_mended_and_retried_by_hand(rig: &mut Rig) -> anyhow::Result<()> {
    begin(rig).await?;
    rig.create_flow("JobTemplate", "t", json!({"jobTemplate": work("exit 7")})).await?;
    let steps =
        json!([{"name": "bad", "jobTemplateRef": "t"}, step("slow", "sleep 3", &[]), step("next", "true", &["bad"])]);
    rig.create_flow(FLOW, "f", json!({ "flows": steps })).await?;
    let flow = rig.until_completed(FLOW, "f").await?;
    ensure!(is_true(&flow, "Failed") && unit(&flow, "slow") == "Succeed", "{flow:#}");
    ensure!(
        unit(&flow, "bad") == "Failed/BackoffLimitExceeded" && unit(&flow, "next") == "Omitted/DependencyNotMet",
        "{flow:#}"
    );
    let told = flow.pointer("/status/steps/0/message").and_then(Value::as_str).unwrap_or_default();
    ensure!(told.contains("exited with 7"), "{told}");
    rig.patch_flow("JobTemplate", "t", json!({"spec": {"jobTemplate": work("true")}})).await?;
    rig.patch_flow(FLOW, "f", json!({"metadata": {"annotations": {"oarlock.dev/retry": "1"}}})).await?;
    rig.until_state(FLOW, "f", "Succeed").await?;
    ensure!(rig.batch_job_names().await? == ["f-bad", "f-bad-r1", "f-next", "f-slow"]);
    Ok(())
}

/// A Job with a time to live of 0 is recorded before it goes, also if it ended while no host ran.
pub async fn a_job_that_expires_at_once_is_recorded_and_runs_once(rig: &mut Rig) -> anyhow::Result<()> {
    begin(rig).await?;
    let mut first = step("a", "sleep 2", &[]);
    first["jobTemplate"]["ttlSecondsAfterFinished"] = json!(0);
    rig.create_flow(FLOW, "f", json!({"flows": [first, step("b", "true", &["a"])]})).await?;
    let runs = |flow: &Value| unit(flow, "a") == "Running";
    rig.until_flow((FLOW, "f"), "it runs", runs).await?;
    rig.kill_host("host").await?;
    patiently("the Job has ended", async || {
        let job = rig.batch_jobs().get_opt("f-a").await?;
        Ok(job.and_then(|job| job.status?.completion_time).is_some())
    })
    .await?;
    rig.start_host().await?;
    let flow = rig.until_state(FLOW, "f", "Succeed").await?;
    patiently("it expired", async || Ok(rig.batch_jobs().get_opt("f-a").await?.is_none())).await?;
    ensure!(unit(&flow, "a") == "Succeed", "{flow:#}");
    rig.restart_host().await?;
    rig.pass(Duration::from_secs(60)).await;
    ensure!(rig.batch_job_names().await? == ["f-b"], "it is not made again");
    Ok(())
}

/// A running Job that somebody deletes has failed; with a retry another attempt follows.
pub async fn a_running_job_that_is_deleted_has_failed(rig: &mut Rig) -> anyhow::Result<()> {
    begin(rig).await?;
    let mut again = step("again", "sleep 4", &[]);
    again["retryPolicy"] = json!({"limit": 1, "backoffSeconds": 1});
    let flows = json!([step("once", "sleep 600", &[]), again]);
    rig.create_flow(FLOW, "f", json!({"flows": flows, "failurePolicy": {"type": "Continue"}})).await?;
    let both = |flow: &Value| unit(flow, "once") == "Running" && unit(flow, "again") == "Running";
    rig.until_flow((FLOW, "f"), "both run", both).await?;
    rig.delete_batch_job("f-once").await?;
    rig.delete_batch_job("f-again").await?;
    let flow = rig.until_completed(FLOW, "f").await?;
    ensure!(unit(&flow, "once") == "Failed/JobDeleted" && unit(&flow, "again") == "Succeed", "{flow:#}");
    ensure!(rig.batch_job_names().await? == ["f-again-r1"]);
    Ok(())
}

/// A Job of somebody else under the name of a step stays untouched; the step starts once it is gone.
pub async fn a_foreign_job_is_never_touched(rig: &mut Rig) -> anyhow::Result<()> {
    begin(rig).await?;
    let mut spec = work("true");
    spec["template"]["spec"]["restartPolicy"] = json!("Never");
    let foreign: Job = serde_json::from_value(json!({"metadata": {"name": "f-a"}, "spec": spec}))?;
    let before = rig.batch_jobs().create(&PostParams::default(), &foreign).await?;
    patiently("it has ended", async || {
        Ok(rig.batch_jobs().get("f-a").await?.status.and_then(|status| status.completion_time).is_some())
    })
    .await?;
    rig.create_flow(FLOW, "f", json!({"flows": [step("a", "true", &[])]})).await?;
    rig.until_flow((FLOW, "f"), "it is blocked", |flow| unit(flow, "a") == "Blocked/NameConflict").await?;
    let now = rig.batch_jobs().get("f-a").await?;
    ensure!(now.metadata.uid == before.metadata.uid && now.metadata.owner_references.is_none());
    // The flow takes the name at once.
    rig.batch_jobs().delete("f-a", &DeleteParams::background()).await?;
    rig.until_state(FLOW, "f", "Succeed").await?;
    Ok(())
}

/// Jobs that name the flow as their owner decide nothing: one of another namespace, and one of an attempt that nobody made.
pub async fn a_forged_job_decides_no_step(rig: &mut Rig) -> anyhow::Result<()> {
    begin(rig).await?;
    let elsewhere = format!("{}-forger", rig.namespace);
    Seedbed::namespace(rig.client.clone(), &elsewhere).await?;
    let flow =
        rig.create_flow(FLOW, "f", json!({"flows": [step("a", "sleep 20", &[]), step("b", "true", &["a"])]})).await?;
    rig.until_flow((FLOW, "f"), "a runs", |flow| unit(flow, "a") == "Running").await?;
    let owner = json!({"apiVersion": "api.practice.com/v1alpha1", "kind": FLOW, "name": "f", "uid": flow.metadata.uid});
    let mut forged = Vec::new();
    for (namespace, name, attempt) in [
        (&elsewhere, "f-b", "0"),
        (&elsewhere, "f-a-r1", "4294967295"),
        (&rig.namespace, "mine", "0"),
        (&rig.namespace, "f-b-r7", "7"),
        (&rig.namespace, "f-b-r4294967295", "4294967295"),
    ] {
        let mut spec = work("true");
        spec["completions"] = json!(0);
        spec["template"]["spec"]["restartPolicy"] = json!("Never");
        let step = if name == "f-a-r1" { "a" } else { "b" };
        let metadata = json!({"name": name, "ownerReferences": [owner], "finalizers": ["scenarios.test/keep"],
            "labels": {"oarlock.dev/attempt": attempt, "oarlock.dev/owner-uid": flow.metadata.uid},
            "annotations": {"oarlock.dev/step": step}});
        let job: Job = serde_json::from_value(json!({ "metadata": metadata, "spec": spec }))?;
        let jobs = kube::Api::<Job>::namespaced(rig.client.clone(), namespace);
        jobs.create(&PostParams::default(), &job).await?;
        forged.push((jobs, name));
    }
    for (jobs, name) in &forged {
        patiently("the forged Job has ended, or goes", async || {
            let job = jobs.get(name).await?;
            let has_ended = job.status.is_some_and(|status| status.completion_time.is_some());
            Ok(has_ended || job.metadata.deletion_timestamp.is_some())
        })
        .await?;
    }
    let flow = rig.until_state(FLOW, "f", "Succeed").await?;
    let (a, b) = (rig.batch_jobs().get("f-a").await?, rig.batch_jobs().get("f-b").await?);
    let done = a.status.as_ref().and_then(|status| status.completion_time.as_ref()).map(|time| time.0.to_string());
    ensure!(created(&b) >= done, "b came at {:?}, and a ended at {done:?}", created(&b));
    for (step, job) in [("a", &a), ("b", &b)] {
        let steps = flow.pointer("/status/steps").and_then(Value::as_array).into_iter().flatten();
        let named = steps.into_iter().find(|one| one["name"] == step).map(|one| one["jobUID"].clone());
        ensure!(named == job.metadata.uid.clone().map(Value::from), "{step} is decided by its own Job: {flow:#}");
    }
    for (jobs, name) in forged {
        jobs.patch(name, &PatchParams::default(), &Patch::Merge(json!({"metadata": {"finalizers": null}}))).await?;
        jobs.delete(name, &DeleteParams::background()).await.map(drop).or_else(|error| match error {
            kube::Error::Api(status) if status.code == 404 => Ok(()),
            error => Err(error),
        })?;
    }
    Ok(())
}

/// A failed attempt is followed by as many as the policy allows, and the last failure fails the step.
pub async fn a_step_is_retried_as_often_as_it_may(rig: &mut Rig) -> anyhow::Result<()> {
    begin(rig).await?;
    let mut bad = step("a", "exit 1", &[]);
    bad["retryPolicy"] = json!({"limit": 2, "backoffSeconds": 1, "maxBackoffSeconds": 1});
    rig.create_flow(FLOW, "f", json!({"flows": [bad]})).await?;
    let flow = rig.until_completed(FLOW, "f").await?;
    ensure!(
        unit(&flow, "a") == "Failed/BackoffLimitExceeded" && flow.pointer("/status/steps/0/attempt") == Some(&json!(2))
    );
    ensure!(rig.batch_job_names().await? == ["f-a", "f-a-r1", "f-a-r2"]);
    Ok(())
}

/// A flow whose time is over stops what runs, omits the rest and runs its last steps.
pub async fn a_flow_whose_time_is_over_still_runs_its_last_steps(rig: &mut Rig) -> anyhow::Result<()> {
    begin(rig).await?;
    let spec = json!({
        "timeoutSeconds": 4,
        "flows": [step("long", "sleep 900", &[]), step("next", "true", &["long"])],
        "finally": [
            {"name": "always", "jobTemplate": work("true")},
            {"name": "failed", "when": "failure", "jobTemplate": work("true")},
            {"name": "well", "when": "success", "jobTemplate": work("true")},
        ],
    });
    rig.create_flow(FLOW, "f", spec).await?;
    let flow = rig.until_completed(FLOW, "f").await?;
    let states: Vec<String> =
        ["long", "next", "always", "failed", "well"].iter().map(|name| unit(&flow, name)).collect();
    ensure!(
        states == ["Failed/FlowTimeout", "Omitted/FlowTimeout", "Succeed", "Succeed", "Omitted/NotNeeded"],
        "{states:?}"
    );
    ensure!(
        is_true(&flow, "Failed")
            && rig.batch_jobs().get("f-long").await?.spec.is_some_and(|spec| spec.active_deadline_seconds == Some(1))
    );
    Ok(())
}

/// A step may be an operation; one whose action nobody serves is blocked, with the words of its OperationJob.
pub async fn an_operation_is_a_step_like_another(rig: &mut Rig) -> anyhow::Result<()> {
    let set = rig.seedbed.collaset("foo", 1).await?;
    rig.world.settled(&set, Duration::from_secs(120)).await?;
    let pods = rig.pod_names("foo").await?;
    begin(rig).await?;
    let targets: Vec<Value> = pods.iter().map(|name| json!({ "name": name })).collect();
    let spec = json!({"flows": [
        {"name": "replace", "operation": {"action": "Replace", "targets": targets}},
        step("check", "true", &["replace"]),
        {"name": "unknown", "operation": {"action": "Unheard", "targets": [{"name": "x"}]}},
    ]});
    rig.create_flow(FLOW, "f", spec).await?;
    let as_wanted =
        |flow: &Value| unit(flow, "check") == "Succeed" && unit(flow, "unknown") == "Blocked/OperationNotReady";
    let flow = rig.until_flow((FLOW, "f"), "replaced and checked", as_wanted).await?;
    ensure!(
        unit(&flow, "replace") == "Succeed" && is_true(&flow, "Blocked") && rig.pod_names("foo").await? != pods,
        "{flow:#}"
    );
    Ok(())
}

/// Indexed Jobs with several completions, and a Job that is created suspended: the host never writes what is not its own.
pub async fn indexed_and_suspended_jobs_are_left_to_their_controller(rig: &mut Rig) -> anyhow::Result<()> {
    begin(rig).await?;
    let mut indexed = step("indexed", "sleep 1", &[]);
    for (field, value) in [("completions", json!(3)), ("parallelism", json!(2)), ("completionMode", json!("Indexed"))] {
        indexed["jobTemplate"][field] = value;
    }
    let mut queued = step("queued", "true", &["indexed"]);
    queued["jobTemplate"]["suspend"] = json!(true);
    rig.create_flow(FLOW, "f", json!({"flows": [indexed, queued]})).await?;
    let waits = |flow: &Value| unit(flow, "indexed") == "Succeed" && unit(flow, "queued") == "Pending";
    rig.until_flow((FLOW, "f"), "it waits", waits).await?;
    let job = rig.batch_jobs().get("f-indexed").await?;
    ensure!(job.status.is_some_and(|status| status.succeeded == Some(3)));
    let resume = Patch::Merge(json!({"spec": {"suspend": false}}));
    rig.batch_jobs().patch("f-queued", &PatchParams::default(), &resume).await?;
    rig.until_state(FLOW, "f", "Succeed").await?;
    Ok(())
}

/// A suspended flow starts nothing until it is resumed, and a flow that is deleted nothing any more.
pub async fn a_suspended_and_a_deleted_flow_start_nothing(rig: &mut Rig) -> anyhow::Result<()> {
    begin(rig).await?;
    let flows = json!([step("a", "sleep 2", &[]), step("b", "true", &["a"])]);
    rig.create_flow(FLOW, "f", json!({"flows": flows, "suspend": true})).await?;
    rig.until_flow((FLOW, "f"), "it is paused", |flow| is_true(flow, "Paused")).await?;
    ensure!(rig.batch_job_names().await?.is_empty());
    rig.patch_flow(FLOW, "f", json!({"spec": {"suspend": false}})).await?;
    rig.until_flow((FLOW, "f"), "it runs", |flow| unit(flow, "a") == "Running").await?;
    rig.flows(FLOW).delete("f", &kube::api::DeleteParams::foreground()).await?;
    patiently("all is gone", async || Ok(rig.flows(FLOW).get_opt("f").await?.is_none())).await?;
    patiently("the Jobs are gone", async || Ok(rig.batch_job_names().await?.is_empty())).await?;
    Ok(())
}

/// A host that is killed at every step of a flow makes no Job twice and forgets none.
pub async fn a_host_that_is_killed_in_a_flow_makes_no_job_twice(rig: &mut Rig) -> anyhow::Result<()> {
    prepare(rig).await?;
    let names = ["a", "b", "c", "d"];
    let steps: Vec<Value> = names
        .iter()
        .enumerate()
        .map(|(index, name)| {
            let before: Vec<&str> = index.checked_sub(1).map(|before| names[before]).into_iter().collect();
            step(name, "sleep 1", &before)
        })
        .collect();
    rig.create_flow(FLOW, "f", json!({ "flows": steps })).await?;
    for name in names {
        rig.start_host().await?;
        let job = format!("f-{name}");
        patiently("the Job is there", async || Ok(rig.batch_jobs().get_opt(&job).await?.is_some())).await?;
        rig.kill_host("host").await?;
    }
    rig.start_host().await?;
    let flow = rig.until_state(FLOW, "f", "Succeed").await?;
    ensure!(rig.batch_job_names().await? == ["f-a", "f-b", "f-c", "f-d"], "{flow:#}");
    Ok(())
}

/// A cycle that was stored is spelled, nothing starts, and an edit heals it.
pub async fn a_cycle_is_spelled_and_an_edit_heals_it(rig: &mut Rig) -> anyhow::Result<()> {
    begin(rig).await?;
    let steps = [step("a", "true", &["c"]), step("b", "true", &["a"]), step("c", "true", &["b"])];
    rig.create_flow(FLOW, "f", json!({ "flows": steps })).await?;
    let flow = rig.until_state(FLOW, "f", "Failed").await?;
    let told = flow.pointer("/status/conditions").map(Value::to_string).unwrap_or_default();
    ensure!(told.contains("a -> c -> b -> a") && rig.batch_job_names().await?.is_empty(), "{told}");
    rig.patch_flow(FLOW, "f", json!({"spec": {"flows": [step("a", "true", &[]), step("b", "true", &["a"])]}})).await?;
    rig.until_state(FLOW, "f", "Succeed").await?;
    Ok(())
}
