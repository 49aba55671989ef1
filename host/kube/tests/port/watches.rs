//! Watches, despite broken connections and bad objects.

use std::time::Duration;

use http::Method;
use oarlock_core::object::api_object::{Kind, ObjectKey};
use oarlock_kube::read::observe::Detail;
use oarlock_kube::watch::objects::{WatchEvent, WatchedKind, WatchedKinds};
use oarlock_support::logged::Logged;
use serde_json::json;
use tracing::Level;

use crate::faults::{Then, status};
use crate::fixture::{Fixture, PODS, job, pods};

fn count(cluster: &oarlock_kube::Cluster) -> usize {
    cluster.store().count(&Kind::pod())
}

#[tokio::test(start_paused = true)]
async fn objects_are_slim_and_each_change_is_an_event() {
    let mut fixture = Fixture::watching().await;
    fixture.pod("a").await;
    fixture.until("the pod", |cluster| count(cluster) == 1).await;
    fixture.patch(&format!("{PODS}/a"), &json!({"metadata": {"labels": {"app": "x"}}})).await;
    fixture.until("the label", |c| c.store().labelled(&Kind::pod(), "default", "app", "x").len() == 1).await;
    assert!(fixture.shown("a").unwrap().fields.value().pointer("/spec/containers").is_none());
    fixture.delete(&format!("{PODS}/a"), &json!({"gracePeriodSeconds": 0})).await;
    fixture.until("no pod", |cluster| count(cluster) == 0).await;
    let gone = fixture
        .heard()
        .into_iter()
        .filter(|event| matches!(event, WatchEvent::Object { change, .. } if change.new.is_none()));
    assert_eq!(gone.count(), 1);
}

#[tokio::test(start_paused = true)]
async fn more_pods_than_fit_a_page_are_all_listed() {
    let fixture = Fixture::bare().await;
    for n in 0..1_203 {
        fixture.pod(&format!("p{n}")).await;
    }
    fixture.declare(pods(&[])).await;
    assert_eq!(count(&fixture.cluster), 1_203);
    assert_eq!(fixture.cluster.requests().count("pods", "list"), 3);
}

