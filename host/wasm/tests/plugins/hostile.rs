//! Hostile plugins: each misdeed costs at most its own call.

use std::sync::Arc;

use oarlock_core::object::api_object::ObjectKey;
use oarlock_core::plugin::authorize::{Authority, authorize};
use oarlock_core::plugin::lookup::PluginInfo;
use oarlock_core::plugin::proposal::{CallFailure, Proposal};
use oarlock_core::plugin::visit::{Answer, Call};
use oarlock_core::requests::live_reads::Sighting;
use oarlock_wasm::{PluginStatus, Plugins};
use serde_json::{Value, json};

use crate::components::{NOW_MS, all_of, component, options, serving, trap, visit};

const FUNCTIONS: [(&str, Call); 3] =
    [("operate", Call::OperateThenProgress), ("progress", Call::Progress), ("release", Call::Release)];

async fn asked(plugins: &Plugins, info: &PluginInfo, parameters: Value, call: Call) -> Answer {
    plugins.wave(&info.digest).unwrap().call(visit("Hostile", call, parameters)).await
}

/// Does a misdeed in each function, and checks that the next call of the same session succeeds.
async fn in_each_function(what: &str, check: impl Fn(&str, Answer)) {
    let (plugins, info) = serving("hostile").await;
    for (function, call) in FUNCTIONS {
        let mut session = plugins.wave(&info.digest).unwrap();
        check(function, session.call(visit("Hostile", call, json!({"do": format!("{what}-in-{function}")}))).await);
        let after = session.call(visit("Hostile", Call::OperateThenProgress, json!({}))).await;
        assert!(matches!(&after, Answer::Proposed(proposal) if proposal.mutations.len() == 1), "{after:?}");
    }
}

async fn stopped_by_a_limit(what: &str, why: &str) {
    in_each_function(what, |function, answer| {
        let trap = trap(answer);
        assert_eq!(trap.reason, "PluginLimitExceeded", "{}", trap.message);
        assert!(trap.message.contains(function) && trap.message.contains(why), "{}", trap.message);
    })
    .await;
}

#[tokio::test]
async fn a_trap_quotes_the_standard_error_of_the_plugin() {
    in_each_function("trap", |function, answer| {
        let trap = trap(answer);
        assert_eq!(trap.reason, "PluginTrapped");
        let said = format!("{function} trapped: ");
        assert!(
            trap.message.starts_with(&said) && trap.message.contains("hostile: it was told to trap"),
            "{}",
            trap.message
        );
    })
    .await;
}

#[tokio::test]
async fn an_endless_loop_is_stopped_by_the_clock() {
    stopped_by_a_limit("loop", "it ran longer than 50 ms").await;
}

#[tokio::test(start_paused = true)]
async fn an_endless_loop_is_stopped_on_paused_time_too() {
    stopped_by_a_limit("loop", "it ran longer than 50 ms").await;
}

#[tokio::test]
async fn neighbours_go_on_while_a_plugin_loops() {
    let (plugins, info) = serving("hostile").await;
    let looping = asked(&plugins, &info, json!({"do": "loop-in-operate"}), Call::OperateThenProgress);
    let neighbours = async {
        for done in 1_u32.. {
            let answer = asked(&plugins, &info, json!({}), Call::OperateThenProgress).await;
            assert!(matches!(answer, Answer::Proposed(_)));
            if done >= 10 {
                return;
            }
        }
    };
    // Both run on one thread, so that the loop has to let the others run.
    tokio::select! {
        biased;
        answer = looping => panic!("ten neighbours take less than a runaway: {answer:?}"),
        () = neighbours => {}
    }
}

#[tokio::test]
async fn a_memory_bomb_is_stopped() {
    stopped_by_a_limit("memory-bomb", "more than 16 MiB of memory").await;
}

#[tokio::test]
async fn deep_recursion_is_stopped() {
    in_each_function("deep-recursion", |_, answer| {
        let trap = trap(answer);
        // Either of two stacks overflows first: the engine's stack, or the stack that the guest keeps in its memory.
        assert!(["PluginLimitExceeded", "PluginTrapped"].contains(&trap.reason), "{}", trap.message);
    })
    .await;
}

#[tokio::test]
async fn an_answer_of_16_megabytes_is_not_taken() {
    in_each_function("huge-output", |_, answer| assert_eq!(trap(answer).reason, "PluginLimitExceeded")).await;
}

#[tokio::test]
async fn an_extra_of_10_megabytes_is_not_taken() {
    in_each_function("huge-extra", |_, answer| assert_eq!(trap(answer).reason, "PluginLimitExceeded")).await;
}

#[tokio::test]
async fn ten_thousand_mutations_or_events_are_not_taken() {
    for what in ["many-mutations", "many-events"] {
        in_each_function(what, |_, answer| assert_eq!(trap(answer).reason, "PluginLimitExceeded")).await;
    }
}

#[tokio::test]
async fn host_calls_without_end_are_stopped() {
    stopped_by_a_limit("call-flood", "it called the host more than 10000 times").await;
}

#[tokio::test]
async fn a_flood_of_log_lines_is_stopped_as_host_calls_without_end() {
    in_each_function("log-flood", |_, answer| assert_eq!(trap(answer).reason, "PluginLimitExceeded")).await;
}

