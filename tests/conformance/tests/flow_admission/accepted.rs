//! The objects that the API server accepts, and how it stores them.

use http::Method;
use kube::Client;
use serde_json::{Value, json};

use crate::server::{add_kinds, add_policies, changed, create, daemon, flow, job, object, patch, path, send, step};

/// Returns a flow as a Go client of the original marshals it: every unset field is present with its zero value.
fn of_a_go_client() -> Value {
    let half_empty = json!({"template": {"metadata": {"creationTimestamp": null}, "spec": {"containers": null}}});
    json!({
        "apiVersion": oarlock_api::FLOW_API_VERSION, "kind": "JobFlow",
        "metadata": {"name": "nulls", "creationTimestamp": null},
        "spec": {
            "ErrorHandler": null, "globalParams": {"env": null, "nodeName": "", "labels": null, "annotations": null},
            "shareVolumes": null,
            "flows": [
                {"name": "a", "dependencies": null, "jobTemplate": half_empty, "jobTemplateRef": "t", "shareVolumeMounts": null},
                {"name": "b", "dependencies": ["a"], "jobTemplate": job(), "jobTemplateRef": "", "shareVolumeMounts": null},
            ],
        },
        "status": {"state": "", "jobStatusList": null},
    })
}

pub(crate) async fn objects_full_of_nulls_are_accepted_twice(client: &Client) {
    let mut stored = create(client, "jobflows", &of_a_go_client()).await.unwrap();
    assert_eq!(stored["spec"]["globalParams"], json!({"nodeName": ""}));
    assert!(stored["spec"].get("shareVolumes").is_none() && stored["spec"].get("ErrorHandler").is_none());
    let first = &stored["spec"]["flows"][0];
    assert!(first.get("dependencies").is_none() && first.get("shareVolumeMounts").is_none(), "{first}");
    assert_eq!(first["jobTemplate"]["template"]["spec"], json!({}));
    stored["spec"]["flows"] = json!([
        {"name": "a", "dependencies": null, "jobTemplate": null, "jobTemplateRef": "t", "shareVolumeMounts": null, "when": null, "overrides": null},
        {"name": "b", "dependencies": ["a", "a"], "jobTemplate": job(), "timeoutSeconds": null, "retryPolicy": {"limit": null}},
    ]);
    stored["spec"]["suspend"] = Value::Null;
    send(client, None, Method::PUT, &path("jobflows/nulls"), &stored).await.unwrap();
    patch(
        client,
        "jobflows/nulls/status",
        &json!({"status": {"state": "Running", "jobStatusList": {"nulls-a/default": {"startTime": null}}}}),
    )
    .await
    .unwrap();
    let nulls = json!({"manualSelector": null, "completions": null, "suspend": null, "globalParams": null, "rollout": null, "excludeNodeList": ""});
    let mut spec = job();
    spec.as_object_mut().unwrap().extend(nulls.as_object().unwrap().clone());
    daemon(client, "nulls", &spec).await.unwrap();
    create(
        client,
        "jobtemplates",
        &object("JobTemplate", "nulls", &json!({"jobTemplate": {"template": {"spec": {"containers": null}}}})),
    )
    .await
    .unwrap();
}

pub(crate) async fn repeated_dependencies_count_once(client: &Client) {
    let names = (0..100).map(|index| format!("s-{index}")).collect::<Vec<_>>();
    let mut flows = names.iter().map(|name| step(name, &[])).collect::<Vec<_>>();
    let twice = names.iter().chain(&names).map(String::as_str).collect::<Vec<_>>();
    flows.push(step("join", &twice));
    flow(client, "repeats", &json!({ "flows": flows })).await.unwrap();
}

pub(crate) async fn an_empty_flow_is_accepted_in_all_its_forms(client: &Client) {
    flow(client, "empty", &json!({"flows": []})).await.unwrap();
    flow(client, "null", &json!({"flows": null})).await.unwrap();
    flow(client, "nothing", &json!({})).await.unwrap();
    let mut without = object("JobFlow", "without", &Value::Null);
    without.as_object_mut().unwrap().remove("spec");
    create(client, "jobflows", &without).await.unwrap();
    patch(client, "jobflows/without", &json!({"metadata": {"labels": {"a": "b"}}})).await.unwrap();
    send(client, None, Method::DELETE, &path("jobflows/without"), &json!({})).await.unwrap();
}

