//! The store and the tables of a term under threads that run truly in parallel on a 2-core machine.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails loudly, its helpers too")]

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use k8s_openapi::jiff::Timestamp;
use oarlock_core::cache::store::{Change, Indexed, Store};
use oarlock_core::object::api_object::{Kind, Object};
use oarlock_core::object::key::{JobKey, JobRef};
use oarlock_core::operation_job::cleanup::cleanup;
use oarlock_core::operation_job::shared::claims::{Claim, ClaimedObject};
use oarlock_core::operation_job::shared::reads::{Subject, VisitReads};
use oarlock_core::operation_job::shared::successors::RootController;
use oarlock_core::operation_job::shared::tables::{SharedTables, lock};
use oarlock_core::operation_job::shared::wakers::Waits;
use oarlock_core::operation_job::state::{Progress, TargetState};
use oarlock_core::plugin::grant::Grant;
use oarlock_core::plugin::lookup::PluginInfo;
use oarlock_core::plugin::manifest::{Manifest, TargetKind};
use oarlock_core::plugin::proposal::{Registration, Relation, RelationKey};
use oarlock_core::plugin::visit::Reads as _;
use oarlock_core::requests::live_reads::LiveReads;
use serde_json::json;

const SIBLINGS: u64 = 1_000;
/// How long the threads run if no thread hangs.
const RUN: Duration = Duration::from_secs(2);
/// A thread that has made no progress for this long hangs.
const PATIENCE: Duration = Duration::from_secs(10);

fn sibling(number: u64, version: u64) -> Object {
    let document = json!({"metadata": {"name": format!("p{number}"), "namespace": "d", "uid": format!("u{number}"),
        "resourceVersion": version.to_string(), "creationTimestamp": "2026-01-01T00:00:05Z",
        "ownerReferences": [{"apiVersion": "apps/v1", "kind": "CloneSet", "name": "s", "uid": "set", "controller": true}]}});
    Object::slim(&document, &Kind::pod(), &[]).unwrap()
}

fn job(name: &str) -> JobRef {
    JobRef { key: JobKey { namespace: "d".into(), name: name.into() }, uid: format!("{name}-uid") }
}

fn plugin() -> PluginInfo {
    let manifest = json!({"schema": 1, "name": "replace", "version": "0.1.0", "action": "Replace", "target": ["Pod"],
        "reads": [{"apiVersion": "v1", "kind": "Pod", "fields": ["/status/conditions"], "reason": "r"}]});
    let grant = json!({"apiVersion": "oarlock.dev/v1alpha1", "kind": "ActionPlugin", "metadata": {"name": "replace"},
        "spec": {"anyVersion": true, "namespaces": ["*"],
            "reads": [{"apiVersion": "v1", "kind": "Pod", "fields": ["/status/conditions"]}]}});
    let relations = vec![Relation { name: "successors".into(), kind: Kind::pod(), by: RelationKey::SameController }];
    PluginInfo {
        manifest: Manifest::parse(manifest.to_string().as_bytes()).unwrap(),
        grant: Grant::parse(&grant).unwrap(),
        registration: Registration { relations, exclusive_extras: vec!["NewPod".into()] },
        digest: "sha256:1".into(),
    }
}

/// Returns the tables of two jobs of one controller: `a`, which took the siblings at the even places, and `b`, whose target waits for a sibling.
fn tables(plugin: &PluginInfo) -> SharedTables {
    let tables = SharedTables::default();
    let mut held = lock(&tables);
    for number in (0..SIBLINGS).step_by(2) {
        let object = ClaimedObject { kind: "Pod".into(), name: format!("p{number}"), uid: format!("u{number}") };
        let index = u32::try_from(number).unwrap();
        held.claims.claim(&object, Claim { job: job("a").key, index, target_uid: format!("t{number}") });
    }
    let state = TargetState {
        progress: Progress::Processing,
        start: Some("2026-01-01T00:00:00Z".parse().unwrap()),
        extra: [("Owner".to_owned(), "CloneSet/s/set".to_owned())].into(),
        ..TargetState::default()
    };
    held.wake.set(
        &job("b"),
        0,
        &state,
        Waits {
            kind: TargetKind::Pod,
            name: "t",
            registration: Some(&plugin.registration),
            parameters: &[],
            watched: false,
            gone: false,
            releasing: false,
        },
    );
    drop(held);
    tables
}

