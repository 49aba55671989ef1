//! Watches, through breaks and bad objects.

use std::time::Duration;

use http::Method;
use oarlock_bed::logged::Logged;
use oarlock_core::cluster::object::{Kind, ObjectKey};
use oarlock_kube::observe::Detail;
use oarlock_kube::watch::watches::{WatchEvent, WatchedKind, WatchedKinds};
use serde_json::json;
use tracing::Level;

use crate::faults::{Then, status};
use crate::scene::{PODS, Scene, job, pods};

fn count(cluster: &oarlock_kube::Cluster) -> usize {
    cluster.store().count(&Kind::pod())
}

#[tokio::test(start_paused = true)]
async fn objects_are_slim_and_each_change_is_an_event() {
    let mut scene = Scene::watching().await;
    scene.pod("a").await;
    scene.until("the pod", |cluster| count(cluster) == 1).await;
    scene.patch(&format!("{PODS}/a"), &json!({"metadata": {"labels": {"app": "x"}}})).await;
    scene.until("the label", |c| c.store().labelled(&Kind::pod(), "default", "app", "x").len() == 1).await;
    assert!(scene.shown("a").unwrap().fields.value().pointer("/spec/containers").is_none());
    scene.delete(&format!("{PODS}/a"), &json!({"gracePeriodSeconds": 0})).await;
    scene.until("no pod", |cluster| count(cluster) == 0).await;
    let gone = scene
        .heard()
        .into_iter()
        .filter(|event| matches!(event, WatchEvent::Object { change, .. } if change.new.is_none()));
    assert_eq!(gone.count(), 1);
}

#[tokio::test(start_paused = true)]
async fn more_pods_than_fit_a_page_are_all_listed() {
    let scene = Scene::bare().await;
    for n in 0..1_203 {
        scene.pod(&format!("p{n}")).await;
    }
    scene.declare(pods(&[])).await;
    assert_eq!(count(&scene.cluster), 1_203);
    assert_eq!(scene.cluster.requests().count("pods", "list"), 3);
}