pub(crate) async fn unknown_fields_of_a_job_survive(client: &Client) {
    let new = json!({"template": {"metadata": {"new": 1}, "spec": {"new": [null], "containers": [{"name": "c", "image": "i", "new": {"x": 1}}]}}, "newPolicy": {"a": ["b"]}});
    let spec = json!({"flows": [{"name": "a", "jobTemplate": new, "new": true}], "errorHandler": {"x": 1}, "shareVolumes": [{"name": "v", "new": {}}]});
    assert_eq!(flow(client, "new", &spec).await.unwrap()["spec"], spec);
    assert_eq!(daemon(client, "new", &new).await.unwrap()["spec"], new);
    let template = json!({"jobTemplate": new});
    let stored = create(client, "jobtemplates", &object("JobTemplate", "new.one", &template)).await.unwrap();
    assert_eq!(stored["spec"], template);
    let overridden = json!({"flows": [{"name": "a", "jobTemplateRef": "new.one", "overrides": new}]});
    assert_eq!(flow(client, "overridden", &overridden).await.unwrap()["spec"], overridden);
}

pub(crate) async fn an_error_handler_may_be_anything(client: &Client) {
    for (index, handler) in
        [json!("x"), json!(1), json!(["a"]), json!({"a": {"b": null}}), json!(false)].iter().enumerate()
    {
        let spec = json!({"flows": [], "ErrorHandler": handler});
        assert_eq!(flow(client, &format!("handler-{index}"), &spec).await.unwrap()["spec"], spec);
    }
}

/// Returns a flow with this number of steps, each of which depends on up to `dependencies` steps before it.
fn wide(steps: usize, dependencies: usize) -> Value {
    let name = |index: usize| format!("step-{index:03}");
    let work = json!({"jobTemplateRef": "t", "jobTemplate": null});
    let flows = (0..steps).map(|index| {
        let before = (index.saturating_sub(dependencies)..index).map(name).collect::<Vec<_>>();
        changed(step(&name(index), &before.iter().map(String::as_str).collect::<Vec<_>>()), work.clone())
    });
    json!({"flows": flows.collect::<Vec<_>>()})
}

pub(crate) async fn five_hundred_steps_of_sixty_dependencies_are_accepted(client: &Client) {
    flow(client, "wide", &wide(500, 60)).await.unwrap();
    flow(client, "wider", &wide(500, 100)).await.unwrap();
}

pub(crate) async fn a_full_flow_and_a_full_daemon_job_are_stored_as_written(client: &Client) {
    let retry = json!({"limit": 2, "backoffSeconds": 1, "maxBackoffSeconds": 9, "infraLimit": 3, "podBackoffLimit": 0});
    let spec = json!({
        "flows": [
            changed(step("1", &[]), json!({"retryPolicy": retry, "timeoutSeconds": 60, "continueOnFailure": true})),
            {"name": "a.b-2", "dependencies": ["1"], "jobTemplateRef": "t", "when": "failure", "handlesFailure": true, "overrides": {"parallelism": 2}},
        ],
        "finally": [changed(step("end", &[]), json!({"when": "failure"})), step("end-2", &[])],
        "shareVolumes": [{"name": "v", "emptyDir": {}}],
        "globalParams": {"env": [{"name": "X", "value": "1"}], "nodeName": "n", "labels": {"a": "b"}, "annotations": {}, "mode": "Merge", "initContainers": true},
        "failurePolicy": {"type": "Pause"}, "timeoutSeconds": 3600, "suspend": true,
        "cleanup": {"ttlSeconds": 0, "jobs": "DeleteSucceeded"},
    });
    assert_eq!(flow(client, "full", &spec).await.unwrap()["spec"], spec);
    let spec = changed(
        job(),
        json!({
            "completions": 3, "suspend": true, "ttlSecondsAfterFinished": 0, "excludeNodeList": ",,a, ,b", "globalParams": {"env": []},
            "rollout": {
                "nodeSelector": {"matchLabels": {"a": "b"}, "matchExpressions": [{"key": "c", "operator": "Exists"}]},
                "taints": "Respect", "skipCordoned": true, "notReadyPolicy": "Skip", "concurrency": "10%", "newNodePolicy": "Run",
                "failurePolicy": {"type": "Pause", "maxFailures": 2}, "nodeTimeoutSeconds": 60, "retryPolicy": retry, "paused": true,
            },
            "cleanup": {"jobs": "DeleteAll"},
        }),
    );
    assert_eq!(daemon(client, "full", &spec).await.unwrap()["spec"], spec);
}

