//! Tests that a container's log follows from its command and the times of its status.

use std::time::Duration;

use futures::{AsyncReadExt as _, TryStreamExt as _};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{LogParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use oarlock_sim::{Cluster, Options};
use serde_json::{Value, json};

const BEGAN: &str = "2026-01-01T00:00:00Z";

async fn scene(command: &str, status: Value) -> Api<Pod> {
    let client = Client::new(Cluster::new(Options::default()).service(), "default");
    let node = json!({"metadata": {"name": "n"}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}});
    let nodes: Api<Node> = Api::all(client.clone());
    nodes.create(&PostParams::default(), &serde_json::from_value(node).unwrap()).await.unwrap();
    let pods: Api<Pod> = Api::default_namespaced(client);
    let container = json!({"name": "c", "image": "i", "command": ["sh", "-c", command]});
    let pod = json!({"metadata": {"name": "p"}, "spec": {"nodeName": "n", "containers": [container]}});
    pods.create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await.unwrap();
    let patch = Patch::Merge(json!({"status": {"containerStatuses": [status]}}));
    pods.patch_status("p", &PatchParams::default(), &patch).await.unwrap();
    pods
}

fn running() -> Value {
    json!({"name": "c", "image": "i", "imageID": "", "ready": true, "restartCount": 0, "state": {"running": {"startedAt": BEGAN}}})
}

fn stamped() -> LogParams {
    LogParams { timestamps: true, ..LogParams::default() }
}

#[tokio::test(start_paused = true)]
async fn a_log_has_what_was_printed_by_now_each_line_with_its_time() {
    let pods = scene("echo begin; sleep 2; echo done; sleep 100", running()).await;
    assert_eq!(pods.logs("p", &stamped()).await.unwrap(), "2026-01-01T00:00:00.000000000Z begin\n");
    tokio::time::advance(Duration::from_secs(3)).await;
    let whole = "2026-01-01T00:00:00.000000000Z begin\n2026-01-01T00:00:02.000001000Z done\n";
    assert_eq!(pods.logs("p", &stamped()).await.unwrap(), whole);
    let of = async |params: LogParams| pods.logs("p", &params).await.unwrap();
    assert_eq!(of(LogParams { tail_lines: Some(1), ..LogParams::default() }).await, "done\n");
    assert_eq!(of(LogParams { since_seconds: Some(2), ..LogParams::default() }).await, "done\n");
    assert_eq!(of(LogParams { limit_bytes: Some(3), ..LogParams::default() }).await, "beg");
}

#[tokio::test(start_paused = true)]
async fn a_loop_prints_as_long_as_it_runs_and_a_follower_sees_each_line_once() {
    let pods = scene("while true; do echo tick; sleep 1; done", running()).await;
    let params = LogParams { follow: true, ..LogParams::default() };
    let mut stream = Box::pin(pods.log_stream("p", &params).await.unwrap());
    let mut read = [0; 15];
    stream.read_exact(&mut read).await.unwrap();
    assert_eq!(&read, b"tick\ntick\ntick\n");
    let now = pods.logs("p", &LogParams::default()).await.unwrap();
    assert_eq!(now.lines().count(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_container_that_was_restarted_has_a_log_of_the_instance_before() {
    let mut status = running();
    status["lastState"] = json!({"terminated": {"exitCode": 1, "startedAt": "2025-12-31T23:59:50Z", "finishedAt": "2025-12-31T23:59:53Z"}});
    status["restartCount"] = json!(1);
    let pods = scene("while true; do echo tick; sleep 2; done", status).await;
    let previous = pods.logs("p", &LogParams { previous: true, ..stamped() }).await.unwrap();
    assert_eq!(previous, "2025-12-31T23:59:50.000000000Z tick\n2025-12-31T23:59:52.000001000Z tick\n");
}

#[tokio::test(start_paused = true)]
async fn what_there_is_no_log_of_is_said_as_the_real_server_says_it() {
    let pods = scene("echo a", running()).await;
    let refused = async |params: LogParams| match pods.logs("p", &params).await {
        Err(kube::Error::Api(status)) => (status.code, status.message.clone()),
        other => panic!("{other:?}"),
    };
    let (code, message) = refused(LogParams { previous: true, ..LogParams::default() }).await;
    assert_eq!((code, message.as_str()), (400, "previous terminated container \"c\" in pod \"p\" not found"));
    let (code, message) = refused(LogParams { container: Some("x".into()), ..LogParams::default() }).await;
    assert_eq!((code, message.as_str()), (400, "container x is not valid for pod p"));
    let waits = Patch::Merge(
        json!({"status": {"containerStatuses": [{"name": "c", "image": "i", "imageID": "", "ready": false,
        "restartCount": 0, "state": {"waiting": {"reason": "ContainerCreating"}}}]}}),
    );
    pods.patch_status("p", &PatchParams::default(), &waits).await.unwrap();
    let (code, message) = refused(LogParams::default()).await;
    assert_eq!((code, message.as_str()), (400, "container \"c\" in pod \"p\" is waiting to start: ContainerCreating"));
    let nodes: Api<Node> = Api::all(pods.clone().into_client());
    let silent = Patch::Merge(json!({"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}}));
    nodes.patch_status("n", &PatchParams::default(), &silent).await.unwrap();
    let (code, message) = refused(LogParams::default()).await;
    assert!(code == 500 && message.contains("connection refused"), "{code} {message}");
}

#[tokio::test(start_paused = true)]
async fn a_long_log_comes_in_pieces() {
    let pods = scene("seq -f 'line %g' 200000", running()).await;
    tokio::time::advance(Duration::from_secs(1)).await;
    let stream = pods.log_stream("p", &LogParams::default()).await.unwrap();
    let count = futures::AsyncBufReadExt::lines(stream).try_fold(0, async |count, _line| Ok(count + 1)).await.unwrap();
    assert_eq!(count, 200_000);
}
