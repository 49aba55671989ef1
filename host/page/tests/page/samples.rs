//! Objects as a cluster stores them, in every state, and the pages that show them.

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use oarlock_api::{OperationJob, OperationRecord};
use oarlock_page::{
    FlowPage, JobPage, JobQuery, ListedJob, ListedPlugin, LogAddress, LoginProblem, ObjectAddress, ObjectKind,
    PageAddress, PageContent, PageRefusal, PartQuery, PluginObject, Shell, ShownEvent, ShownLog, document,
    flow_content, job_content, list_content, log_content, login_content, plugins_content, refusal_content,
    target_content,
};
use oarlock_view::{FlowView, JobView};
use serde_json::{Value, json};

/// A text that is HTML, has control and direction characters, and is as long as a name may be.
pub(crate) fn hostile_name() -> String {
    let mut name =
        "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>\u{202e}gnp.exe\u{1b}[31m\u{0}&amp;".to_owned();
    while name.len() < 253 {
        name.push('w');
    }
    name
}

fn log_address() -> LogAddress {
    let object = ObjectAddress { kind: ObjectKind::JobFlow, namespace: "team".to_owned(), name: "web".to_owned() };
    LogAddress { object, job: hostile_name() }
}

/// A log with HTML, control and direction characters, long lines, and bytes that are no text.
pub(crate) fn hostile_log() -> ShownLog {
    let line = [b"<script>alert(1)</script>\t\x1b[31m\x00\xff\xe2\x80\xae".as_slice(), &[b'w'; 250], b"\r\n"].concat();
    ShownLog {
        pod: "web-x".to_owned(),
        container: hostile_name(),
        end: "exited with code 1".to_owned(),
        bytes: line.repeat(100),
        is_cut: true,
    }
}

/// Returns the time of the samples, some seconds later.
pub(crate) fn after(seconds: i64) -> Timestamp {
    let start: Timestamp = "2026-07-01T10:00:00Z".parse().unwrap();
    start.checked_add(SignedDuration::from_secs(seconds)).unwrap()
}

fn stamp(seconds: i64) -> String {
    after(seconds).to_string()
}

/// The detail of a target by its index: most have succeeded, some of each other state.
fn detail(index: usize, count: usize, hostile: bool) -> Value {
    let name = if hostile { format!("{index}{}", hostile_name()) } else { format!("web-7d9f8c6b5d-{index:05}") };
    let started = i64::try_from(index * 3000 / count.max(1)).unwrap();
    let done = count * 6 / 10;
    let message = if hostile {
        "<b>bold</b> \u{202e}".repeat(8_000)
    } else {
        "disruption budget web allows no eviction now".to_owned()
    };
    let extra = json!({"NewPod": format!("{name}-new"), "Owner": "CollaSet/web/u",
        "Drain": "{\"state\":\"Draining\",\"blocked\":[\"a\",\"b\"]}", "Task/check": "{\"state\":\"Done\"}"});
    match index {
        _ if index < done && index % 97 == 13 => {
            json!({"name": name, "progress": "Failed", "attempt": 2, "startTime": stamp(started),
            "endTime": stamp(started + 40), "error": {"reason": "ReplacementFailed", "message": message}, "extraInfo": extra})
        }
        _ if index < done => {
            json!({"name": name, "progress": "Succeeded", "startTime": stamp(started), "endTime": stamp(started + 20), "extraInfo": extra})
        }
        _ if index < done + count / 20 + 1 && index % 5 == 2 => {
            json!({"name": name, "progress": "Processing", "startTime": stamp(started),
            "error": {"reason": "EvictionBlocked", "message": message}, "extraInfo": extra})
        }
        _ if index < done + count / 20 + 1 && index % 7 == 3 => {
            json!({"name": name, "progress": "Processing", "startTime": stamp(started), "attempt": 2,
            "nextAttemptTime": stamp(4000), "error": {"reason": "TaskFailed", "message": message}})
        }
        _ if index < done + count / 20 + 1 => {
            json!({"name": name, "progress": "Processing", "startTime": stamp(started), "extraInfo": extra})
        }
        _ => json!({"name": name, "progress": "Pending"}),
    }
}

/// An OperationJob with its records.
pub(crate) struct SampleJob {
    pub(crate) job: OperationJob,
    pub(crate) records: Vec<OperationRecord>,
}

