//! The words of the pages: what a job waits for, what a reason means, and what to do next.

use oarlock_page::{
    JobPage, JobQuery, ListState, ListedJob, ObjectAddress, ObjectKind, PageAddress, PageContent, PartQuery, Shell,
    ShownEvent, document, job_content, list_content, target_content,
};
use oarlock_view::{FlowView, JobView};
use serde_json::{Value, json};

use crate::samples::{after, daemon, of_flow, ops};

/// Returns an OperationJob in `team-a` with this name, `spec` and `status`.
fn job(name: &str, spec: &Value, status: &Value) -> JobView {
    let mut object = json!({"metadata": {"name": name, "namespace": "team-a", "uid": name, "creationTimestamp": "2026-07-01T10:00:00Z"},
        "spec": {"action": "Replace"}, "status": status});
    for (field, value) in spec.as_object().into_iter().flatten() {
        object["spec"][field] = value.clone();
    }
    JobView::new(&serde_json::from_value(object).unwrap(), [])
}

/// Returns a running job that waits for these words.
fn waiting(name: &str, waits_for: &str) -> JobView {
    job(name, &json!({}), &json!({"progress": "Processing", "waitsFor": waits_for}))
}

fn targets(name: &str, progress: &str, details: &[Value]) -> JobView {
    let of = |progress: &str| details.iter().filter(|detail| detail["progress"] == progress).count();
    let named: Vec<Value> = details.iter().map(|detail| json!({"name": detail["name"]})).collect();
    let status = json!({"progress": progress, "targetDetails": details, "totalPodCount": details.len(), "succeededPodCount": of("Succeeded"),
        "failedPodCount": of("Failed"), "processingPodCount": of("Processing"), "pendingPodCount": of("Pending")});
    job(name, &json!({"targets": named}), &status)
}

fn flow(status: &Value) -> FlowView {
    let object = json!({"kind": "JobFlow", "metadata": {"name": "flow", "namespace": "team-a", "uid": "f"},
        "spec": {"flows": [{"name": "a"}, {"name": "b"}]}, "status": status});
    FlowView::new(&object, [])
}

/// Returns the names in the list of `rows` in this state, at a time after 10:00 in seconds.
fn names(rows: &[ListedJob], state: Option<ListState>, seconds: i64) -> Vec<String> {
    let content = list_content(rows, &JobQuery { state, ..JobQuery::default() }, after(seconds));
    let rows = content.fragments().filter(|fragment| fragment.id.starts_with("row-"));
    let name = |html: &str| html.split("<bdi>").nth(1).unwrap().split('<').next().unwrap().to_owned();
    rows.map(|row| name(&row.html)).collect()
}

fn page(job: &JobView, now: i64) -> PageContent {
    job_content(&JobPage { job, events: &[], parts: &PartQuery::default(), now: after(now) })
}

fn fragment(content: &PageContent, id: &str) -> String {
    content.fragments().find(|fragment| fragment.id == id).map(|fragment| fragment.html.clone()).unwrap_or_default()
}

fn text(content: &PageContent) -> String {
    document(content, &Shell::default())
}

#[test]
fn the_filter_of_states_agrees_with_the_state_that_a_row_shows() {
    let paused = json!([{"type": "Paused", "status": "True", "reason": "PausedBySpec", "message": "m"}]);
    let rows = [
        ListedJob::of_job(&job("pending", &json!({}), &json!({"progress": "Pending", "conditions": paused}))),
        ListedJob::of_job(&job("running", &json!({}), &json!({"progress": "Processing", "conditions": paused}))),
    ];
    assert_eq!(names(&rows, Some(ListState::Pending), 60), ["pending"]);
    assert_eq!(names(&rows, Some(ListState::Running), 60), ["running"]);
    assert_eq!(names(&rows, Some(ListState::Attention), 60), ["pending", "running"]);
}