#[tokio::test(start_paused = true)]
async fn changes_during_a_broken_watch_are_seen_afterwards() {
    let fixture = Fixture::watching().await;
    fixture.pod("a").await;
    fixture.pod("b").await;
    fixture.until("the pods", |cluster| count(cluster) == 2).await;
    fixture.faults.plan(Method::GET, "watch=true", (6, Then::Answer(500, status(500, "InternalError", "down"))));
    tokio::time::sleep(Duration::from_secs(60)).await;
    fixture.delete(&format!("{PODS}/a"), &json!({"gracePeriodSeconds": 0})).await;
    fixture.pod("c").await;
    fixture.until("the change", |_| fixture.shown("a").is_none() && fixture.shown("c").is_some()).await;
    assert_eq!(fixture.cluster.requests().count("pods", "list"), 1, "a break alone costs no list");
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_is_too_old_begins_anew_with_a_list() {
    let mut fixture = Fixture::watching().await;
    fixture.pod("a").await;
    fixture.pod("b").await;
    fixture.until("the pods", |cluster| count(cluster) == 2).await;
    fixture.faults.plan(Method::GET, "watch=true", (1_000, Then::Hang));
    // The current watches end by themselves; the next ones hang.
    tokio::time::sleep(Duration::from_secs(70)).await;
    fixture.delete(&format!("{PODS}/a"), &json!({"gracePeriodSeconds": 0})).await;
    fixture.pod("c").await;
    fixture.sim.compact();
    fixture.heard();
    fixture.faults.heal();
    fixture.until("the change", |_| fixture.shown("a").is_none() && fixture.shown("c").is_some()).await;
    assert_eq!(fixture.cluster.requests().count("pods", "list"), 2);
    assert_eq!(fixture.heard().len(), 2, "what did not change is no event");
}

#[tokio::test(start_paused = true)]
async fn no_list_is_answered_from_a_cache() {
    let fixture = Fixture::watching().await;
    assert_eq!(fixture.faults.count(Method::GET, "limit=500&resourceVersion"), 0);
    assert!(fixture.faults.count(Method::GET, "/pods?&limit=500") > 0);
}

#[tokio::test(start_paused = true)]
async fn one_job_that_cannot_be_read_never_hides_the_others() {
    let fixture = Fixture::bare().await;
    let stored = fixture.job("good").await;
    let mut odd = stored.clone();
    odd["metadata"]["name"] = json!("odd");
    odd["metadata"]["uid"] = json!("odd-uid");
    odd["spec"]["partition"] = json!(5_000_000_000_u64);
    let mut bare = odd.clone();
    bare["metadata"]["name"] = json!("bare");
    bare["metadata"]["uid"] = json!("bare-uid");
    bare.as_object_mut().unwrap().remove("spec");
    let list = json!({"kind": "OperationJobList", "apiVersion": "apps.kusionstack.io/v1alpha1",
        "metadata": {"resourceVersion": fixture.sim.resource_version().to_string()}, "items": [odd, bare, stored]});
    fixture.faults.plan(Method::GET, "operationjobs?&limit", (1, Then::Answer(200, list)));
    fixture.declare(pods(&[])).await;
    assert_eq!(fixture.cluster.jobs().len(), 3);
    let bare = fixture.cluster.observe(&job("bare"), &[], Detail::Status).await.unwrap().job.unwrap();
    let odd = fixture.cluster.observe(&job("odd"), &[], Detail::Status).await.unwrap().job.unwrap();
    assert!(odd.unread.is_some() && bare.unread.is_none());
    assert_eq!((odd.spec.is_none(), odd.metadata.uid.as_deref()), (true, Some("odd-uid")));
    let good = fixture.cluster.observe(&job("good"), &[], Detail::Status).await.unwrap().job.unwrap();
    assert!(good.spec.is_some());
}

#[tokio::test(start_paused = true)]
async fn a_field_that_is_declared_later_is_there_once_the_declaration_is_synced() {
    let fixture = Fixture::bare().await;
    fixture.pod("a").await;
    fixture.declare(pods(&[])).await;
    assert_eq!(fixture.shown("a").unwrap().fields.value(), json!({}));
    fixture.declare(pods(&["/spec/containers"])).await;
    assert_eq!(fixture.shown("a").unwrap().fields.value()["spec"]["containers"][0]["name"], "main");
    assert_eq!(fixture.cluster.requests().count("operationjobs", "list"), 1, "what was declared alike goes on");
}

#[tokio::test(start_paused = true)]
async fn what_was_declared_before_is_served_until_a_wider_declaration_is_listed() {
    let mut fixture = Fixture::bare().await;
    fixture.pod("a").await;
    fixture.pod("b").await;
    fixture.declare(pods(&[])).await;
    fixture.faults.plan(Method::GET, "/pods?&limit", (1_000, Then::Answer(403, status(403, "Forbidden", "not now"))));
    let wider = pods(&["/spec/containers"]);
    let containers = wider.kinds[&Kind::pod()].clone();
    fixture.cluster.declare(wider).await;
    // Longer than the life of any watch.
    tokio::time::sleep(Duration::from_secs(200)).await;
    fixture.pod("c").await;
    fixture.delete(&format!("{PODS}/a"), &json!({"gracePeriodSeconds": 0})).await;
    fixture.until("the changes", |_| fixture.shown("a").is_none() && fixture.shown("c").is_some()).await;
    let watches = |fixture: &Fixture| -> Vec<_> {
        let health = fixture.cluster.health().into_iter().filter(|health| health.kind == Kind::pod());
        health.map(|health| (health.declared.covers(&containers), health.synced, health.error.is_some())).collect()
    };
    assert_eq!(watches(&fixture), [(false, true, false), (true, false, true)], "each says what it has");

    fixture.faults.heal();
    fixture.cluster.synced(&[Kind::pod()]).await;
    assert_eq!(watches(&fixture), [(true, true, false)]);
    for name in ["b", "c"] {
        assert_eq!(fixture.shown(name).unwrap().fields.value()["spec"]["containers"][0]["name"], "main");
    }
    fixture.heard();
    fixture.patch(&format!("{PODS}/b"), &json!({"metadata": {"labels": {"app": "x"}}})).await;
    fixture.until("the label", |c| c.store().labelled(&Kind::pod(), "default", "app", "x").len() == 1).await;
    assert_eq!(fixture.shown("b").unwrap().fields.value()["spec"]["containers"][0]["name"], "main");
    let watching = || fixture.faults.count(Method::GET, "pods?&watch=true");
    let before = watching();
    tokio::time::sleep(Duration::from_secs(300)).await;
    let renewed = watching() - before;
    assert!((4..8).contains(&renewed), "one watch is left: renewed {renewed} times in five minutes");
}

#[tokio::test(start_paused = true)]
async fn a_kind_that_is_declared_no_longer_is_not_kept() {
    let fixture = Fixture::watching().await;
    fixture.pod("a").await;
    fixture.until("the pod", |cluster| count(cluster) == 1).await;
    fixture.declare(WatchedKinds::default()).await;
    assert!(!fixture.cluster.store().keeps(&Kind::pod()));
    fixture.declare(pods(&[])).await;
    assert_eq!(count(&fixture.cluster), 1);
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
    let fixture = Fixture::bare().await;
    let kind = Kind::new("example.dev/v1", "Widget");
    let declared = WatchedKinds { kinds: [(kind.clone(), WatchedKind::default())].into(), ..WatchedKinds::default() };
    fixture.declare(declared).await;
    assert!(!fixture.cluster.serves(&kind));
    fixture.install(WIDGETS).await;
    let widget = json!({"apiVersion": "example.dev/v1", "kind": "Widget", "metadata": {"name": "w"}});
    fixture.post("/apis/example.dev/v1/namespaces/default/widgets", &widget).await;
    let key = ObjectKey { kind: kind.clone(), namespace: Some("default".into()), name: "w".into() };
    fixture.until("the widget", |cluster| cluster.store().get(&key).is_some()).await;
    assert!(fixture.cluster.serves(&kind));
}

#[tokio::test(start_paused = true)]
async fn a_kind_that_may_not_be_listed_or_is_not_served_holds_up_no_other_and_is_named() {
    let fixture = Fixture::bare().await;
    fixture.install(WIDGETS).await;
    fixture.pod("a").await;
    let forbidden = status(403, "Forbidden", "widgets.example.dev is forbidden");
    fixture.faults.plan(Method::GET, "/widgets?", (1_000, Then::Answer(403, forbidden)));
    let (widgets, nothing) = (Kind::new("example.dev/v1", "Widget"), Kind::new("example.dev/v1", "Nothing"));
    let mut declared = pods(&[]);
    declared.kinds.extend([(widgets.clone(), WatchedKind::default()), (nothing.clone(), WatchedKind::default())]);
    fixture.cluster.declare(declared).await;
    tokio::time::timeout(Duration::from_secs(1), fixture.cluster.synced(&[Kind::pod()]))
        .await
        .expect("pods are synced");
    assert_eq!(count(&fixture.cluster), 1);
    assert!(
        tokio::time::timeout(Duration::from_secs(90), fixture.cluster.synced(std::slice::from_ref(&widgets)))
            .await
            .is_err()
    );

    let health = fixture.cluster.health();
    let of = |kind: &Kind| health.iter().find(|health| health.kind == *kind).unwrap();
    let error = |kind: &Kind| of(kind).error.clone().unwrap_or_default();
    assert!(!of(&widgets).synced && error(&widgets).contains("widgets.example.dev is forbidden"), "{health:?}");
    assert!(!of(&nothing).served && error(&nothing).contains("does not serve Nothing"), "{health:?}");
    assert!(of(&Kind::pod()).synced && of(&Kind::pod()).error.is_none());
    fixture.faults.heal();
    fixture.cluster.synced(std::slice::from_ref(&widgets)).await;
}

#[tokio::test(start_paused = true)]
async fn a_watch_frame_that_ends_within_a_line_is_no_event_until_the_line_is_whole() {
    let fixture = Fixture::bare().await;
    // One line arrives in two frames. The next frame ends within a line, and reads like a whole object without its end.
    let pieces = vec![
        r#"{"type":"ADDED","object":{"apiVersion":"v1","kind":"Pod","metadata":{"name":"split","namesp"#,
        "ace\":\"default\",\"uid\":\"u1\",\"resourceVersion\":\"100000\"}}}\n{\"type\":\"ADDED\",\"object\":",
        r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"half","namespace":"default","uid":"u2","resourceVersion":"100001"}"#,
    ];
    fixture.faults.plan(Method::GET, "pods?&watch=true", (1, Then::Pieces(pieces)));
    fixture.declare(pods(&[])).await;
    fixture.until("the next watch", |_| fixture.faults.count(Method::GET, "pods?&watch=true") == 2).await;
    assert!(fixture.shown("split").is_some() && fixture.shown("half").is_none());
    assert_eq!(
        fixture.faults.count(Method::GET, "resourceVersion=100000"),
        1,
        "the next watch begins where this one ended"
    );
    assert_eq!(fixture.faults.count(Method::GET, "resourceVersion=100001"), 0);
    let health = fixture.cluster.health();
    assert!(health.iter().all(|health| health.synced && health.error.is_none()), "{health:?}");
}