impl SampleJob {
    /// Returns a job with `count` targets.
    pub(crate) fn new(count: usize, hostile: bool) -> Self {
        Self::of((0..count).map(|index| detail(index, count, hostile)).collect(), hostile)
    }

    /// Returns a job whose targets have these details.
    pub(crate) fn of(details: Vec<Value>, hostile: bool) -> Self {
        let count = details.len();
        let of = |progress: &str| details.iter().filter(|detail| detail["progress"] == progress).count();
        let name = if hostile { hostile_name() } else { format!("replace-web-{count}") };
        let message =
            if hostile { "x<y>&\u{202e}\n".repeat(6_000) } else { "3 of 5 allowed failures are used".to_owned() };
        let targets: Vec<Value> = details.iter().map(|detail| json!({"name": detail["name"]})).collect();
        let mut job = json!({
            "metadata": {"name": name, "namespace": if hostile { hostile_name() } else { "team-a".to_owned() }, "uid": format!("u{count}"), "creationTimestamp": stamp(-60)},
            "spec": {"action": "Replace", "targets": targets, "partition": count * 8 / 10, "parallelism": 50, "maxUnavailable": "10%",
                "failurePolicy": {"type": "Pause", "maxFailures": 500}, "retryPolicy": {"limit": 2}},
            "status": {"progress": "Processing", "startTime": stamp(0), "totalPodCount": count, "succeededPodCount": of("Succeeded"),
                "failedPodCount": of("Failed"), "processingPodCount": of("Processing"), "pendingPodCount": of("Pending"),
                "waitsFor": "Budget web", "plugin": {"name": "replace", "version": "0.1.0", "digest": format!("sha256:{}", "ab12".repeat(16))},
                "conditions": [
                    {"type": "Reconciling", "status": "True", "reason": "Waiting", "message": "50 targets are in flight, and disruption budget web allows no eviction now"},
                    {"type": "LifecycleBlocked", "status": "True", "reason": "PodLifecycle", "message": message}]},
        });
        let mut records = Vec::new();
        if count > 250 {
            job["status"]["records"] = json!({"count": count.div_ceil(250), "size": 250});
            records = details.chunks(250).enumerate().map(|(shard, targets)| record(count, shard, targets)).collect();
        } else {
            job["status"]["targetDetails"] = json!(details);
        }
        Self { job: serde_json::from_value(job).unwrap(), records }
    }

    pub(crate) fn view(&self) -> JobView {
        JobView::new(&self.job, &self.records)
    }
}

fn record(count: usize, shard: usize, targets: &[Value]) -> OperationRecord {
    let lines: Vec<String> = targets.iter().map(Value::to_string).collect();
    serde_json::from_value(
        json!({"metadata": {"name": format!("r-{shard}")}, "shard": shard, "firstIndex": shard * 250,
        "job": {"name": "x", "uid": format!("u{count}")}, "targets": lines}),
    )
    .unwrap()
}

/// Returns the details of `count` targets, in which the targets `moved` have ended.
pub(crate) fn moved(count: usize, moved: &[usize]) -> Vec<Value> {
    let one = |index: usize| {
        let mut detail = detail(index, count, false);
        if moved.contains(&index) {
            detail["progress"] = json!("Succeeded");
            detail["startTime"] = json!(stamp(2_000));
            detail["endTime"] = json!(stamp(2_100));
            detail["error"] = Value::Null;
            detail["nextAttemptTime"] = Value::Null;
        }
        detail
    };
    (0..count).map(one).collect()
}

const UNIT_STATES: [&str; 9] =
    ["Succeed", "Succeed", "Succeed", "Running", "Failed", "Pending", "Retrying", "Blocked", "Omitted"];

/// Returns a JobFlow of `count` steps in layers of five, with failures, conditions and two steps of `finally`.
pub(crate) fn flow(count: usize, hostile: bool) -> FlowView {
    flow_after(count, hostile, &[])
}

