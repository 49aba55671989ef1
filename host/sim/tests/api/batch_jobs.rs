//! Batch Jobs are filled in, checked and changed as on a real server. What every rule says is tested beside the rules.

use http::Request;
use kube::Client;
use oarlock_sim::{Cluster, Options};
use serde_json::{Value, json};

const JOBS: &str = "/apis/batch/v1/namespaces/default/jobs";

fn client() -> Client {
    Client::new(Cluster::new(Options::default()).service(), "default")
}

/// A Job `j`, with further fields of its spec.
fn job(spec: &Value) -> Value {
    let pod = json!({"restartPolicy": "Never", "containers": [{"name": "main", "image": "none"}]});
    let mut job = json!({
        "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j"}, "spec": {"template": {"spec": pod}},
    });
    for (field, value) in spec.as_object().unwrap() {
        job["spec"][field] = value.clone();
    }
    job
}

async fn send(client: &Client, verb: &str, path: &str, body: &Value) -> Result<Value, (u16, String)> {
    let content = if verb == "PATCH" { "application/merge-patch+json" } else { "application/json" };
    let request = Request::builder().method(verb).uri(path).header("content-type", content);
    match client.request(request.body(body.to_string().into_bytes()).unwrap()).await {
        Ok(answer) => Ok(answer),
        Err(kube::Error::Api(status)) => Err((status.code, status.message)),
        Err(other) => panic!("not a Status: {other:?}"),
    }
}

async fn create(job: &Value) -> Result<Value, (u16, String)> {
    send(&client(), "POST", JOBS, job).await
}

#[tokio::test(start_paused = true)]
async fn a_job_without_labels_gets_those_of_its_pods_and_one_with_labels_keeps_them() {
    let bare = create(&job(&json!({}))).await.unwrap();
    assert_eq!(bare["metadata"]["labels"], bare["spec"]["template"]["metadata"]["labels"]);
    assert_eq!(bare["metadata"]["labels"].as_object().unwrap().len(), 4);
    let mut labelled = job(&json!({}));
    labelled["spec"]["template"]["metadata"] = json!({"labels": {"app": "x"}});
    let shared = create(&labelled).await.unwrap();
    assert_eq!(shared["metadata"]["labels"].as_object().unwrap().len(), 5);
    labelled["metadata"]["labels"] = json!({"app": "x"});
    let own = create(&labelled).await.unwrap();
    assert_eq!(own["metadata"]["labels"], json!({"app": "x"}));
}

#[tokio::test(start_paused = true)]
async fn a_job_has_the_defaults_of_its_policies() {
    let rules = json!({"rules": [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}]});
    let spec = json!({
        "completionMode": "Indexed", "completions": 2, "backoffLimitPerIndex": 1, "podFailurePolicy": rules,
    });
    let spec = create(&job(&spec)).await.unwrap()["spec"].take();
    assert_eq!(spec["backoffLimit"], json!(i32::MAX));
    assert_eq!(spec["podReplacementPolicy"], "Failed");
    assert_eq!(spec["podFailurePolicy"]["rules"][0]["onPodConditions"][0]["status"], "True");
}

#[tokio::test(start_paused = true)]
async fn an_indexed_job_whose_pods_could_not_be_named_is_refused() {
    let mut indexed = job(&json!({"completionMode": "Indexed", "completions": 1}));
    indexed["metadata"]["name"] = json!("nightly.report");
    let message = "Job.batch \"nightly.report\" is invalid: metadata.name: Invalid value: \"nightly.report\": will not able \
                   to create pod with invalid DNS label: nightly.report-0";
    assert_eq!(create(&indexed).await.unwrap_err(), (422, message.to_owned()));
}

#[tokio::test(start_paused = true)]
async fn an_empty_text_of_a_job_is_not_an_absent_one() {
    let message = "Job.batch \"j\" is invalid: [spec.managedBy: Required value, spec.completionMode: Unsupported value: \
                   \"\": supported values: \"NonIndexed\", \"Indexed\"]";
    let refused = create(&job(&json!({"managedBy": "", "completionMode": ""}))).await.unwrap_err();
    assert_eq!(refused, (422, message.to_owned()));
}

#[tokio::test(start_paused = true)]
async fn a_number_beyond_its_format_cannot_be_read() {
    let (code, message) = create(&job(&json!({"completions": 3_000_000_000_u64}))).await.unwrap_err();
    assert_eq!(code, 400);
    assert!(message.ends_with("spec.completions of type int32"), "{message}");
}

#[tokio::test(start_paused = true)]
async fn a_template_changes_while_the_job_is_at_rest() {
    let client = client();
    send(&client, "POST", JOBS, &job(&json!({"suspend": true}))).await.unwrap();
    let path = format!("{JOBS}/j");
    let move_to = |zone: &str| json!({"spec": {"template": {"spec": {"nodeSelector": {"zone": zone}}}}});
    let moved = send(&client, "PATCH", &path, &move_to("a")).await.unwrap();
    assert_eq!(moved["spec"]["template"]["spec"]["nodeSelector"], json!({"zone": "a"}));
    send(&client, "PATCH", &path, &json!({"spec": {"suspend": false}})).await.unwrap();
    let (code, message) = send(&client, "PATCH", &path, &move_to("b")).await.unwrap_err();
    assert_eq!(code, 422);
    assert!(message.starts_with("Job.batch \"j\" is invalid: spec.template: Invalid value: "), "{message}");
    assert!(message.ends_with(": field is immutable"), "{message}");
}
