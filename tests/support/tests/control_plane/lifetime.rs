//! How control planes start and end.

use std::path::Path;
use std::process::{Command, Stdio};

use http::Request;
use oarlock_support::accounts::Account;
use oarlock_support::control_plane::{self, Options};

fn runs(pid: u32) -> bool {
    let state = std::fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("stat"));
    // A process that has ended but was not waited for is a zombie. It does not run.
    state.is_ok_and(|text| !text.contains(") Z "))
}

#[tokio::test]
async fn dropped_control_plane_leaves_no_process_and_no_file() {
    let options = Options { controllers: vec![control_plane::GARBAGE_COLLECTOR], ..Options::default() };
    let plane = control_plane::start(options).await.unwrap();
    let (ids, folder) = (plane.process_ids(), plane.folder().to_owned());
    assert_eq!(ids.len(), 3);
    assert!(ids.iter().all(|id| runs(*id)), "{ids:?}");
    drop(plane);
    assert!(!ids.iter().any(|id| runs(*id)), "{ids:?}");
    assert!(!folder.exists());
}

/// Runs only in a process that the test below starts and then kills.
#[tokio::test]
#[ignore = "the victim of killed_test_process_takes_its_control_plane_along"]
async fn victim() {
    let plane = control_plane::start(Options::default()).await.unwrap();
    let ids: Vec<String> = plane.process_ids().iter().map(ToString::to_string).collect();
    println!("servers: {}", ids.join(" "));
    std::future::pending::<()>().await;
}

#[test]
fn killed_test_process_takes_its_control_plane_along() {
    use std::io::{BufRead as _, BufReader};
    let mut process = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "lifetime::victim", "--ignored", "--nocapture"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(process.stdout.take().unwrap()).lines();
    let line = lines.map_while(Result::ok).find(|line| line.contains("servers: ")).unwrap();
    let ids: Vec<u32> = line.split("servers: ").nth(1).unwrap().split(' ').map(|id| id.parse().unwrap()).collect();
    assert!(ids.iter().all(|id| runs(*id)), "{ids:?}");
    process.kill().unwrap();
    process.wait().unwrap();
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
    while ids.iter().any(|id| runs(*id)) {
        assert!(std::time::Instant::now() < deadline, "still running: {ids:?}");
        std::thread::yield_now();
    }
}

#[tokio::test]
async fn killed_api_server_comes_back_with_what_was_stored() {
    let plane = control_plane::start(Options::default()).await.unwrap();
    let client = plane.client(Account::Admin).await.unwrap();
    let namespace = br#"{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"kept"}}"#.to_vec();
    let request =
        Request::post("/api/v1/namespaces").header("content-type", "application/json").body(namespace).unwrap();
    client.request_text(request).await.unwrap();
    plane.kill_api_server();
    let read = || Request::get("/api/v1/namespaces/kept").body(Vec::new()).unwrap();
    client.request_text(read()).await.unwrap_err();
    plane.start_api_server().await.unwrap();
    assert!(client.request_text(read()).await.unwrap().contains("kept"));
}

#[tokio::test]
async fn killed_store_comes_back_with_what_was_stored() {
    let plane = control_plane::start(Options::default()).await.unwrap();
    let client = plane.client(Account::Admin).await.unwrap();
    let create = |name: &str| {
        let body = format!(r#"{{"apiVersion":"v1","kind":"Namespace","metadata":{{"name":"{name}"}}}}"#);
        Request::post("/api/v1/namespaces").header("content-type", "application/json").body(body.into_bytes()).unwrap()
    };
    client.request_text(create("kept")).await.unwrap();
    plane.kill_store();
    plane.start_store().await.unwrap();
    let read = Request::get("/api/v1/namespaces/kept").body(Vec::new()).unwrap();
    assert!(client.request_text(read).await.unwrap().contains("kept"));
    client.request_text(create("further")).await.unwrap();
}

#[tokio::test]
async fn frozen_api_server_answers_when_it_is_thawed() {
    let plane = control_plane::start(Options::default()).await.unwrap();
    let client = plane.client(Account::Admin).await.unwrap();
    plane.freeze_api_server().unwrap();
    let read = Request::get("/api/v1/namespaces/default").body(Vec::new()).unwrap();
    let mut answer = std::pin::pin!(client.request_text(read));
    let early = tokio::time::timeout(std::time::Duration::from_millis(300), answer.as_mut()).await;
    assert!(early.is_err(), "a frozen server answered");
    plane.thaw_api_server().unwrap();
    assert!(answer.await.unwrap().contains("default"));
}

#[tokio::test]
async fn server_that_cannot_start_is_reported_with_the_end_of_its_log() {
    let options = Options { api_server_flags: vec!["--no-such-flag".to_owned()], ..Options::default() };
    let refusal = format!("{:#}", control_plane::start(options).await.unwrap_err());
    assert!(refusal.contains("kube-apiserver ended") && refusal.contains("unknown flag: --no-such-flag"), "{refusal}");
}
