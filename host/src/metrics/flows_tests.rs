//! Tests of the metrics of JobFlows and DaemonJobs.

use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::PostParams;
use oarlock_core::attempts::parent::ParentKind;
use oarlock_core::attempts::plan::ParentPlan;
use oarlock_core::attempts::unit::{CountsByState, Unit, UnitState};
use oarlock_core::object::api_object::ObjectKey;
use oarlock_kube::Cluster;
use oarlock_kube::flows::Flows;
use tokio::time::Duration;

use crate::metrics::Metrics;
use crate::metrics::flows::{FlowFigures, ShownFlows};

fn metrics() -> Arc<Metrics> {
    Arc::new(Metrics::new(&Arc::default()))
}

fn key(kind: ParentKind, name: &str) -> ObjectKey {
    kind.key("default", name)
}

fn unit(name: &str, state: UnitState, reason: &str) -> Unit {
    let uid = if state == UnitState::Omitted { String::new() } else { name.to_owned() };
    let times = ["2026-01-01T00:00:00Z", "2026-01-01T00:00:03Z"].map(|time| Some(time.to_owned()));
    let [start_time, completion_time] = times;
    let mut unit = Unit { job: uid.clone(), job_uid: uid, start_time, completion_time, ..Unit::new(name) };
    unit.set(state, reason, "");
    unit
}

fn figures(state: &str, units: Vec<Unit>) -> FlowFigures {
    let mut plan = ParentPlan::default();
    plan.summary.state = state.to_owned();
    plan.summary.counts = CountsByState::of(&units);
    plan.units = units.into();
    FlowFigures::of(&plan)
}

fn value(metrics: &Metrics, series: &str) -> Option<String> {
    let text = metrics.text();
    let rest = text.lines().find_map(|line| line.strip_prefix("oarlock_")?.strip_prefix(series)?.strip_prefix(' '));
    rest.map(str::to_owned)
}

