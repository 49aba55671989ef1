//! The rounds of flows and OpsJobs, which run beside the rounds of the jobs while this process leads.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures::FutureExt;
use oarlock_core::object::api_object::ObjectKey;
use tokio::task::{Id, JoinSet};
use tokio::time::{Duration, Instant, sleep_until};
use tracing::field::Empty;
use tracing::{Instrument, Span};

use crate::metrics::Metrics;
use crate::queue::{DueRound, FAILED, Queue};
use crate::round_limits::{CountsFor, FreeSlots, RoundBounds, RunningRounds};
use crate::round_trouble::RoundTrouble;
use crate::traces::SPANS;

/// The default interval between two complete lists, in case the host missed a change.
pub const RESYNC: Duration = Duration::from_secs(600);
/// The longest wait for a newer view, so that the round continues soon after it arrives.
const OLD_VIEW: Duration = Duration::from_secs(1);

/// The result of a successful round.
pub(crate) enum NextRound {
    /// The object is deleted.
    Gone,
    /// The next round is due after this time, or at a change.
    After(Option<Duration>),
}

/// The rounds of some kinds in one term.
pub(crate) trait Reconcile: Send + Sync + 'static {
    /// The state that a term keeps of an object between two rounds.
    type Memory: Default + Send + 'static;

    /// Returns the metrics of the host.
    fn metrics(&self) -> &Metrics;
    /// Resolves when rounds can start.
    fn ready(&self) -> impl Future<Output = ()> + Send;
    /// Returns the share that the rounds of an object count against. Without another share, it is the namespace.
    fn share(&self, key: &ObjectKey) -> String {
        key.namespace.clone().unwrap_or_default()
    }
    /// Returns all known objects.
    fn all(&self) -> Vec<ObjectKey>;
    /// Returns the objects that changed since the last call.
    fn take_changed(&self) -> Vec<ObjectKey>;
    /// Resolves when an object may have changed.
    fn changed(&self) -> impl Future<Output = ()> + Send;
    /// Runs one round. `since` is the time of the first change that led to the round.
    fn round(
        &self,
        key: &ObjectKey,
        memory: &mut Self::Memory,
        since: Option<Instant>,
    ) -> impl Future<Output = Result<NextRound, RoundTrouble>> + Send;
    /// Handles the end of a round.
    fn ended(&self, key: &ObjectKey, memory: &mut Self::Memory, took: Duration);
    /// Handles the deletion of an object.
    fn is_gone(&self, key: &ObjectKey);
}

struct ReconcileResult<R: Reconcile> {
    key: ObjectKey,
    memory: Box<R::Memory>,
    outcome: Result<NextRound, RoundTrouble>,
}

/// Runs rounds for the term of `reconciler`, until the task is aborted.
pub(crate) async fn lead<R: Reconcile>(reconciler: R) {
    reconciler.ready().await;
    let reconciler = Arc::new(reconciler);
    let shares = reconciler.clone();
    let queue = Queue::shared_by(Arc::new(move |key: &ObjectKey| shares.share(key)));
    let (rounds, running) = (JoinSet::new(), RunningRounds::within(RoundBounds::FLOWS));
    let mut lead = RoundRunner { reconciler, queue, rounds, running };
    let mut resync = Instant::now();
    loop {
        if Instant::now() >= resync {
            resync = Instant::now() + RESYNC;
            lead.reconciler.all().iter().for_each(|key| lead.queue.enqueue(key, |_| {}));
        }
        lead.reconciler.take_changed().iter().for_each(|key| lead.queue.enqueue(key, |_| {}));
        lead.start_due();
        let due = lead.next_due().unwrap_or(resync).min(resync);
        let reconciler = lead.reconciler.clone();
        tokio::select! {
            () = reconciler.changed() => {}
            Some(ended) = lead.rounds.join_next_with_id() => match ended {
                Ok((id, finished)) => lead.finish(id, Some(finished)),
                Err(error) => lead.finish(error.id(), None),
            },
            () = sleep_until(due) => {}
        }
    }
}

struct RoundRunner<R: Reconcile> {
    reconciler: Arc<R>,
    queue: Queue<ObjectKey, R::Memory, Option<Instant>>,
    rounds: JoinSet<ReconcileResult<R>>,
    running: RunningRounds<ObjectKey>,
}

impl<R: Reconcile> RoundRunner<R> {
    fn free_slots(&self) -> FreeSlots {
        self.running.free_slots(Instant::now(), |_| false)
    }

    /// Returns the due time of the next round that may start, or the time at which a running round gives up its slot.
    fn next_due(&self) -> Option<Instant> {
        let free_slots = self.free_slots();
        let due = if free_slots.is_full { None } else { self.queue.next(|share, _| free_slots.has_room(share)) };
        due.into_iter().chain(free_slots.next).min()
    }

