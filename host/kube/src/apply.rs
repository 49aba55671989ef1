//! The outbox of one term: it sends the writes of recorded rounds.
//!
//! Takes a [`Recorded`]; yields one result for each of its entries that was not withdrawn. Right before a request is sent,
//! the term must still lead, the job must be there, and the newest known view of the object must be the one that was
//! decided on. May not send anything twice.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use k8s_openapi::jiff::Timestamp;
use oarlock_core::cluster::object::{Kind, ObjectKey};
use oarlock_core::cluster::scripts::Scripts;
use oarlock_core::cluster::writes::{Entry, EntryResult, Recorded, Stopped, Write};
use oarlock_core::job::key::JobKey;
use oarlock_core::shared::write_queue::WriteQueue;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::Notify;
use tokio::sync::mpsc::UnboundedSender;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::timeout;

use crate::cluster::{Cluster, Link};
use crate::lease::Fence;
use crate::transport::limiter::WritePermit;
use crate::transport::shares::WriteOwner;
use crate::watch::watches::Author;
use crate::write::Purpose;

/// Time that requests on the wire have once the term is over.
const LAST_REQUESTS: Duration = Duration::from_millis(1_500);

/// The writes of one term that wait or are on the wire, and the task that sends them.
pub struct Outbox {
    state: Arc<OutboxState>,
    sender: JoinHandle<()>,
}

struct OutboxState {
    link: Link,
    fence: Fence,
    queue: Mutex<WriteQueue>,
    /// The namespaces of which there may be something new to send.
    stirred: Mutex<BTreeSet<String>>,
    /// Entries that left the queue and have no result yet. Raised under the lock of the queue.
    on_the_wire: AtomicUsize,
    /// Wakes the sender: an entry came, or a target is no longer busy.
    changed: Notify,
    /// Wakes [`Outbox::close`]: an entry has its result. Not `changed`, whose one wake-up the sender would take.
    returned: Notify,
    results: UnboundedSender<EntryResult>,
}

impl Cluster {
    /// The outbox of a term, which sends until it is closed or dropped. Results go to `results`.
    pub fn outbox(&self, fence: &Fence, results: UnboundedSender<EntryResult>) -> Outbox {
        let (link, fence) = (self.link.clone(), fence.clone());
        *link.scripts.lock() = Scripts::default();
        let state = Arc::new(OutboxState {
            link,
            fence,
            queue: Mutex::default(),
            stirred: Mutex::default(),
            on_the_wire: AtomicUsize::new(0),
            changed: Notify::new(),
            returned: Notify::new(),
            results,
        });
        let sender = tokio::spawn(send_all(state.clone()));
        Outbox { state, sender }
    }

    /// Does writes that belong to no job that exists, in order. Yields the objects of those that failed.
    pub async fn clean_up(&self, writes: Vec<Write>, fence: &Fence) -> Vec<ObjectKey> {
        let mut failed = Vec::new();
        for write in writes {
            if let Err(why) = self.link.write(&write, fence).await {
                tracing::debug!(object = ?write.object(), ?why, "failed to remove what a job that is gone had left; the next sweep tries again");
                failed.push(write.object().clone());
            }
        }
        failed
    }
}

impl Outbox {
    /// Puts in the entries of a round.
    pub fn apply(&self, recorded: Recorded) {
        let namespaces = recorded.entries.iter().map(|entry| entry.job.key.namespace.clone());
        let namespaces: BTreeSet<String> = namespaces.collect();
        let mut queue = self.state.queue.lock();
        recorded.entries.into_iter().for_each(|entry| queue.push(entry));
        drop(queue);
        self.state.stirred.lock().extend(namespaces);
        self.state.changed.notify_one();
    }

    /// Reads or changes the queue.
    pub fn queue<T>(&self, with: impl FnOnce(&mut WriteQueue) -> T) -> T {
        with(&mut self.state.queue.lock())
    }

    /// The memory of the job has this result: its target is no longer busy. Before that, a round could decide the target
    /// anew without knowing the result.
    pub fn taken(&self, result: &EntryResult) {
        let job = &result.entry.job;
        self.state.queue.lock().finished(&job.uid, result.entry.index);
        self.state.stirred.lock().insert(job.key.namespace.clone());
        self.state.changed.notify_one();
    }

