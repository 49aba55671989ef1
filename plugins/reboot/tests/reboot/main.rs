//! Native tests of the plugin reboot, with nodes built in memory and without WebAssembly.
#![allow(clippy::unwrap_used, reason = "a test may fail loudly")]

use oarlock_sdk::kit::{NOW, Sample, Visit, manifest, node, pod};
use oarlock_sdk::{Mutation, Proposal, Report, State, TaskStatus, Value, json};
use reboot::{BOOT_ID, DRAIN_SINCE, REBOOT_SINCE, Reboot, WAS_UNSCHEDULABLE};

const DRAINED: &str = r#"{"state":"Drained"}"#;

/// Returns a Ready node with this boot id.
fn ready(boot_id: &str) -> Sample {
    with_ready(boot_id, "True")
}

fn with_ready(boot_id: &str, status: &str) -> Sample {
    node("n")
        .condition("Ready", status, "2026-01-31T11:00:00Z")
        .field(&["status", "nodeInfo", "bootID"], json!(boot_id))
}

fn cordoned(sample: Sample) -> Sample {
    sample.field(&["spec", "unschedulable"], json!(true))
}

fn held(sample: Sample) -> Sample {
    cordoned(sample).hold("uid-of-job", &["cordon"])
}

fn task(state: &str, exit_code: Option<i32>, message: &str) -> TaskStatus {
    TaskStatus { state: state.to_owned(), exit_code, output: String::new(), message: message.to_owned() }
}

/// Returns a visit this many seconds after the reboot began.
fn asked(sample: &Sample, seconds: u64) -> Visit {
    let since = (NOW - seconds * 1_000).to_string();
    Visit::to(sample).extra(WAS_UNSCHEDULABLE, "false").extra(BOOT_ID, "1a").extra(REBOOT_SINCE, &since)
}

fn reason(report: &Report) -> String {
    match report.state() {
        State::Failed(error) => error.reason.clone(),
        other => format!("{other:?}"),
    }
}

#[test]
fn a_reboot_is_asked_for_with_the_boot_id_that_is_stored_and_behind_the_cordon() {
    let first = Visit::to(&ready("1a"));
    let asks = first.operate::<Reboot>().unwrap();
    let [cordon, Mutation::Task(task)] = asks.mutations() else { panic!("{asks:?}") };
    let arguments: Value = serde_json::from_str(&task.arguments).unwrap();
    assert_eq!((task.name.as_str(), task.kind.as_str()), ("reboot", "run-on-node"));
    assert_eq!(arguments, json!({"builtin": "reboot", "expectBootId": "1a", "timeoutSeconds": 300}));
    let stores = Proposal::new().extra(WAS_UNSCHEDULABLE, "false").extra(BOOT_ID, "1a").cordon("n").task(task.clone());
    assert_eq!((&asks, Some(cordon)), (&stores, Proposal::new().cordon("n").mutations().first()));
    let again = first.after(&asks).now_ms(NOW + 5_000).operate::<Reboot>().unwrap();
    assert_eq!(again, Proposal::new().task(task.clone()), "until the host shows it");
}

#[test]
fn the_time_in_which_a_node_must_be_back_begins_once_its_reboot_is_seen_to_begin() {
    let intent = Visit::to(&held(ready("1a"))).extra(WAS_UNSCHEDULABLE, "false").extra(BOOT_ID, "1a");
    let first = intent.after(&intent.operate::<Reboot>().unwrap());
    // For two hours, the pod of the task cannot be created, or waits for its image.
    let later = NOW + 7_200_000;
    for waits in [first.clone().now_ms(later), first.clone().now_ms(later).task("reboot", task("Waiting", None, ""))] {
        let report = waits.progress::<Reboot>().unwrap();
        assert_eq!((reason(&report), report.proposal()), ("State::Processing".to_owned(), Proposal::new()));
    }
    for begun in [task("Running", None, ""), task("Succeeded", Some(0), ""), task("Failed", None, "lost: Evicted")] {
        let begun = first.clone().now_ms(later).task("reboot", begun);
        let report = begun.progress::<Reboot>().unwrap();
        let words = "node n has not rebooted: its boot id is the same";
        let since = Proposal::new().waits_for("Reboot", words).extra(REBOOT_SINCE, later.to_string());
        assert_eq!((reason(&report), report.proposal()), ("State::Processing".to_owned(), since));
        let back = begun.after(&report.proposal());
        assert_eq!(back.progress::<Reboot>().unwrap().proposal(), Proposal::new(), "it is said once");
        let at = |seconds: u64| reason(&back.clone().now_ms(later + seconds * 1_000).progress::<Reboot>().unwrap());
        assert_eq!((at(1_799).as_str(), at(1_800).as_str()), ("State::Processing", "NotRebooted"));
    }
}