/// Returns the flow after the steps `ended` have succeeded.
pub(crate) fn flow_after(count: usize, hostile: bool, ended: &[usize]) -> FlowView {
    let name = |at: usize| {
        if hostile { format!("{at}{}", hostile_name()) } else { format!("step-{at:02}-of-the-nightly-import") }
    };
    let layers = (count / 5).max(1);
    let mut flows = Vec::new();
    let mut steps = Vec::new();
    for at in 0..count {
        let layer = at / 5;
        let on: Vec<String> =
            if layer == 0 { Vec::new() } else { [at - 5, (layer - 1) * 5 + (at * 3) % 5].map(name).to_vec() };
        let when = ["success", "failure", "finished"][usize::from(at % 11 == 7) + usize::from(at % 13 == 9)];
        flows.push(json!({"name": name(at), "dependencies": on, "when": when, "operation": if at % 4 == 0 { json!({}) } else { Value::Null }}));
        let state = match layer * 10 / layers {
            _ if ended.contains(&at) => "Succeed",
            0..4 => {
                if at % 17 == 11 {
                    "Failed"
                } else {
                    "Succeed"
                }
            }
            4..7 => UNIT_STATES[(at * 7) % 9],
            _ => "Waiting",
        };
        let (reason, message) = if state == "Failed" {
            (
                "JobFailed",
                if hostile { "<i>\u{202e}".repeat(20_000) } else { "exit code 3: the import found no file".to_owned() },
            )
        } else {
            ("", String::new())
        };
        let is_over = ["Succeed", "Failed"].contains(&state);
        steps.push(json!({"name": name(at), "state": state, "reason": reason, "message": message, "attempt": at % 3,
            "job": if state == "Waiting" { String::new() } else { format!("nightly-{at}") },
            "startTime": if state == "Waiting" { Value::Null } else { json!(stamp(30 * i64::try_from(layer).unwrap())) },
            "completionTime": if is_over { json!(stamp(30 * i64::try_from(layer).unwrap() + 25)) } else { Value::Null }}));
    }
    let object = json!({"kind": "JobFlow",
        "metadata": {"name": if hostile { hostile_name() } else { "nightly".to_owned() }, "namespace": "team-a", "uid": "f1", "generation": 1, "creationTimestamp": stamp(0)},
        "spec": {"flows": flows, "finally": [{"name": "clean"}, {"name": "tell", "when": "failure"}]},
        "status": {"state": "Running", "observedGeneration": 1, "progress": format!("12/{count}"), "startTime": stamp(0), "steps": steps,
            "conditions": [{"type": "Progressing", "status": "True", "reason": "Working", "message": "waits for step-14: its pod runs"},
                {"type": "Blocked", "status": "True", "reason": "JobTemplateNotFound", "message": "step-22: JobTemplate import does not exist"}]}});
    FlowView::new(&object, [])
}

/// Returns a flow whose steps wait for each other.
pub(crate) fn cycle() -> FlowView {
    let step = |name: &str, on: &[&str]| json!({"name": name, "dependencies": on});
    FlowView::new(
        &json!({"kind": "JobFlow", "metadata": {"name": "cycle", "namespace": "team-a", "uid": "f2", "creationTimestamp": stamp(0)},
            "spec": {"flows": [step("a", &["c"]), step("b", &["a", "root"]), step("c", &["b", "gone"]), step("root", &[]), step("last", &["c"])]},
            "status": {"conditions": [{"type": "Valid", "status": "False", "reason": "Cycle", "message": "a -> c -> b -> a"}]}}),
        [],
    )
}

/// Returns a DaemonJob on `count` nodes.
pub(crate) fn daemon(count: usize) -> FlowView {
    let node = |at: usize| {
        let state = match at * 10 / count.max(1) {
            0..6 => {
                if at % 41 == 7 {
                    "Failed"
                } else {
                    "Succeed"
                }
            }
            6 => UNIT_STATES[at % 9],
            _ => "Waiting",
        };
        json!({"name": format!("node-{at:04}.zone-{}.example.com", at % 3), "state": state, "job": format!("patch-{at}"),
            "reason": if state == "Failed" { "JobFailed" } else { "" }, "message": if state == "Failed" { "exit code 3: the kernel package is missing" } else { "" },
            "startTime": if state == "Waiting" { Value::Null } else { json!(stamp(10)) },
            "completionTime": if ["Succeed", "Failed"].contains(&state) { json!(stamp(70)) } else { Value::Null }})
    };
    FlowView::new(
        &json!({"kind": "DaemonJob", "metadata": {"name": "patch-kernel", "namespace": "ops", "uid": "d1", "creationTimestamp": stamp(0)}, "spec": {},
            "status": {"state": "Running", "progress": format!("180/{count}"), "startTime": stamp(0), "nodes": (0..count).map(node).collect::<Vec<_>>(),
                "conditions": [{"type": "Paused", "status": "True", "reason": "MaxFailures", "message": "5 nodes failed, and the policy allows 4"}]}}),
        [],
    )
}