#[tokio::test]
async fn bytes_that_are_no_text_are_garbage() {
    in_each_function("invalid-utf8", |_, answer| assert_eq!(trap(answer).reason, "PluginTrapped")).await;
}

#[tokio::test]
async fn json_that_is_none_is_garbage() {
    in_each_function("garbled-json", |function, answer| {
        let trap = trap(answer);
        assert!(trap.message.starts_with(&format!("{function} returned garbage")), "{}", trap.message);
    })
    .await;
}

#[tokio::test]
async fn an_undeclared_read_is_refused_by_name() {
    let (plugins, info) = serving("hostile").await;
    for (what, named) in [
        ("undeclared-field", "/spec/nodeName"),
        ("undeclared-kind", "Secret"),
        ("undeclared-relation", "never-declared"),
    ] {
        let parameters = json!({"do": format!("{what}-in-operate")});
        let answer = asked(&plugins, &info, parameters, Call::OperateThenProgress).await;
        let Answer::Failed(CallFailure { retryable, reason, message, .. }) = answer else { panic!("{answer:?}") };
        assert!(!retryable && reason == "NotDeclared" && message.contains(named), "{reason}: {message}");
    }
}

fn gate(info: &PluginInfo, proposal: &Proposal) -> Result<(), String> {
    let target = ObjectKey::pod("shop", "web");
    let gate = Authority {
        manifest: &info.manifest,
        grant: &info.grant,
        namespace: "shop",
        job_uid: "job-1",
        target: &target,
        target_uid: Some("uid-web"),
        extras: &Default::default(),
        seen: &|_| Sighting::Unread,
    };
    authorize(proposal, &gate).map_err(|denied| denied.to_string())
}

#[tokio::test]
async fn texts_of_plugins_can_be_shown() {
    let (plugins, info) = serving("hostile").await;
    let parameters = json!({"do": "control-characters-in-release"});
    let Answer::Proposed(proposal) = asked(&plugins, &info, parameters, Call::Release).await else { panic!() };
    assert!(proposal.events.iter().all(|event| !event.message.chars().any(char::is_control)));
    assert!(proposal.events.iter().all(|event| event.reason.chars().all(|c| c.is_ascii_alphanumeric())));
}

#[tokio::test]
async fn a_repeated_call_draws_the_same_lot() {
    let (plugins, info) = serving("hostile").await;
    let parameters = json!({"do": "nondeterministic-in-release"});
    let first = asked(&plugins, &info, parameters.clone(), Call::Release).await;
    for _ in 0..20 {
        assert_eq!(asked(&plugins, &info, parameters.clone(), Call::Release).await, first);
    }
    let mut again = visit("Hostile", Call::Release, parameters);
    again.target.attempt = 2;
    assert_ne!(plugins.wave(&info.digest).unwrap().call(again).await, first);
}

#[tokio::test]
async fn every_clock_of_a_plugin_stands_still_at_the_time_of_its_visit() {
    let (plugins, info) = serving("hostile").await;
    let parameters = json!({"do": "clock-in-release"});
    let Answer::Proposed(proposal) = asked(&plugins, &info, parameters, Call::Release).await else { panic!() };
    assert_eq!(proposal.set_extra, [("Clock".to_owned(), format!("{NOW_MS} 0"))]);
}

async fn set_up(how: &str) -> (Plugins, PluginStatus) {
    let bytes = component("hostile");
    let plugins = Plugins::start(options()).await.unwrap();
    plugins.set_grants(vec![all_of(&bytes, Some(json!({"setup": how})))]).await;
    let status = plugins.publish("hostile", bytes).await.unwrap();
    (plugins, status)
}

#[tokio::test]
async fn each_misdeed_of_setup_is_a_rejection_in_words() {
    for (how, reason, words) in [
        ("trap", "SetupTrapped", "hostile: it was told to trap"),
        ("loop", "SetupTrapped", "it ran longer than 50 ms"),
        ("memory-bomb", "SetupTrapped", "more than 16 MiB of memory"),
        ("deep-recursion", "SetupTrapped", "setup"),
        ("huge-output", "SetupTrapped", "PluginLimitExceeded"),
        ("many-relations", "SetupTrapped", "bytes"),
        ("same-name", "RegistrationRefused", "declares relation twice twice"),
        ("undeclared-kind", "RegistrationRefused", "Secret"),
        ("unknown-relation", "SetupTrapped", "by-moonlight"),
        ("fail", "SetupFailed", "It was told to refuse."),
        ("retry", "SetupFailed", "It was told to try for ever."),
    ] {
        let (plugins, status) = set_up(how).await;
        assert_eq!(status.reason, reason, "{how}: {}", status.message);
        assert!(status.message.contains(words), "{how}: {}", status.message);
        assert!(plugins.digests().is_empty());
    }
    let (plugins, status) = set_up("succeed").await;
    assert_eq!(status.reason, "Serving");
    assert_eq!(plugins.digests().len(), 1);
}

#[tokio::test]
async fn a_plugin_that_overreaches_its_own_manifest_is_refused_at_the_gate() {
    let (plugins, info) = serving("examples/overreach").await;
    let answer = plugins
        .wave(&Arc::clone(&info).digest)
        .unwrap()
        .call(visit("Overreach", Call::OperateThenProgress, json!({})))
        .await;
    let Answer::Proposed(proposal) = answer else { panic!("{answer:?}") };
    assert!(gate(&info, &proposal).is_err());
}