#[test]
fn a_job_whose_wait_only_a_person_or_a_budget_can_end_needs_attention() {
    for (waits_for, needs) in [
        ("Partition", true),
        ("Budget web", true),
        ("NewPod, Drain", true),
        ("NewPod", false),
        ("Other jobs", false),
        ("Retry", false),
    ] {
        let rows = [ListedJob::of_job(&waiting("job", waits_for))];
        assert_eq!(names(&rows, Some(ListState::Attention), 60).len(), usize::from(needs), "{waits_for}");
    }
}

#[test]
fn a_running_job_with_a_failed_target_and_one_with_a_target_that_stays_blocked_need_attention() {
    let error = json!({"reason": "BootIdUnknown", "message": "m"});
    let blocked = json!({"name": "a", "progress": "Processing", "startTime": "2026-07-01T10:00:00Z", "error": error});
    let failed = json!({"name": "a", "progress": "Failed", "error": error});
    let open = json!({"name": "b", "progress": "Pending"});
    let failing = [ListedJob::of_job(&targets("failing", "Processing", &[failed, open.clone()]))];
    assert_eq!(names(&failing, Some(ListState::Attention), 60), ["failing"]);
    let standing = [ListedJob::of_job(&targets("standing", "Processing", &[blocked, open]))];
    assert_eq!(names(&standing, Some(ListState::Attention), 200), [""; 0], "it may go on by itself");
    assert_eq!(names(&standing, Some(ListState::Attention), 301), ["standing"]);
    let flow = |counts: Value| [ListedJob::of_flow(&flow(&json!({"state": "Running", "counts": counts})))];
    assert_eq!(names(&flow(json!({"total": 2, "failed": 1, "running": 1})), Some(ListState::Attention), 0), ["flow"]);
    assert_eq!(names(&flow(json!({"total": 2, "running": 2})), Some(ListState::Attention), 0), [""; 0]);
}

#[test]
fn a_job_that_stands_still_comes_before_newer_ones() {
    let done = |name: &str| ListedJob::of_job(&job(name, &json!({}), &json!({"progress": "Succeeded"})));
    let rows = [done("a"), ListedJob::of_job(&waiting("stands", "Partition")), done("z")];
    assert_eq!(names(&rows, None, 60)[0], "stands");
}

#[test]
fn each_reason_opens_its_meaning_and_the_next_step() {
    let blocked = json!({"name": "a", "progress": "Processing", "error": {"reason": "EvictionBlocked", "message": "disruption budget web allows no eviction now"}});
    let job = targets("job", "Processing", &[blocked.clone(), blocked]);
    let html = text(&page(&job, 60));
    let id = html.split("popovertarget=\"").nth(1).unwrap().split('"').next().unwrap();
    assert_eq!(html.matches(&format!("popovertarget=\"{id}\"")).count(), 2, "both rows open one text");
    assert_eq!(html.matches(&format!(" id=\"{id}\"")).count(), 1);
    assert!(html.contains("<strong>Do: </strong>Read the message: it names the budget or the pod."), "{html}");
    let list = list_content(&[ListedJob::of_job(&waiting("job", "Budget web"))], &JobQuery::default(), after(0));
    assert!(text(&list).contains("Budget web") && text(&list).contains("Make the other pods of the budget Ready"));
}

#[test]
fn a_target_that_ended_without_known_times_is_never_said_not_to_have_started() {
    let (_, ended) = ops().into_iter().find(|(kind, _)| *kind == "reboot").unwrap();
    let story = fragment(&target_content(&ended, 1, &[]), "story");
    assert!(story.contains("The times of the target are not known.") && story.contains("It failed: "), "{story}");
    assert!(!story.contains("has not started"), "{story}");
    let unknown = fragment(&target_content(&ended, 2, &[]), "story");
    assert!(unknown.contains("does not say what happened on the node") && !unknown.contains("record"), "{unknown}");
}

#[test]
fn an_ops_job_links_its_operation_job_only_until_its_end() {
    for (kind, job) in ops() {
        let links = fragment(&page(&job, 60), "head").contains("/ui/opj/oarlock-ops/");
        assert_eq!(links, kind == "addon", "{kind}: only the addon runs");
    }
}

