//! Tests of the metrics at a scrape.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use oarlock_core::object::api_object::Kind;
use oarlock_core::ops_job::spec::Defaults;
use oarlock_history::{History, HistoryPlace};

use crate::history::{Keeping, Recorder};
use crate::metrics::*;

fn key(name: &str) -> JobKey {
    JobKey { namespace: "default".into(), name: name.into() }
}

fn figures(progress: &str, in_flight: usize) -> JobFigures {
    JobFigures {
        action: "Replace".into(),
        progress: progress.into(),
        in_flight,
        lifecycle_waiting: 1,
        ..JobFigures::default()
    }
}

#[test]
fn the_gauges_are_the_sum_of_the_jobs_as_last_seen() {
    let metrics = Metrics::new(&Arc::default());
    metrics.action_is_served("Replace");
    metrics.job_is(&key("a"), Some(figures("Processing", 3)));
    metrics.job_is(&key("b"), Some(figures("Processing", 2)));
    metrics.job_is(&key("a"), Some(figures("Succeeded", 0)));
    let text = metrics.text();
    assert!(text.contains("oarlock_operationjob_targets_in_flight 2\n"), "{text}");
    assert!(text.contains("oarlock_operationjob_lifecycle_waiting 2\n"), "{text}");
    assert!(text.contains(r#"oarlock_operationjob_jobs{action="Replace",progress="Processing"} 1"#), "{text}");
    assert!(text.contains(r#"oarlock_operationjob_jobs{action="Replace",progress="Succeeded"} 1"#), "{text}");
    metrics.job_is(&key("a"), None);
    metrics.no_jobs();
    let text = metrics.text();
    assert!(text.contains("oarlock_operationjob_targets_in_flight 0\n") && !text.contains("progress="), "{text}");
}

#[test]
fn each_term_is_counted_once() {
    let metrics = Metrics::new(&Arc::default());
    [true, true, false, true].into_iter().for_each(|leads| metrics.leads(leads));
    let text = metrics.text();
    assert!(text.contains("oarlock_terms_total 2\n") && text.contains("oarlock_leading 1\n"), "{text}");
}

#[test]
fn an_object_whose_round_failed_counts_until_a_round_succeeds() {
    let metrics = Metrics::new(&Arc::default());
    let shows = |number: u64| {
        let text = metrics.text();
        assert!(text.contains(&format!("oarlock_rounds_failing{{kind=\"JobFlow\"}} {number}\n")), "{text}");
    };
    metrics.failing.succeeded("JobFlow", || "default/a".to_owned());
    shows(0);
    ["default/a", "default/b", "default/a"]
        .into_iter()
        .for_each(|key| metrics.failing.failed("JobFlow", key.to_owned()));
    shows(2);
    metrics.failing.succeeded("JobFlow", || "default/a".to_owned());
    shows(1);
    metrics.failing.forget_all();
    assert!(!metrics.text().contains("oarlock_rounds_failing{"));
}

#[test]
fn each_part_of_readyz_has_a_gauge() {
    use crate::health::HealthPart;
    let part = |name: &'static str, probe: crate::health::Probe| HealthPart { name: name.into(), probe };
    let health = Health::of(vec![part("cache", Box::new(|| Ok(())))], Arc::default());
    let health = health.with_optional(vec![part("flows", Box::new(|| Err("not listed".to_owned())))]);
    let metrics = Metrics::new(&Arc::default());
    metrics.shows_health(&Arc::new(health));
    metrics.shows_memory_limit(512 << 20);
    let text = metrics.text();
    assert!(text.contains("oarlock_part_ready{part=\"cache\"} 1\n"), "{text}");
    assert!(text.contains("oarlock_part_ready{part=\"flows\"} 0\n"), "{text}");
    assert!(text.contains("oarlock_memory_limit_bytes 536870912\n"), "{text}");
}

#[test]
fn all_outcomes_of_a_plugin_have_series_from_its_first_visit() {
    let metrics = Metrics::new(&Arc::default());
    metrics.visited("p", VisitOutcome::Answered, Duration::ZERO);
    let text = metrics.text();
    for (outcome, number) in [("Answered", 1), ("Trapped", 0), ("LimitExceeded", 0), ("Denied", 0)] {
        let series = format!("oarlock_plugin_visits_total{{plugin=\"p\",outcome=\"{outcome}\"}} {number}\n");
        assert!(text.contains(&series), "{series}{text}");
    }
}

#[test]
fn what_a_plugin_was_held_back_from_is_counted() {
    let metrics = Metrics::new(&Arc::default());
    metrics.limited("p", "events", 2);
    metrics.limited("p", "events", 3);
    let text = metrics.text();
    assert!(text.contains(r#"oarlock_plugin_limited_total{plugin="p",what="events"} 5"#), "{text}");
}

#[test]
fn a_plugin_that_invents_reasons_makes_no_series_without_end() {
    let metrics = Metrics::new(&Arc::default());
    for number in 0..10_000 {
        let reason = format!("Invented{number}");
        metrics.target_ended(&EndedTarget { action: "Replace", outcome: "Failed", reason: &reason, took: None });
    }
    let text = metrics.text();
    let series = text.lines().filter(|line| line.starts_with("oarlock_operationjob_targets_total{"));
    assert_eq!(series.count(), 65, "{text}");
    assert!(text.contains(r#"reason="Other"} 9936"#), "{text}");
}

#[test]
fn actions_that_users_make_up_are_one_word_and_take_no_place_of_one_that_a_plugin_serves() {
    let metrics = Metrics::new(&Arc::default());
    let ends = |action: &str| {
        metrics.job_is(&key(action), Some(JobFigures { action: action.to_owned(), ..figures("Failed", 0) }));
        metrics.target_ended(&EndedTarget { action, outcome: "Failed", reason: "", took: None });
    };
    (0..65).for_each(|number| ends(&format!("MadeUp{number}")));
    metrics.action_is_served("Replace");
    ends("Replace");
    let text = metrics.text();
    for (name, count) in [("Other", 65), ("Replace", 1)] {
        let jobs = format!(r#"oarlock_operationjob_jobs{{action="{name}",progress="Failed"}} {count}"#);
        let targets =
            format!(r#"oarlock_operationjob_targets_total{{action="{name}",outcome="Failed",reason=""}} {count}"#);
        assert!(text.contains(&jobs) && text.contains(&targets), "{jobs}\n{targets}\nin\n{text}");
    }
    assert!(!text.contains("MadeUp"), "{text}");
}

#[test]
fn plugins_that_come_and_go_make_no_series_without_end() {
    let metrics = Metrics::new(&Arc::default());
    for number in 0..1_000 {
        let name = format!("plugin-{number}");
        metrics.visited(&name, VisitOutcome::Trapped, Duration::from_millis(1));
        metrics.limited(&name, "events", 1);
    }
    metrics.plugins_are((0..1_000).map(|number| (format!("{number}.wasm"), "Rejected".to_owned())));
    let text = metrics.text();
    let series = |name: &str| text.lines().filter(|line| line.starts_with(name)).count();
    assert_eq!((series("oarlock_plugin_limited_total{"), series("oarlock_plugins{")), (65, 65), "{text}");
    assert!(text.contains(r#"oarlock_plugin_limited_total{plugin="Other",what="events"} 936"#), "{text}");
    assert!(text.contains(r#"oarlock_plugins{name="Other",state="Rejected"} 936"#), "{text}");
    metrics.plugins_are([("new".to_owned(), "Serving".to_owned())]);
    assert!(metrics.text().contains(r#"oarlock_plugins{name="new",state="Serving"} 1"#));
}

/// Returns the names in a section of docs/operationjob.md. Each name stands in backticks, perhaps with its labels.
fn documented(section: &str, prefix: &str) -> Vec<String> {
    let text = include_str!("../../../docs/operationjob.md");
    let from = text.find(&format!("- **{section}**")).unwrap();
    let text = text.get(from..).unwrap();
    let text = text.lines().enumerate().take_while(|(at, line)| *at == 0 || line.starts_with("  "));
    let text = text.map(|(_, line)| line).collect::<Vec<_>>().join(" ");
    let quoted = text.split('`').skip(1).step_by(2).filter(|word| !word.ends_with('_'));
    quoted.map(|word| prefix.to_owned() + word.split('{').next().unwrap()).collect()
}

#[tokio::test(start_paused = true)]
async fn every_name_of_the_documentation_is_served() {
    let sim = oarlock_sim::Cluster::new(oarlock_sim::Options::default());
    let client = kube::Client::new(sim.service(), "default");
    let crds = kube::Api::<CustomResourceDefinition>::all(client.clone());
    for crd in oarlock_api::CRDS {
        crds.create(&kube::api::PostParams::default(), &serde_saphyr::from_str(crd).unwrap()).await.unwrap();
    }
    let clock = Arc::new(k8s_openapi::jiff::Timestamp::now);
    let (cluster, _events) = Cluster::open(oarlock_kube::Setup { client, clock, identity: "host".into() });
    let metrics = Metrics::new(cluster.requests());
    metrics.shows_port(&cluster);
    metrics.shows_plugins(&oarlock_wasm::Plugins::start(oarlock_wasm::Options::in_memory()).await.unwrap());
    let lease = oarlock_kube::lease::config::LeaseConfig {
        namespace: "default".into(),
        name: "oarlock".into(),
        identity: "host".into(),
        duration: Duration::from_secs(15),
    };
    let election = oarlock_kube::lease::elector::LeaderElector::stand(&cluster, lease);
    election.leadership().wait_for(|now| now.leading).await.unwrap();
    metrics.shows_lease(election.leadership());
    let history = History::at(HistoryPlace::File("/nowhere/history.db".into()), "local").unwrap();
    metrics.shows_history(&Recorder::new(history, Keeping::default(), Defaults::default()));
    let pods = [(Kind::pod(), Default::default())];
    cluster.declare(oarlock_kube::watch::objects::WatchedKinds { kinds: pods.into(), ..Default::default() }).await;
    cluster.synced(&[Kind::pod()]).await;
    metrics.plugins_are([("replace".to_owned(), "Serving".to_owned())]);
    metrics.job_is(&key("a"), Some(figures("Pending", 0)));
    let took = Some(Duration::from_secs(1));
    metrics.target_ended(&EndedTarget { action: "Replace", outcome: "Succeeded", reason: "", took });
    metrics.visited("replace", VisitOutcome::Denied, Duration::from_millis(1));
    metrics.limited("replace", "events", 1);
    metrics.failing.failed("JobFlow", "default/a".to_owned());
    let part = crate::health::HealthPart { name: "cache".into(), probe: Box::new(|| Ok(())) };
    metrics.shows_health(&Arc::new(Health::of(vec![part], Arc::default())));
    metrics.shows_memory_limit(512 << 20);
    metrics.shows_traces(&Arc::default());
    metrics.shows_artefacts(&Artefacts::in_folder(&std::env::temp_dir()).unwrap());
    let text = metrics.text();
    let mut names = documented("8.4", "oarlock_operationjob_");
    names.extend(documented("8.5", "oarlock_"));
    names.extend(documented("8.6", ""));
    assert!(names.len() > 30, "{names:?}");
    // Only a plugin that serves has a sample of this gauge, and no file is at hand here.
    names.retain(|name| name != "oarlock_plugin_limit_peak_percent");
    assert!(text.contains("# TYPE oarlock_plugin_limit_peak_percent gauge"), "{text}");
    for name in names {
        let sample = |line: &str| {
            let rest = line.strip_prefix(&name)?;
            let rest = rest.strip_prefix("_count").unwrap_or(rest);
            rest.starts_with(['{', ' ']).then_some(())
        };
        assert!(text.lines().find_map(sample).is_some(), "{name} is missing in\n{text}");
    }
    assert!(text.contains(r#"outcome="Denied"} 1"#) && text.ends_with("# EOF\n"), "{text}");
}
