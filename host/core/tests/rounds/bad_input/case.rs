//! One case: the stored state at first, and the events that happen later.

use proptest::prelude::*;
use proptest::sample::select;
use serde_json::{Value, json};

use crate::bad_input::manners::{Manner, manners};
use crate::bad_input::objects::{NAMES, pod, spec};
use crate::bad_input::status::{record, status};

/// JSON that is printed on one line. Many targets are printed as their number.
#[derive(Clone)]
pub(super) struct Shown(pub(super) Value);

impl std::fmt::Debug for Shown {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut value = self.0.clone();
        let targets = self.0["targets"].as_array().map_or(0, Vec::len);
        if targets > 10 {
            value["targets"] = json!(targets);
        }
        write!(formatter, "{value}")
    }
}

/// An event from outside the host.
#[derive(Clone, Debug)]
pub(super) enum Event {
    Pod(Shown),
    Vanishes(&'static str),
    Edit(Shown),
    Restart,
    PluginGone,
    PluginBack,
}

fn event() -> BoxedStrategy<(i64, Event)> {
    let what = prop_oneof![
        4 => pod().prop_map(Shown).prop_map(Event::Pod),
        2 => select(NAMES.to_vec()).prop_map(Event::Vanishes),
        1 => status(false).prop_map(|status| Event::Edit(Shown(json!({ "status": status })))),
        1 => select(vec![json!({"metadata": {"generation": 2}, "spec": {"partition": 3}}),
                json!({"metadata": {"finalizers": []}}),
                json!({"metadata": {"generation": 3}, "spec": {"targets": [{"name": "c"}]}})])
            .prop_map(Shown).prop_map(Event::Edit),
        1 => Just(Event::Restart),
        1 => Just(Event::PluginGone),
        1 => Just(Event::PluginBack),
    ];
    (0i64..35_000, what).boxed()
}

/// A stored job, and the events that follow.
#[derive(Clone, Debug)]
pub(super) struct Case {
    pub(super) stored: Stored,
    pub(super) later: Later,
}

/// The state at first.
#[derive(Clone, Debug)]
pub(super) struct Stored {
    pub(super) spec: Shown,
    pub(super) status: Shown,
    pub(super) finalizers: Vec<&'static str>,
    pub(super) records: Vec<Shown>,
    pub(super) pods: Vec<Shown>,
}

/// The events and behaviours that follow.
#[derive(Clone, Debug)]
pub(super) struct Later {
    pub(super) manners: Vec<Manner>,
    /// The number of failures among a hundred requests between host and cluster.
    pub(super) trouble: u64,
    pub(super) events: Vec<(i64, Event)>,
    pub(super) deleted_at: Option<i64>,
    pub(super) namespace_goes: bool,
    /// The number of writes that are in flight at once.
    pub(super) wire: usize,
    pub(super) seed: u64,
}

pub(super) fn case() -> BoxedStrategy<Case> {
    prop_oneof![9 => case_of(false), 1 => case_of(true)].boxed()
}

fn case_of(uses_records: bool) -> BoxedStrategy<Case> {
    (stored(uses_records), later(uses_records)).prop_map(|(stored, later)| Case { stored, later }).boxed()
}

fn stored(uses_records: bool) -> BoxedStrategy<Stored> {
    let fields = (
        spec(uses_records).prop_map(Shown),
        status(uses_records).prop_map(Shown),
        select(vec![vec![], vec!["finalizer.operating.kusionstack.io/protected"], vec!["someone.else/s"]]),
        proptest::collection::vec(record().prop_map(Shown), 0..if uses_records { 3 } else { 1 }),
        proptest::collection::vec(pod().prop_map(Shown), 0..5),
    );
    fields
        .prop_map(|(spec, status, finalizers, records, pods)| {
            // A record that no status names belongs to no job.
            let records = if status.0["records"].is_object() { records } else { vec![] };
            Stored { spec, status, finalizers, records, pods }
        })
        .boxed()
}

fn later(uses_records: bool) -> BoxedStrategy<Later> {
    let fields = (
        manners(),
        select(vec![0u64, 0, 20, 60, 100]),
        proptest::collection::vec(event(), 0..5),
        proptest::option::weighted(0.3, 0i64..35_000),
        proptest::bool::weighted(0.2),
        select(if uses_records { vec![usize::MAX, 32] } else { vec![usize::MAX, 1, 2] }),
        any::<u64>(),
    );
    fields
        .prop_map(|(manners, trouble, mut events, deleted_at, namespace_goes, wire, seed)| {
            events.sort_by_key(|(at, _)| *at);
            Later { manners, trouble, events, deleted_at, namespace_goes, wire, seed }
        })
        .boxed()
}