#[test]
fn the_gauges_are_the_sum_over_the_objects_of_a_term_as_of_their_last_rounds() {
    let metrics = metrics();
    let mut shown = ShownFlows::begin(metrics.clone());
    let (a, b) = (key(ParentKind::Flow, "a"), key(ParentKind::Flow, "b"));
    let blocked = |name| unit(name, UnitState::Blocked, "JobTemplateNotFound");
    let running = |name| unit(name, UnitState::Running, "");
    shown.set(&a, Some(figures("Running", vec![blocked("1"), running("2"), unit("3", UnitState::Retrying, "x")])));
    shown.set(&b, Some(figures("Running", vec![blocked("1"), unit("2", UnitState::Blocked, "Rejected")])));
    shown.set(&key(ParentKind::Daemon, "a"), Some(figures("made up", vec![running("n")])));
    let of = |series: &str| value(&metrics, series);
    assert_eq!(of(r#"jobflow_objects{state="Running"}"#).as_deref(), Some("2"));
    assert_eq!(of("jobflow_units_in_flight").as_deref(), Some("2"));
    assert_eq!(of(r#"jobflow_blocked{reason="JobTemplateNotFound"}"#).as_deref(), Some("2"));
    assert_eq!(of("daemonjob_units_in_flight").as_deref(), Some("1"));
    assert_eq!(of(r#"daemonjob_objects{state="Other"}"#).as_deref(), Some("1"), "a word that is none of ours");
    shown.set(&a, Some(figures("Succeed", vec![unit("1", UnitState::Succeed, "")])));
    shown.set(&b, None);
    assert_eq!(of(r#"jobflow_objects{state="Succeed"}"#).as_deref(), Some("1"));
    let left = [r#"jobflow_objects{state="Running"}"#, r#"jobflow_blocked{reason="JobTemplateNotFound"}"#];
    assert!(left.iter().all(|series| of(series).is_none()), "{}", metrics.text());
}

#[test]
fn a_term_takes_its_gauges_back_when_it_ends_though_the_next_one_has_begun() {
    let metrics = metrics();
    let flow = key(ParentKind::Flow, "a");
    let mut last = ShownFlows::begin(metrics.clone());
    last.set(&flow, Some(figures("Running", vec![unit("1", UnitState::Running, "")])));
    let mut next = ShownFlows::begin(metrics.clone());
    next.set(&flow, Some(figures("Failed", vec![unit("1", UnitState::Blocked, "Rejected")])));
    drop(last);
    let of = |series: &str| value(&metrics, series);
    assert_eq!(of(r#"jobflow_objects{state="Failed"}"#).as_deref(), Some("1"));
    assert_eq!(
        (of(r#"jobflow_objects{state="Running"}"#), of("jobflow_units_in_flight").as_deref()),
        (None, Some("0"))
    );
    drop(next);
    assert!(!metrics.text().contains("state=") && !metrics.text().contains("Rejected"), "{}", metrics.text());
}

#[test]
fn an_end_is_counted_once_whatever_is_written_after_it() {
    let metrics = metrics();
    let counted = metrics.flows.of(ParentKind::Daemon);
    let running = [unit("a", UnitState::Running, ""), unit("b", UnitState::Running, "")];
    let mut lost = unit("b", UnitState::Retrying, "InfrastructureFailure");
    lost.infra_attempts = 1;
    let first = [unit("a", UnitState::Failed, "BackoffLimitExceeded"), lost.clone()];
    counted.reported(&running, &first);
    // A repeated status counts nothing, and neither does the first status of a host that read the stored units.
    counted.reported(&first, &first);
    let second = [first[0].clone(), Unit { attempt: 1, infra_attempts: 1, ..unit("b", UnitState::Succeed, "") }];
    counted.reported(&first, &second);
    let of = |series: &str| value(&metrics, series);
    let failed = r#"daemonjob_units_total{outcome="Failed",reason="BackoffLimitExceeded"}"#;
    assert_eq!(of(failed).as_deref(), Some("1"));
    assert_eq!(of(r#"daemonjob_units_total{outcome="Succeed",reason=""}"#).as_deref(), Some("1"));
    assert_eq!(of(r#"daemonjob_attempts_total{infra="false"}"#).as_deref(), Some("2"));
    assert_eq!(of(r#"daemonjob_attempts_total{infra="true"}"#).as_deref(), Some("1"));
    assert_eq!(of("daemonjob_unit_duration_seconds_count").as_deref(), Some("2"));
    assert_eq!(of("daemonjob_unit_duration_seconds_sum").as_deref(), Some("6.0"));
    assert_eq!(of(r#"jobflow_attempts_total{infra="true"}"#).as_deref(), Some("0"), "of the other kind nothing");
}

#[test]
fn five_thousand_units_that_invent_their_reasons_make_no_series_without_end() {
    let metrics = metrics();
    let mut shown = ShownFlows::begin(metrics.clone());
    let all = |state| (0..5_000).map(|index| unit(&format!("n{index}"), state, &format!("Made{index}"))).collect();
    let blocked: Vec<Unit> = all(UnitState::Blocked);
    shown.set(&key(ParentKind::Daemon, "d"), Some(figures("Running", blocked.clone())));
    metrics.flows.of(ParentKind::Daemon).reported(&blocked, &all(UnitState::Failed));
    let sum = |name: &str| {
        let text = metrics.text();
        let values = text.lines().filter(|line| line.starts_with(name)).filter_map(|line| line.rsplit(' ').next());
        values
            .filter_map(|value| value.parse::<u64>().ok())
            .fold((0, 0), |(lines, all), value| (lines + 1, all + value))
    };
    assert_eq!(sum("oarlock_daemonjob_blocked{"), (65, 5_000));
    assert_eq!(sum("oarlock_daemonjob_units_total{"), (65, 5_000));
    drop(shown);
    assert_eq!(sum("oarlock_daemonjob_blocked{"), (0, 0));
}

/// Returns the names in the table of docs/jobflow.md 7.
fn documented() -> Vec<String> {
    let text = include_str!("../../../docs/jobflow.md");
    let from = text.find("## 7 Events and metrics").unwrap();
    let rows = text[from..].lines().take_while(|line| !line.starts_with("## 8"));
    let names = rows.filter_map(|row| row.strip_prefix("| `")?.split('`').next());
    names.map(|name| name.split('{').next().unwrap().to_owned()).collect()
}

/// Returns the metrics of a host with flows in which each metric has a value.
async fn scraped() -> String {
    let sim = oarlock_sim::Cluster::new(oarlock_sim::Options::default());
    let client = kube::Client::new(sim.service(), "default");
    let crds = kube::Api::<CustomResourceDefinition>::all(client.clone());
    for crd in oarlock_api::CRDS.into_iter().chain(oarlock_api::FLOW_CRDS) {
        crds.create(&PostParams::default(), &serde_saphyr::from_str(crd).unwrap()).await.unwrap();
    }
    let clock = Arc::new(k8s_openapi::jiff::Timestamp::now);
    let (cluster, _events) = Cluster::open(oarlock_kube::Setup { client, clock, identity: "host".into() });
    let metrics = Arc::new(Metrics::new(cluster.requests()));
    metrics.shows_port(&cluster);
    let nodes = [(oarlock_core::object::api_object::Kind::node(), Default::default())];
    cluster.declare(oarlock_kube::watch::objects::WatchedKinds { kinds: nodes.into(), ..Default::default() }).await;
    let flows = Flows::watch(cluster.clone());
    metrics.shows_flows(&flows);
    flows.synced().await;
    let mut shown = ShownFlows::begin(metrics.clone());
    for kind in [ParentKind::Flow, ParentKind::Daemon] {
        let blocked = vec![unit("1", UnitState::Blocked, "Rejected")];
        shown.set(&key(kind, "a"), Some(figures("Pending", blocked.clone())));
        let counted = metrics.flows.of(kind);
        counted.reported(&blocked, &[unit("1", UnitState::Succeed, "")]);
        counted.started_after(Duration::from_millis(3));
        counted.round_took(Duration::from_millis(3));
    }
    metrics.text()
}

#[tokio::test(start_paused = true)]
async fn every_metric_of_the_documentation_is_described_and_shown_for_both_kinds() {
    let (text, names) = (scraped().await, documented());
    assert_eq!(names.len(), 9, "{names:?}");
    for name in
        ["jobflow", "daemonjob"].iter().flat_map(|kind| names.iter().map(move |name| format!("oarlock_{kind}_{name}")))
    {
        let family = name.strip_suffix("_total").unwrap_or(&name);
        assert!(text.contains(&format!("# HELP {family} ")), "{name} has no HELP in\n{text}");
        // No write happened yet.
        let is_shown = text.lines().any(|line| line.starts_with(&name));
        assert!(is_shown || name.ends_with("_writes_total"), "{name} is missing in\n{text}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_text_has_each_series_once_and_a_type_and_help_before_it() {
    let text = scraped().await;
    let (mut described, mut series) = (BTreeSet::new(), BTreeSet::new());
    for line in text.lines().filter(|line| *line != "# EOF") {
        if let Some(rest) = line.strip_prefix("# HELP ").or_else(|| line.strip_prefix("# TYPE ")) {
            let kind = if line.starts_with("# HELP") { "help" } else { "type" };
            assert!(described.insert((kind, rest.split(' ').next().unwrap().to_owned())), "described twice: {line}");
            continue;
        }
        if line.starts_with("# UNIT ") {
            continue;
        }
        let (name, value) = line.rsplit_once(' ').unwrap();
        assert!(value.parse::<f64>().is_ok() && series.insert(name.to_owned()), "no value, or shown twice: {line}");
        let name = name.split('{').next().unwrap();
        let family = ["_total", "_count", "_sum", "_bucket", "_info"].iter().find_map(|end| name.strip_suffix(end));
        let names = [Some(name), family].into_iter().flatten();
        assert!(names.clone().any(|name| described.contains(&("help", name.to_owned()))), "no HELP: {line}");
        assert!(names.clone().any(|name| described.contains(&("type", name.to_owned()))), "no TYPE: {line}");
    }
    let nodes = r#"oarlock_watch_synced{api_version="v1",kind="Node"}"#;
    assert!(series.contains(nodes), "flows and a plugin watch them:\n{text}");
    let flows = r#"oarlock_watch_synced{api_version="api.practice.com/v1alpha1",kind="JobFlow"}"#;
    assert!(series.contains(flows), "{text}");
}