#[test]
fn the_chart_of_a_running_job_goes_on_until_now_and_a_moment_has_none() {
    let target = |progress: &str, end: Value| json!({"name": "a", "progress": progress, "startTime": "2026-07-01T10:00:00Z", "endTime": end});
    let running = targets("job", "Processing", &[target("Processing", Value::Null)]);
    let chart = fragment(&page(&running, 1_200), "progress");
    assert!(chart.contains("2026-07-01 10:20:00 UTC") && chart.contains("In 20m, 1 of 1"), "{chart}");
    assert!(!fragment(&page(&running, 1), "progress").contains("<path"));
    let ended = targets("job", "Succeeded", &[target("Succeeded", json!("2026-07-01T10:01:00Z"))]);
    assert!(fragment(&page(&ended, 1_200), "progress").contains("2026-07-01 10:01:00 UTC"));
}

#[test]
fn a_flow_shows_one_number_in_which_omitted_steps_do_not_count() {
    let flow =
        flow(&json!({"state": "Failed", "progress": "1/1", "counts": {"total": 2, "succeeded": 1, "omitted": 1}}));
    let head = fragment(&of_flow("flow", &flow).content, "head");
    assert!(head.contains("100% of 1: 1 succeeded, 1 omitted (not counted)"), "{head}");
    assert!(!head.contains("1/1"), "{head}");
}

#[test]
fn an_ops_job_that_failed_before_its_start_shows_no_grid_of_unknown_targets() {
    let ops = json!({"metadata": {"name": "typo", "uid": "u"}, "spec": {"type": "reboot", "targets": [{"name": "a"}, {"name": "b"}]},
        "status": {"phase": "Failed", "finishedAt": "2026-07-01T10:00:00Z",
            "conditions": [{"type": "Failed", "status": "True", "reason": "NodesNotFound", "message": "no node a"}]}});
    let content = page(&JobView::of_ops(&ops, None), 60);
    let html = text(&content);
    assert!(!html.contains("Unknown") && !html.contains("id=\"tiles\""), "{html}");
    assert!(
        html.contains("The job has no outputs.") && html.contains("The job ended before a target started."),
        "{html}"
    );
}

#[test]
fn commands_name_the_new_pod_the_budget_and_a_new_job_of_the_failed_targets() {
    let of_target =
        |detail: Value| fragment(&target_content(&targets("job", "Processing", &[detail]), 0, &[]), "commands");
    let done = of_target(json!({"name": "old", "progress": "Succeeded", "extraInfo": {"NewPod": "new"}}));
    assert!(done.contains("kubectl -n team-a describe pod/new") && !done.contains("pod/old"), "{done}");
    let message = "disruption budget web.app: Cannot evict pod";
    let blocked = of_target(
        json!({"name": "old", "progress": "Processing", "error": {"reason": "EvictionBlocked", "message": message}}),
    );
    assert!(
        blocked.contains("kubectl -n team-a get pdb web.app<") && blocked.contains("describe pod/old"),
        "{blocked}"
    );
    let waiting = fragment(&page(&waiting("job", "NewPod, Budget web"), 60), "commands");
    assert!(waiting.contains("kubectl -n team-a get pdb web<"), "{waiting}");
    let states = [("a", "Failed"), ("b", "Succeeded"), ("c", "Failed")];
    let details = states.map(|(name, progress)| json!({"name": name, "progress": progress}));
    let failed = fragment(&page(&targets("job", "Failed", &details), 60), "commands");
    assert!(failed.contains("Run its failed targets again, in a new job"), "{failed}");
    assert!(
        failed.contains("[&quot;a&quot;, &quot;c&quot;] as $failed | ") && !failed.contains("&quot;b&quot;"),
        "{failed}"
    );
}