#[tokio::test(start_paused = true)]
async fn changes_during_a_broken_watch_are_seen_afterwards() {
    let scene = Scene::watching().await;
    scene.pod("a").await;
    scene.pod("b").await;
    scene.until("the pods", |cluster| count(cluster) == 2).await;
    scene.faults.plan(Method::GET, "watch=true", (6, Then::Answer(500, status(500, "InternalError", "down"))));
    tokio::time::sleep(Duration::from_secs(60)).await;
    scene.delete(&format!("{PODS}/a"), &json!({"gracePeriodSeconds": 0})).await;
    scene.pod("c").await;
    scene.until("the change", |_| scene.shown("a").is_none() && scene.shown("c").is_some()).await;
    assert_eq!(scene.cluster.requests().count("pods", "list"), 1, "a break alone costs no list");
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_is_too_old_begins_anew_with_a_list() {
    let mut scene = Scene::watching().await;
    scene.pod("a").await;
    scene.pod("b").await;
    scene.until("the pods", |cluster| count(cluster) == 2).await;
    scene.faults.plan(Method::GET, "watch=true", (1_000, Then::Hang));
    // The watches that run now end by themselves; the next ones hang.
    tokio::time::sleep(Duration::from_secs(70)).await;
    scene.delete(&format!("{PODS}/a"), &json!({"gracePeriodSeconds": 0})).await;
    scene.pod("c").await;
    scene.sim.compact();
    scene.heard();
    scene.faults.heal();
    scene.until("the change", |_| scene.shown("a").is_none() && scene.shown("c").is_some()).await;
    assert_eq!(scene.cluster.requests().count("pods", "list"), 2);
    assert_eq!(scene.heard().len(), 2, "what did not change is no event");
}

#[tokio::test(start_paused = true)]
async fn no_list_is_answered_from_a_cache() {
    let scene = Scene::watching().await;
    assert_eq!(scene.faults.count(Method::GET, "limit=500&resourceVersion"), 0);
    assert!(scene.faults.count(Method::GET, "/pods?&limit=500") > 0);
}

#[tokio::test(start_paused = true)]
async fn one_job_that_cannot_be_read_never_hides_the_others() {
    let scene = Scene::bare().await;
    let stored = scene.job("good").await;
    let mut odd = stored.clone();
    odd["metadata"]["name"] = json!("odd");
    odd["metadata"]["uid"] = json!("odd-uid");
    odd["spec"]["partition"] = json!(5_000_000_000_u64);
    let mut bare = odd.clone();
    bare["metadata"]["name"] = json!("bare");
    bare["metadata"]["uid"] = json!("bare-uid");
    bare.as_object_mut().unwrap().remove("spec");
    let list = json!({"kind": "OperationJobList", "apiVersion": "apps.kusionstack.io/v1alpha1",
        "metadata": {"resourceVersion": scene.sim.resource_version().to_string()}, "items": [odd, bare, stored]});
    scene.faults.plan(Method::GET, "operationjobs?&limit", (1, Then::Answer(200, list)));
    scene.declare(pods(&[])).await;
    assert_eq!(scene.cluster.jobs().len(), 3);
    let bare = scene.cluster.observe(&job("bare"), &[], Detail::Status).await.unwrap().job.unwrap();
    let odd = scene.cluster.observe(&job("odd"), &[], Detail::Status).await.unwrap().job.unwrap();
    assert!(odd.unread.is_some() && bare.unread.is_none());
    assert_eq!((odd.spec.is_none(), odd.metadata.uid.as_deref()), (true, Some("odd-uid")));
    let good = scene.cluster.observe(&job("good"), &[], Detail::Status).await.unwrap().job.unwrap();
    assert!(good.spec.is_some());
}

#[tokio::test(start_paused = true)]
async fn a_field_that_is_declared_later_is_there_once_the_declaration_is_synced() {
    let scene = Scene::bare().await;
    scene.pod("a").await;
    scene.declare(pods(&[])).await;
    assert_eq!(scene.shown("a").unwrap().fields.value(), json!({}));
    scene.declare(pods(&["/spec/containers"])).await;
    assert_eq!(scene.shown("a").unwrap().fields.value()["spec"]["containers"][0]["name"], "main");
    assert_eq!(scene.cluster.requests().count("operationjobs", "list"), 1, "what was declared alike goes on");
}

#[tokio::test(start_paused = true)]
async fn what_was_declared_before_is_served_until_a_wider_declaration_is_listed() {
    let mut scene = Scene::bare().await;
    scene.pod("a").await;
    scene.pod("b").await;
    scene.declare(pods(&[])).await;
    scene.faults.plan(Method::GET, "/pods?&limit", (1_000, Then::Answer(403, status(403, "Forbidden", "not now"))));
    let wider = pods(&["/spec/containers"]);
    let containers = wider.kinds[&Kind::pod()].clone();
    scene.cluster.declare(wider).await;
    // Longer than any watch lives.
    tokio::time::sleep(Duration::from_secs(200)).await;
    scene.pod("c").await;
    scene.delete(&format!("{PODS}/a"), &json!({"gracePeriodSeconds": 0})).await;
    scene.until("the changes", |_| scene.shown("a").is_none() && scene.shown("c").is_some()).await;
    let watches = |scene: &Scene| -> Vec<_> {
        let health = scene.cluster.health().into_iter().filter(|health| health.kind == Kind::pod());
        health.map(|health| (health.declared.covers(&containers), health.synced, health.error.is_some())).collect()
    };
    assert_eq!(watches(&scene), [(false, true, false), (true, false, true)], "each says what it has");

    scene.faults.heal();
    scene.cluster.synced(&[Kind::pod()]).await;
    assert_eq!(watches(&scene), [(true, true, false)]);
    for name in ["b", "c"] {
        assert_eq!(scene.shown(name).unwrap().fields.value()["spec"]["containers"][0]["name"], "main");
    }
    scene.heard();
    scene.patch(&format!("{PODS}/b"), &json!({"metadata": {"labels": {"app": "x"}}})).await;
    scene.until("the label", |c| c.store().labelled(&Kind::pod(), "default", "app", "x").len() == 1).await;
    assert_eq!(scene.shown("b").unwrap().fields.value()["spec"]["containers"][0]["name"], "main");
    let watching = || scene.faults.count(Method::GET, "pods?&watch=true");
    let before = watching();
    tokio::time::sleep(Duration::from_secs(300)).await;
    let renewed = watching() - before;
    assert!((4..8).contains(&renewed), "one watch is left: renewed {renewed} times in five minutes");
}

#[tokio::test(start_paused = true)]
async fn a_kind_that_is_declared_no_longer_is_not_kept() {
    let scene = Scene::watching().await;
    scene.pod("a").await;
    scene.until("the pod", |cluster| count(cluster) == 1).await;
    scene.declare(WatchedKinds::default()).await;
    assert!(!scene.cluster.store().keeps(&Kind::pod()));
    scene.declare(pods(&[])).await;
    assert_eq!(count(&scene.cluster), 1);
}

pub(crate) const WIDGETS: &str = "
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.example.dev}
spec:
  group: example.dev
  scope: Namespaced
  names: {kind: Widget, plural: widgets, singular: widget, listKind: WidgetList}
  versions:
  - name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