/// Returns how many lines report the beginning of an outage of this kind, and the lines that report its end.
fn outages(logged: &Logged, kind: &str) -> (usize, Vec<String>) {
    let of = |lines: Vec<String>| lines.into_iter().filter(|line| line.contains(&format!("kind={kind}"))).collect();
    let begun: Vec<String> = of(logged.with("WARN failed to list or watch"));
    (begun.len(), of(logged.with("INFO watching the kind again")))
}

#[tokio::test(start_paused = true)]
async fn an_outage_is_logged_once_when_it_begins_and_once_with_its_length_when_it_is_over() {
    let logged = Logged::begin("oarlock_kube", Level::INFO);
    let fixture = Fixture::watching().await;
    fixture.faults.plan(
        Method::GET,
        "watch=true",
        (1_000, Then::Answer(503, status(503, "ServiceUnavailable", "down"))),
    );
    // Longer than the life of any watch.
    tokio::time::sleep(Duration::from_secs(300)).await;
    for kind in ["Pod", "OperationJob"] {
        assert_eq!(outages(&logged, kind), (1, Vec::new()), "{:?}", logged.with(""));
    }
    fixture.faults.heal();
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
    let fixture = Fixture::bare().await;
    let forbidden = status(403, "Forbidden", "pods may not be watched");
    fixture.faults.plan(Method::GET, "pods?&watch=true", (1_000, Then::Answer(403, forbidden)));
    fixture.declare(pods(&[])).await;
    tokio::time::sleep(Duration::from_secs(300)).await;
    assert_eq!(outages(&logged, "Pod"), (1, Vec::new()), "{:?}", logged.with(""));
    assert!(fixture.cluster.requests().count("pods", "list") > 3);
    fixture.faults.heal();
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(outages(&logged, "Pod").1.len(), 1, "{:?}", logged.with(""));
    assert_eq!(outages(&logged, "OperationJob"), (0, Vec::new()));
}
