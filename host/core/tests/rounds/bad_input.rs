//! Rounds from whatever somebody may have stored: no round panics, no job spins, and none is forgotten.
//!
//! Generated are pods (times at the ends of the calendar, any grace period, odd owners, garbled holds), statuses and
//! records of every shape that the schema lets pass, specs, answers of bad plugins, and a cluster that refuses, loses and
//! forgets. What a plugin and a cluster do later comes from a seed. Source: docs/operationjob.md 3.1, 3.8, 3.11, L1, L3.

use std::cell::RefCell;
use std::collections::{BTreeSet, VecDeque};
use std::rc::Rc;

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use oarlock_core::cluster::live_reads::LiveRead;
use oarlock_core::cluster::object::{Kind, ObjectKey};
use oarlock_core::cluster::writes::{Stopped, Write};
use oarlock_core::job::state::{JobState, TargetState};
use oarlock_core::job::time::{after, after_millis, after_seconds};
use oarlock_core::plugin::lookup::PluginLookup;
use oarlock_core::plugin::proposal::{
    CallFailure, MetadataChange, Mutation, ObjectRef, PluginError, PluginEvent, Proposal, Report, State,
};
use oarlock_core::plugin::visit::{Answer, Call, Trap, Visit};
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::RngSeed;
use serde_json::{Map, Value, json};

use crate::bench::{Bench, Fate, Going, JOB_UID, Look, START, Weather};

/// Most rounds of a job within ten seconds in which nothing comes from outside, and more for each of its targets. The first
/// wave, an end with its bump, look and traps, and the first quick visits to each target come at once, and so do the 32 live
/// reads that a visit may ask for one by one; after that all waits grow. A job that spins makes two thousand.
const ROUNDS: usize = 200;
const ROUNDS_EACH: usize = 4;
const WITHIN: SignedDuration = SignedDuration::from_secs(10);
/// Shortest time from one round of a job to the next, as the host keeps it.
const GATHERING: SignedDuration = SignedDuration::from_millis(5);
/// From a request to its reply.
const ROUND_TRIP: SignedDuration = SignedDuration::from_millis(20);
/// How long plugin and cluster are at their worst.
const STORM: SignedDuration = SignedDuration::from_secs(40);
/// How long after its deadline a target may take to end, once the cluster is well: the back-off of a write, and the time
/// for which a request of unknown outcome may still take effect.
const GRACE: SignedDuration = SignedDuration::from_secs(150);
/// How long a deleted job may take to go, once the cluster is well: six tries to release, a minute apart,
/// and as many once what was held is let go.
const GOING: SignedDuration = SignedDuration::from_secs(1_000);

const UIDS: [&str; 5] = ["u-a", "u-b", "u-c", "v-a", "other"];
const NAMES: [&str; 3] = ["a", "b", "c"];

/// An object of these fields, each there or not.
fn object(fields: Vec<(&'static str, BoxedStrategy<Value>)>) -> BoxedStrategy<Value> {
    let fields: Vec<_> = fields
        .into_iter()
        .map(|(name, value)| proptest::option::weighted(0.7, value).prop_map(move |value| (name, value)))
        .collect();
    fields
        .prop_map(|fields| {
            let there = fields.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
            Value::Object(there.collect::<Map<_, _>>())
        })
        .boxed()
}

fn one_of<T: Into<Value> + Clone + std::fmt::Debug + 'static>(values: Vec<T>) -> BoxedStrategy<Value> {
    select(values).prop_map(Into::into).boxed()
}

fn list(of: BoxedStrategy<Value>, most: usize) -> BoxedStrategy<Value> {
    proptest::collection::vec(of, 0..=most).prop_map(Value::Array).boxed()
}

fn time() -> BoxedStrategy<Value> {
    one_of(vec![
        "0000-01-01T00:00:00Z",
        "-009999-01-02T01:59:59Z",
        "1969-12-31T23:59:59Z",
        "2025-12-31T23:00:00Z",
        "2025-12-31T23:59:58Z",
        START,
        "2026-01-01T00:00:30Z",
        "9999-12-30T21:59:59Z",
        "9999-12-31T23:59:59Z",
        "soon",
        "",
    ])
}