/// Returns an OpsJob of each type, with its outputs.
pub(crate) fn ops() -> Vec<(&'static str, JobView)> {
    let inputs = |kind: &str| match kind {
        "dumplog" | "exportimage" => json!([{"name": "workload", "value": "team-a/deployment/web"}]),
        "addon" => {
            json!([{"name": "node", "value": "node-1"}, {"name": "script", "value": "IyEvYmluL3NoCg==".repeat(60)}])
        }
        _ => json!([{"name": "workspace", "value": "research"}, {"name": "drain", "value": "true"}]),
    };
    let outputs = |kind: &str| match kind {
        "reboot" => {
            json!([{"name": "result", "value": "{\"succeeded\":1,\"failed\":1,\"skipped\":0}"}, {"name": "node", "value": "node-0"}])
        }
        "addon" => json!([{"name": "result", "value": "{\"succeeded\":1,\"failed\":1}"},
            {"name": "nodes", "value": "[{\"node\":\"node-0\",\"passed\":true,\"steps\":[{\"position\":1,\"exitCode\":0,\"output\":\"done\"}]}]"}]),
        "preflight" => {
            json!([{"name": "result", "value": "{\"failed_nodes\":[\"node-1\"],\"healthy_nodes\":[\"node-0\"]}"},
            {"name": "report", "value": "artifact:preflight-a/report-12ab.json"}])
        }
        "dumplog" => {
            json!([{"name": "endpoint", "value": "artifact:dumplog-a/web-12ab.log"}, {"name": "missing", "value": "[\"node-1\"]"}])
        }
        _ => {
            json!([{"name": "status", "value": "completed"}, {"name": "image", "value": "https://registry.example.com/team-a/web:20260701"},
            {"name": "message", "value": "javascript:alert(1)"}])
        }
    };
    let one = |kind: &'static str| {
        let running = kind == "addon";
        let mut object = json!({"metadata": {"name": format!("{kind}-a"), "uid": format!("o-{kind}"), "creationTimestamp": stamp(0)},
            "spec": {"type": kind, "inputs": inputs(kind), "batchCount": 2, "timeoutSecond": 600, "availableRatio": "0.5",
                "targets": [{"name": "node-0", "uid": "1"}, {"name": "node-1", "uid": "2"}, {"name": "node-2", "uid": "3"}]},
            "status": {"phase": if running { "Running" } else { "Failed" }, "startedAt": stamp(1), "operationJob": {"name": format!("{kind}-a"), "uid": "c"},
                "progress": {"total": 3, "succeeded": 1, "failed": 1, "processing": usize::from(running), "pending": usize::from(!running), "skipped": 0},
                "waitingFor": ["drain", "node-2: 2 pods stay"], "outputs": outputs(kind),
                "conditions": [{"type": "TargetsResolved", "status": "True", "reason": "Found", "message": "3 nodes"},
                    {"type": "node-1", "status": "False", "reason": "NotReady", "message": "the node does not come back within 600 s"},
                    {"type": "Failed", "status": if running { "False" } else { "True" }, "reason": "ToleranceExceeded", "message": "1 of 3 targets failed"}]}});
        if !running {
            object["status"]["finishedAt"] = json!(stamp(600));
            object["status"]["waitingFor"] = Value::Null;
        }
        (kind, JobView::of_ops(&object, None))
    };
    ["addon", "dumplog", "exportimage", "preflight", "reboot"].map(one).to_vec()
}

