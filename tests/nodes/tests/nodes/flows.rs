//! JobFlows and DaemonJobs whose pods really run, and fail as real pods fail.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use oarlock_nodes::run::pause;
use serde_json::{Value, json};

use crate::documents::{pinned, shell, text_at, with};
use crate::scenario::Scenario;

fn flow(name: &str, steps: &Value, more: &Value) -> Value {
    let spec = with(json!({ "flows": steps }), more);
    json!({"apiVersion": "api.practice.com/v1alpha1", "kind": "JobFlow", "metadata": {"name": name}, "spec": spec})
}

fn step(name: &str, pod: &Value, more: &Value) -> Value {
    with(json!({"name": name, "jobTemplate": {"template": {"spec": pod}}}), more)
}

fn until_flow(scenario: &Scenario, name: &str, wanted: &str) -> anyhow::Result<Value> {
    let flow = scenario.until_is("jobflows", name, "/status/state", &["Succeed", "Failed"])?;
    ensure!(text_at(&flow, "/status/state") == wanted, "{flow:#}");
    Ok(flow)
}

/// Returns the text of README between the two lines, as a user would paste it.
fn readme(from: &str, to: &str) -> anyhow::Result<String> {
    let text = include_str!("../../../../README.md");
    let (_, rest) = text.split_once(from).with_context(|| format!("README has no {from}"))?;
    let (found, _) = rest.split_once(to).with_context(|| format!("README has no {to} after {from}"))?;
    Ok(found.to_owned())
}

/// Tests that README's flow and DaemonJob succeed as they are written. The DaemonJob excludes a node that is not there.
pub(crate) fn readmes_flow_and_daemon_job_run_as_they_are_written(scenario: &Scenario) -> anyhow::Result<()> {
    let begin = "kubectl apply -f - <<END\napiVersion: api.practice.com";
    let documents = format!("apiVersion: api.practice.com{}", readme(begin, "\nEND")?);
    for document in documents.split("\n---\n") {
        scenario.apply_yaml(document)?;
    }
    until_flow(scenario, "nightly", "Succeed")?;
    let daemon = scenario.until_is("daemonjobs", "check", "/status/state", &["Succeed", "Failed"])?;
    ensure!(text_at(&daemon, "/status/state") == "Succeed", "{daemon:#}");
    Ok(())
}

/// Sleeps for long in the first attempt only. Later attempts have an `r` in the name of their Job, and so in the pod's
/// hostname.
const LONG_AT_FIRST: &str = "case $(hostname) in f-a-r*) exit 0;; esac; sleep 600";

/// Tests that a step runs again if its node loses power and its Job is lost. The second attempt may run on any node.
pub(crate) fn a_step_whose_node_loses_its_power_is_done_once_more(scenario: &Scenario) -> anyhow::Result<()> {
    let [node] = scenario.nodes.as_slice() else { anyhow::bail!("one node is needed") };
    let pod = with(pinned(scenario), &json!({"containers": [shell(LONG_AT_FIRST)]}));
    let steps = json!([step("a", &pod, &json!({"retryPolicy": {"infraLimit": 3}}))]);
    scenario.apply(&flow("f", &steps, &json!({})))?;
    scenario.until("the step runs", || {
        Ok(scenario.list("pods")?.iter().any(|pod| text_at(pod, "/status/phase") == "Running").then_some(()))
    })?;
    scenario.cluster.order(&format!("kill {node}"))?;
    scenario.cluster.order(&format!("boot {node}"))?;
    let flow = until_flow(scenario, "f", "Succeed")?;
    ensure!(flow.pointer("/status/steps/0/attempt").is_some_and(|attempt| *attempt == 1), "{flow:#}");
    Ok(())
}