fn word() -> BoxedStrategy<Value> {
    one_of(vec!["Pending", "Processing", "Processing", "Succeeded", "Failed", "Great", ""])
}

fn extras() -> BoxedStrategy<Value> {
    object(vec![
        ("NewPod", one_of(vec!["b", "c", "nobody", ""])),
        ("ClaimedUID", one_of(vec!["NewPod=Pod/u-b", "NewPod=Pod/", "NewPod", "=/", ",,,"])),
        ("Owner", one_of(vec!["CloneSet/s/set", "StatefulSet/s/set", "DaemonSet/s/set", "/", "", "ReplicaSet/r/rs"])),
        ("Node", one_of(vec!["", "n"])),
        ("EvictedAt", time()),
        ("Released", one_of(vec!["true", "false", ""])),
        ("Mode", one_of(vec!["Evict", "?"])),
    ])
}

fn detail() -> BoxedStrategy<Value> {
    let error = object(vec![("reason", one_of(vec!["JobDeleted", ""])), ("message", one_of(vec!["m", ""]))]);
    object(vec![
        ("name", one_of(vec!["a", "b", "c", "z", "", "p4/status"])),
        ("progress", word()),
        ("progress", word()),
        ("startTime", time()),
        ("endTime", time()),
        ("extraInfo", extras()),
        (
            "error",
            error.prop_filter("both are required", |e| e["reason"].is_string() && e["message"].is_string()).boxed(),
        ),
        ("uid", one_of(UIDS.to_vec())),
        ("attempt", one_of(vec![i32::MIN, -1, 0, 1, 7, i32::MAX])),
        ("nextAttemptTime", time()),
    ])
    .prop_map(|mut detail| {
        // The schema requires it.
        detail.as_object_mut().unwrap().entry("name").or_insert(json!(""));
        detail
    })
    .boxed()
}

fn ranges() -> BoxedStrategy<Value> {
    let text =
        || one_of(vec!["", "0", "0-1", "1,0", "2-0", "x", "0-4294967295", "-", ",,", "99999999999999999999", "3-9999"]);
    (text(), text(), text())
        .prop_map(|(processing, succeeded, failed)| {
            json!({"processing": processing, "succeeded": succeeded, "failed": failed})
        })
        .boxed()
}

fn epoch() -> BoxedStrategy<Value> {
    one_of(vec![i64::MIN, -1, 0, 1, 5, i64::MAX - 1, i64::MAX])
}

fn number() -> BoxedStrategy<Value> {
    one_of(vec![i32::MIN, -1, 0, 2, i32::MAX])
}

fn condition() -> BoxedStrategy<Value> {
    let words = (
        select(vec!["Complete", "Failed", "Valid", "ActionAvailable", "Odd", ""]),
        select(vec!["True", "False", "Unknown", "?"]),
        time(),
    );
    words
        .prop_map(|(kind, status, time)| {
            json!({"type": kind, "status": status, "reason": "R", "message": "m", "lastTransitionTime": time})
        })
        .boxed()
}

