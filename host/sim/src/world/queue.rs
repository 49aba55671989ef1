//! A work queue with keys. A key never runs twice at once, and a limit bounds the number of running keys. The earliest of
//! several requests for a key counts. A request for a running key makes it run again.

use std::collections::{BTreeMap, HashMap};
use std::future::Future;
use std::hash::Hash;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

/// The sending end of a queue.
#[derive(Debug)]
pub(crate) struct Queue<K> {
    requests: mpsc::UnboundedSender<(K, Instant)>,
}

impl<K> Clone for Queue<K> {
    fn clone(&self) -> Self {
        Self { requests: self.requests.clone() }
    }
}

impl<K> Queue<K> {
    /// Returns a queue and its receiving end for [`run`].
    pub(crate) fn new() -> (Self, mpsc::UnboundedReceiver<(K, Instant)>) {
        let (requests, arrivals) = mpsc::unbounded_channel();
        (Self { requests }, arrivals)
    }

    /// Requests work on a key after a delay. If the queue's worker has stopped, the request is dropped.
    pub(crate) fn add(&self, key: K, delay: Duration) {
        drop(self.requests.send((key, Instant::now() + delay)));
    }
}

/// Runs keys until all sending ends are dropped or the future is dropped. The work returns the delay after which its key is
/// due again.
pub(crate) async fn run<K, F>(mut arrivals: mpsc::UnboundedReceiver<(K, Instant)>, limit: usize, work: impl Fn(K) -> F)
where
    K: Clone + Eq + Hash + Send + 'static,
    F: Future<Output = Option<Duration>> + Send + 'static,
{
    let mut agenda: Agenda<K> = Agenda::new();
    let mut workers: JoinSet<(K, Option<Duration>)> = JoinSet::new();
    loop {
        while workers.len() < limit
            && let Some(key) = agenda.take(Instant::now())
        {
            let job = work(key.clone());
            workers.spawn(async move { (key, job.await) });
        }
        let is_full = workers.len() >= limit;
        let wake = agenda.next().filter(|_| !is_full);
        tokio::select! {
            biased;
            arrival = arrivals.recv() => match arrival {
                Some((key, at)) => agenda.plan(key, at),
                None => return,
            },
            Some(done) = workers.join_next() => match done {
                Ok((key, again)) => agenda.done(key, again.map(|delay| Instant::now() + delay)),
                // The panic shows in the test. The panicked worker's key is unknown, so the key stays busy.
                Err(failure) => tracing::error!(%failure, "a worker of the world ended early"),
            },
            () = sleep_until(wake.unwrap_or_else(Instant::now)), if wake.is_some() => {}
        }
    }
}

/// The schedule of the keys by due time.
struct Agenda<K> {
    due: BTreeMap<(Instant, u64), K>,
    planned: HashMap<K, (Instant, u64)>,
    /// The running keys, each with the time of its next run if one was requested meanwhile.
    busy: HashMap<K, Option<Instant>>,
    count: u64,
}

impl<K: Clone + Eq + Hash> Agenda<K> {
    fn new() -> Self {
        Self { due: BTreeMap::new(), planned: HashMap::new(), busy: HashMap::new(), count: 0 }
    }

    fn plan(&mut self, key: K, at: Instant) {
        if let Some(again) = self.busy.get_mut(&key) {
            *again = Some(again.map_or(at, |known| known.min(at)));
            return;
        }
        if let Some(known) = self.planned.get(&key) {
            if known.0 <= at {
                return;
            }
            self.due.remove(known);
        }
        self.count += 1;
        self.due.insert((at, self.count), key.clone());
        self.planned.insert(key, (at, self.count));
    }

    fn next(&self) -> Option<Instant> {
        self.due.first_key_value().map(|((at, _), _)| *at)
    }

    fn take(&mut self, now: Instant) -> Option<K> {
        let entry = self.due.first_entry().filter(|entry| entry.key().0 <= now)?;
        let key = entry.remove();
        self.planned.remove(&key);
        self.busy.insert(key.clone(), None);
        Some(key)
    }

    fn done(&mut self, key: K, again: Option<Instant>) {
        let requested = self.busy.remove(&key).flatten();
        let earliest = [requested, again].into_iter().flatten().min();
        if let Some(at) = earliest {
            self.plan(key, at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_earliest_wish_counts_and_a_busy_key_runs_again() {
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        let mut agenda = Agenda::new();
        agenda.plan("a", at(30));
        agenda.plan("a", at(10));
        agenda.plan("a", at(20));
        agenda.plan("b", at(15));
        assert_eq!(agenda.take(at(9)), None);
        assert_eq!(agenda.take(at(20)), Some("a"));
        agenda.plan("a", at(12));
        assert_eq!(agenda.take(at(20)), Some("b"));
        assert_eq!(agenda.take(at(90)), None);
        agenda.done("b", None);
        agenda.done("a", Some(at(40)));
        assert_eq!(agenda.take(at(20)), Some("a"));
        agenda.done("a", None);
        assert_eq!(agenda.next(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_queue_works_each_key_alone_and_bounded() {
        let peak = std::sync::Arc::new(parking_lot::Mutex::new((0_usize, 0_usize, Vec::new())));
        let seen = peak.clone();
        let work = move |key: u64| {
            let seen = seen.clone();
            async move {
                {
                    let mut state = seen.lock();
                    state.0 += 1;
                    state.1 = state.1.max(state.0);
                    state.2.push(key);
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
                seen.lock().0 -= 1;
                None
            }
        };
        let (keep, more) = Queue::new();
        for key in [1, 2, 3, 1, 2] {
            keep.add(key, Duration::from_millis(key));
        }
        let worked = tokio::time::timeout(Duration::from_secs(1), run(more, 2, work));
        assert!(worked.await.is_err(), "the queue is open, so it must wait for more");
        drop(keep);
        let state = peak.lock();
        assert_eq!((state.1, state.2.clone()), (2, vec![1, 2, 3]));
    }
}