fn reads(store: &Arc<Store>, tables: &SharedTables, plugin: &Arc<PluginInfo>) -> VisitReads {
    VisitReads {
        store: store.clone(),
        tables: tables.clone(),
        live: Arc::new(LiveReads::default()),
        served: Arc::new(|_| true),
        plugin: Some(plugin.clone()),
        subject: Subject {
            namespace: "d".into(),
            name: "t".into(),
            uid: "t-uid".into(),
            job_uid: job("b").uid,
            since: Timestamp::UNIX_EPOCH,
            controller: Some(RootController {
                kind: "CloneSet".into(),
                namespace: "d".into(),
                uid: "set".into(),
                node: None,
            }),
            ..Subject::default()
        },
        all_live: false,
        given_up: false,
        missing: Mutex::default(),
    }
}

/// Starts a thread that calls `turn` again and again. Returns the number of its calls so far.
fn worker(over: &Arc<AtomicBool>, mut turn: impl FnMut(u64) + Send + 'static) -> Arc<AtomicU64> {
    let (turns, over) = (Arc::new(AtomicU64::new(0)), over.clone());
    let counted = turns.clone();
    // The thread is never joined: a thread that hangs must not keep the test from failing.
    thread::spawn(move || {
        while !over.load(Ordering::Relaxed) {
            turn(counted.fetch_add(1, Ordering::Relaxed));
        }
    });
    turns
}

/// Three threads take the locks of the store and of the tables and never wait for each other in a ring.
///
/// In the past, the host locked the tables under the store's read lock in one place, and the store under the tables' lock in another. Two threads
/// alone cannot deadlock there, because readers share the lock. A third thread must ask for the store's write lock in between, because a waiting
/// writer keeps new readers out. These three threads do that:
///
/// * A visit reads the siblings of its target and asks the tables whether each sibling is taken. In the past it did so under the store's read lock;
///   now it copies the siblings first.
/// * A watch writes to the store.
/// * The end of a job and a watch event hold the tables' lock and read the store. Only this order is left.
///
/// The test cannot hang now: code that holds the store's lock takes no other lock.
#[test]
fn visits_watches_and_ends_of_jobs_never_wait_for_each_other_in_a_ring() {
    let store = Store::default();
    store.keep(&Kind::pod(), Indexed::default());
    (0..SIBLINGS).for_each(|number| drop(store.apply(sibling(number, 1))));
    let (store, plugin) = (Arc::new(store), Arc::new(plugin()));
    let tables = tables(&plugin);
    let over = Arc::new(AtomicBool::new(false));

    let visits = {
        let reads = reads(&store, &tables, &plugin);
        worker(&over, move |_| assert!(!reads.related("successors", false).unwrap().is_empty()))
    };
    let watch = {
        let store = store.clone();
        worker(&over, move |turn| drop(store.apply(sibling(turn % SIBLINGS, turn + 2))))
    };
    let ends = {
        let (store, tables, job) = (store.clone(), tables.clone(), job("a"));
        worker(&over, move |turn| {
            let new = Some(Arc::new(sibling((turn % SIBLINGS) | 1, u64::MAX)));
            let mut tables = lock(&tables);
            assert!(!cleanup(&job, &store, &tables).is_empty());
            let change = Change { old: None, new };
            tables.note_gone(&change);
            assert!(!tables.concerned(&change, &store).is_empty());
        })
    };

    let threads = [("visits", visits), ("watch", watch), ("ends", ends)];
    let began = Instant::now();
    let mut seen = threads.each_ref().map(|(_, turns)| (turns.load(Ordering::Relaxed), Instant::now()));
    while began.elapsed() < RUN || seen.iter().any(|(_, moved)| moved.elapsed() > RUN) {
        #[allow(clippy::disallowed_methods, reason = "a thread that hangs is seen by the clock alone")]
        thread::sleep(Duration::from_millis(20));
        for ((name, turns), (known, moved)) in threads.iter().zip(&mut seen) {
            let now = turns.load(Ordering::Relaxed);
            if now != *known {
                (*known, *moved) = (now, Instant::now());
            }
            assert!(moved.elapsed() < PATIENCE, "{name} hangs after {now} turns");
        }
    }
    over.store(true, Ordering::Relaxed);
    for (name, turns) in &threads {
        assert!(turns.load(Ordering::Relaxed) > 3, "{name} made no progress");
    }
}
