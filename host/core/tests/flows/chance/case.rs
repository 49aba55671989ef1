//! Random flows, and the outcome of each attempt of their steps.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use serde_json::{Value, json};

use crate::fixture::make::{job, with};

/// The kind of work of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Job,
    /// A Job that expires as soon as it has ended.
    Brief,
    Suspended,
    Template,
    /// A template that does not exist.
    Absent,
    Operation,
}

/// The outcome of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Well,
    Ill,
    /// The infrastructure fails the attempt.
    Evicted,
    /// Somebody deletes the child.
    Deleted,
}

/// A step of a random flow.
#[derive(Clone, Debug)]
pub(super) struct StepCase {
    pub(super) needs: Vec<usize>,
    pub(super) when: Option<&'static str>,
    pub(super) tolerated: bool,
    /// The step handles failures of its dependencies.
    pub(super) handles: bool,
    pub(super) limit: Option<u8>,
    pub(super) kind: Kind,
    pub(super) ends: Vec<End>,
}

/// A random flow and the events that happen to it.
#[derive(Clone, Debug)]
pub(super) struct Case {
    pub(super) steps: Vec<StepCase>,
    pub(super) last: Vec<StepCase>,
    pub(super) policy: &'static str,
    pub(super) timeout: Option<u8>,
    /// The wave in which the flow is suspended for a while.
    pub(super) suspended_at: Option<u8>,
    pub(super) seed: u16,
}

impl Case {
    /// Returns the spec with its steps in this order.
    pub(super) fn spec(&self, order: &[usize]) -> Value {
        let flows: Vec<Value> = order.iter().map(|index| self.steps[*index].object(&format!("s{index}"))).collect();
        let last = self.last.iter().enumerate().map(|(index, step)| step.object(&format!("z{index}")));
        json!({"flows": flows, "finally": last.collect::<Vec<_>>(), "failurePolicy": {"type": self.policy},
            "timeoutSeconds": self.timeout})
    }

    /// Returns the step of this name.
    pub(super) fn step(&self, name: &str) -> &StepCase {
        let index: usize = name[1..].parse().unwrap();
        if name.starts_with('s') { &self.steps[index] } else { &self.last[index] }
    }
}

impl StepCase {
    fn object(&self, name: &str) -> Value {
        let needs: Vec<String> = self.needs.iter().map(|index| format!("s{index}")).collect();
        let targets = ["a", "b"].map(|name| json!({"name": name}));
        let work = match self.kind {
            Kind::Job => json!({"jobTemplate": job()}),
            Kind::Brief => json!({"jobTemplate": with(job(), json!({"ttlSecondsAfterFinished": 0}))}),
            Kind::Suspended => json!({"jobTemplate": with(job(), json!({"suspend": true}))}),
            Kind::Template => json!({"jobTemplateRef": "there"}),
            Kind::Absent => json!({"jobTemplateRef": "absent"}),
            Kind::Operation => {
                json!({"operation": {"action": "reboot", "targets": targets, "TTLSecondsAfterFinished": 0}})
            }
        };
        let retry = self.limit.map(|limit| json!({"limit": limit, "infraLimit": 1, "backoffSeconds": 4}));
        let step = json!({"name": name, "continueOnFailure": self.tolerated, "retryPolicy": retry,
            "handlesFailure": self.handles,
            "dependencies": if needs.is_empty() { Value::Null } else { json!(needs) }, "when": self.when});
        with(step, work)
    }
}

fn kind() -> impl Strategy<Value = Kind> {
    prop_oneof![
        8 => Just(Kind::Job), 3 => Just(Kind::Brief), 1 => Just(Kind::Suspended),
        2 => Just(Kind::Template), 1 => Just(Kind::Absent), 2 => Just(Kind::Operation),
    ]
}

fn end() -> impl Strategy<Value = End> {
    prop_oneof![6 => Just(End::Well), 2 => Just(End::Ill), 1 => Just(End::Evicted), 1 => Just(End::Deleted)]
}

type Raw = (Vec<Index>, Option<&'static str>, (bool, bool), Option<u8>, Kind, Vec<End>);

fn raw(most_needs: usize) -> impl Strategy<Value = Raw> {
    (
        vec(any::<Index>(), 0..=most_needs),
        prop_oneof![4 => Just(None), 1 => Just(Some("success")), 2 => Just(Some("failure")), 2 => Just(Some("finished"))],
        (proptest::bool::weighted(0.2), any::<bool>()),
        proptest::option::weighted(0.4, 0u8..3),
        kind(),
        vec(end(), 4),
    )
}

fn step((needs, when, (tolerated, handles), limit, kind, ends): Raw, before: usize, is_last: bool) -> StepCase {
    let mut needs: Vec<usize> =
        if before == 0 || is_last { Vec::new() } else { needs.iter().map(|need| need.index(before)).collect() };
    needs.sort_unstable();
    // The host refuses a step with `when: failure` and no dependency.
    let when = when.filter(|when| is_last || *when != "failure" || !needs.is_empty());
    let handles = handles && when == Some("failure") && !is_last;
    StepCase { needs, when, tolerated, handles, limit, kind, ends }
}

fn of(steps: impl Strategy<Value = Vec<Raw>>) -> impl Strategy<Value = Case> {
    let last = prop_oneof![3 => Just(0..=0usize), 1 => Just(1..=2usize)].prop_flat_map(|count| vec(raw(0), count));
    let policy = select(vec!["FailFast", "Continue", "Pause"]);
    let timeout = proptest::option::weighted(0.2, 1u8..40);
    (steps, last, policy, timeout, proptest::option::weighted(0.2, 0u8..6), any::<u16>()).prop_map(
        |(steps, last, policy, timeout, suspended_at, seed)| Case {
            steps: steps.into_iter().enumerate().map(|(index, raw)| step(raw, index, false)).collect(),
            last: last.into_iter().map(|raw| step(raw, 0, true)).collect(),
            policy,
            timeout,
            suspended_at,
            seed,
        },
    )
}

/// Returns a strategy of small flows.
pub(super) fn case() -> impl Strategy<Value = Case> {
    of(vec(raw(3), 1..=7))
}

/// Returns a strategy of flows with hundreds of steps.
pub(super) fn large_case() -> impl Strategy<Value = Case> {
    of(prop_oneof![vec(raw(4), 90..=200), vec(raw(2), 450..=498)])
}
