//! The answers that a client sees through the counting proxy, and the objects that the server has then stored.

use std::sync::Arc;
use std::time::Duration;

use futures::{AsyncBufReadExt as _, StreamExt as _};
use http::{Method, Request, StatusCode};
use oarlock_support::accounts::Account;
use oarlock_support::faults::{Fault, Plan, Then, When};
use oarlock_support::interception::Interceptor;
use oarlock_support::proxy::Proxy;
use serde_json::{Value, json};
use tokio::sync::Notify;

use crate::shared;

/// A proxy with its plan, a client through the proxy, and a client past it.
struct Setup {
    proxy: Proxy,
    through: kube::Client,
    past: kube::Client,
}

async fn setup(plan: Plan) -> Setup {
    let plane = shared().await.unwrap();
    let upstream = plane.config(Account::Admin).await.unwrap();
    let proxy = Proxy::start(upstream, Interceptor::new(plan, &["leases", "events"])).await.unwrap();
    let through = client_via(&proxy, Account::World).await;
    Setup { proxy, through, past: plane.client(Account::World).await.unwrap() }
}

async fn client_via(proxy: &Proxy, account: Account) -> kube::Client {
    let path = shared().await.unwrap().kubeconfig_via(account, &proxy.url()).unwrap();
    let kubeconfig = kube::config::Kubeconfig::read_from(path).unwrap();
    let mut config = kube::Config::from_custom_kubeconfig(kubeconfig, &Default::default()).await.unwrap();
    config.default_retry = false;
    kube::Client::try_from(config).unwrap()
}

fn only(at: u64, when: When, then: Then) -> Plan {
    Plan::new([Fault { at, when, then }]).unwrap()
}

fn create(name: &str) -> Request<Vec<u8>> {
    let body = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}});
    Request::post("/api/v1/namespaces/default/configmaps")
        .header("content-type", "application/json")
        .body(body.to_string().into_bytes())
        .unwrap()
}

async fn exists(client: &kube::Client, name: &str) -> bool {
    let request = Request::get(format!("/api/v1/namespaces/default/configmaps/{name}")).body(Vec::new()).unwrap();
    client.request::<Value>(request).await.is_ok()
}

#[tokio::test]
async fn writes_are_counted_in_order_and_reads_are_not() {
    let setup = setup(Plan::none()).await;
    setup.through.request::<Value>(create("counted")).await.unwrap();
    assert!(exists(&setup.through, "counted").await);
    let remove = Request::delete("/api/v1/namespaces/default/configmaps/counted").body(Vec::new()).unwrap();
    setup.through.request::<Value>(remove).await.unwrap();
    let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "ignored"}});
    let lease =
        Request::post("/apis/coordination.k8s.io/v1/namespaces/default/leases").body(lease.to_string().into_bytes());
    setup.through.request::<Value>(lease.unwrap()).await.unwrap();
    let records = setup.proxy.interceptor().records();
    let seen: Vec<_> = records.iter().map(|record| (record.number, record.verb.clone(), record.status)).collect();
    assert_eq!(seen, [(1, Method::POST, Some(StatusCode::CREATED)), (2, Method::DELETE, Some(StatusCode::OK))]);
    assert!(records.iter().all(|record| record.took.is_some()));
}

#[tokio::test]
async fn watch_streams_through() {
    let setup = setup(Plan::none()).await;
    let watch = Request::get("/api/v1/namespaces/default/configmaps?watch=true").body(Vec::new()).unwrap();
    let mut events = setup.through.request_stream(watch).await.unwrap().lines();
    setup.past.request::<Value>(create("streamed")).await.unwrap();
    while let Some(line) = events.next().await {
        if line.unwrap().contains("streamed") {
            return;
        }
    }
    panic!("the watch ended");
}

#[tokio::test]
async fn own_token_of_the_caller_decides_about_its_rights() {
    let setup = setup(Plan::none()).await;
    let refused = client_via(&setup.proxy, Account::Visitor).await.request::<Value>(create("forbidden")).await;
    let kube::Error::Api(status) = refused.unwrap_err() else { panic!("no answer") };
    assert_eq!(status.code, 403);
    assert!(status.message.contains("visitor"), "{}", status.message);
}

#[tokio::test]
async fn kill_comes_before_the_send_after_the_commit_or_after_the_reply() {
    for (when, stored, replied) in
        [(When::BeforeSend, false, false), (When::AfterCommit, true, false), (When::AfterReply, true, true)]
    {
        let killed = Arc::new(Notify::new());
        let bell = killed.clone();
        let setup = setup(only(1, when, Then::Kill(Arc::new(move || bell.notify_one())))).await;
        let name = format!("killed-{when:?}").to_lowercase();
        let write = setup.through.request::<Value>(create(&name));
        let reply = if replied {
            let reply = write.await;
            killed.notified().await;
            Some(reply)
        } else {
            tokio::select! { reply = write => Some(reply), () = killed.notified() => None }
        };
        assert_eq!(reply.is_some_and(|reply| reply.is_ok()), replied, "{when:?}");
        assert_eq!(exists(&setup.past, &name).await, stored, "{when:?}");
    }
}

#[tokio::test]
async fn refusal_hides_whether_the_server_was_asked() {
    for (when, stored) in [(When::BeforeSend, false), (When::AfterCommit, true)] {
        let setup = setup(only(2, when, Then::Refuse(StatusCode::GATEWAY_TIMEOUT))).await;
        let name = format!("refused-{when:?}").to_lowercase();
        setup.through.request::<Value>(create(&format!("{name}-first"))).await.unwrap();
        let kube::Error::Api(status) = setup.through.request::<Value>(create(&name)).await.unwrap_err() else {
            panic!("no answer")
        };
        assert_eq!((status.code, status.reason.as_str()), (504, "Timeout"));
        assert_eq!(exists(&setup.past, &name).await, stored, "{when:?}");
    }
}

#[tokio::test]
async fn repeated_create_is_refused_the_second_time() {
    let setup = setup(only(1, When::BeforeSend, Then::Repeat)).await;
    let kube::Error::Api(status) = setup.through.request::<Value>(create("repeated")).await.unwrap_err() else {
        panic!("no answer")
    };
    assert_eq!((status.code, status.reason.as_str()), (409, "AlreadyExists"));
    assert_eq!(setup.proxy.interceptor().count(), 1);
}

#[tokio::test]
async fn dropped_connection_is_no_answer() {
    for (when, stored) in [(When::BeforeSend, false), (When::AfterCommit, true)] {
        let setup = setup(only(1, when, Then::DropConnection)).await;
        let name = format!("dropped-{when:?}").to_lowercase();
        let error = setup.through.request::<Value>(create(&name)).await.unwrap_err();
        assert!(!matches!(error, kube::Error::Api(_)), "{error:?}");
        assert_eq!(exists(&setup.past, &name).await, stored, "{when:?}");
    }
}

#[tokio::test]
async fn delayed_write_reaches_the_server_late_and_whole() {
    let pause = Duration::from_millis(200);
    let setup = setup(only(1, When::BeforeSend, Then::Delay(pause))).await;
    setup.through.request::<Value>(create("delayed")).await.unwrap();
    let record = setup.proxy.interceptor().records().remove(0);
    assert!(record.took.unwrap() >= pause, "{record:?}");
}