/// Returns `count` rows of all kinds and states.
pub(crate) fn listed(count: usize) -> Vec<ListedJob> {
    let states =
        [("Succeeded", 40, 0), ("Processing", 20, 2), ("Pending", 0, 0), ("Failed", 30, 10), ("Processing", 5, 0)];
    let one = |at: usize| {
        let (progress, succeeded, failed) = states[at % 5];
        let ended = ["Succeeded", "Failed"].contains(&progress);
        match at % 7 {
            5 => ListedJob::of_flow(&renamed(flow(30, false), at)),
            6 => ListedJob::of_flow(&renamed(daemon(20), at)),
            _ => ListedJob::of_job(&JobView::new(&serde_json::from_value(json!({
                "metadata": {"name": format!("replace-web-{at:04}"), "namespace": (["team-a", "team-b", "payments"][at % 3]), "uid": format!("u-{at}"), "creationTimestamp": stamp(-60 * i64::try_from(at).unwrap())},
                "spec": {"action": (["Replace", "Restart"][at % 2])},
                "status": {"progress": progress, "startTime": stamp(-50), "endTime": ended.then(|| stamp(-10)), "totalPodCount": 50, "succeededPodCount": succeeded,
                    "failedPodCount": failed, "processingPodCount": if progress == "Processing" { 10 } else { 0 }, "pendingPodCount": 50 - succeeded - failed,
                    "waitsFor": if at % 5 == 1 { "Budget web" } else if at % 5 == 4 { "Partition" } else { "" },
                    "conditions": if at % 10 == 1 { json!([{"type": "Paused", "status": "True", "reason": "PausedBySpec", "message": "m"}]) } else { json!([]) }}})).unwrap(), [])),
        }
    };
    let ops = ops();
    (0..count).map(one).chain(ops.iter().take(count).map(|(_, view)| ListedJob::of_job(view))).collect()
}

fn renamed(mut flow: FlowView, at: usize) -> FlowView {
    flow.name = format!("{}-{at}", flow.name);
    flow.uid = format!("{}-{at}", flow.uid);
    flow.created = Some(after(-60 * i64::try_from(at).unwrap()));
    flow
}

fn events() -> Vec<ShownEvent> {
    let event = |at: i64, is_warning, reason: &str, message: &str| ShownEvent {
        time: Some(after(at)),
        is_warning,
        reason: reason.to_owned(),
        message: message.to_owned(),
        count: if is_warning { 7 } else { 1 },
    };
    vec![
        event(3_000, true, "EvictionBlocked", "disruption budget web allows no eviction now"),
        event(2_900, false, "TargetStarted", "web-7d9f8c6b5d-06000 started"),
    ]
}

/// A page by its file name.
pub(crate) struct SamplePage {
    pub(crate) file: String,
    pub(crate) content: PageContent,
    pub(crate) address: Option<PageAddress>,
}

impl SamplePage {
    /// Returns the document of the page.
    pub(crate) fn html(&self) -> String {
        let shell =
            Shell { live: self.address.as_ref(), viewer: Some("system:serviceaccount:team-a:viewer"), warning: None };
        document(&self.content, &shell)
    }
}

/// Returns the page of a job.
pub(crate) fn of_job(file: &str, job: &JobView, parts: PartQuery) -> SamplePage {
    let content = job_content(&JobPage { job, events: &events(), parts: &parts, now: after(3_600) });
    let address = Some(PageAddress::Object(ObjectAddress::of_job(job), parts));
    SamplePage { file: file.to_owned(), content, address }
}

/// Returns the page of a flow.
pub(crate) fn of_flow(file: &str, flow: &FlowView) -> SamplePage {
    let parts = PartQuery::default();
    let content = flow_content(&FlowPage { flow, events: &[], parts: &parts, has_logs: true });
    SamplePage {
        file: file.to_owned(),
        content,
        address: Some(PageAddress::Object(ObjectAddress::of_flow(flow), parts)),
    }
}

/// Returns the page of a list.
pub(crate) fn of_list(file: &str, jobs: &[ListedJob], query: JobQuery) -> SamplePage {
    let content = list_content(jobs, &query, after(3_600));
    SamplePage { file: file.to_owned(), content, address: Some(PageAddress::Jobs(query)) }
}