/// What somebody may have stored as a status. `sharded`: such as a job of more than 250 targets has.
fn status(sharded: bool) -> BoxedStrategy<Value> {
    let selection = select(vec!["", "sha256:other"])
        .prop_map(|digest| json!({"source": "Targets", "time": "soon", "digest": digest}))
        .boxed();
    let plugin = select(vec!["sha256:1", "sha256:2", ""])
        .prop_map(|digest| json!({"name": "replace", "version": "x", "digest": digest}))
        .boxed();
    let mut fields = vec![
        ("observedGeneration", epoch()),
        ("progress", word()),
        ("startTime", time()),
        ("startTime", time()),
        ("endTime", proptest::option::weighted(0.2, time()).prop_map(|time| time.unwrap_or(Value::Null)).boxed()),
        ("totalPodCount", number()),
        ("succeededPodCount", number()),
        ("failedPodCount", number()),
        ("pendingPodCount", number()),
        ("processingPodCount", number()),
        ("targetDetails", list(detail(), 4)),
        ("plugin", plugin),
        ("epoch", epoch()),
        ("conditions", list(condition(), 3)),
        ("rangesTruncated", one_of(vec![true, false])),
    ];
    if sharded {
        fields.push(("ranges", ranges()));
        fields.push(("records", one_of(vec![json!({"count": 2, "size": 250}), json!({"count": -1, "size": 0})])));
    } else {
        fields
            .push(("ranges", proptest::option::weighted(0.2, ranges()).prop_map(|r| r.unwrap_or(Value::Null)).boxed()));
        fields.push((
            "selection",
            proptest::option::weighted(0.2, selection).prop_map(|s| s.unwrap_or(Value::Null)).boxed(),
        ));
    }
    let whole = object(fields).prop_map(|mut status| {
        status.as_object_mut().unwrap().retain(|_, value| !value.is_null());
        status
    });
    prop_oneof![1 => Just(Value::Null), 4 => whole].boxed()
}

/// What somebody may have made of the records of a job.
fn record() -> BoxedStrategy<Value> {
    let shape = (
        select(vec![(-1i32, -250i32), (0, 0), (0, 0), (1, 250), (1, 250), (7, 1_750), (i32::MAX, i32::MAX)]),
        proptest::option::of(epoch()),
        proptest::collection::vec(
            prop_oneof![9 => detail().prop_map(|detail| detail.to_string()), 1 => Just("{".to_owned())],
            0..4,
        ),
    );
    shape
        .prop_map(|((shard, first), epoch, targets)| {
            json!({"apiVersion": "oarlock.dev/v1alpha1", "kind": "OperationRecord",
                "metadata": {"name": format!("r-{shard}"), "namespace": "d", "uid": format!("r-{shard}"), "resourceVersion": "1"},
                "job": {"name": "j", "uid": JOB_UID}, "shard": shard, "firstIndex": first, "epoch": epoch, "targets": targets})
        })
        .boxed()
}

fn pod() -> BoxedStrategy<Value> {
    let owner = object(vec![
        ("apiVersion", one_of(vec!["apps/v1", "odd"])),
        ("kind", one_of(vec!["CloneSet", "ReplicaSet", "StatefulSet", "DaemonSet", "Job"])),
        ("name", one_of(vec!["s", ""])),
        ("uid", one_of(vec!["set", "rs", ""])),
        ("controller", one_of(vec![true, true, false])),
    ]);
    let holds = object(vec![
        (
            "hold.oarlock.dev/job-uid",
            one_of(vec![
                "[]",
                "[\"barred\"]",
                "[\"label:mark\",\"finalizer:f.io/f\"]",
                "[\"touch\"]",
                "{",
                "",
                "[\"label:\"]",
                "[1]",
            ]),
        ),
        ("hold.oarlock.dev/someone", one_of(vec!["[\"label:mark\"]", "nothing", ""])),
        ("hold.oarlock.dev/", one_of(vec!["[]"])),
    ]);
    let meta = object(vec![
        ("creationTimestamp", time()),
        (
            "deletionTimestamp",
            proptest::option::weighted(0.3, time()).prop_map(|time| time.unwrap_or(Value::Null)).boxed(),
        ),
        ("deletionGracePeriodSeconds", one_of(vec![i64::MIN, -1, 0, 1, 30, i64::MAX])),
        ("labels", object(vec![("mark", one_of(vec!["true", "x"]))])),
        ("annotations", holds),
        ("finalizers", list(one_of(vec!["f.io/f", "other.io/f"]), 2)),
        ("ownerReferences", list(owner, 2)),
    ]);
    (select(NAMES.to_vec()), select(vec!["u", "v", "w"]), meta)
        .prop_map(|(name, kind, mut meta)| {
            let uid = format!("{kind}-{name}");
            meta["name"] = json!(name);
            meta["namespace"] = json!("d");
            meta["uid"] = json!(uid);
            json!({"metadata": meta})
        })
        .boxed()
}