#[test]
fn extras_that_only_the_host_reads_are_shown_only_as_recorded() {
    let extra = json!({"DrainSince": "1782900000000", "WasUnschedulable": "false", "Drain": "{\"state\":\"Draining\",\"blocked\":[\"a\"]}"});
    let job = targets("job", "Processing", &[json!({"name": "node-1", "progress": "Processing", "extraInfo": extra})]);
    let content = target_content(&job, 0, &[]);
    let story = fragment(&content, "story");
    assert!(story.contains("the drain began at 2026-07-01T10:00:00Z") && !story.contains("17829"), "{story}");
    assert!(!story.contains("WasUnschedulable") && fragment(&content, "detail").contains("WasUnschedulable"));
    assert!(!fragment(&page(&job, 60), "target-0").contains("WasUnschedulable"));
}

#[test]
fn the_errors_of_a_failed_job_stand_on_its_page_so_the_page_sends_nobody_elsewhere() {
    let message = "1 of 1 target failed; see the errors in status.targetDetails or the OperationRecords";
    let condition = json!([{"type": "Failed", "status": "True", "reason": "TargetsFailed", "message": message}]);
    let notices = fragment(
        &page(&job("job", &json!({}), &json!({"progress": "Failed", "conditions": condition})), 60),
        "notices",
    );
    assert!(notices.contains("1 of 1 target failed<") && !notices.contains("Failed=True"), "{notices}");
}

#[test]
fn the_page_of_a_target_shows_its_own_events_and_a_link_to_the_others() {
    let event = |message: &str| ShownEvent {
        message: message.to_owned(),
        reason: "TargetFailed".to_owned(),
        ..ShownEvent::default()
    };
    let details = ["node-1", "node-10"].map(|name| json!({"name": name, "progress": "Failed"}));
    let content = target_content(
        &targets("job", "Failed", &details),
        0,
        &[event("node-1: it stays down"), event("node-10: burns")],
    );
    let events = fragment(&content, "events");
    assert!(events.contains("stays down") && !events.contains("burns"), "{events}");
    assert!(events.contains("href=\"/ui/opj/team-a/job#events\""), "{events}");
    assert!(text(&content).contains("target 1 of 2"), "targets count from 1");
}

#[test]
fn a_target_that_a_job_does_not_have_is_said_to_be_missing_and_not_the_job() {
    let job = targets("some", "Processing", &[json!({"name": "a"}), json!({"name": "b"})]);
    let html = text(&target_content(&job, 9, &[]));
    assert!(html.contains("has no target with the index 9") && html.contains("href=\"/ui/opj/team-a/some\""), "{html}");
    assert!(!html.contains("deletes a job"), "{html}");
}

#[test]
fn the_operation_job_of_an_ops_job_says_so_in_its_row() {
    let mut view = waiting("boot", "Drain");
    view.namespace = "oarlock-ops".to_owned();
    let html = text(&list_content(&[ListedJob::of_job(&view)], &JobQuery::default(), after(0)));
    assert!(html.contains("OperationJob of <a href=\"/ui/ops/boot\">OpsJob</a>"), "{html}");
}

#[test]
fn the_tabs_of_a_list_keep_its_other_filters_and_a_place_beyond_the_end_is_named() {
    let query =
        JobQuery { namespaces: vec!["a".to_owned()], state: Some(ListState::Failed), skip: 100, ..JobQuery::default() };
    let rows = [ListedJob::of_flow(&daemon(3))];
    let content = list_content(&rows, &query, after(0));
    let html = document(&content, &Shell { live: Some(&PageAddress::Jobs(query)), ..Shell::default() });
    assert!(html.contains("href=\"/ui/?kind=ops&amp;namespace=a&amp;state=failed\""), "{html}");
    let beyond = list_content(&rows, &JobQuery { skip: 4_000, ..JobQuery::default() }, after(0));
    let pager = fragment(&beyond, "pager");
    assert!(
        pager.contains("ends before this place") && pager.contains("rel=\"prev\"") && !pager.contains(" to "),
        "{pager}"
    );
    let object = ObjectAddress { kind: ObjectKind::OpsJob, namespace: String::new(), name: "a".to_owned() };
    let shell = Shell { live: Some(&PageAddress::Object(object, PartQuery::default())), ..Shell::default() };
    assert!(document(&beyond, &shell).contains("href=\"/ui/?kind=ops\""));
}
