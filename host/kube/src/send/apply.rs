//! The write queue of one term, which sends the writes of recorded rounds.
//!
//! The queue takes a [`Recorded`] and returns one result for each entry that was not withdrawn. It may not send a write twice. Right before
//! each request it checks three conditions: the term leads, the job exists, and the newest known view of the object is the view of the
//! decision.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use k8s_openapi::jiff::Timestamp;
use oarlock_core::object::api_object::{Kind, ObjectKey};
use oarlock_core::object::key::JobKey;
use oarlock_core::operation_job::write_queue::WriteQueue;
use oarlock_core::requests::scripts::Scripts;
use oarlock_core::requests::writes::{BatchResult, Lane, Recorded, Stopped, Write, WriteBatch};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::Notify;
use tokio::sync::mpsc::UnboundedSender;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::timeout;

use crate::cluster::Cluster;
use crate::lease::fence::Fence;
use crate::link::Link;
use crate::send::write::Purpose;
use crate::transport::limiter::WritePermit;
use crate::transport::shares::WriteOwner;
use crate::watch::objects::Author;

/// The time that requests in flight have after the end of the term.
const LAST_REQUESTS: Duration = Duration::from_millis(1_500);

/// The writes of one term that wait or are in flight, and the task that sends them.
pub struct WriteSender {
    state: Arc<SenderState>,
    sender: JoinHandle<()>,
}

struct SenderState {
    link: Link,
    fence: Fence,
    queue: Mutex<WriteQueue>,
    /// The namespaces that may have new entries to send.
    namespaces_to_check: Mutex<BTreeSet<String>>,
    /// The entries that left the queue and have no result yet. The count is raised under the lock of the queue.
    in_flight: AtomicUsize,
    /// Wakes the sender: an entry was added, or a target is no longer in flight.
    changed: Notify,
    /// Wakes [`WriteSender::close`]: an entry has its result. It is not `changed`, because the sender would take the only wake-up.
    returned: Notify,
    results: UnboundedSender<BatchResult>,
}

impl Cluster {
    /// Starts the write queue of a term, which sends until it is closed or dropped. It sends the results to `results`.
    pub fn write_sender(&self, fence: &Fence, results: UnboundedSender<BatchResult>) -> WriteSender {
        let (link, fence) = (self.link.clone(), fence.clone());
        *link.scripts.lock() = Scripts::default();
        let state = Arc::new(SenderState {
            link,
            fence,
            queue: Mutex::default(),
            namespaces_to_check: Mutex::default(),
            in_flight: AtomicUsize::new(0),
            changed: Notify::new(),
            returned: Notify::new(),
            results,
        });
        let sender = tokio::spawn(send_all(state.clone()));
        WriteSender { state, sender }
    }

    /// Makes writes that belong to no existing job, in order. Returns the objects of the failed writes.
    pub async fn clean_up(&self, writes: Vec<Write>, fence: &Fence) -> Vec<ObjectKey> {
        let mut failed = Vec::new();
        for write in writes {
            if let Err(why) = self.link.write(&write, Lane::Change, fence).await {
                tracing::debug!(object = ?write.object(), ?why, "failed to remove a leftover of a deleted job; the next sweep retries");
                failed.push(write.object().clone());
            }
        }
        failed
    }
}

impl WriteSender {
    /// Adds the entries of a round to the queue.
    pub fn apply(&self, recorded: Recorded) {
        let namespaces = recorded.then.iter().map(|entry| entry.job.key.namespace.clone());
        let namespaces: BTreeSet<String> = namespaces.collect();
        let mut queue = self.state.queue.lock();
        recorded.then.into_iter().for_each(|entry| queue.push(entry));
        drop(queue);
        self.state.namespaces_to_check.lock().extend(namespaces);
        self.state.changed.notify_one();
    }

    /// Reads or changes the queue.
    pub fn queue<T>(&self, with: impl FnOnce(&mut WriteQueue) -> T) -> T {
        with(&mut self.state.queue.lock())
    }

    /// Acknowledges a result that the memory of the job has. Its target is no longer in flight. Without the acknowledgement, a round could
    /// decide on the target again without knowing the result.
    pub fn acknowledge(&self, result: &BatchResult) {
        let job = &result.entry.job;
        self.state.queue.lock().finished(&job.uid, result.entry.index);
        self.state.namespaces_to_check.lock().insert(job.key.namespace.clone());
        self.state.changed.notify_one();
    }

    /// Returns true while a request of the target is in flight or its result is not acknowledged.
    pub fn is_in_flight(&self, job_uid: &str, index: u32) -> bool {
        self.state.queue.lock().is_in_flight(job_uid, index)
    }

    /// Drops the waiting entries, and waits up to 1.5 s for the requests in flight.
    pub async fn close(self) {
        self.state.queue.lock().withdraw_all();
        let empty = async {
            while self.state.in_flight.load(Ordering::Acquire) > 0 {
                self.state.returned.notified().await;
            }
        };
        if timeout(LAST_REQUESTS, empty).await.is_err() {
            tracing::warn!("requests had no answer 1.5 s after the term ended; they may still take effect");
        }
    }
}

impl Drop for WriteSender {
    fn drop(&mut self) {
        self.sender.abort();
    }
}

