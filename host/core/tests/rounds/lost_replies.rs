//! Whole rounds against a cluster whose replies are lost, late or refused. The records stay true, and no target is held up forever. Source:
//! docs/operationjob.md 3.1.9, 3.7.7, 3.11, 3.15.6, S3, S6, S7.

mod giving_up;
mod looks;
mod releases;
mod script;
mod writes;

use std::sync::Arc;

use oarlock_core::object::api_object::{Object, ObjectKey};
use oarlock_core::plugin::grant::WriteRule;
use oarlock_core::plugin::lookup::{PluginInfo, PluginLookup};
use oarlock_core::plugin::proposal::{Mutation, Proposal, Report, State};
use oarlock_core::plugin::visit::{Answer, Call, Visit};
use oarlock_core::requests::writes::Stopped;
use serde_json::Value;

use crate::answers::{change, itself, proposing, report};
use crate::bench::Bench;
use crate::bench::weather::Fate;

fn refused() -> Fate {
    Fate::Stopped(Stopped::Refused { message: "a webhook says no".into() })
}

/// Returns the fate of a request in flight whose reply never arrives.
fn lost() -> Fate {
    Fate::Stopped(Stopped::Unknown { message: "timed out".into() })
}

/// Returns a change of the target's metadata that sets this label to `true` and adds this finalizer, if given.
fn marking(visit: &Visit, label: Option<&str>, finalizer: Option<&str>) -> Mutation {
    change(visit, label.map(|label| (label, "true")), finalizer)
}

fn evicting(visit: &Visit) -> Mutation {
    Mutation::Evict { pod: itself(visit), grace_seconds: None }
}

fn pod(bench: &Bench) -> Arc<Object> {
    bench.store.get(&ObjectKey::pod("d", "a")).unwrap()
}

/// Returns the usual plugin of a bench with these additional writes.
fn plugin(more: &[Value]) -> PluginLookup {
    let found = crate::bench::plugin::plugin();
    let mut plugin = PluginInfo::clone(found.serving().unwrap());
    let rules = more.iter().map(|rule| serde_json::from_value::<WriteRule>(rule.clone()).unwrap());
    for rules_of in [&mut plugin.manifest.writes, &mut plugin.grant.writes] {
        rules_of.extend(rules.clone());
    }
    PluginLookup::Serving(Arc::new(plugin))
}

/// Runs rounds as they become due, for this many seconds.
fn run(bench: &mut Bench, seconds: i64, answer: &mut dyn FnMut(&Visit) -> Answer) {
    for _ in 0..seconds {
        bench.settle(answer);
        bench.later(1);
    }
}

/// Marks the target, then waits.
fn mark(visit: &Visit) -> Answer {
    let marked = visit.target.object.as_ref().is_some_and(|object| object.labels.contains_key("mark"));
    match visit.call {
        Call::Release => Answer::Proposed(Proposal::default()),
        Call::OperateThenProgress if !marked => proposing(vec![marking(visit, Some("mark"), Some("f.io/f"))]),
        _ => report(State::Processing),
    }
}

/// Proposes these mutations in one visit, `at` seconds after the first visit, then waits.
fn once(at: u64, mutations: impl Fn(&Visit) -> Vec<Mutation>) -> impl FnMut(&Visit) -> Answer {
    let (mut begin, mut proposed) = (None, false);
    move |visit: &Visit| {
        let since = visit.job.now_ms - *begin.get_or_insert(visit.job.now_ms);
        let now = visit.call == Call::OperateThenProgress && since >= at * 1_000;
        match visit.call {
            Call::Release => Answer::Proposed(Proposal::default()),
            _ if now && !std::mem::replace(&mut proposed, true) => proposing(mutations(visit)),
            _ => {
                let wait = (at * 1_000).saturating_sub(since).clamp(1_000, 60_000);
                let report = Report {
                    state: State::Processing,
                    proposal: Proposal::default(),
                    check_after_ms: Some(u32::try_from(wait).unwrap()),
                };
                Answer::Reported { operate: Proposal::default(), report }
            }
        }
    }
}

/// Returns the seconds from now until the target has failed.
fn until_failed(bench: &mut Bench, answer: &mut dyn FnMut(&Visit) -> Answer) -> i64 {
    for seconds in 0..200 {
        bench.settle(answer);
        if bench.word(0) == "Failed/DeadlineExceeded" {
            return seconds;
        }
        bench.later(1);
    }
    panic!("its time is long over: {:#?}", bench.memory);
}
