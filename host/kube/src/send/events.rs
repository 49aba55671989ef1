//! Creates events of events.k8s.io/v1 in the background, best effort.
//!
//! Names are deterministic, so a repeated create gets AlreadyExists, which counts as success. The queue is bounded
//! (`crate::send::event_queue`) and no caller waits for it. An event that does not fit or fails three times is counted and dropped. After
//! each event, its slot stays empty for longer than the request took, so that events leave a busy API server to other requests.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use k8s_openapi::jiff::Timestamp;
use kube::core::params::PostParams;
use oarlock_core::attempts::parent::ParentKind;
use oarlock_core::object::api_object::Kind;
use oarlock_core::object::bound::shown_cause;
use oarlock_core::requests::writes::{EventNote, Stopped};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

use crate::error_chain::error_chain;
use crate::link::Link;
use crate::send::event_queue::{EventQueue, WaitingEvent};
use crate::send::outcome::stopped;
use crate::send::write::already_exists;
use crate::transport::call::{ApiCall, RequestError, Transport};
use crate::transport::path::Resource;

/// The component of the events on OperationJobs and on their targets (docs/operationjob.md 8).
const OF_JOBS: &str = "operationjob-controller";
/// The component of the events on JobFlows (docs/jobflow.md 7).
const OF_FLOWS: &str = "jobflow-controller";
/// The component of the events on DaemonJobs.
const OF_DAEMONS: &str = "daemonjob-controller";
/// How much longer than an event took its place stays empty. With all places in use, about one event is on its way at a time. Many
/// small jobs have several events for each of their targets, and each event costs the API server as much as the change it reports.
const REST: u32 = 7;
/// The longest request time that counts for the empty time of a slot.
const LONGEST_COUNTED: Duration = Duration::from_millis(500);
const ATTEMPTS: u32 = 3;
const PAUSE: Duration = Duration::from_secs(1);
/// The limits of the API for a note and for the name of the instance.
const NOTE_BYTES: usize = 1_024;
const INSTANCE_BYTES: usize = 128;

/// The counts of the events so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EventCounts {
    /// The events that were created or existed already.
    pub emitted: u64,
    /// The events that the API server refused, or that failed three times.
    pub failed: u64,
    /// The events that were not queued, were removed from a full queue, or were not sent before the host ended.
    pub dropped: u64,
}

/// The emitter of events.
pub(crate) struct Events {
    worker: Mutex<Option<JoinHandle<()>>>,
    tally: Arc<EmitterState>,
    transport: Transport,
}

#[derive(Default)]
struct EmitterState {
    queue: Mutex<EventQueue>,
    /// Wakes the worker: an event was added, or no event will be added any more.
    changed: Notify,
    emitted: AtomicU64,
    failed: AtomicU64,
    dropped: AtomicU64,
    /// True if the host is about to end. It queues no more events, slots no longer stay empty, and a failed event is not tried again.
    ends: watch::Sender<bool>,
}

impl Events {
    /// Starts the worker. Call it within a tokio runtime.
    pub(crate) fn start(link: &Link, identity: String) -> Self {
        let tally = Arc::new(EmitterState::default());
        let emitter = Emitter { transport: link.transport.clone(), instance: cut(identity, INSTANCE_BYTES) };
        let worker = tokio::spawn(work(emitter, tally.clone()));
        Self { worker: Mutex::new(Some(worker)), tally, transport: link.transport.clone() }
    }

    /// Queues events with the current time.
    pub(crate) fn emit(&self, notes: Vec<EventNote>) {
        let now = self.transport.clock.now();
        let mut queue = self.tally.queue.lock();
        for note in notes {
            let namespace = namespace(&note).to_owned();
            if *self.tally.ends.borrow() || !queue.push(&namespace, WaitingEvent { note, at: now }) {
                self.tally.dropped.fetch_add(1, Ordering::Relaxed);
            }
        }
        drop(queue);
        self.tally.changed.notify_one();
    }

    pub(crate) fn counts(&self) -> EventCounts {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        EventCounts {
            emitted: read(&self.tally.emitted),
            failed: read(&self.tally.failed),
            dropped: read(&self.tally.dropped),
        }
    }

    /// Stops the queue, and waits at most `bound` for the queued events. The others are dropped.
    pub(crate) async fn drain(&self, bound: Duration) {
        {
            // Under the lock that `emit` takes, so that no event comes once the worker has seen the end.
            let _queue = self.tally.queue.lock();
            self.tally.ends.send_replace(true);
        }
        self.tally.changed.notify_one();
        let worker = self.worker.lock().take();
        let Some(mut worker) = worker else { return };
        if timeout(bound, &mut worker).await.is_err() {
            worker.abort();
            // Waits until the task has gone, so that no event counts twice.
            let _aborted = worker.await;
        }
        self.tally.dropped.fetch_add(self.tally.queue.lock().unsent(), Ordering::Relaxed);
    }
}

