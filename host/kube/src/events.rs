//! Events of events.k8s.io/v1, created in the background and best effort.
//!
//! Names are deterministic: a repetition meets AlreadyExists, which is success. The queue is bounded
//! (`crate::event_queue`) and nothing waits for it; an event that does not fit or fails three times is counted and dropped. While the server is busy, events wait for
//! longer than they take, so that they leave it to what is done.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use k8s_openapi::jiff::Timestamp;
use kube::core::params::PostParams;
use oarlock_core::child::parent::ParentKind;
use oarlock_core::cluster::object::Kind;
use oarlock_core::cluster::writes::{EventNote, Stopped};
use oarlock_core::job::bound::shown_cause;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use crate::cluster::Link;
use crate::event_queue::{EventQueue, WaitingEvent};
use crate::flows::kinds;
use crate::outcome::{sentence, stopped};
use crate::transport::call::{ApiCall, RequestError, Transport};
use crate::transport::path::Resource;
use crate::write::already_exists;

/// Component of the events on OperationJobs and on what they work on (docs/operationjob.md 8).
const OF_JOBS: &str = "operationjob-controller";
/// Component of the events on JobFlows (docs/jobflow.md 7).
const OF_FLOWS: &str = "jobflow-controller";
/// Component of the events on DaemonJobs.
const OF_DAEMONS: &str = "daemonjob-controller";
/// How much longer than an event took its place stays empty.
const REST: u32 = 2;
/// The most that counts of that time.
const LONGEST_COUNTED: Duration = Duration::from_millis(500);
const ATTEMPTS: u32 = 3;
const PAUSE: Duration = Duration::from_secs(1);
/// Bounds of the API on a note and on the instance's name.
const NOTE_BYTES: usize = 1_024;
const INSTANCE_BYTES: usize = 128;

/// Counts of the events so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EventCounts {
    /// Created, or there already.
    pub emitted: u64,
    /// Refused, or tried in vain three times.
    pub failed: u64,
    /// Not queued, or taken out of the queue again, for that was full or closed.
    pub dropped: u64,
}

/// Emits events.
pub(crate) struct Events {
    worker: Mutex<Option<JoinHandle<()>>>,
    tally: Arc<Tally>,
    transport: Transport,
}

#[derive(Default)]
struct Tally {
    queue: Mutex<EventQueue>,
    /// Wakes the worker: an event came, or none will any more.
    changed: Notify,
    emitted: AtomicU64,
    failed: AtomicU64,
    dropped: AtomicU64,
    /// The host is about to end: nothing is queued and nothing rests any more.
    ends: AtomicBool,
}

impl Events {
    /// Starts the worker; must be called within a tokio runtime.
    pub(crate) fn start(link: &Link, identity: String) -> Self {
        let tally = Arc::new(Tally::default());
        let emitter = Emitter { transport: link.transport.clone(), instance: cut(identity, INSTANCE_BYTES) };
        let worker = tokio::spawn(work(emitter, tally.clone()));
        Self { worker: Mutex::new(Some(worker)), tally, transport: link.transport.clone() }
    }

    /// Queues events, each with the time of now.
    pub(crate) fn emit(&self, notes: Vec<EventNote>) {
        let now = self.transport.clock.now();
        let mut queue = self.tally.queue.lock();
        for note in notes {
            let namespace = namespace(&note).to_owned();
            if self.tally.ends.load(Ordering::Relaxed) || !queue.push(&namespace, (note, now)) {
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

    /// Takes no more events, and waits at most `bound` for those that are queued.
    pub(crate) async fn drain(&self, bound: Duration) {
        self.tally.ends.store(true, Ordering::Relaxed);
        self.tally.changed.notify_one();
        let worker = self.worker.lock().take();
        if let Some(mut worker) = worker
            && timeout(bound, &mut worker).await.is_err()
        {
            worker.abort();
        }
    }
}

async fn work(emitter: Emitter, tally: Arc<Tally>) {
    let (emitter, tally) = (&emitter, &tally);
    let mut sending = FuturesUnordered::new();
    loop {
        // Whoever sends locks the queue as well.
        let next = || tally.queue.lock().take();
        while let Some((namespace, event)) = next() {
            sending.push(async move {
                send(emitter, event, tally).await;
                tally.queue.lock().done(&namespace);
            });
        }
        let ends = tally.ends.load(Ordering::Relaxed);
        tokio::select! {
            Some(()) = sending.next() => {}
            () = tally.changed.notified(), if !ends => {}
            else => return,
        }
    }
}

/// Sends an event, and rests.
async fn send(emitter: &Emitter, (note, at): WaitingEvent, tally: &Tally) {
    let began = Instant::now();
    let count = match emitter.create(&note, at).await {
        Ok(()) => &tally.emitted,
        Err(error) => {
            tracing::debug!(event = %note.name, error, "failed to create an event; it is dropped");
            &tally.failed
        }
    };
    count.fetch_add(1, Ordering::Relaxed);
    if !tally.ends.load(Ordering::Relaxed) {
        sleep(began.elapsed().min(LONGEST_COUNTED) * REST).await;
    }
}

struct Emitter {
    transport: Transport,
    instance: String,
}

impl Emitter {
    async fn create(&self, note: &EventNote, at: Timestamp) -> Result<(), String> {
        let body = body(note, at, &self.instance).to_string().into_bytes();
        let resource = Resource { api_version: "events.k8s.io/v1".into(), plural: "events".into(), namespaced: true };
        let home = resource.home(Some(namespace(note)), &note.name).map_err(|error| sentence(&error))?;
        let mut attempt = 1;
        loop {
            let request = kube::core::Request::new(home.as_str()).create(&PostParams::default(), body.clone());
            let error = match self.transport.send(ApiCall { verb: "create", resource: "events", request }).await {
                Ok(_) => return Ok(()),
                Err(error) if already_exists(&error) => return Ok(()),
                Err(error) => error,
            };
            if attempt == ATTEMPTS || !worth_repeating(&error) {
                return Err(sentence(&error));
            }
            sleep(PAUSE * attempt).await;
            attempt += 1;
        }
    }
}

fn worth_repeating(error: &RequestError) -> bool {
    matches!(stopped(error), Stopped::Unknown { .. } | Stopped::Throttled { .. })
}

/// Events about cluster-scoped objects go to `default`, as Kubernetes' own do.
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

/// The component that an event on an object of this kind is from.
fn controller(regarding: &Kind) -> &'static str {
    let parents = [(ParentKind::Flow, OF_FLOWS), (ParentKind::Daemon, OF_DAEMONS)];
    let found = parents.into_iter().find(|(parent, _)| *regarding == kinds::parent(*parent));
    found.map_or(OF_JOBS, |(_, controller)| controller)
}

fn cut(mut text: String, bytes: usize) -> String {
    text.truncate(text.floor_char_boundary(bytes));
    text
}

#[cfg(test)]
mod tests {
    use oarlock_core::cluster::object::ObjectKey;

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
        // The middle is left out at a border of characters.
        assert!((1_021..=1_024).contains(&body["note"].as_str().unwrap().len()));
        assert_eq!((&body["type"], &body["metadata"]["namespace"]), (&json!("Warning"), &json!("d")));
    }
}