/// Returns every page that the crate can show.
pub(crate) fn all() -> Vec<SamplePage> {
    let mut pages = vec![
        of_list("list", &listed(40), JobQuery::default()),
        of_list("list-2500", &listed(2_500), JobQuery::default()),
        of_list("list-empty", &[], JobQuery::default()),
        of_list(
            "list-nothing-fits",
            &listed(10),
            JobQuery { text: "<b>".into(), kind: Some(ObjectKind::JobFlow), ..JobQuery::default() },
        ),
        of_list(
            "list-hostile",
            &[ListedJob::of_job(&SampleJob::new(3, true).view()), ListedJob::of_flow(&flow(10, true))],
            JobQuery::default(),
        ),
        of_flow("flow-30", &flow(30, false)),
        of_flow("flow-500", &flow(498, false)),
        of_flow("flow-hostile", &flow(10, true)),
        of_flow("flow-cycle", &cycle()),
        of_flow("daemon-300", &daemon(300)),
    ];
    for count in [0, 3, 200, 1_000, 10_000] {
        pages.push(of_job(&format!("job-{count}"), &SampleJob::new(count, false).view(), PartQuery::default()));
    }
    let large = SampleJob::new(10_000, false).view();
    pages.push(of_job("job-10000-blocked", &large, PartQuery { state: "Blocked".into(), from: None }));
    pages.push(of_job("job-10000-from", &large, PartQuery { state: String::new(), from: Some(6_000) }));
    let hostile = SampleJob::new(30, true).view();
    pages.push(of_job("job-hostile", &hostile, PartQuery::default()));
    for (file, job, index) in
        [("target", &large, 13), ("target-blocked", &large, 6_002), ("target-hostile", &hostile, 13)]
    {
        let content = target_content(job, index, &events());
        let address = Some(PageAddress::Target(ObjectAddress::of_job(job), index));
        pages.push(SamplePage { file: file.to_owned(), content, address });
    }
    pages.extend(ops().iter().map(|(kind, view)| of_job(&format!("ops-{kind}"), view, PartQuery::default())));
    let plugin = |name: &str, problem: &str| ListedPlugin {
        name: name.to_owned(),
        action: name.to_owned(),
        version: "0.1.0".to_owned(),
        digest: format!("sha256:{}", "0f".repeat(32)),
        problem: problem.to_owned(),
        object: None,
    };
    let whole = ListedPlugin {
        object: Some(PluginObject {
            rights: vec!["evict v1 Pod".to_owned(), format!("read v1 Pod: {}", hostile_name())],
            missing: vec!["namespaces: [NAMESPACE]".to_owned()],
            host_may_not: "the host's account lacks create pods/eviction in all namespaces".to_owned(),
            jobs: vec![("0.1.0".to_owned(), 3), ("0.0.9".to_owned(), 1)],
            peaks: vec![("callMilliseconds".to_owned(), 40), ("memoryMiB".to_owned(), 10)],
            last_swap: "Since 2026-07-01T10:00:00Z version 0.1.0 serves instead of 0.0.9 (Replaced).".to_owned(),
        }),
        ..plugin("restart", "AwaitingGrant: GrantMissing: its grant lacks namespaces: [NAMESPACE]")
    };
    let still = |file: &str, content: PageContent| SamplePage { file: file.to_owned(), content, address: None };
    pages.extend([
        still(
            "plugins",
            plugins_content(&[plugin("replace", ""), plugin(&hostile_name(), "the grant does not cover nodes"), whole]),
        ),
        still("plugins-empty", plugins_content(&[])),
        still("login", login_content(&PageAddress::Plugins, None)),
        still("login-expired", login_content(&PageAddress::Plugins, Some(&LoginProblem::Expired))),
        still(
            "login-outage",
            login_content(&PageAddress::Plugins, Some(&LoginProblem::Unreachable("connection refused".into()))),
        ),
        still("not-found", refusal_content(PageRefusal::NotFound(format!("opj/{}", hostile_name())))),
        still(
            "forbidden",
            refusal_content(PageRefusal::Forbidden {
                right: "list operationjobs.apps.kusionstack.io".into(),
                namespace: "team-b".into(),
            }),
        ),
        still("log", log_content(&log_address(), Ok(&hostile_log()))),
        still("log-none", log_content(&log_address(), Err(&hostile_name()))),
        still("unlisted", refusal_content(PageRefusal::Unlisted(ObjectKind::JobFlow))),
        still("unreadable", refusal_content(PageRefusal::Unreadable("the object is too large".into()))),
        still("outage", refusal_content(PageRefusal::Outage("connection refused".into()))),
        still("refused", refusal_content(PageRefusal::Refused("another site sent the request".into()))),
        still("busy", refusal_content(PageRefusal::Busy)),
    ]);
    pages
}
