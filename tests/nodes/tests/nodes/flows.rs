//! JobFlows and DaemonJobs whose pods really run, and fail in the ways of real ones.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use oarlock_nodes::run::pause;
use serde_json::{Value, json};

use crate::documents::{pinned, shell, text_at, with};
use crate::scene::Scene;

fn flow(name: &str, steps: &Value, more: &Value) -> Value {
    let spec = with(json!({ "flows": steps }), more);
    json!({"apiVersion": "api.practice.com/v1alpha1", "kind": "JobFlow", "metadata": {"name": name}, "spec": spec})
}

fn step(name: &str, pod: &Value, more: &Value) -> Value {
    with(json!({"name": name, "jobTemplate": {"template": {"spec": pod}}}), more)
}

fn until_flow(scene: &Scene, name: &str, wanted: &str) -> anyhow::Result<Value> {
    let flow = scene.until_is("jobflows", name, "/status/state", &["Succeed", "Failed"])?;
    ensure!(text_at(&flow, "/status/state") == wanted, "{flow:#}");
    Ok(flow)
}

/// The text of README between the two lines, as a user would paste it.
fn readme(from: &str, to: &str) -> anyhow::Result<String> {
    let text = include_str!("../../../../README.md");
    let (_, rest) = text.split_once(from).with_context(|| format!("README has no {from}"))?;
    let (found, _) = rest.split_once(to).with_context(|| format!("README has no {to} after {from}"))?;
    Ok(found.to_owned())
}

/// The flow and the DaemonJob of README, which leaves out a node of another name.
pub(crate) fn readmes_flow_and_daemon_job_run_as_they_are_written(scene: &Scene) -> anyhow::Result<()> {
    let begin = "kubectl apply -f - <<END\napiVersion: api.practice.com";
    let documents = format!("apiVersion: api.practice.com{}", readme(begin, "\nEND")?);
    for document in documents.split("\n---\n") {
        scene.apply_yaml(document)?;
    }
    until_flow(scene, "nightly", "Succeed")?;
    let daemon = scene.until_is("daemonjobs", "check", "/status/state", &["Succeed", "Failed"])?;
    ensure!(text_at(&daemon, "/status/state") == "Succeed", "{daemon:#}");
    Ok(())
}

/// Sleeps for long at the first attempt; the name of a later one's Job, which is in that of its pod, has an `r`.
const LONG_AT_FIRST: &str = "case $(hostname) in f-a-r*) exit 0;; esac; sleep 600";

/// The node of a step loses its power under it: the step's Job is lost, and runs once more elsewhere or there.
pub(crate) fn a_step_whose_node_loses_its_power_is_done_once_more(scene: &Scene) -> anyhow::Result<()> {
    let [node] = scene.nodes.as_slice() else { anyhow::bail!("one node is needed") };
    let pod = with(pinned(scene), &json!({"containers": [shell(LONG_AT_FIRST)]}));
    let steps = json!([step("a", &pod, &json!({"retryPolicy": {"infraLimit": 3}}))]);
    scene.apply(&flow("f", &steps, &json!({})))?;
    scene.until("the step runs", || {
        Ok(scene.list("pods")?.iter().any(|pod| text_at(pod, "/status/phase") == "Running").then_some(()))
    })?;
    scene.bed.order(&format!("kill {node}"))?;
    scene.bed.order(&format!("boot {node}"))?;
    let flow = until_flow(scene, "f", "Succeed")?;
    ensure!(flow.pointer("/status/steps/0/attempt").is_some_and(|attempt| *attempt == 1), "{flow:#}");
    Ok(())
}