fn spec(sharded: bool) -> BoxedStrategy<Value> {
    let target = prop_oneof![
        12 => select(NAMES.to_vec()).prop_map(|name| json!({ "name": name })),
        1 => Just(json!({})),
        1 => Just(json!({"name": "p4/status"})),
        1 => Just(json!({"name": "a", "containers": ["x", "x"]})),
    ];
    let few = prop_oneof![
        5 => (1usize..=3).prop_map(|count| json!(NAMES[..count].iter().map(|name| json!({"name": name})).collect::<Vec<_>>())),
        1 => list(target.boxed(), 4),
    ];
    let many = Just(json!((0..253)
        .map(|number| json!({"name": NAMES.get(number % 251).map_or_else(|| format!("p{number}"), ToString::to_string)}))
        .collect::<Vec<_>>()));
    let many = many.prop_map(|mut targets| {
        // Distinct names, the pods that there are at both ends.
        for (at, name) in [(251, "q251"), (252, "q252")] {
            targets[at] = json!({ "name": name });
        }
        targets
    });
    let targets = if sharded { many.boxed() } else { few.boxed() };
    let odd = object(vec![
        ("partition", one_of(vec![-1, 0, 1, 2, i32::MAX])),
        ("operationDelaySeconds", one_of(vec![i32::MIN, 0, 3, 20, i32::MAX])),
        ("TTLSecondsAfterFinished", one_of(vec![i32::MIN, 0, 60, i32::MAX])),
        ("parameters", one_of(vec![json!({}), json!({}), json!({"x": 1}), json!([])])),
        ("paused", one_of(vec![false, false, true])),
        ("dryRun", one_of(vec![false, false, true])),
        ("targetKind", one_of(vec!["Pod", "Pod", "Node"])),
    ]);
    let more = prop_oneof![2 => Just(json!({})), 1 => odd];
    let deadline =
        prop_oneof![6 => Just(json!(30)), 1 => one_of(vec![i32::MIN, 0, 1, i32::MAX]), 1 => Just(Value::Null)];
    let whole = (targets, deadline, more).prop_map(|(targets, deadline, more)| {
        let mut spec = json!({"action": "Replace", "targets": targets, "activeDeadlineSeconds": deadline});
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        spec
    });
    prop_oneof![1 => Just(Value::Null), 20 => whole].boxed()
}

/// A plugin, and not a good one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Manner {
    /// Evicts, and is done once the pod is gone.
    Good,
    /// Reports processing, and asks to be called again at once.
    ChecksNow,
    /// Asks to be called again at once, and tells another thing each time.
    ChattersNow,
    /// Fails, to be tried again after this many milliseconds.
    FailsRetryably(Option<u32>),
    /// Proposes one and the same patch.
    PatchesAlike,
    /// Proposes another patch each time.
    PatchesAnew,
    /// Stores another extra each time, and asks to be called again at once.
    StoresAnew,
    /// Evicts, each time.
    Evicts,
    /// Traps.
    Traps,
    /// Asks for one more live read each time.
    Looks,
    /// Wants what nobody granted.
    Oversteps,
    /// Says at once that it failed.
    GivesUp,
    /// Claims the pod `b`.
    Claims,
}

/// A plugin whose every call is like one of these at random, or whose every call is like one.
fn manners() -> BoxedStrategy<Vec<Manner>> {
    let manner = select(vec![
        Manner::Good,
        Manner::ChecksNow,
        Manner::ChattersNow,
        Manner::FailsRetryably(None),
        Manner::FailsRetryably(Some(0)),
        Manner::FailsRetryably(Some(u32::MAX)),
        Manner::PatchesAlike,
        Manner::PatchesAnew,
        Manner::StoresAnew,
        Manner::Evicts,
        Manner::Traps,
        Manner::Looks,
        Manner::Oversteps,
        Manner::GivesUp,
        Manner::Claims,
    ]);
    prop_oneof![
        3 => manner.clone().prop_map(|manner| vec![manner]),
        1 => proptest::collection::vec(manner, 2..5),
    ]
    .boxed()
}