pub(crate) async fn status_and_records_are_stored_as_written(client: &Client) {
    let unit = json!({
        "name": "a", "state": "Succeed", "reason": "r", "message": "m", "job": "x-a", "jobUID": "u", "attempt": 1, "infraAttempts": 1,
        "startTime": "2026-01-01T00:00:00Z", "completionTime": "2026-01-01T00:00:01Z", "revision": "0", "outdated": true, "tolerated": true,
        "nodeUID": "n", "countedFrom": 1, "unjudged": true, "passedOver": true, "template": "t/2", "later": {"x": 1},
    });
    let status = |units: &str| {
        json!({
            "state": "Running", "jobStatusList": {"x-a/default": {"succeeded": 1, "conditions": [{"type": "Complete"}]}},
            "jobStatusListOmitted": 3, "observedGeneration": 1, "startTime": "2026-01-01T00:00:00Z", "progress": "1/2",
            "counts": {"total": 2, "succeeded": 1}, units: [unit], "tableTruncated": false,
            "conditions": [{"type": "Progressing", "status": "True", "reason": "Working", "message": "a: runs"}],
            "retryToken": "1", "suspendedSeconds": 5, "suspendedSince": "2026-01-01T00:00:00Z", "nodeSetGeneration": 1, "importedGeneration": 1, "later": [1],
        })
    };
    flow(client, "told", &json!({"flows": [step("a", &[])]})).await.unwrap();
    daemon(client, "told", &job()).await.unwrap();
    for (place, units) in [("jobflows/told/status", "steps"), ("daemonjobs/told/status", "nodes")] {
        let told = patch(client, place, &json!({"status": status(units)})).await.unwrap();
        assert_eq!(told["status"], status(units));
        assert_eq!(told["metadata"]["generation"], 1);
    }
    create(client, "jobtemplates", &object("JobTemplate", "told", &json!({"jobTemplate": job()}))).await.unwrap();
    let status = json!({"dependencyList": ["x-a"], "dependencyCount": 1, "observedGeneration": 1, "revision": "0",
        "conditions": [{"type": "Valid", "status": "True", "reason": "Accepted", "message": "", "observedGeneration": 1,
            "lastTransitionTime": "2026-01-01T00:00:00Z"}]});
    let told = patch(client, "jobtemplates/told/status", &json!({ "status": status })).await.unwrap();
    assert_eq!(told["status"], status);
    let record = json!({
        "apiVersion": oarlock_api::OPERATION_RECORD_API_VERSION, "kind": "JobRecord", "metadata": {"name": "told-0"},
        "shard": 0, "units": [unit.to_string()],
    });
    let stored = create(client, "jobrecords", &record).await.unwrap();
    assert_eq!((&stored["shard"], &stored["units"]), (&record["shard"], &record["units"]));
}

pub(crate) async fn tables_have_the_columns_of_the_original(client: &Client) {
    let columns = json!([["Name", 0], ["Status", 0], ["Age", 0], ["Progress", 1], ["Message", 1]]);
    let plain = json!([["Name", 0], ["Age", 0]]);
    for (plural, wanted) in [("jobflows", &columns), ("daemonjobs", &columns), ("jobtemplates", &plain)] {
        let request = http::Request::get(path(plural)).header("accept", "application/json;as=Table;v=v1;g=meta.k8s.io");
        let table = client.request::<Value>(request.body(Vec::new()).unwrap()).await.unwrap();
        let told = table["columnDefinitions"].as_array().unwrap().iter();
        assert_eq!(&told.map(|column| json!([column["name"], column["priority"]])).collect::<Value>(), wanted);
    }
}

pub(crate) async fn an_invalid_flow_stored_before(client: &Client) {
    add_kinds(client).await;
    flow(client, "old", &json!({"flows": [step("a", &[]), step("a", &[])]})).await.unwrap();
    add_policies(client).await;
    patch(client, "jobflows/old", &json!({"metadata": {"labels": {"a": "b"}}})).await.unwrap();
    patch(client, "jobflows/old/status", &json!({"status": {"state": "Failed"}})).await.unwrap();
    let (code, message) = patch(client, "jobflows/old", &json!({"spec": {"suspend": true}})).await.unwrap_err();
    assert!(
        code == 422 && message.ends_with("step \"a\": another step has this name; rename one of them"),
        "{message}"
    );
    patch(client, "jobflows/old", &json!({"spec": {"flows": [step("a", &[]), step("b", &["a"])]}})).await.unwrap();
}