/// One node is dead and one is cordoned; the others have run.
pub(crate) fn a_daemon_job_runs_on_each_node_and_names_the_one_that_is_dead(scene: &Scene) -> anyhow::Result<()> {
    let [dead, cordoned] = scene.nodes.as_slice() else { anyhow::bail!("two nodes are needed") };
    scene.bed.kubectl(&["cordon", cordoned])?;
    scene.bed.order(&format!("kill {dead}"))?;
    scene.until("the dead node is not Ready", || {
        let text = scene.bed.kubectl(&["get", "node", dead, "-o", "json"])?;
        Ok((!crate::documents::is_ready(&serde_json::from_str(&text)?)).then_some(()))
    })?;
    let pod = with(pinned(scene), &json!({"containers": [shell("true")]}));
    let spec = json!({"template": {"spec": pod}});
    scene.apply(&json!({"apiVersion": "api.practice.com/v1alpha1", "kind": "DaemonJob", "metadata": {"name": "d"}, "spec": spec}))?;
    scene.until("one node has run, and the other one is waited for", || {
        let daemon = scene.get("daemonjobs", "d")?;
        let told = daemon
            .map(|daemon| daemon.pointer("/status/conditions").map(Value::to_string).unwrap_or_default())
            .unwrap_or_default();
        let waits = told.contains("1 of 2 nodes succeeded") && told.contains(&format!("{dead} (NodeNotReady"));
        Ok(waits.then_some(()))
    })?;
    scene.bed.order(&format!("boot {dead}"))?;
    let daemon = scene.until_is("daemonjobs", "d", "/status/state", &["Succeed", "Failed"])?;
    ensure!(text_at(&daemon, "/status/state") == "Succeed", "{daemon:#}");
    scene.bed.kubectl(&["uncordon", cordoned]).map(drop)
}

/// A node is short of memory and evicts a step, which is done once more when that is over.
pub(crate) fn a_step_that_its_node_evicts_for_memory_is_done_once_more(scene: &Scene) -> anyhow::Result<()> {
    let [node] = scene.nodes.as_slice() else { anyhow::bail!("one node is needed") };
    let pod = with(pinned(scene), &json!({"containers": [shell(LONG_AT_FIRST)]}));
    let steps = json!([step("a", &pod, &json!({"retryPolicy": {"infraLimit": 9}}))]);
    scene.apply(&flow("f", &steps, &json!({})))?;
    scene.until("the step runs", || {
        Ok(scene.list("pods")?.iter().any(|pod| text_at(pod, "/status/phase") == "Running").then_some(()))
    })?;
    scene.bed.have_kubelet_keep_free(node, "99%")?;
    let evicted = scene.until("the step was evicted", || {
        let flow = scene.get("jobflows", "f")?;
        Ok(flow.filter(|flow| flow.to_string().contains("InfrastructureFailure")))
    })?;
    scene.bed.have_kubelet_keep_free(node, "100Mi")?;
    let words = ["low on resource: memory", "MemoryPressure"];
    ensure!(words.iter().any(|word| evicted.to_string().contains(word)), "{evicted:#}");
    until_flow(scene, "f", "Succeed").map(drop)
}

/// Of an Indexed step one index fails: the flow fails, and names the pod and its code.
pub(crate) fn an_indexed_step_with_an_index_that_fails_names_its_pod(scene: &Scene) -> anyhow::Result<()> {
    let shell = json!({"containers": [shell("test $JOB_COMPLETION_INDEX != 1 || exit 7")]});
    let job = json!({"template": {"spec": shell}, "completions": 3, "parallelism": 3, "completionMode": "Indexed"});
    scene.apply(&flow("f", &json!([{"name": "a", "jobTemplate": job}]), &json!({})))?;
    let flow = until_flow(scene, "f", "Failed")?;
    let told = text_at(&flow, "/status/steps/0/message");
    ensure!(told.contains("pod f-a-1-") && told.contains("exited with 7"), "{flow:#}");
    Ok(())
}

/// A step that writes more than its emptyDir may hold: its pod is evicted, which is said, and the flow ends.
pub(crate) fn a_step_over_its_empty_dir_is_told_as_evicted(scene: &Scene) -> anyhow::Result<()> {
    let mounts = json!({"volumeMounts": [{"name": "data", "mountPath": "/data"}]});
    let container = with(shell("dd if=/dev/zero of=/data/x bs=1M count=20; sleep 300"), &mounts);
    let pod = json!({"containers": [container], "volumes": [{"name": "data", "emptyDir": {"sizeLimit": "1Mi"}}]});
    let steps = json!([step("a", &pod, &json!({"retryPolicy": {"infraLimit": 0}}))]);
    scene.apply(&flow("f", &steps, &json!({})))?;
    let flow = until_flow(scene, "f", "Failed")?;
    ensure!(flow.to_string().contains("vict"), "{flow:#}");
    Ok(())
}