    fn start_due(&mut self) {
        loop {
            let free_slots = self.free_slots();
            let next = self.queue.take(Instant::now(), |share, _| free_slots.has_room(share));
            let Some(DueRound { key, share, mut memory, changes: since }) = next else { break };
            let (reconciler, of) = (self.reconciler.clone(), key.clone());
            let span =
                tracing::info_span!(target: SPANS, "round", kind = key.kind.kind, of = %key, otel.status_code = Empty);
            let started = self.rounds.spawn(
                async move {
                    let began = Instant::now();
                    let round = reconciler.round(&key, &mut memory, since);
                    // A panic loses only the memory of this object.
                    let outcome = match AssertUnwindSafe(round).catch_unwind().await {
                        Ok(outcome) => outcome,
                        Err(_) => {
                            reconciler.metrics().panicked();
                            *memory = R::Memory::default();
                            Err(RoundTrouble::new("the round panicked; it is made anew with an empty memory"))
                        }
                    };
                    if outcome.is_err() {
                        Span::current().record("otel.status_code", "ERROR");
                    }
                    reconciler.ended(&key, &mut memory, began.elapsed());
                    ReconcileResult { key, memory, outcome }
                }
                .instrument(span),
            );
            self.running.begin(started.id(), of, CountsFor { share, action: None });
        }
    }

    /// Handles the end of a round. The round of this id has no result if it panicked.
    fn finish(&mut self, id: Id, finished: Option<ReconcileResult<R>>) {
        let Some(of) = self.running.end(id) else { return };
        let (failing, kind) = (&self.reconciler.metrics().failing, &of.kind.kind);
        match finished.as_ref().map(|finished| &finished.outcome) {
            Some(Ok(_)) => failing.succeeded(kind, || of.to_string()),
            // A stale view is no failure: a newer view arrives soon.
            Some(Err(trouble)) if trouble.is_old_view => {}
            Some(Err(_)) | None => failing.failed(kind, of.to_string()),
        }
        let Some(ReconcileResult { key, memory, outcome }) = finished else {
            self.queue.failed(&of, Box::default(), None);
            return;
        };
        match outcome {
            Ok(NextRound::Gone) => {
                self.reconciler.is_gone(&key);
                self.queue.gone(&key);
            }
            Ok(NextRound::After(wait)) => self.queue.done(&key, memory, wait),
            Err(trouble) => {
                let most = if trouble.is_old_view { OLD_VIEW } else { FAILED.longest() };
                let wait = self.queue.failed_within(&key, memory, trouble.at_least(), most);
                // A stale view is no reason for a warning before a hanging watch would have been restarted.
                let patience = Duration::from_secs(if trouble.is_old_view { 120 } else { 10 });
                if self.queue.fails_for(&key) > patience {
                    tracing::warn!(of = %key, error = trouble.message, ?wait, "a round failed; the host repeats the round");
                } else {
                    tracing::debug!(of = %key, error = trouble.message, ?wait, "a round failed; the host repeats the round");
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use oarlock_kube::Requests;
    use tokio::sync::Notify;

    use super::*;

    /// A reconciler of one object whose first round panics.
    struct Fragile {
        metrics: Metrics,
        rounds: AtomicUsize,
        went_on: Arc<Notify>,
    }

    impl Reconcile for Fragile {
        type Memory = usize;

        fn metrics(&self) -> &Metrics {
            &self.metrics
        }

        async fn ready(&self) {}

        fn all(&self) -> Vec<ObjectKey> {
            vec![ObjectKey::pod("d", "j")]
        }

        fn take_changed(&self) -> Vec<ObjectKey> {
            Vec::new()
        }

        async fn changed(&self) {
            std::future::pending().await
        }

        async fn round(
            &self,
            _key: &ObjectKey,
            memory: &mut usize,
            _since: Option<Instant>,
        ) -> Result<NextRound, RoundTrouble> {
            assert_eq!(std::mem::replace(memory, 7), 0, "what a panic left in the memory is gone");
            if self.rounds.fetch_add(1, Ordering::Relaxed) == 0 {
                panic!("this round panics");
            }
            let text = self.metrics.text();
            assert!(text.contains("round_panics_total 1"), "{text}");
            self.went_on.notify_one();
            Ok(NextRound::Gone)
        }

        fn ended(&self, _key: &ObjectKey, _memory: &mut usize, _took: Duration) {}

        fn is_gone(&self, _key: &ObjectKey) {}
    }

    #[tokio::test(start_paused = true)]
    async fn a_round_of_any_kind_that_panics_is_counted_and_made_again() {
        let went_on = Arc::new(Notify::new());
        let metrics = Metrics::new(&Arc::new(Requests::default()));
        let leads = lead(Fragile { metrics, rounds: AtomicUsize::new(0), went_on: went_on.clone() });
        tokio::select! {
            () = leads => unreachable!("it leads until it is aborted"),
            () = went_on.notified() => {}
        }
    }
}
