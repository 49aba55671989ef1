//! One case: what is stored at first, and what happens later.

use proptest::prelude::*;
use proptest::sample::select;
use serde_json::{Value, json};

use crate::bad_input::manners::{Manner, manners};
use crate::bad_input::objects::{NAMES, pod, spec};
use crate::bad_input::status::{record, status};

/// What happens from outside.
#[derive(Clone, Debug)]
pub(super) enum Event {
    Pod(Value),
    Vanishes(&'static str),
    Edit(Value),
    Restart,
    PluginGone,
    PluginBack,
}

fn event() -> BoxedStrategy<(i64, Event)> {
    let what = prop_oneof![
        4 => pod().prop_map(Event::Pod),
        2 => select(NAMES.to_vec()).prop_map(Event::Vanishes),
        1 => status(false).prop_map(|status| Event::Edit(json!({ "status": status }))),
        1 => select(vec![json!({"metadata": {"generation": 2}, "spec": {"partition": 3}}),
                json!({"metadata": {"finalizers": []}}),
                json!({"metadata": {"generation": 3}, "spec": {"targets": [{"name": "c"}]}})]).prop_map(Event::Edit),
        1 => Just(Event::Restart),
        1 => Just(Event::PluginGone),
        1 => Just(Event::PluginBack),
    ];
    (0i64..35_000, what).boxed()
}

#[derive(Clone)]
pub(super) struct Case {
    pub(super) spec: Value,
    pub(super) status: Value,
    pub(super) finalizers: Vec<&'static str>,
    pub(super) records: Vec<Value>,
    pub(super) pods: Vec<Value>,
    pub(super) manners: Vec<Manner>,
    /// How many of a hundred things between host and cluster go wrong.
    pub(super) trouble: u64,
    pub(super) events: Vec<(i64, Event)>,
    pub(super) deleted_at: Option<i64>,
    pub(super) namespace_goes: bool,
    /// How many writes are on the wire at once.
    pub(super) wire: usize,
    pub(super) seed: u64,
}

impl std::fmt::Debug for Case {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            spec,
            status,
            finalizers,
            records,
            pods,
            manners,
            trouble,
            events,
            deleted_at,
            namespace_goes,
            wire,
            seed,
        } = self;
        let count = spec["targets"].as_array().map_or(0, Vec::len);
        let spec = if count > 10 { format!("{count} targets") } else { spec.to_string() };
        let texts = |values: &[Value]| values.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n  ");
        let events: Vec<String> = events.iter().map(|(at, event)| format!("{at}: {event:?}")).collect();
        write!(
            formatter,
            "spec {spec}\nstatus {status}\nfinalizers {finalizers:?}\nrecords {}\npods {}\nmanners {manners:?} trouble \
             {trouble} seed {seed} deleted {deleted_at:?} namespace {namespace_goes} wire {wire}\nevents {events:#?}",
            texts(records),
            texts(pods)
        )
    }
}

pub(super) fn case() -> BoxedStrategy<Case> {
    prop_oneof![9 => case_of(false), 1 => case_of(true)].boxed()
}

fn case_of(sharded: bool) -> BoxedStrategy<Case> {
    let stored = (
        spec(sharded),
        status(sharded),
        select(vec![vec![], vec!["finalizer.operating.kusionstack.io/protected"], vec!["someone.else/s"]]),
        proptest::collection::vec(record(), 0..if sharded { 3 } else { 1 }),
        proptest::collection::vec(pod(), 0..5),
    );
    let course = (
        manners(),
        select(vec![0u64, 0, 20, 60, 100]),
        proptest::collection::vec(event(), 0..5),
        proptest::option::weighted(0.3, 0i64..35_000),
        proptest::bool::weighted(0.2),
        select(if sharded { vec![usize::MAX, 32] } else { vec![usize::MAX, 1, 2] }),
        any::<u64>(),
    );
    (stored, course)
        .prop_map(
            |(
                (spec, status, finalizers, records, pods),
                (manners, trouble, mut events, deleted_at, goes, wire, seed),
            )| {
                events.sort_by_key(|(at, _)| *at);
                // Records that a status does not name are nobody's.
                let records = if status["records"].is_object() { records } else { vec![] };
                Case {
                    spec,
                    status,
                    finalizers,
                    records,
                    pods,
                    manners,
                    trouble,
                    events,
                    deleted_at,
                    namespace_goes: goes,
                    wire,
                    seed,
                }
            },
        )
        .boxed()
}