/// Tests that a DaemonJob names a dead node and waits for it, while the other node, which is cordoned, has run.
pub(crate) fn a_daemon_job_runs_on_each_node_and_names_the_one_that_is_dead(scenario: &Scenario) -> anyhow::Result<()> {
    let [dead, cordoned] = scenario.nodes.as_slice() else { anyhow::bail!("two nodes are needed") };
    scenario.cluster.kubectl(&["cordon", cordoned])?;
    scenario.cluster.order(&format!("kill {dead}"))?;
    scenario.until("the dead node is not Ready", || {
        let text = scenario.cluster.kubectl(&["get", "node", dead, "-o", "json"])?;
        Ok((!crate::documents::is_ready(&serde_json::from_str(&text)?)).then_some(()))
    })?;
    let pod = with(pinned(scenario), &json!({"containers": [shell("true")]}));
    let spec = json!({"template": {"spec": pod}});
    scenario.apply(&json!({"apiVersion": "api.practice.com/v1alpha1", "kind": "DaemonJob", "metadata": {"name": "d"}, "spec": spec}))?;
    scenario.until("one node has run, and the other one is waited for", || {
        let daemon = scenario.get("daemonjobs", "d")?;
        let told = daemon
            .map(|daemon| daemon.pointer("/status/conditions").map(Value::to_string).unwrap_or_default())
            .unwrap_or_default();
        let waits = told.contains("1 of 2 nodes succeeded") && told.contains(&format!("{dead} (NodeNotReady"));
        Ok(waits.then_some(()))
    })?;
    scenario.cluster.order(&format!("boot {dead}"))?;
    let daemon = scenario.until_is("daemonjobs", "d", "/status/state", &["Succeed", "Failed"])?;
    ensure!(text_at(&daemon, "/status/state") == "Succeed", "{daemon:#}");
    scenario.cluster.kubectl(&["uncordon", cordoned]).map(drop)
}

/// Tests that a step runs again after its node evicted the pod because of memory pressure.
pub(crate) fn a_step_that_its_node_evicts_for_memory_is_done_once_more(scenario: &Scenario) -> anyhow::Result<()> {
    let [node] = scenario.nodes.as_slice() else { anyhow::bail!("one node is needed") };
    let pod = with(pinned(scenario), &json!({"containers": [shell(LONG_AT_FIRST)]}));
    let steps = json!([step("a", &pod, &json!({"retryPolicy": {"infraLimit": 9}}))]);
    scenario.apply(&flow("f", &steps, &json!({})))?;
    scenario.until("the step runs", || {
        Ok(scenario.list("pods")?.iter().any(|pod| text_at(pod, "/status/phase") == "Running").then_some(()))
    })?;
    scenario.cluster.have_kubelet_keep_free(node, "99%")?;
    let evicted = scenario.until("the step was evicted", || {
        let flow = scenario.get("jobflows", "f")?;
        Ok(flow.filter(|flow| flow.to_string().contains("InfrastructureFailure")))
    })?;
    scenario.cluster.have_kubelet_keep_free(node, "100Mi")?;
    let words = ["low on resource: memory", "MemoryPressure"];
    ensure!(words.iter().any(|word| evicted.to_string().contains(word)), "{evicted:#}");
    until_flow(scenario, "f", "Succeed").map(drop)
}

/// Tests that a flow fails if one index of an Indexed step fails, and that its status names the pod and the exit code.
pub(crate) fn an_indexed_step_with_an_index_that_fails_names_its_pod(scenario: &Scenario) -> anyhow::Result<()> {
    let shell = json!({"containers": [shell("test $JOB_COMPLETION_INDEX != 1 || exit 7")]});
    let job = json!({"template": {"spec": shell}, "completions": 3, "parallelism": 3, "completionMode": "Indexed"});
    scenario.apply(&flow("f", &json!([{"name": "a", "jobTemplate": job}]), &json!({})))?;
    let flow = until_flow(scenario, "f", "Failed")?;
    let told = text_at(&flow, "/status/steps/0/message");
    ensure!(told.contains("pod f-a-1-") && told.contains("exited with 7"), "{flow:#}");
    Ok(())
}