/// Sends batches, each in its own task. For each namespace with batches, the sender requests one slot at a time. It chooses the entry after
/// it gets the slot.
async fn send_all(state: Arc<SenderState>) {
    let (mut sending, mut asking, mut asked) = (JoinSet::new(), FuturesUnordered::new(), BTreeSet::new());
    loop {
        let namespaces_to_check = std::mem::take(&mut *state.namespaces_to_check.lock());
        for namespace in namespaces_to_check {
            if !asked.contains(&namespace) && state.has_next(&namespace) {
                asked.insert(namespace.clone());
                let limiter = &state.link.limiter;
                asking.push(async move { (limiter.enter(WriteOwner::Namespace(namespace.clone())).await, namespace) });
            }
        }
        tokio::select! {
            () = state.changed.notified() => {}
            Some((permit, namespace)) = asking.next() => {
                asked.remove(&namespace);
                if let Some(entry) = state.next(&namespace) {
                    sending.spawn(Sending::new(state.clone(), entry).run(permit));
                    state.namespaces_to_check.lock().insert(namespace);
                }
            }
            Some(ended) = sending.join_next() => log_panic(ended),
        }
    }
}

impl SenderState {
    fn has_next(&self, namespace: &str) -> bool {
        self.queue.lock().has_next(|other| other == namespace)
    }

    fn next(&self, namespace: &str) -> Option<WriteBatch> {
        let mut queue = self.queue.lock();
        let next = queue.take_next(|other| other == namespace)?;
        self.in_flight.fetch_add(1, Ordering::Release);
        Some(next)
    }

    /// Checks right before a request that this term leads, that the job exists, and that the newest known view of the object is the view of
    /// the decision.
    fn may_send(&self, entry: Option<&WriteBatch>, write: &Write) -> Result<(), Stopped> {
        if !self.fence.allows() {
            return Err(Stopped::LostLease);
        }
        let there = entry.is_some_and(|entry| self.link.jobs.uid(&entry.job.key).as_ref() == Some(&entry.job.uid));
        if there && self.view_is_current(write) { Ok(()) } else { Err(Stopped::NotSent) }
    }

    fn view_is_current(&self, write: &Write) -> bool {
        let object = write.object();
        if object.kind == Kind::job() {
            let key = JobKey { namespace: object.namespace.clone().unwrap_or_default(), name: object.name.clone() };
            return self.link.jobs.is_current(&key, write.uid(), write.version());
        }
        let store = &self.link.objects.store;
        !store.keeps(&object.kind) || write.fits(store.get(object).as_deref())
    }
}

fn log_panic(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended {
        tracing::error!(%error, "the task that sent a write panicked; the outcome of the write is unknown");
    }
}

/// One entry in flight. It sends its result at the latest when it is dropped.
struct Sending {
    state: Arc<SenderState>,
    entry: Option<WriteBatch>,
    author: Option<Author>,
    sent: Option<Timestamp>,
    done: usize,
}

impl Sending {
    fn new(state: Arc<SenderState>, entry: WriteBatch) -> Self {
        let author = entry.index.map(|index| Author { job_uid: entry.job.uid.clone(), index });
        Self { state, entry: Some(entry), author, sent: None, done: 0 }
    }

    async fn run(mut self, permit: WritePermit) {
        let owner = self.entry.as_ref().map_or(WriteOwner::Host, |entry| WriteOwner::of_job(&entry.job.key));
        let mut permit = Some(permit);
        while let Some(write) = self.entry.as_ref().and_then(|entry| entry.writes.get(self.done)).cloned() {
            let permit = match permit.take() {
                Some(permit) => permit,
                None => self.state.link.limiter.enter(owner.clone()).await,
            };
            match self.send(&write, permit).await {
                Ok(reply) => self.made(&reply),
                Err(stopped) => {
                    tracing::debug!(object = ?write.object(), verb = write.verb(), ?stopped, "a write failed, or its outcome is unknown");
                    return self.finish(Some(stopped));
                }
            }
        }
        self.finish(None);
    }

    /// Records that the next write was made.
    fn made(&mut self, reply: &Value) {
        self.done += 1;
        let version = reply.pointer("/metadata/resourceVersion").and_then(Value::as_str);
        if let (Some(entry), Some(version)) = (self.entry.as_mut(), version) {
            entry.made(self.done, version);
        }
    }

    async fn send(&mut self, write: &Write, permit: WritePermit) -> Result<Value, Stopped> {
        let Self { state, entry, author, sent, done } = self;
        let dry_run = entry.as_ref().is_some_and(|entry| entry.dry_run);
        let check = || {
            state.may_send(entry.as_ref(), write)?;
            sent.get_or_insert_with(|| state.link.transport.clock.now());
            Ok(())
        };
        let account = entry.as_ref().and_then(|entry| entry.account(*done));
        let purpose = Purpose { author: author.as_ref(), dry_run, account, ..Purpose::default() };
        state.link.write_with(write, permit, check, purpose).await
    }

    fn finish(&mut self, stopped: Option<Stopped>) {
        let Some(entry) = self.entry.take() else { return };
        let at = self.state.link.transport.clock.now();
        // The receiver is dropped only while a term ends.
        let result = BatchResult { entry, sent: self.sent, at, done: self.done, stopped };
        let _ending = self.state.results.send(result).is_err();
        self.state.in_flight.fetch_sub(1, Ordering::Release);
        self.state.returned.notify_one();
    }
}

impl Drop for Sending {
    fn drop(&mut self) {
        let message = "the host gave up waiting before a reply came".to_owned();
        self.finish(Some(Stopped::Unknown { message }));
    }
}
