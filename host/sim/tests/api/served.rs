//! The in-memory API on a port, in real time, as kubectl uses it.

use std::net::SocketAddr;

use futures::TryStreamExt;
use http::Request;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client, Config,
    api::{PostParams, WatchEvent, WatchParams},
};
use oarlock_sim::{Cluster, Options};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

/// Returns a client of a server on a port. The server ends with the test.
async fn served() -> Client {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let cluster = Cluster::new(Options::default());
    tokio::spawn(async move { cluster.serve(listener).await });
    Client::try_from(Config::new(address.parse().unwrap())).unwrap()
}

async fn get(client: &Client, path: &str, accept: &str) -> Value {
    let request = Request::get(path).header("accept", accept).body(Vec::new()).unwrap();
    client.request(request).await.unwrap()
}

#[tokio::test]
async fn a_watch_over_a_port_tells_what_happens() {
    let client = served().await;
    let pods: Api<Pod> = Api::default_namespaced(client);
    let events = pods.watch(&WatchParams::default(), "1").await.unwrap();
    let pod = json!({"metadata": {"name": "a"}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    pods.create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await.unwrap();
    let mut events = std::pin::pin!(events);
    let first = events.try_next().await.unwrap();
    assert!(matches!(first, Some(WatchEvent::Added(pod)) if pod.metadata.name.as_deref() == Some("a")));
}

#[tokio::test]
async fn documents_explain_the_kinds_and_say_what_patches_take() {
    let client = served().await;
    let index = get(&client, "/openapi/v3", "application/json").await;
    let address = index["paths"]["api/v1"]["serverRelativeURL"].as_str().unwrap().to_owned();
    let core = get(&client, &address, "application/json").await;
    let pod = &core["components"]["schemas"]["io.k8s.api.core.v1.Pod"];
    assert!(pod["description"].as_str().unwrap().starts_with("Pod is a collection of containers"));
    assert!(core["components"]["schemas"]["io.k8s.api.authentication.v1.TokenRequestSpec"].is_object());
    let token = &core["paths"]["/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token"]["post"];
    assert_eq!(token["x-kubernetes-group-version-kind"]["kind"], "TokenRequest");
    let patch = &core["paths"]["/api/v1/namespaces/{namespace}/pods/{name}"]["patch"];
    assert_eq!(patch["x-kubernetes-group-version-kind"]["kind"], "Pod");
    assert!(patch["parameters"].as_array().unwrap().iter().any(|one| one["name"] == "fieldValidation"));
}

#[tokio::test]
async fn discovery_is_there_in_both_forms() {
    let client = served().await;
    let accept = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json";
    let whole = get(&client, "/apis", accept).await;
    assert_eq!(whole["kind"], "APIGroupDiscoveryList");
    let apps = whole["items"].as_array().unwrap().iter().find(|group| group["metadata"]["name"] == "apps").unwrap();
    assert!(apps["versions"][0]["resources"].as_array().unwrap().iter().any(|one| one["resource"] == "deployments"));
    let core = get(&client, "/api/v1", "application/json").await;
    let token = core["resources"].as_array().unwrap().iter().find(|one| one["name"] == "serviceaccounts/token");
    let wanted = json!({
        "name": "serviceaccounts/token", "singularName": "", "namespaced": true, "group": "authentication.k8s.io",
        "version": "v1", "kind": "TokenRequest", "verbs": ["create"],
    });
    assert_eq!(token, Some(&wanted));
    let parts = get(&client, "/apis/apps/v1", "application/json").await;
    assert!(parts["resources"].as_array().unwrap().iter().any(|one| one["name"] == "deployments/scale"));
}

/// Sends a request with these headers, and returns the response as text.
async fn asked(address: SocketAddr, method: &str, headers: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request =
        format!("{method} /api/v1/namespaces HTTP/1.1\r\n{headers}content-length: 0\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

#[tokio::test]
async fn a_page_of_another_site_is_refused_whatever_name_it_reaches_the_port_by() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let port = address.port();
    let cluster = Cluster::new(Options::default());
    tokio::spawn(async move { cluster.serve(listener).await });
    let own_page = format!("host: localhost:{port}\r\norigin: http://localhost:{port}\r\n");
    let with_port = ["localhost", "127.0.0.1", "[::1]", "LOCALHOST"].map(|host| format!("host: {host}:{port}\r\n"));
    let without = ["localhost", "127.0.0.1", "[::1]"].map(|host| format!("host: {host}\r\n"));
    for headers in with_port.iter().chain(&without).chain([&own_page]) {
        let answer = asked(address, "GET", headers).await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{headers}: {answer}");
    }
    let foreign = [
        ("host: rebound.example\r\n", "rebound.example"),
        ("host: rebound.example:80\r\n", "rebound.example"),
        ("host: localhost.example\r\n", "localhost.example"),
        ("host: localhost@rebound.example\r\n", "rebound.example"),
        ("host: 127.0.0.1.example\r\n", "127.0.0.1.example"),
        ("host: 203.0.113.9\r\n", "203.0.113.9"),
        ("host: \r\n", "no address"),
        ("host: localhost\r\nhost: rebound.example\r\n", "rebound.example"),
        ("host: localhost\r\norigin: https://site.example\r\n", "site.example"),
        ("host: localhost\r\norigin: http://localhost:1\r\n", "localhost:1"),
        ("host: localhost\r\norigin: null\r\n", "null"),
    ];
    for (headers, named) in foreign {
        for method in ["GET", "POST"] {
            let answer = asked(address, method, headers).await;
            assert!(answer.starts_with("HTTP/1.1 403"), "{headers}: {answer}");
            let fix = format!("use http://127.0.0.1:{port}");
            assert!(answer.contains(named) && answer.contains(&fix), "{headers}: {answer}");
        }
    }
}
