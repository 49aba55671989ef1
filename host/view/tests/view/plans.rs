//! Plans of jobs, as text and as JSON.

use oarlock_view::{
    ClusterPlugin, Comparison, JobPlan, PlanChange, PlanOutcome, PlanPlugin, PlanTarget, ServerAnswer, TargetRows,
    plan_document, plan_text,
};
use serde_json::{Value, json};

fn evict(name: &str) -> PlanChange {
    PlanChange {
        verb: "evict".into(),
        api_version: "v1".into(),
        kind: "Pod".into(),
        name: name.into(),
        what: String::new(),
    }
}

fn changed(name: &str) -> PlanTarget {
    PlanTarget { name: name.into(), first: vec![evict(name)], ..PlanTarget::default() }
}

fn failed(name: &str) -> PlanTarget {
    PlanTarget {
        name: name.into(),
        outcome: PlanOutcome::Failed,
        reason: Some("NoController".into()),
        message: Some(format!("pod {name} has no controller")),
        ..PlanTarget::default()
    }
}

fn plan(targets: Vec<PlanTarget>) -> JobPlan {
    let plugin = PlanPlugin {
        name: "replace".into(),
        version: "0.1.0".into(),
        digest: "sha256:a".into(),
        file: "plugins/replace.wasm".into(),
    };
    let message = "serves Replace with the same plugin".to_owned();
    let mut plan = JobPlan {
        namespace: "shop".into(),
        name: "web".into(),
        action: "Replace".into(),
        plugin,
        grants: "grants.yaml".into(),
        cluster: ClusterPlugin { comparison: Comparison::Same, plugin: None, message },
        possible: vec!["evict pods".into(), "patch pods (labels a)".into()],
        targets: targets.into_iter().enumerate().map(|(index, target)| PlanTarget { index, ..target }).collect(),
        ..JobPlan::default()
    };
    plan.count();
    plan
}

/// Returns a waiting target whose first change is known.
fn waiting(name: &str) -> PlanTarget {
    PlanTarget { outcome: PlanOutcome::Waiting, waits_for: Some("Partition".into()), ..changed(name) }
}

#[test]
fn targets_of_one_fate_share_a_line_and_what_would_fail_comes_first() {
    let mut plan = plan(vec![changed("a"), changed("b"), waiting("c"), failed("d"), failed("e\u{1b}")]);
    plan.warnings.push("disruption budget web allows no eviction now".into());
    let expected = "\
Job:          shop/web, not created
Action:       Replace
Plugin:       replace 0.1.0, sha256:a, plugins/replace.wasm
Grants:       grants.yaml
Cluster:      serves Replace with the same plugin
Targets:      5: 2 changed at once, 1 waiting, 2 that would fail
Waits:        1 for Partition
Later:        possible: evict pods, patch pods (labels a)
Warning:      disruption budget web allows no eviction now

TARGETS          WHEN              FIRST
2 x d, e\\u{1b}   now               fails: NoController: pod NAME has no controller
2 x a, b         now               evict pod
c                after Partition   evict pod c
";
    assert_eq!(plan_text(&plan, TargetRows::First), expected);
    assert!(plan.has_trouble());
}

/// Returns the lines of the table without its header.
fn rows(targets: Vec<PlanTarget>) -> Vec<String> {
    let text = plan_text(&plan(targets), TargetRows::First);
    let (_, table) = text.split_once("\n\n").unwrap();
    table.lines().skip(1).map(str::to_owned).collect()
}

#[test]
fn targets_that_fail_in_different_ways_share_no_line_and_a_shared_message_names_none() {
    let missing =
        |name: &str, what: &str| PlanTarget { message: Some(format!("pod {what} not found")), ..failed(name) };
    assert_eq!(
        rows(vec![missing("a", "a"), missing("web-x", "web-x"), missing("web", "web-x"), missing("c.d", "c.d.")]),
        [
            "2 x a, web-x   now    fails: NoController: pod NAME not found",
            "c.d            now    fails: NoController: pod c.d. not found",
            "web            now    fails: NoController: pod web-x not found",
        ]
    );
}