/// A step that is killed for its memory says so.
pub(crate) fn a_step_that_takes_too_much_memory_is_told_as_killed_for_it(scene: &Scene) -> anyhow::Result<()> {
    let container = json!({"name": "c", "image": "busybox", "command": ["tail", "/dev/zero"],
        "resources": {"limits": {"memory": "24Mi"}}});
    scene.apply(&flow("f", &json!([step("a", &json!({"containers": [container]}), &json!({}))]), &json!({})))?;
    let flow = until_flow(scene, "f", "Failed")?;
    ensure!(flow.to_string().contains("OOMKilled"), "{flow:#}");
    Ok(())
}

/// An image that is nowhere: the flow says what it waits for, and ends by its timeout.
pub(crate) fn a_step_whose_image_is_missing_says_so_and_ends_in_time(scene: &Scene) -> anyhow::Result<()> {
    let pod = json!({"containers": [{"name": "c", "image": "nowhere.example/none:1"}]});
    let is_told = |flow: &Value| {
        let told = text_at(flow, "/status/steps/0/message");
        ["ErrImagePull", "ImagePullBackOff"].iter().any(|word| told.contains(word))
    };
    scene.apply(&flow("f", &json!([step("a", &pod, &json!({"timeoutSeconds": 45}))]), &json!({})))?;
    scene.until("the flow says that its image cannot be had", || {
        let flow = scene.get("jobflows", "f")?;
        Ok(flow.filter(|flow| is_told(flow) && text_at(flow, "/status/state") == "Running"))
    })?;
    let flow = until_flow(scene, "f", "Failed")?;
    ensure!(text_at(&flow, "/status/steps/0/reason") == "DeadlineExceeded" && is_told(&flow), "{flow:#}");
    Ok(())
}

/// A step that fails at first succeeds at its second attempt; one with indexes runs each.
pub(crate) fn a_step_that_fails_at_first_is_retried_and_an_indexed_one_runs_each_index(
    scene: &Scene,
) -> anyhow::Result<()> {
    let pod = json!({"containers": [shell("case $(hostname) in f-a-r1-*) exit 0;; esac; exit 1")]});
    let first = step("a", &pod, &json!({"retryPolicy": {"limit": 1, "backoffSeconds": 1}}));
    let shell = json!({"containers": [shell("test -n \"$JOB_COMPLETION_INDEX\"")]});
    let job = json!({"template": {"spec": shell}, "completions": 3, "parallelism": 3, "completionMode": "Indexed"});
    let indexed = json!({"name": "b", "jobTemplate": job});
    scene.apply(&flow("g", &json!([indexed]), &json!({})))?;
    until_flow(scene, "g", "Succeed")?;
    scene.apply(&flow("f", &json!([first]), &json!({})))?;
    let flow = until_flow(scene, "f", "Succeed")?;
    ensure!(flow.pointer("/status/steps/0/attempt").is_some_and(|attempt| *attempt == 1), "{flow:#}");
    Ok(())
}

/// A flow that is suspended from its beginning makes no Job until it is let go.
pub(crate) fn a_suspended_flow_waits_and_goes_on(scene: &Scene) -> anyhow::Result<()> {
    let steps = json!([step("a", &json!({"containers": [shell("true")]}), &json!({}))]);
    scene.apply(&flow("f", &steps, &json!({"suspend": true})))?;
    scene.until("the flow is seen suspended", || {
        let flow = scene.get("jobflows", "f")?;
        Ok(flow.filter(|flow| flow.pointer("/status/suspendedSince").is_some()))
    })?;
    ensure!(scene.list("jobs")?.is_empty(), "a Job was made");
    scene.kubectl(&["patch", "jobflow", "f", "--type=merge", "-p", "{\"spec\":{\"suspend\":false}}"])?;
    until_flow(scene, "f", "Succeed").map(drop)
}