";

#[tokio::test(start_paused = true)]
async fn a_kind_that_is_installed_later_is_served_from_then_on() {
    let scene = Scene::bare().await;
    let kind = Kind::new("example.dev/v1", "Widget");
    let declared = WatchedKinds { kinds: [(kind.clone(), WatchedKind::default())].into(), ..WatchedKinds::default() };
    scene.declare(declared).await;
    assert!(!scene.cluster.serves(&kind));
    scene.install(WIDGETS).await;
    let widget = json!({"apiVersion": "example.dev/v1", "kind": "Widget", "metadata": {"name": "w"}});
    scene.post("/apis/example.dev/v1/namespaces/default/widgets", &widget).await;
    let key = ObjectKey { kind: kind.clone(), namespace: Some("default".into()), name: "w".into() };
    scene.until("the widget", |cluster| cluster.store().get(&key).is_some()).await;
    assert!(scene.cluster.serves(&kind));
}

#[tokio::test(start_paused = true)]
async fn health_says_which_kind_cannot_be_listed_and_why() {
    let scene = Scene::bare().await;
    scene.faults.plan(Method::GET, "/pods?", (1_000, Then::Answer(403, status(403, "Forbidden", "pods is forbidden"))));
    scene.cluster.declare(pods(&[])).await;
    let synced = tokio::time::timeout(Duration::from_secs(120), scene.cluster.synced(&[Kind::pod()])).await;
    assert!(synced.is_err());
    let health = scene.cluster.health();
    let of = |kind: &str| health.iter().find(|health| health.kind.kind == kind).unwrap();
    assert!(!of("Pod").synced && of("Pod").error.as_deref().unwrap().contains("pods is forbidden"));
    assert!(of("OperationJob").synced && of("OperationJob").error.is_none());
    scene.faults.heal();
    scene.cluster.synced(&[Kind::pod()]).await;
}