#[test]
fn what_is_made_before_a_target_fails_is_shown_first() {
    let begun = PlanTarget { before: vec!["begin the PodOpsLifecycle".into()], ..failed("a") };
    assert_eq!(
        rows(vec![begun]),
        ["a         now    begin the PodOpsLifecycle, then fails: NoController: pod a has no controller"]
    );
}

#[test]
fn a_target_that_is_skipped_never_starts() {
    let message = Some("not started: more targets have failed than is tolerated".into());
    let skipped = PlanTarget { reason: Some("Skipped".into()), message, ..failed("a") };
    assert_eq!(
        rows(vec![skipped]),
        ["a         never   skipped: not started: more targets have failed than is tolerated"]
    );
}

#[test]
fn the_numbers_of_a_plan_are_those_of_the_outcomes_of_its_targets() {
    let idle = PlanTarget { outcome: PlanOutcome::Waiting, first: vec![], ..changed("b") };
    let late = PlanTarget { waits_for: Some("Partition".into()), ..failed("d") };
    let plan = plan(vec![changed("a"), idle, waiting("c"), late]);
    let counts = plan.counts;
    assert_eq!((counts.changed, counts.waiting, counts.succeeded, counts.failed), (1, 2, 0, 1));
}

#[test]
fn ten_thousand_targets_fill_no_screen_and_all_are_shown_where_asked_for() {
    let plan = plan((0..10_000).map(|number| changed(&format!("web-{number}"))).collect());
    let text = plan_text(&plan, TargetRows::First);
    assert!(text.contains("\n10000 x web-0, web-1, web-2, ...   now    evict pod\n"), "{text}");
    assert!(text.ends_with("\n--all shows every target in a line of its own\n") && text.lines().count() < 15, "{text}");
    let all = plan_text(&plan, TargetRows::All);
    assert!(all.ends_with("\nweb-9999   now    evict pod web-9999\n") && all.lines().count() > 10_000);
    assert!(!plan.has_trouble());
}

#[test]
fn of_very_many_fates_the_first_are_shown_and_the_rest_is_counted() {
    let odd = |number: usize| PlanTarget { reason: Some(format!("Reason{number:02}")), ..failed("a") };
    let text = plan_text(&plan((0..30).map(odd).collect()), TargetRows::First);
    assert!(text.ends_with("\n... and 10 more targets; --all shows every one\n"), "{text}");
}

#[test]
fn the_answers_of_the_api_server_have_a_column_and_count() {
    let answer = |accepted, message: &str| Some(ServerAnswer { accepted, message: message.into() });
    let refused = PlanTarget { server: answer(false, "disruption budget web: no"), ..changed("b") };
    let mut plan = plan(vec![PlanTarget { server: answer(true, ""), ..changed("a") }, refused]);
    plan.server = answer(true, "");
    let text = plan_text(&plan, TargetRows::First);
    assert!(text.contains("API server:   would accept the job and the first changes of 1 target, and refuse the first changes of 1 target\n"), "{text}");
    let accepted = JobPlan {
        server: answer(true, ""),
        ..self::plan(vec![PlanTarget { server: answer(true, ""), ..changed("a") }])
    };
    assert!(
        plan_text(&accepted, TargetRows::First).contains("would accept the job and the first changes of 1 target\n")
    );
    assert!(text.contains("\nb         now    evict pod b   refuses: disruption budget web: no\n"), "{text}");
    assert!(plan.has_trouble());
}

#[test]
fn the_document_has_every_target_and_leaves_out_what_is_not_there() {
    let document: Value =
        serde_json::from_str(&plan_document(&plan(vec![waiting("c"), failed("d")])).unwrap()).unwrap();
    let counts =
        json!({"total": 2, "changed": 0, "waiting": 1, "succeeded": 0, "failed": 1, "accepted": 0, "refused": 0});
    assert_eq!(document["counts"], counts);
    assert_eq!(document["cluster"], json!({"comparison": "Same", "message": "serves Replace with the same plugin"}));
    assert_eq!(
        document["targets"],
        json!([
            {"index": 0, "name": "c", "outcome": "Waiting", "waitsFor": "Partition",
                "first": [{"verb": "evict", "apiVersion": "v1", "kind": "Pod", "name": "c"}]},
            {"index": 1, "name": "d", "outcome": "Failed", "reason": "NoController", "message": "pod d has no controller"},
        ])
    );
    assert_eq!(document.get("server"), None);
}