/// A step that runs for too long is ended and told, and what is to be done in the end is done.
pub(crate) fn a_step_that_takes_too_long_is_ended_and_finally_runs(scene: &Scene) -> anyhow::Result<()> {
    let long = step("a", &json!({"containers": [shell("sleep 600")]}), &json!({"timeoutSeconds": 5}));
    let last = step("z", &json!({"containers": [shell("true")]}), &json!({}));
    scene.apply(&flow("f", &json!([long]), &json!({"finally": [last]})))?;
    let flow = scene.until("the flow has ended", || {
        let flow = scene.get("jobflows", "f")?;
        Ok(flow.filter(|flow| flow.pointer("/status/completionTime").is_some()))
    })?;
    let steps = flow.pointer("/status/steps").and_then(Value::as_array).cloned().unwrap_or_default();
    let state = |name: &str| {
        let found = steps.iter().find(|step| text_at(step, "/name") == name);
        found.map(|step| format!("{} {}", text_at(step, "/state"), text_at(step, "/reason"))).unwrap_or_default()
    };
    ensure!(state("a") == "Failed DeadlineExceeded", "{flow:#}");
    ensure!(state("z").starts_with("Succeed"), "{flow:#}");
    Ok(())
}

/// A DaemonJob with a rollout of one has one pod at a time.
pub(crate) fn a_daemon_job_takes_its_nodes_one_at_a_time(scene: &Scene) -> anyhow::Result<()> {
    let pod = with(pinned(scene), &json!({"containers": [shell("sleep 4")]}));
    let spec = json!({"template": {"spec": pod}, "rollout": {"concurrency": 1}});
    scene.apply(&json!({"apiVersion": "api.practice.com/v1alpha1", "kind": "DaemonJob", "metadata": {"name": "d"}, "spec": spec}))?;
    let mut most = 0;
    let daemon = scene.until("the DaemonJob ends", || {
        let pods = scene.list("pods")?;
        most = most.max(pods.iter().filter(|pod| text_at(pod, "/status/phase") == "Running").count());
        let daemon = scene.get("daemonjobs", "d")?;
        Ok(daemon.filter(|daemon| ["Succeed", "Failed"].contains(&text_at(daemon, "/status/state"))))
    })?;
    ensure!(text_at(&daemon, "/status/state") == "Succeed" && most == 1, "{most} at once: {daemon:#}");
    Ok(())
}

/// kubelet and containerd stand still for a while under a step: it ends well, and ran once.
pub(crate) fn a_step_ends_well_although_its_node_stands_still_for_a_while(scene: &Scene) -> anyhow::Result<()> {
    let [node] = scene.nodes.as_slice() else { anyhow::bail!("one node is needed") };
    let pod = with(pinned(scene), &json!({"containers": [shell("sleep 10")]}));
    scene.apply(&flow("f", &json!([step("a", &pod, &json!({}))]), &json!({})))?;
    scene.until("the step runs", || {
        Ok(scene.list("pods")?.iter().any(|pod| text_at(pod, "/status/phase") == "Running").then_some(()))
    })?;
    let hostname = format!("--hostname-override={node} ");
    let config = format!("/{node}/containerd.toml");
    let services = [["kubelet --kubeconfig", hostname.as_str()], ["containerd --config", config.as_str()]];
    for words in &services {
        scene.bed.signal(words, "STOP")?;
    }
    pause(Duration::from_secs(30));
    for words in &services {
        scene.bed.signal(words, "CONT")?;
    }
    until_flow(scene, "f", "Succeed")?;
    ensure!(scene.list("jobs")?.len() == 1 && scene.list("pods")?.len() == 1, "it ran more than once");
    Ok(())
}