#[tokio::test(start_paused = true)]
async fn a_kind_that_may_not_be_listed_or_is_not_served_holds_up_no_other_and_is_named() {
    let scene = Scene::bare().await;
    scene.install(WIDGETS).await;
    scene.pod("a").await;
    let forbidden = status(403, "Forbidden", "widgets.example.dev is forbidden");
    scene.faults.plan(Method::GET, "/widgets?", (1_000, Then::Answer(403, forbidden)));
    let (widgets, nothing) = (Kind::new("example.dev/v1", "Widget"), Kind::new("example.dev/v1", "Nothing"));
    let mut declared = pods(&[]);
    declared.kinds.extend([(widgets.clone(), WatchedKind::default()), (nothing.clone(), WatchedKind::default())]);
    scene.cluster.declare(declared).await;
    tokio::time::timeout(Duration::from_secs(1), scene.cluster.synced(&[Kind::pod()])).await.expect("pods are synced");
    assert_eq!(count(&scene.cluster), 1);
    assert!(
        tokio::time::timeout(Duration::from_secs(90), scene.cluster.synced(std::slice::from_ref(&widgets)))
            .await
            .is_err()
    );

    let health = scene.cluster.health();
    let of = |kind: &Kind| health.iter().find(|health| health.kind == *kind).unwrap();
    let error = |kind: &Kind| of(kind).error.clone().unwrap_or_default();
    assert!(!of(&widgets).synced && error(&widgets).contains("widgets.example.dev is forbidden"), "{health:?}");
    assert!(!of(&nothing).served && error(&nothing).contains("does not serve Nothing"), "{health:?}");
    assert!(of(&Kind::pod()).synced && of(&Kind::pod()).error.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_watch_frame_that_ends_within_a_line_is_no_event_until_the_line_is_whole() {
    let scene = Scene::bare().await;
    // A line in two frames, then a frame that ends within a line; read as it stands, the latter is a whole object but
    // for its end.
    let pieces = vec![
        r#"{"type":"ADDED","object":{"apiVersion":"v1","kind":"Pod","metadata":{"name":"split","namesp"#,
        "ace\":\"default\",\"uid\":\"u1\",\"resourceVersion\":\"100000\"}}}\n{\"type\":\"ADDED\",\"object\":",
        r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"half","namespace":"default","uid":"u2","resourceVersion":"100001"}"#,
    ];
    scene.faults.plan(Method::GET, "pods?&watch=true", (1, Then::Pieces(pieces)));
    scene.declare(pods(&[])).await;
    scene.until("the next watch", |_| scene.faults.count(Method::GET, "pods?&watch=true") == 2).await;
    assert!(scene.shown("split").is_some() && scene.shown("half").is_none());
    assert_eq!(
        scene.faults.count(Method::GET, "resourceVersion=100000"),
        1,
        "the next watch begins where this one ended"
    );
    assert_eq!(scene.faults.count(Method::GET, "resourceVersion=100001"), 0);
    let health = scene.cluster.health();
    assert!(health.iter().all(|health| health.synced && health.error.is_none()), "{health:?}");
}

/// How many lines say that an outage of this kind has begun, and how many that one is over.
fn outages(logged: &Logged, kind: &str) -> (usize, Vec<String>) {
    let of = |lines: Vec<String>| lines.into_iter().filter(|line| line.contains(&format!("kind={kind}"))).collect();
    let begun: Vec<String> = of(logged.with("WARN failed to list or watch"));
    (begun.len(), of(logged.with("INFO the kind is watched again")))
}

#[tokio::test(start_paused = true)]
async fn an_outage_is_logged_once_when_it_begins_and_once_with_its_length_when_it_is_over() {
    let logged = Logged::begin("oarlock_kube", Level::INFO);
    let scene = Scene::watching().await;
    scene.faults.plan(Method::GET, "watch=true", (1_000, Then::Answer(503, status(503, "ServiceUnavailable", "down"))));
    // Longer than any watch lives.
    tokio::time::sleep(Duration::from_secs(300)).await;
    for kind in ["Pod", "OperationJob"] {
        assert_eq!(outages(&logged, kind), (1, Vec::new()), "{:?}", logged.with(""));
    }
    scene.faults.heal();
    tokio::time::sleep(Duration::from_secs(300)).await;
    for kind in ["Pod", "OperationJob"] {
        let (begun, over) = outages(&logged, kind);
        assert_eq!((begun, over.len()), (1, 1), "{:?}", logged.with(""));
        let seconds = over[0].split("seconds=").nth(1).unwrap().parse::<u64>().unwrap();
        assert!((240..340).contains(&seconds), "{over:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_kind_that_may_be_listed_and_not_watched_is_one_outage() {
    let logged = Logged::begin("oarlock_kube", Level::INFO);
    let scene = Scene::bare().await;
    let forbidden = status(403, "Forbidden", "pods may not be watched");
    scene.faults.plan(Method::GET, "pods?&watch=true", (1_000, Then::Answer(403, forbidden)));
    scene.declare(pods(&[])).await;
    tokio::time::sleep(Duration::from_secs(300)).await;
    assert_eq!(outages(&logged, "Pod"), (1, Vec::new()), "{:?}", logged.with(""));
    assert!(scene.cluster.requests().count("pods", "list") > 3);
    scene.faults.heal();
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(outages(&logged, "Pod").1.len(), 1, "{:?}", logged.with(""));
    assert_eq!(outages(&logged, "OperationJob"), (0, Vec::new()));
}