    /// True while a request of the target is on the wire, or its result was not taken in.
    pub fn is_busy(&self, job_uid: &str, index: u32) -> bool {
        self.state.queue.lock().is_busy(job_uid, index)
    }

    /// Drops the entries that wait, and waits up to 1.5 s for the requests on the wire.
    pub async fn close(self) {
        self.state.queue.lock().withdraw_all();
        let empty = async {
            while self.state.on_the_wire.load(Ordering::Acquire) > 0 {
                self.state.returned.notified().await;
            }
        };
        if timeout(LAST_REQUESTS, empty).await.is_err() {
            tracing::warn!("requests were still on the wire 1.5 s after the term ended; they may still take effect");
        }
    }
}

impl Drop for Outbox {
    fn drop(&mut self) {
        self.sender.abort();
    }
}

/// Sends entries as long as there are any, each in a task of its own. For each namespace that has one, a place on the wire is
/// asked for, one at a time: which entry takes it is decided once it is there.
async fn send_all(state: Arc<OutboxState>) {
    let (mut sending, mut asking, mut asked) = (JoinSet::new(), FuturesUnordered::new(), BTreeSet::new());
    loop {
        let stirred = std::mem::take(&mut *state.stirred.lock());
        for namespace in stirred {
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
                    state.stirred.lock().insert(namespace);
                }
            }
            Some(ended) = sending.join_next() => log_panic(ended),
        }
    }
}

impl OutboxState {
    fn has_next(&self, namespace: &str) -> bool {
        self.queue.lock().has_next(|other| other == namespace)
    }

    fn next(&self, namespace: &str) -> Option<Entry> {
        let mut queue = self.queue.lock();
        let next = queue.take_next(|other| other == namespace)?;
        self.on_the_wire.fetch_add(1, Ordering::Release);
        Some(next)
    }

    /// The last check before a request: this term leads, the job is there, and the newest known view of the object is
    /// the one that was decided on.
    fn may_send(&self, entry: Option<&Entry>, write: &Write) -> Result<(), Stopped> {
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

/// One entry on the wire. It yields its result when it is dropped, at the latest.
struct Sending {
    state: Arc<OutboxState>,
    entry: Option<Entry>,
    author: Option<Author>,
    sent: Option<Timestamp>,
    done: usize,
}

impl Sending {
    fn new(state: Arc<OutboxState>, entry: Entry) -> Self {
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
                    tracing::debug!(object = ?write.object(), verb = write.verb(), ?stopped, "a write was not done, or its outcome is unknown");
                    return self.finish(Some(stopped));
                }
            }
        }
        self.finish(None);
    }

    /// The next write was made.
    fn made(&mut self, reply: &Value) {
        self.done += 1;
        let version = reply.pointer("/metadata/resourceVersion").and_then(Value::as_str);
        if let (Some(entry), Some(version)) = (self.entry.as_mut(), version) {
            entry.made(self.done, version);
        }
    }

    async fn send(&mut self, write: &Write, permit: WritePermit) -> Result<Value, Stopped> {
        let Self { state, entry, author, sent, .. } = self;
        let dry_run = entry.as_ref().is_some_and(|entry| entry.dry_run);
        let check = || {
            state.may_send(entry.as_ref(), write)?;
            sent.get_or_insert_with(|| state.link.transport.clock.now());
            Ok(())
        };
        let purpose = Purpose { author: author.as_ref(), dry_run, ..Purpose::default() };
        state.link.write_with(write, permit, check, purpose).await
    }

    fn finish(&mut self, stopped: Option<Stopped>) {
        let Some(entry) = self.entry.take() else { return };
        let at = self.state.link.transport.clock.now();
        // The receiver is gone only while a term ends.
        let result = EntryResult { entry, sent: self.sent, at, done: self.done, stopped };
        let _ending = self.state.results.send(result).is_err();
        self.state.on_the_wire.fetch_sub(1, Ordering::Release);
        self.state.returned.notify_one();
    }
}

impl Drop for Sending {
    fn drop(&mut self) {
        let message = "the host gave up waiting before a reply came".to_owned();
        self.finish(Some(Stopped::Unknown { message }));
    }
}