/// Tests that a flow fails and reports the eviction if a step writes more than its emptyDir may hold.
pub(crate) fn a_step_over_its_empty_dir_is_told_as_evicted(scenario: &Scenario) -> anyhow::Result<()> {
    let mounts = json!({"volumeMounts": [{"name": "data", "mountPath": "/data"}]});
    let container = with(shell("dd if=/dev/zero of=/data/x bs=1M count=20; sleep 300"), &mounts);
    let pod = json!({"containers": [container], "volumes": [{"name": "data", "emptyDir": {"sizeLimit": "1Mi"}}]});
    let steps = json!([step("a", &pod, &json!({"retryPolicy": {"infraLimit": 0}}))]);
    scenario.apply(&flow("f", &steps, &json!({})))?;
    let flow = until_flow(scenario, "f", "Failed")?;
    ensure!(flow.to_string().contains("vict"), "{flow:#}");
    Ok(())
}

/// Tests that a step reports that it was killed for its memory.
pub(crate) fn a_step_that_takes_too_much_memory_is_told_as_killed_for_it(scenario: &Scenario) -> anyhow::Result<()> {
    let container = json!({"name": "c", "image": "busybox", "command": ["tail", "/dev/zero"],
        "resources": {"limits": {"memory": "24Mi"}}});
    scenario.apply(&flow("f", &json!([step("a", &json!({"containers": [container]}), &json!({}))]), &json!({})))?;
    let flow = until_flow(scenario, "f", "Failed")?;
    ensure!(flow.to_string().contains("OOMKilled"), "{flow:#}");
    Ok(())
}

/// Tests that a flow reports a missing image while it waits, and ends by its timeout.
pub(crate) fn a_step_whose_image_is_missing_says_so_and_ends_in_time(scenario: &Scenario) -> anyhow::Result<()> {
    let pod = json!({"containers": [{"name": "c", "image": "nowhere.example/none:1"}]});
    let is_told = |flow: &Value| {
        let told = text_at(flow, "/status/steps/0/message");
        ["ErrImagePull", "ImagePullBackOff"].iter().any(|word| told.contains(word))
    };
    scenario.apply(&flow("f", &json!([step("a", &pod, &json!({"timeoutSeconds": 45}))]), &json!({})))?;
    scenario.until("the flow says that its image cannot be had", || {
        let flow = scenario.get("jobflows", "f")?;
        Ok(flow.filter(|flow| is_told(flow) && text_at(flow, "/status/state") == "Running"))
    })?;
    let flow = until_flow(scenario, "f", "Failed")?;
    ensure!(text_at(&flow, "/status/steps/0/reason") == "DeadlineExceeded" && is_told(&flow), "{flow:#}");
    Ok(())
}

/// Tests that a failed step succeeds in its second attempt, and that an Indexed step runs each index.
pub(crate) fn a_step_that_fails_at_first_is_retried_and_an_indexed_one_runs_each_index(
    scenario: &Scenario,
) -> anyhow::Result<()> {
    let pod = json!({"containers": [shell("case $(hostname) in f-a-r1-*) exit 0;; esac; exit 1")]});
    let first = step("a", &pod, &json!({"retryPolicy": {"limit": 1, "backoffSeconds": 1}}));
    let shell = json!({"containers": [shell("test -n \"$JOB_COMPLETION_INDEX\"")]});
    let job = json!({"template": {"spec": shell}, "completions": 3, "parallelism": 3, "completionMode": "Indexed"});
    let indexed = json!({"name": "b", "jobTemplate": job});
    scenario.apply(&flow("g", &json!([indexed]), &json!({})))?;
    until_flow(scenario, "g", "Succeed")?;
    scenario.apply(&flow("f", &json!([first]), &json!({})))?;
    let flow = until_flow(scenario, "f", "Succeed")?;
    ensure!(flow.pointer("/status/steps/0/attempt").is_some_and(|attempt| *attempt == 1), "{flow:#}");
    Ok(())
}