/// The node of a step is rebooted under it by a job that drains nothing: the kubelet says afterwards that it does not know how the
/// container ended, and the step runs once more, without an attempt of its own being spent.
pub(crate) fn a_step_whose_node_is_rebooted_under_it_is_done_once_more(scene: &Scene) -> anyhow::Result<()> {
    let pod = with(pinned(scene), &json!({"containers": [shell(LONG_AT_FIRST)]}));
    let retried = json!({"retryPolicy": {"limit": 0, "infraLimit": 3, "backoffSeconds": 2}});
    scene.apply(&flow("f", &json!([step("a", &pod, &retried)]), &json!({})))?;
    scene.until("the step runs", || {
        Ok(scene.list("pods")?.iter().any(|pod| text_at(pod, "/status/phase") == "Running").then_some(()))
    })?;
    scene.run(&[["reboot", "--name", "r"].as_slice(), &scene.targets()].concat())?;
    let flow = until_flow(scene, "f", "Succeed")?;
    ensure!(flow.pointer("/status/steps/0/attempt").is_some_and(|attempt| *attempt == 1), "{flow:#}");
    ensure!(flow.pointer("/status/steps/0/infraAttempts").is_some_and(|attempts| *attempts == 1), "{flow:#}");
    Ok(())
}

/// The names of Jobs and of their last pods are labels of the DNS, however long those of flow and step are.
pub(crate) fn indexed_steps_of_long_and_dotted_names_run(scene: &Scene) -> anyhow::Result<()> {
    let indexed = |name: &str, completions: u32| {
        let spec = json!({"containers": [shell("true")]});
        let job = json!({"template": {"spec": spec}, "completions": completions, "parallelism": 3, "completionMode": "Indexed"});
        json!({"name": name, "jobTemplate": job})
    };
    let steps = [("collect-invoices-of-all-tenants-shards", 3), ("collect-invoices-of-tenants", 12), ("shards.v2", 3)];
    let steps: Vec<Value> = steps.into_iter().map(|(name, completions)| indexed(name, completions)).collect();
    scene.apply(&flow("nightly-billing-reconciliation-eu", &json!(steps), &json!({})))?;
    until_flow(scene, "nightly-billing-reconciliation-eu", "Succeed").map(drop)
}

/// An index that fails is tried again as its template says, beside the others, in the same Job.
pub(crate) fn an_index_that_fails_is_tried_again_as_its_template_says(scene: &Scene) -> anyhow::Result<()> {
    let failures =
        json!({"fieldRef": {"fieldPath": "metadata.annotations['batch.kubernetes.io/job-index-failure-count']"}});
    let fails_first = shell("test $JOB_COMPLETION_INDEX != 0 || test $FAILURES != 0");
    let container = with(fails_first, &json!({"env": [{"name": "FAILURES", "valueFrom": failures}]}));
    let job = json!({"template": {"spec": {"containers": [container]}}, "completionMode": "Indexed", "completions": 4,
        "parallelism": 4, "backoffLimitPerIndex": 2, "maxFailedIndexes": 2});
    scene.apply(&flow("f", &json!([{"name": "a", "jobTemplate": job}]), &json!({})))?;
    let flow = until_flow(scene, "f", "Succeed")?;
    ensure!(flow.pointer("/status/steps/0/attempt").is_none_or(|attempt| *attempt == 0), "{flow:#}");
    Ok(())
}

/// A Job that is suspended ends with the time of its step, without a pod, and stays as evidence.
pub(crate) fn a_suspended_step_ends_in_its_time_and_its_job_stays(scene: &Scene) -> anyhow::Result<()> {
    let job = json!({"suspend": true, "template": {"spec": {"containers": [shell("true")]}}});
    let steps = json!([{"name": "a", "timeoutSeconds": 15, "jobTemplate": job}]);
    scene.apply(&flow("f", &steps, &json!({})))?;
    let flow = until_flow(scene, "f", "Failed")?;
    ensure!(text_at(&flow, "/status/steps/0/reason") == "DeadlineExceeded", "{flow:#}");
    ensure!(text_at(&flow, "/status/steps/0/message").contains("its Job is suspended"), "{flow:#}");
    let jobs = scene.list("jobs")?;
    ensure!(jobs.len() == 1 && jobs.iter().all(|job| text_at(job, "/metadata/name") == "f-a"), "{jobs:#?}");
    ensure!(scene.list("pods")?.is_empty(), "a pod was made");
    Ok(())
}