/// What happens from outside.
#[derive(Clone, Debug)]
enum Event {
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
struct Case {
    spec: Value,
    status: Value,
    finalizers: Vec<&'static str>,
    records: Vec<Value>,
    pods: Vec<Value>,
    manners: Vec<Manner>,
    /// How many of a hundred things between host and cluster go wrong.
    trouble: u64,
    events: Vec<(i64, Event)>,
    deleted_at: Option<i64>,
    namespace_goes: bool,
    /// How many writes are on the wire at once.
    wire: usize,
    seed: u64,
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

fn case() -> BoxedStrategy<Case> {
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

/// Chance, from a seed.
#[derive(Clone, Debug)]
struct Dice(Rc<RefCell<u64>>);

impl Dice {
    /// A number below `sides`.
    fn roll(&self, sides: u64) -> u64 {
        let mut state = self.0.borrow_mut();
        *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = *state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)) % sides.max(1)
    }
}

/// A cluster of which so many of a hundred answers are bad.
struct Storm {
    dice: Dice,
    bad: u64,
}

impl Storm {
    fn strikes(&self) -> bool {
        self.dice.roll(100) < self.bad
    }
}

impl Weather for Storm {
    fn write(&mut self, _: &Write) -> Fate {
        if !self.strikes() {
            return Fate::Done;
        }
        let message = || "no".to_owned();
        Fate::Stopped(match self.dice.roll(9) {
            0 => return Fate::Lost,
            1 => Stopped::Unknown { message: message() },
            2 => Stopped::Conflict,
            3 => Stopped::Gone,
            4 => Stopped::Blocked { message: message(), retry_after: None },
            5 => Stopped::Blocked { message: message(), retry_after: Some(0) },
            6 => Stopped::Throttled { retry_after: [None, Some(0), Some(u32::MAX)][self.dice.roll(3) as usize] },
            7 => Stopped::NotSent,
            _ => Stopped::Refused { message: message() },
        })
    }

    fn records(&mut self) -> bool {
        self.dice.roll(200) >= self.bad
    }

    fn look(&mut self, _: &LiveRead) -> Look {
        match self.strikes() {
            false => Look::Answered,
            true => [Look::Silent, Look::Refused][self.dice.roll(2) as usize],
        }
    }

