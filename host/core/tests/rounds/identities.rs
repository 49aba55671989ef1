//! Plugins with an identity: which writes of a round the host makes as the plugin's account, and what a missing right looks like.

use oarlock_core::plugin::grant::Identity;
use oarlock_core::plugin::lookup::{PluginInfo, PluginLookup};
use oarlock_core::plugin::proposal::Proposal;
use oarlock_core::plugin::visit::{Answer, Call, Visit};
use oarlock_core::requests::writes::{Lacking, Stopped};
use serde_json::json;

use crate::answers::{evict, evict_and_wait, marking, proposing};
use crate::bench::plugin::{plugin, task_plugin};
use crate::bench::{Bench, START};
use crate::tasks;

/// Gives the plugin the account `swap`.
fn with_identity(found: &PluginLookup) -> PluginLookup {
    let PluginLookup::Serving(info) = found else { panic!("it serves") };
    let mut info = PluginInfo::clone(info);
    info.grant.identity = Some(Identity { service_account: "swap".into() });
    PluginLookup::Serving(info.into())
}

/// Returns a bench with the target `a` and a plugin with an identity.
fn bench(dry_run: bool) -> Bench {
    let mut spec = Bench::targets(&["a"]);
    spec["dryRun"] = json!(dry_run);
    let mut bench = Bench::new(spec);
    bench.pod("a", "1");
    bench.found = with_identity(&plugin());
    bench
}

/// Marks the target, and proposes in the release what `released` says.
fn marks_until(visit: &Visit, released: &dyn Fn(&Visit) -> Answer) -> Answer {
    if visit.call == Call::Release { released(visit) } else { marking(visit) }
}

/// Returns the writes of pods that were sent, in order.
fn sent(bench: &mut Bench) -> Vec<String> {
    let mut sent = std::mem::take(&mut bench.sent);
    sent.retain(|line| line != "status" && line != "finalizer");
    sent
}

/// Deletes the job, and returns the writes of its end.
fn released(bench: &mut Bench, answer: &dyn Fn(&Visit) -> Answer) -> Vec<String> {
    bench.edit(&json!({"metadata": {"deletionTimestamp": START}}));
    for _ in 0..6 {
        bench.settle(&mut |visit| marks_until(visit, answer));
        bench.later(2);
    }
    sent(bench)
}

#[test]
fn a_proposal_is_made_as_the_account_and_the_release_as_the_host() {
    let mut bench = bench(false);
    let nothing = |_: &Visit| Answer::Proposed(Proposal::default());
    bench.settle(&mut |visit| marks_until(visit, &nothing));
    assert_eq!(sent(&mut bench), ["patch a as swap"]);
    let released = released(&mut bench, &nothing);
    assert!(released.contains(&"patch a".to_owned()), "{released:?}");
    assert!(!released.iter().any(|line| line.contains(" as ")), "{released:?}");
}

#[test]
fn an_eviction_that_a_plugin_proposes_in_its_release_is_made_as_the_account() {
    let mut bench = bench(false);
    bench.settle(&mut |visit| marks_until(visit, &evict));
    sent(&mut bench);
    let released = released(&mut bench, &evict);
    assert!(released.contains(&"evict a as swap".to_owned()), "{released:?}");
}

#[test]
fn a_write_keeps_the_account_if_the_plugin_loses_its_grant_before_the_write_is_sent() {
    let mut bench = bench(false);
    bench.wire = 0;
    bench.settle(&mut evict_and_wait);
    bench.found = PluginLookup::NotServing { reason: "AwaitingGrant", message: "writes: []".into() };
    bench.wire = 1;
    bench.send();
    let sent = sent(&mut bench);
    assert!(sent.is_empty() || sent == ["evict a as swap"], "never as the host: {sent:?}");
}

#[test]
fn a_dry_run_is_tried_as_the_account() {
    let mut bench = bench(true);
    bench.settle(&mut evict_and_wait);
    assert_eq!(sent(&mut bench), ["try to evict a as swap"]);
}

#[test]
fn a_missing_right_is_told_by_whose_it_is_and_the_write_is_tried_again() {
    for (lacking, reason) in
        [(Lacking::PluginRight, "MutationDenied"), (Lacking::Impersonation, "HostMayNotImpersonate")]
    {
        let stopped = Stopped::Forbidden { lacking, message: "User x cannot".into() };
        let mut dry = bench(true);
        dry.refuse.insert("evict", stopped.clone());
        for _ in 0..4 {
            dry.settle(&mut evict_and_wait);
            dry.later(2);
        }
        assert_eq!(dry.word(0), format!("Failed/{reason}"));
        let mut bench = bench(false);
        bench.refuse.insert("evict", stopped);
        for _ in 0..10 {
            bench.settle(&mut evict_and_wait);
            bench.later(10);
        }
        assert_eq!(bench.word(0), format!("Processing/{reason}"));
        bench.refuse.clear();
        bench.later(120);
        bench.settle(&mut evict_and_wait);
        assert!(sent(&mut bench).ends_with(&["evict a as swap".to_owned()]));
    }
}

#[test]
fn the_host_makes_the_pods_of_tasks_as_itself() {
    let mut bench = tasks::bench(&json!({}));
    bench.found = with_identity(&task_plugin());
    let begin = tasks::task("run-on-node", json!({"script": {"text": "echo hello"}}));
    bench.settle(&mut |_| proposing(vec![begin.clone()]));
    let sent = sent(&mut bench);
    assert!(sent.iter().any(|line| line.starts_with("create ")), "{sent:?}");
    assert!(!sent.iter().any(|line| line.contains(" as ")), "{sent:?}");
}