#[test]
fn a_node_that_was_cordoned_before_is_not_cordoned_by_the_job() {
    let first = Visit::to(&cordoned(ready("1a")));
    let proposal = first.operate::<Reboot>().unwrap();
    let [Mutation::Task(one)] = proposal.mutations() else { panic!("{proposal:?}") };
    let stores = Proposal::new().extra(WAS_UNSCHEDULABLE, "true").extra(BOOT_ID, "1a").task(one.clone());
    assert_eq!(proposal, stores);
    let done = asked(&cordoned(ready("2b")), 60).task("reboot", task("Succeeded", Some(0), ""));
    assert_eq!(done.progress::<Reboot>().unwrap(), Report::succeeded());
}

#[test]
fn a_drain_comes_before_the_boot_id_is_stored_and_ends_in_time() {
    let first = Visit::to(&ready("1a")).parameters(json!({"drain": true})).operate::<Reboot>().unwrap();
    let since = NOW.to_string();
    assert_eq!(first, Proposal::new().extra(WAS_UNSCHEDULABLE, "false").extra(DRAIN_SINCE, &since).cordon("n"));
    let drain = |now: u64| {
        let visit =
            Visit::to(&held(ready("1a"))).parameters(json!({"drain": true, "force": true, "drainTimeoutSeconds": 60}));
        visit.extra(WAS_UNSCHEDULABLE, "false").extra(DRAIN_SINCE, &NOW.to_string()).now_ms(NOW + now * 1_000)
    };
    let proposal = drain(59).operate::<Reboot>().unwrap();
    let [Mutation::Drain(request)] = proposal.mutations() else { panic!("{proposal:?}") };
    assert_eq!((request.node.as_str(), request.force, request.delete_empty_dir_data), ("n", true, false));
    let blocked = drain(60).extra("Drain", r#"{"state":"Draining","blocked":["d/web-1"],"more":2}"#);
    let failure = blocked.operate::<Reboot>().unwrap_err();
    assert_eq!((failure.reason(), failure.is_retryable()), ("DrainTimeout", false));
    assert!(failure.message().contains("d/web-1 and 2 more"), "{}", failure.message());
    let drained = drain(70).extra("Drain", DRAINED).operate::<Reboot>().unwrap();
    let [Mutation::Task(task)] = drained.mutations() else { panic!("{drained:?}") };
    assert_eq!(drained, Proposal::new().extra(BOOT_ID, "1a").task(task.clone()));
}

/// Returns a pod on the node.
fn on_node(name: &str) -> Sample {
    pod(name).field(&["spec", "nodeName"], json!("n")).field(&["status", "phase"], json!("Running"))
}

/// Returns a visit to a node whose drain began this many seconds ago.
fn drains(seconds: u64, parameters: Value) -> Visit {
    let since = (NOW - seconds * 1_000).to_string();
    Visit::to(&held(ready("1a"))).parameters(parameters).extra(WAS_UNSCHEDULABLE, "false").extra(DRAIN_SINCE, &since)
}

/// Source: planetlabs/draino#73, kubereboot/kured#72.
#[test]
fn a_drain_waits_for_pods_that_ask_not_to_be_disrupted_and_for_jobs_where_it_is_asked_to() {
    let asks = on_node("asks").annotation("karpenter.sh/do-not-disrupt", "true");
    let unsafe_ = on_node("unsafe").annotation("cluster-autoscaler.kubernetes.io/safe-to-evict", "false");
    let batch = on_node("batch").controller("batch/v1", "Job", "b");
    let spared = [
        on_node("plain").annotation("karpenter.sh/do-not-disrupt", "false"),
        on_node("over").controller("batch/v1", "Job", "b").field(&["status", "phase"], json!("Succeeded")),
        on_node("going").controller("batch/v1", "Job", "b").deleted("2026-01-31T11:59:00Z"),
        on_node("daemon").annotation("karpenter.sh/do-not-disrupt", "true").controller("apps/v1", "DaemonSet", "d"),
        on_node("mirror")
            .annotation("karpenter.sh/do-not-disrupt", "true")
            .annotation("kubernetes.io/config.mirror", "x"),
    ];
    let all =
        |visit: Visit| [&asks, &unsafe_, &batch].into_iter().chain(&spared).fold(visit, |visit, pod| visit.object(pod));
    let waits = |parameters: Value| all(drains(30, parameters)).operate::<Reboot>();
    for parameters in
        [json!({"drain": true}), json!({"drain": true, "respectDoNotDisrupt": false, "waitForJobs": false})]
    {
        assert!(matches!(waits(parameters).unwrap().mutations(), [Mutation::Drain(_)]), "as it was before");
    }
    for (parameters, named) in [
        (
            json!({"drain": true, "respectDoNotDisrupt": true}),
            "default/asks (karpenter.sh/do-not-disrupt: true), \
             default/unsafe (cluster-autoscaler.kubernetes.io/safe-to-evict: false)",
        ),
        (json!({"drain": true, "waitForJobs": true}), "default/batch (of a Job)"),
    ] {
        let failure = waits(parameters.clone()).unwrap_err();
        assert!(failure.is_retryable() && failure.reason() == "DrainWaits");
        assert_eq!(failure.message(), format!("Node n is not drained before these pods have ended: {named}."));
        let late = all(drains(600, parameters.clone())).operate::<Reboot>().unwrap_err();
        assert_eq!((late.is_retryable(), late.reason()), (false, "DrainTimeout"));
        assert!(late.message().contains(named), "{}", late.message());
        let gone = spared.iter().fold(drains(30, parameters), |visit, pod| visit.object(pod));
        assert!(matches!(gone.operate::<Reboot>().unwrap().mutations(), [Mutation::Drain(_)]));
    }
    let of_operator = all(drains(30, json!({"drain": true}))).config(json!({"waitForJobs": true}));
    assert_eq!(of_operator.operate::<Reboot>().unwrap_err().reason(), "DrainWaits");
}

#[test]
fn a_node_whose_cordon_is_taken_off_while_its_drain_waits_is_cordoned_again() {
    let batch = on_node("batch").controller("batch/v1", "Job", "b");
    let visit = Visit::to(&ready("1a")).parameters(json!({"drain": true, "waitForJobs": true}));
    let visit = visit.extra(WAS_UNSCHEDULABLE, "false").extra(DRAIN_SINCE, &NOW.to_string()).object(&batch);
    assert_eq!(visit.operate::<Reboot>().unwrap(), Proposal::new().cordon("n"));
}

#[test]
fn a_node_whose_cordon_is_taken_off_is_drained_again_before_its_reboot() {
    let drained = |sample: &Sample, since: u64| {
        let visit = Visit::to(sample).parameters(json!({"drain": true})).extra(WAS_UNSCHEDULABLE, "false");
        visit.extra(DRAIN_SINCE, &(NOW - since).to_string()).extra("Drain", DRAINED)
    };
    // The timeout of the first drain is long over.
    for visit in [drained(&ready("1a"), 7_200_000), drained(&ready("1a"), 7_200_000).extra(BOOT_ID, "1a")] {
        let again = visit.operate::<Reboot>().unwrap();
        let [Mutation::Drain(drain)] = again.mutations() else { panic!("{again:?}") };
        let anew = Proposal::new().extra(DRAIN_SINCE, NOW.to_string());
        assert_eq!(again, anew.mutation(Mutation::Drain(drain.clone())), "with its time anew");
    }
    let by_itself = drained(&ready("2b"), 0).extra(BOOT_ID, "1a");
    assert_eq!(by_itself.operate::<Reboot>().unwrap(), Proposal::new(), "it has rebooted");
}

#[test]
fn a_node_that_rebooted_by_itself_before_its_command_has_its_time_to_be_ready() {
    let unready = with_ready("2b", "False");
    let visit = Visit::to(&held(unready)).extra(WAS_UNSCHEDULABLE, "false").extra(BOOT_ID, "1a");
    for visit in [visit.clone(), visit.task("reboot", task("Waiting", None, ""))] {
        let first = visit.progress::<Reboot>().unwrap();
        let said = Proposal::new().waits_for("Reboot", "node n has rebooted and is not Ready");
        assert_eq!(first.proposal(), said.extra(REBOOT_SINCE, NOW.to_string()));
        let late = visit.after(&first.proposal()).now_ms(NOW + 1_800_000).progress::<Reboot>().unwrap();
        assert_eq!(reason(&late), "NotReady");
    }
}

#[test]
fn a_node_has_rebooted_once_it_is_ready_with_another_boot_id_and_is_uncordoned_first() {
    let running = |sample: &Sample| asked(sample, 60).task("reboot", task("Succeeded", Some(0), ""));
    for still in [ready("1a"), with_ready("1a", "Unknown"), with_ready("2b", "False")] {
        assert_eq!(reason(&running(&held(still)).progress::<Reboot>().unwrap()), "State::Processing");
    }
    let back = running(&held(ready("2b")));
    let report = back.progress::<Reboot>().unwrap();
    assert_eq!((reason(&report), report.proposal()), ("State::Processing".to_owned(), Proposal::new().uncordon("n")));
    assert_eq!(back.after(&report.proposal()).progress::<Reboot>().unwrap(), Report::succeeded());
    assert_eq!(back.deadline_ms(NOW).progress::<Reboot>().unwrap(), Report::succeeded(), "at its deadline, at once");
}

#[test]
fn a_node_that_does_not_come_back_in_time_fails_by_what_is_known_of_it() {
    let late = |sample: Sample| {
        let visit = asked(&held(sample), 1_800).task("reboot", task("Failed", None, "lost"));
        reason(&visit.progress::<Reboot>().unwrap())
    };
    assert_eq!(late(with_ready("1a", "Unknown")), "NotRebooted");
    assert_eq!(late(ready("1a")), "NotRebooted");
    assert_eq!(late(with_ready("2b", "False")), "NotReady");
    let soon = asked(&held(ready("1a")), 90).config(json!({"readyDeadlineSeconds": 60}));
    let soon = soon.task("reboot", task("Succeeded", Some(0), ""));
    assert_eq!(reason(&soon.progress::<Reboot>().unwrap()), "NotRebooted", "the operator's setting counts");
}

#[test]
fn a_command_that_was_refused_fails_at_once_and_one_that_was_lost_is_waited_for() {
    let with = |task: TaskStatus| asked(&held(ready("1a")), 10).task("reboot", task).progress::<Reboot>().unwrap();
    assert_eq!(reason(&with(task("Failed", Some(1), "exit code 1"))), "CommandFailed");
    for never_begun in [
        "refused: cannot reach the root of the node",
        "image: not started within 300 s: ErrImagePull: lost",
        "unschedulable: not started within 300 s",
        "not started within 300 s: CreateContainerError: lost",
    ] {
        assert_eq!(reason(&with(task("Failed", None, never_begun))), "CommandFailed", "{never_begun}");
    }
    let rebooted = "rebooted: the node has the boot id 2b, and 1a was expected";
    let before = "lost: it was begun on this node before";
    for unknown in [
        rebooted,
        before,
        "lost: Evicted",
        "timed out after 300 s",
        "timed out: DeadlineExceeded",
        "it was ended by signal 9",
    ] {
        assert_eq!(reason(&with(task("Failed", None, unknown))), "State::Processing", "{unknown}");
    }
    for waits in [task("Running", None, ""), task("Waiting", None, "")] {
        assert_eq!(reason(&with(waits)), "State::Processing");
    }
}

#[test]
fn a_node_that_is_gone_fails() {
    assert_eq!(reason(&Visit::to_gone("n").progress::<Reboot>().unwrap()), "NodeGone");
    assert!(Visit::to_gone("n").operate::<Reboot>().unwrap().mutations().is_empty());
}

#[test]
fn a_further_attempt_never_asks_for_a_second_reboot() {
    let visit = Visit::to(&ready("2b")).attempt(2).task("reboot", task("Failed", None, "lost"));
    assert_eq!(visit.operate::<Reboot>().unwrap_err().reason(), "RebootIssued");
}

#[test]
fn a_node_that_rebooted_by_itself_after_its_boot_id_was_stored_is_not_rebooted_again() {
    let visit = Visit::to(&held(ready("2b"))).extra(WAS_UNSCHEDULABLE, "false").extra(BOOT_ID, "1a");
    assert!(visit.operate::<Reboot>().unwrap().mutations().is_empty());
    assert_eq!(visit.progress::<Reboot>().unwrap().proposal(), Proposal::new().uncordon("n"));
}

#[test]
fn a_node_without_a_boot_id_is_not_rebooted() {
    let drained = Visit::to(&held(node("n"))).extra(WAS_UNSCHEDULABLE, "false");
    for visit in [Visit::to(&node("n")), drained] {
        let failure = visit.operate::<Reboot>().unwrap_err();
        assert_eq!((failure.reason(), failure.is_retryable()), ("BootIdUnknown", true));
    }
}

#[test]
fn a_release_takes_the_cordon_off_and_says_so_where_the_reboot_was_asked_for() {
    let before = Visit::to(&held(ready("1a"))).release::<Reboot>().unwrap();
    assert_eq!(before, Proposal::new().uncordon("n"));
    let after = asked(&held(ready("1a")), 10).task("reboot", task("Running", None, "")).release::<Reboot>().unwrap();
    assert_eq!((after.mutations(), after.events().len()), (before.mutations(), 1));
}

#[test]
fn manifest_describes_each_parameter_and_each_setting() {
    let manifest = manifest::<Reboot>().unwrap();
    assert_eq!((manifest.name.as_str(), manifest.action.as_str()), ("reboot", "reboot"));
    for schema in [manifest.parameters.unwrap(), manifest.config.unwrap()] {
        assert_eq!(schema["additionalProperties"], false);
        for (name, one) in schema["properties"].as_object().unwrap() {
            assert!(one["description"].is_string(), "{name} is not described");
        }
    }
}