    fn goes(&mut self) -> Going {
        [Going::Stays, Going::Terminates(0), Going::Terminates(30), Going::Terminates(i64::MAX), Going::Gone]
            [self.dice.roll(5) as usize]
    }
}

fn proposing(mutations: Vec<Mutation>) -> Answer {
    Answer::Proposed(Proposal { mutations, ..Proposal::default() })
}

fn reporting(
    state: State,
    set_extra: Vec<(String, String)>,
    events: Vec<PluginEvent>,
    check_after_ms: Option<u32>,
) -> Answer {
    let proposal = Proposal { set_extra, events, ..Proposal::default() };
    Answer::Reported { operate: Proposal::default(), report: Report { state, proposal, check_after_ms } }
}

fn itself(visit: &Visit) -> ObjectRef {
    ObjectRef { key: ObjectKey::pod("d", visit.target.name.clone()), uid: None }
}

fn marking(visit: &Visit, value: String) -> Answer {
    proposing(vec![Mutation::Metadata(MetadataChange {
        object: itself(visit),
        set_labels: vec![("mark".into(), value)],
        remove_labels: vec![],
        set_annotations: vec![],
        remove_annotations: vec![],
        add_finalizers: vec!["f.io/f".into()],
        remove_finalizers: vec![],
        keep: false,
    })])
}

/// The answer of a plugin of this manner.
fn answer(manner: Manner, dice: &Dice, visit: &Visit) -> Answer {
    let fail = |retry_after_ms| {
        Answer::Failed(CallFailure { retryable: true, reason: "Busy".into(), message: "m".into(), retry_after_ms })
    };
    let any = || dice.roll(1_000_000).to_string();
    let operates = visit.call == Call::OperateThenProgress;
    let evicting = || proposing(vec![Mutation::Evict { pod: itself(visit), grace_seconds: None }]);
    match manner {
        Manner::FailsRetryably(after) => fail(after),
        Manner::Traps => Answer::Trapped(Trap { reason: "PluginTrapped", message: "it trapped".into() }),
        Manner::Looks => {
            let read = visit.reads.get(&ObjectKey::pod("d", format!("x{}", any())), true);
            if read.is_err() { fail(None) } else { reporting(State::Processing, vec![], vec![], None) }
        }
        Manner::Oversteps => {
            let object =
                ObjectRef { key: ObjectKey { kind: Kind::new("v1", "Secret"), ..itself(visit).key }, uid: None };
            proposing(vec![Mutation::Delete { object, grace_seconds: None, propagation: None }])
        }
        _ if visit.call == Call::Release => Answer::Proposed(Proposal::default()),
        Manner::Good => match &visit.target.object {
            Some(object) if operates && !object.terminating() => evicting(),
            Some(_) => reporting(State::Processing, vec![], vec![], None),
            None => reporting(State::Succeeded, vec![], vec![], None),
        },
        Manner::ChecksNow => reporting(State::Processing, vec![], vec![], Some(0)),
        Manner::ChattersNow => {
            let event = PluginEvent { warning: true, reason: format!("R{}", any()), message: "m".into() };
            reporting(State::Processing, vec![], vec![event], Some(0))
        }
        Manner::StoresAnew => reporting(State::Processing, vec![("Mode".into(), any())], vec![], Some(0)),
        Manner::Claims => reporting(State::Processing, vec![("NewPod".into(), "b".into())], vec![], Some(0)),
        Manner::GivesUp => {
            let error = PluginError { reason: "Broken".into(), message: "it is".into() };
            reporting(State::Failed(error), vec![], vec![], None)
        }
        Manner::PatchesAlike if operates => marking(visit, "true".into()),
        Manner::PatchesAnew if operates => marking(visit, any()),
        Manner::Evicts if operates => evicting(),
        Manner::PatchesAlike | Manner::PatchesAnew | Manner::Evicts => {
            reporting(State::Processing, vec![], vec![], Some(0))
        }
    }
}

/// A case that runs.
struct Course {
    bench: Bench,
    dice: Dice,
    manners: Vec<Manner>,
    /// The rounds since the last change from outside.
    rounds: VecDeque<Timestamp>,
}

impl Course {
    fn begin(case: &Case) -> Self {
        let mut job = json!({"apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "OperationJob",
            "metadata": {"name": "j", "namespace": "d", "uid": JOB_UID, "resourceVersion": "1", "generation": 1,
                "finalizers": case.finalizers},
            "spec": case.spec, "status": case.status});
        job.as_object_mut().unwrap().retain(|_, value| !value.is_null());
        let dice = Dice(Rc::new(RefCell::new(case.seed)));
        let mut bench = Bench::stored(job);
        bench.weather = Box::new(Storm { dice: dice.clone(), bad: case.trouble });
        bench.wire = case.wire;
        for record in &case.records {
            // A record whose number makes no sense is read like any other; a bench has room for one of each number.
            let place = record["shard"].as_i64().and_then(|shard| u32::try_from(shard).ok()).unwrap_or(u32::MAX);
            bench.records.insert(place, record.clone());
        }
        for pod in &case.pods {
            bench.show(pod.clone());
        }
        bench.next = Some(bench.now);
        Self { bench, dice, manners: case.manners.clone(), rounds: VecDeque::new() }
    }

    /// When a round is due, or a result comes.
    fn due(&self) -> Option<Timestamp> {
        let comes = self.bench.queue.has_next().then(|| after(self.bench.now, ROUND_TRIP));
        self.bench.next.into_iter().chain(comes).min()
    }