/// Tests that a suspended flow creates no Job until a user resumes it.
pub(crate) fn a_suspended_flow_waits_and_goes_on(scenario: &Scenario) -> anyhow::Result<()> {
    let steps = json!([step("a", &json!({"containers": [shell("true")]}), &json!({}))]);
    scenario.apply(&flow("f", &steps, &json!({"suspend": true})))?;
    scenario.until("the flow is seen suspended", || {
        let flow = scenario.get("jobflows", "f")?;
        Ok(flow.filter(|flow| flow.pointer("/status/suspendedSince").is_some()))
    })?;
    ensure!(scenario.list("jobs")?.is_empty(), "a Job was made");
    scenario.kubectl(&["patch", "jobflow", "f", "--type=merge", "-p", "{\"spec\":{\"suspend\":false}}"])?;
    until_flow(scenario, "f", "Succeed").map(drop)
}

/// Tests that a step ends at its timeout and reports it, and that the `finally` steps run.
pub(crate) fn a_step_that_takes_too_long_is_ended_and_finally_runs(scenario: &Scenario) -> anyhow::Result<()> {
    let long = step("a", &json!({"containers": [shell("sleep 600")]}), &json!({"timeoutSeconds": 5}));
    let last = step("z", &json!({"containers": [shell("true")]}), &json!({}));
    scenario.apply(&flow("f", &json!([long]), &json!({"finally": [last]})))?;
    let flow = scenario.until("the flow has ended", || {
        let flow = scenario.get("jobflows", "f")?;
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

/// Tests that a DaemonJob with a concurrency of one runs one pod at a time.
pub(crate) fn a_daemon_job_takes_its_nodes_one_at_a_time(scenario: &Scenario) -> anyhow::Result<()> {
    let pod = with(pinned(scenario), &json!({"containers": [shell("sleep 4")]}));
    let spec = json!({"template": {"spec": pod}, "rollout": {"concurrency": 1}});
    scenario.apply(&json!({"apiVersion": "api.practice.com/v1alpha1", "kind": "DaemonJob", "metadata": {"name": "d"}, "spec": spec}))?;
    let mut most = 0;
    let daemon = scenario.until("the DaemonJob ends", || {
        let pods = scenario.list("pods")?;
        most = most.max(pods.iter().filter(|pod| text_at(pod, "/status/phase") == "Running").count());
        let daemon = scenario.get("daemonjobs", "d")?;
        Ok(daemon.filter(|daemon| ["Succeed", "Failed"].contains(&text_at(daemon, "/status/state"))))
    })?;
    ensure!(text_at(&daemon, "/status/state") == "Succeed" && most == 1, "{most} at once: {daemon:#}");
    Ok(())
}

/// Tests that a step ends well and runs only once if kubelet and containerd are stopped for a while.
pub(crate) fn a_step_ends_well_although_its_node_stands_still_for_a_while(scenario: &Scenario) -> anyhow::Result<()> {
    let [node] = scenario.nodes.as_slice() else { anyhow::bail!("one node is needed") };
    let pod = with(pinned(scenario), &json!({"containers": [shell("sleep 10")]}));
    scenario.apply(&flow("f", &json!([step("a", &pod, &json!({}))]), &json!({})))?;
    scenario.until("the step runs", || {
        Ok(scenario.list("pods")?.iter().any(|pod| text_at(pod, "/status/phase") == "Running").then_some(()))
    })?;
    let hostname = format!("--hostname-override={node} ");
    let config = format!("/{node}/containerd.toml");
    let services = [["kubelet --kubeconfig", hostname.as_str()], ["containerd --config", config.as_str()]];
    for words in &services {
        scenario.cluster.signal(words, "STOP")?;
    }
    pause(Duration::from_secs(30));
    for words in &services {
        scenario.cluster.signal(words, "CONT")?;
    }
    until_flow(scenario, "f", "Succeed")?;
    ensure!(scenario.list("jobs")?.len() == 1 && scenario.list("pods")?.len() == 1, "it ran more than once");
    Ok(())
}

/// Tests that a step runs again, without spending one of its own attempts, if a job reboots its node without a drain.
/// After the reboot the kubelet reports that it does not know how the container ended.
pub(crate) fn a_step_whose_node_is_rebooted_under_it_is_done_once_more(scenario: &Scenario) -> anyhow::Result<()> {
    let pod = with(pinned(scenario), &json!({"containers": [shell(LONG_AT_FIRST)]}));
    let retried = json!({"retryPolicy": {"limit": 0, "infraLimit": 3, "backoffSeconds": 2}});
    scenario.apply(&flow("f", &json!([step("a", &pod, &retried)]), &json!({})))?;
    scenario.until("the step runs", || {
        Ok(scenario.list("pods")?.iter().any(|pod| text_at(pod, "/status/phase") == "Running").then_some(()))
    })?;
    scenario.run(&[["reboot", "--name", "r"].as_slice(), &scenario.targets()].concat())?;
    let flow = until_flow(scenario, "f", "Succeed")?;
    ensure!(flow.pointer("/status/steps/0/attempt").is_some_and(|attempt| *attempt == 1), "{flow:#}");
    ensure!(flow.pointer("/status/steps/0/infraAttempts").is_some_and(|attempts| *attempts == 1), "{flow:#}");
    Ok(())
}

/// Tests that names of Jobs and pods stay valid DNS labels if the names of flow and step are long or dotted.
pub(crate) fn indexed_steps_of_long_and_dotted_names_run(scenario: &Scenario) -> anyhow::Result<()> {
    let indexed = |name: &str, completions: u32| {
        let spec = json!({"containers": [shell("true")]});
        let job = json!({"template": {"spec": spec}, "completions": completions, "parallelism": 3, "completionMode": "Indexed"});
        json!({"name": name, "jobTemplate": job})
    };
    let steps = [("collect-invoices-of-all-tenants-shards", 3), ("collect-invoices-of-tenants", 12), ("shards.v2", 3)];
    let steps: Vec<Value> = steps.into_iter().map(|(name, completions)| indexed(name, completions)).collect();
    scenario.apply(&flow("nightly-billing-reconciliation-eu", &json!(steps), &json!({})))?;
    until_flow(scenario, "nightly-billing-reconciliation-eu", "Succeed").map(drop)
}

/// Tests that a failed index is retried as its template says, in parallel with the others, in the same Job.
pub(crate) fn an_index_that_fails_is_tried_again_as_its_template_says(scenario: &Scenario) -> anyhow::Result<()> {
    let failures =
        json!({"fieldRef": {"fieldPath": "metadata.annotations['batch.kubernetes.io/job-index-failure-count']"}});
    let fails_first = shell("test $JOB_COMPLETION_INDEX != 0 || test $FAILURES != 0");
    let container = with(fails_first, &json!({"env": [{"name": "FAILURES", "valueFrom": failures}]}));
    let job = json!({"template": {"spec": {"containers": [container]}}, "completionMode": "Indexed", "completions": 4,
        "parallelism": 4, "backoffLimitPerIndex": 2, "maxFailedIndexes": 2});
    scenario.apply(&flow("f", &json!([{"name": "a", "jobTemplate": job}]), &json!({})))?;
    let flow = until_flow(scenario, "f", "Succeed")?;
    ensure!(flow.pointer("/status/steps/0/attempt").is_none_or(|attempt| *attempt == 0), "{flow:#}");
    Ok(())
}

/// Tests that a suspended Job ends with its step's timeout, without a pod, and stays as evidence.
pub(crate) fn a_suspended_step_ends_in_its_time_and_its_job_stays(scenario: &Scenario) -> anyhow::Result<()> {
    let job = json!({"suspend": true, "template": {"spec": {"containers": [shell("true")]}}});
    let steps = json!([{"name": "a", "timeoutSeconds": 15, "jobTemplate": job}]);
    scenario.apply(&flow("f", &steps, &json!({})))?;
    let flow = until_flow(scenario, "f", "Failed")?;
    ensure!(text_at(&flow, "/status/steps/0/reason") == "DeadlineExceeded", "{flow:#}");
    ensure!(text_at(&flow, "/status/steps/0/message").contains("its Job is suspended"), "{flow:#}");
    let jobs = scenario.list("jobs")?;
    ensure!(jobs.len() == 1 && jobs.iter().all(|job| text_at(job, "/metadata/name") == "f-a"), "{jobs:#?}");
    ensure!(scenario.list("pods")?.is_empty(), "a pod was made");
    Ok(())
}