async fn work(emitter: Emitter, tally: Arc<EmitterState>) {
    let (emitter, tally) = (&emitter, &tally);
    let mut sending = FuturesUnordered::new();
    loop {
        let ends = *tally.ends.borrow();
        // `emit` and the sending tasks also lock the queue.
        let next = || tally.queue.lock().take();
        while let Some((namespace, event)) = next() {
            sending.push(async move {
                send(emitter, event, tally).await;
                tally.queue.lock().done(&namespace);
            });
        }
        tokio::select! {
            Some(()) = sending.next() => {}
            () = tally.changed.notified(), if !ends => {}
            else => return,
        }
    }
}

/// Sends an event, and then keeps its slot empty for a while.
async fn send(emitter: &Emitter, event: WaitingEvent, tally: &EmitterState) {
    let WaitingEvent { note, at } = event;
    let (created, took) = emitter.create(&note, at, &tally.ends).await;
    let count = match created {
        Ok(()) => &tally.emitted,
        Err(error) => {
            tracing::debug!(event = %note.name, error, "failed to create an event; the host drops the event");
            &tally.failed
        }
    };
    count.fetch_add(1, Ordering::Relaxed);
    pause(took.min(LONGEST_COUNTED) * REST, &tally.ends).await;
}

/// Waits for `time`, or until the host is about to end.
async fn pause(time: Duration, ends: &watch::Sender<bool>) {
    let mut ends = ends.subscribe();
    let _ended_early = timeout(time, ends.wait_for(|ends| *ends)).await;
}

struct Emitter {
    transport: Transport,
    instance: String,
}

impl Emitter {
    /// Creates an event. Also returns the duration of the last request.
    async fn create(
        &self,
        note: &EventNote,
        at: Timestamp,
        ends: &watch::Sender<bool>,
    ) -> (Result<(), String>, Duration) {
        let body = body(note, at, &self.instance).to_string().into_bytes();
        let resource = Resource { api_version: "events.k8s.io/v1".into(), plural: "events".into(), namespaced: true };
        let home = match resource.home(Some(namespace(note)), &note.name) {
            Ok(home) => home,
            Err(error) => return (Err(error_chain(&error)), Duration::ZERO),
        };
        let mut attempt = 1;
        loop {
            let began = Instant::now();
            let request = kube::core::Request::new(home.as_str()).create(&PostParams::default(), body.clone());
            let error = match self.transport.send(ApiCall { verb: "create", resource: "events", request }).await {
                Ok(_) => return (Ok(()), began.elapsed()),
                Err(error) if already_exists(&error) => return (Ok(()), began.elapsed()),
                Err(error) => error,
            };
            if attempt == ATTEMPTS || !worth_repeating(&error) || *ends.borrow() {
                return (Err(error_chain(&error)), began.elapsed());
            }
            pause(PAUSE * attempt, ends).await;
            attempt += 1;
        }
    }
}

fn worth_repeating(error: &RequestError) -> bool {
    matches!(stopped(error), Stopped::Unknown { .. } | Stopped::Throttled { .. })
}

/// Returns the namespace of an event. Events about cluster-scoped objects go to `default`, as in Kubernetes.
fn namespace(note: &EventNote) -> &str {
    note.regarding.namespace.as_deref().unwrap_or("default")
}

fn body(note: &EventNote, at: Timestamp, instance: &str) -> Value {
    let EventNote { name, regarding, regarding_uid, warning, reason, action, message } = note;
    json!({
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": namespace(note)},
        "eventTime": format!("{at:.6}"),
        "reportingController": controller(&regarding.kind),
        "reportingInstance": instance,
        "action": action,
        "reason": reason,
        "type": if *warning { "Warning" } else { "Normal" },
        "note": shown_cause(message, NOTE_BYTES),
        "regarding": {
            "apiVersion": regarding.kind.api_version,
            "kind": regarding.kind.kind,
            "namespace": regarding.namespace,
            "name": regarding.name,
            "uid": regarding_uid,
        },
    })
}

/// Returns the component of an event on an object of this kind.
fn controller(regarding: &Kind) -> &'static str {
    let parents = [(ParentKind::Flow, OF_FLOWS), (ParentKind::Daemon, OF_DAEMONS)];
    let found = parents.into_iter().find(|(parent, _)| *regarding == parent.kind());
    found.map_or(OF_JOBS, |(_, controller)| controller)
}

fn cut(mut text: String, bytes: usize) -> String {
    text.truncate(text.floor_char_boundary(bytes));
    text
}

#[cfg(test)]
mod tests {
    use oarlock_core::object::api_object::ObjectKey;

    use super::*;

    #[test]
    fn an_event_fits_the_bounds_of_the_api() {
        let note = EventNote {
            name: "a.0".into(),
            regarding: ObjectKey::pod("d", "a"),
            regarding_uid: "u".into(),
            warning: true,
            reason: "TargetFailed".into(),
            action: "Replace".into(),
            message: "ü".repeat(1_000),
        };
        let body = body(&note, Timestamp::from_second(1_700_000_000).unwrap(), "host-0");
        assert_eq!(body["eventTime"], "2023-11-14T22:13:20.000000Z");
        // The host cuts out the middle of the note at a boundary of characters.
        assert!((1_021..=1_024).contains(&body["note"].as_str().unwrap().len()));
        assert_eq!((&body["type"], &body["metadata"]["namespace"]), (&json!("Warning"), &json!("d")));
    }
}