    /// Rounds until `end`, or until nothing is due any more.
    fn run_until(&mut self, end: Timestamp) -> Result<(), TestCaseError> {
        while let Some(due) = self.due().filter(|_| !self.bench.job_is_gone) {
            let rest = self.rounds.back().map_or(self.bench.now, |last| after(*last, GATHERING));
            let at = due.max(rest).max(self.bench.now);
            if at > end {
                break;
            }
            self.bench.now = at;
            if self.bench.queue.has_next() {
                self.bench.send();
            }
            self.round()?;
        }
        self.bench.now = self.bench.now.max(end);
        Ok(())
    }

    fn round(&mut self) -> Result<(), TestCaseError> {
        let now = self.bench.now;
        self.rounds.push_back(now);
        while self.rounds.front().is_some_and(|first| now.duration_since(*first) >= WITHIN) {
            self.rounds.pop_front();
        }
        let targets = self.bench.memory.durable.processing.len();
        if self.rounds.len() > ROUNDS.saturating_add(targets.saturating_mul(ROUNDS_EACH)) {
            return Err(TestCaseError::fail(format!("it spins: {:?}\n{}", self.rounds, self.shown())));
        }
        let (dice, manners) = (self.dice.clone(), self.manners.clone());
        let mut plugin = |visit: &Visit| {
            let manner = manners[dice.roll(manners.len() as u64) as usize];
            answer(manner, &dice, visit)
        };
        self.bench.round(&mut plugin);
        // Who hides records from a status and shows them later may end one term by them, and no more.
        if self.bench.terms_lost > 1 {
            return Err(TestCaseError::fail(format!("a record ends one term after the other\n{}", self.shown())));
        }
        if !self.bench.job_is_gone {
            self.nobody_is_forgotten()?;
        }
        Ok(())
    }

    /// Each target that is not at rest has a due time, or waits for a record, a live read or an object that is indexed.
    fn nobody_is_forgotten(&self) -> Result<(), TestCaseError> {
        let bench = &self.bench;
        let memory = &bench.memory;
        let due: BTreeSet<u32> = memory.agenda.clone().take_due(Timestamp::MAX).into_iter().collect();
        let mut queue = bench.queue.clone();
        let queued: BTreeSet<u32> = std::iter::from_fn(|| queue.take_next()).filter_map(|entry| entry.index).collect();
        let serves = bench.found.serving().is_some();
        for index in memory.durable.processing.iter().chain(&memory.releasing) {
            let waits = due.contains(index)
                || queued.contains(index)
                || memory.dirty.contains(index)
                || memory.decided.contains_key(index);
            let result = memory.results.iter().any(|result| result.entry.index == Some(*index));
            let unread = !memory.epoch_raised || memory.reload || memory.shards.wanted;
            let endless = memory.state.target(*index).is_some_and(|target| target.start.is_none());
            if !waits && !result && !unread && (serves || !endless) {
                return Err(TestCaseError::fail(format!("target {index} is forgotten\n{}", self.shown())));
            }
        }
        let waits =
            !queued.is_empty() || memory.decided.is_empty() && memory.dirty.is_empty() && memory.results.is_empty();
        if bench.next.is_none() && !waits {
            return Err(TestCaseError::fail(format!("the job is forgotten\n{}", self.shown())));
        }
        Ok(())
    }

    fn happen(&mut self, event: &Event) {
        let bench = &mut self.bench;
        if bench.job_is_gone {
            return;
        }
        match event {
            Event::Pod(pod) => bench.show(pod.clone()),
            Event::Vanishes(name) => bench.vanish(name),
            Event::Edit(patch) => bench.edit(patch),
            Event::Restart => bench.crash(),
            Event::PluginGone => bench.found = PluginLookup::Unknown { loaded: vec![] },
            Event::PluginBack => bench.found = crate::bench::plugin(),
        }
        if matches!(event, Event::PluginGone | Event::PluginBack) {
            bench.memory.turn_to_all();
            bench.next = Some(Timestamp::UNIX_EPOCH);
        }
        self.rounds.clear();
    }

    /// From now on everything is answered.
    fn clear_up(&mut self) {
        self.bench.weather = Box::new(Storm { dice: self.dice.clone(), bad: 0 });
        self.rounds.clear();
    }

    fn stored(&self) -> JobState {
        let job = serde_json::from_value(self.bench.job.clone()).unwrap();
        let records = if self.bench.status()["records"].is_object() { self.bench.read_records() } else { vec![] };
        JobState::read(&job, &records, self.bench.now, None)
    }

    fn shown(&self) -> String {
        let sent: Vec<&String> = self.bench.sent.iter().rev().take(20).collect();
        format!(
            "at {}, next {:?}, sent {sent:?}\n{:#}\n{:#?}",
            self.bench.now, self.bench.next, self.bench.job, self.bench.memory
        )
    }

    /// L1: no target that was started is in flight for long after its time is over.
    fn deadlines_were_kept(&self) -> Result<(), TestCaseError> {
        if self.bench.job_is_gone {
            return Ok(());
        }
        let state = self.stored();
        let seconds =
            self.bench.job["spec"]["activeDeadlineSeconds"].as_i64().filter(|limit| *limit > 0).unwrap_or(10_800);
        let over = |target: &&TargetState| {
            let late = target.start.map(|start| after(after_seconds(start, seconds), GRACE));
            !target.progress.terminal() && target.started() && late.is_some_and(|time| time < self.bench.now)
        };
        match state.targets.iter().find(over) {
            Some(target) => Err(TestCaseError::fail(format!("its time is long over: {target:?}\n{}", self.shown()))),
            None => Ok(()),
        }
    }

    /// L3: a deleted job leaves nothing.
    fn nothing_is_left(&self) -> Result<(), TestCaseError> {
        let bench = &self.bench;
        let ours = "finalizer.operating.kusionstack.io/protected";
        let kept =
            bench.job["metadata"]["finalizers"].as_array().is_some_and(|list| list.iter().any(|name| name == ours));
        if !bench.job_is_gone && kept {
            return Err(TestCaseError::fail(format!("the deleted job stays\n{}", self.shown())));
        }
        Ok(())
    }
}

fn play(case: &Case) -> Result<(), TestCaseError> {
    let mut course = Course::begin(case);
    let start: Timestamp = START.parse().unwrap();
    let mut events: Vec<(i64, Event)> = case.events.clone();
    let deletion = json!({"metadata": {"deletionTimestamp": START}});
    let goes = case.deleted_at.filter(|_| case.namespace_goes);
    if let Some(at) = case.deleted_at {
        events.push((at, Event::Edit(deletion.clone())));
        events.sort_by_key(|(at, _)| *at);
    }
    for (at, event) in &events {
        course.run_until(after_millis(start, *at))?;
        course.happen(event);
        if goes.is_some_and(|goes| goes <= *at) {
            course.bench.namespace_terminating = true;
        }
    }
    course.run_until(after(start, STORM))?;
    course.clear_up();
    let seconds = case.spec["activeDeadlineSeconds"].as_i64().filter(|limit| *limit > 0 && *limit < 100).unwrap_or(30);
    course.run_until(after(after_seconds(course.bench.now, seconds), GRACE.saturating_mul(2)))?;
    course.deadlines_were_kept()?;
    course.happen(&Event::Edit(deletion));
    course.run_until(after(course.bench.now, GOING))?;
    course.nothing_is_left()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, max_shrink_iters: 1_000, rng_seed: RngSeed::Fixed(512), ..ProptestConfig::default() })]

    /// A51, A60, L1, L3: whatever is stored, whatever the plugin and the cluster do.
    #[test]
    fn whatever_is_stored_no_round_panics_no_job_spins_and_none_is_forgotten(case in case()) {
        play(&case)?;
    }
}
