//! Rounds of kinds that need none of what jobs of plugins do: flows, and OpsJobs. They run beside those of the jobs, while this process
//! leads.

use std::fmt::Display;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures::FutureExt;
use tokio::task::{Id, JoinSet};
use tokio::time::{Duration, Instant, sleep_until};
use tracing::Instrument;

use crate::controller::RESYNC;
use crate::metrics::Metrics;
use crate::queue::{HasRounds, LONGEST_WAIT, Queue};
use crate::round_trouble::RoundTrouble;
use crate::running::{Places, RoundBounds, RunningRounds};

/// Longest wait for a newer view: once it is there, the round goes on soon.
const OLD_VIEW: Duration = Duration::from_secs(1);

/// What follows a round.
pub(crate) enum NextRound {
    /// The object is gone.
    Gone,
    /// The next round is due after this time, if nothing happens before.
    After(Option<Duration>),
}

/// How the rounds of some kinds are made, for one term.
pub(crate) trait Reconcile: Send + Sync + 'static {
    /// What has rounds.
    type Key: HasRounds + Display + Send + Sync + 'static;
    /// What a term remembers of it between two rounds.
    type Memory: Default + Send + 'static;

    /// Returns the metrics of the host.
    fn metrics(&self) -> &Metrics;
    /// Resolves once rounds can be made.
    fn ready(&self) -> impl Future<Output = ()> + Send;
    /// All that is known.
    fn all(&self) -> Vec<Self::Key>;
    /// What changed since the last call.
    fn take_changed(&self) -> Vec<Self::Key>;
    /// Resolves once something may have changed.
    fn changed(&self) -> impl Future<Output = ()> + Send;
    /// Makes one round. `since` is the time of the first change that it is made for.
    fn round(
        &self,
        key: &Self::Key,
        memory: &mut Self::Memory,
        since: Option<Instant>,
    ) -> impl Future<Output = Result<NextRound, RoundTrouble>> + Send;
    /// Notes that a round has ended.
    fn ended(&self, key: &Self::Key, memory: &mut Self::Memory, took: Duration);
    /// Notes that something is gone.
    fn is_gone(&self, key: &Self::Key);
}

struct Finished<R: Reconcile> {
    key: R::Key,
    memory: Box<R::Memory>,
    outcome: Result<NextRound, RoundTrouble>,
}

/// Has rounds until it is aborted, with the term of `reconciler`.
pub(crate) async fn lead<R: Reconcile>(reconciler: R) {
    reconciler.ready().await;
    let (queue, rounds, running) = (Queue::default(), JoinSet::new(), RunningRounds::within(RoundBounds::FLOWS));
    let mut lead = Lead { reconciler: Arc::new(reconciler), queue, rounds, running };
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
            Some(ended) = lead.rounds.join_next_with_id() => lead.finish(ended),
            () = sleep_until(due) => {}
        }
    }
}

struct Lead<R: Reconcile> {
    reconciler: Arc<R>,
    queue: Queue<R::Key, R::Memory, Option<Instant>>,
    rounds: JoinSet<Finished<R>>,
    running: RunningRounds<R::Key>,
}

impl<R: Reconcile> Lead<R> {
    fn places(&self) -> Places {
        self.running.places(Instant::now(), |_| false)
    }

    /// The due time of the next round that may begin, or the time at which a round that runs gives up its place.
    fn next_due(&self) -> Option<Instant> {
        let places = self.places();
        let due = if places.is_full { None } else { self.queue.next(|key| places.has_room(key)) };
        due.into_iter().chain(places.next).min()
    }

    fn start_due(&mut self) {
        loop {
            let places = self.places();
            let next = self.queue.take(Instant::now(), |key| places.has_room(key));
            let Some((key, mut memory, since)) = next else { break };
            let (reconciler, of) = (self.reconciler.clone(), key.clone());
            let span = tracing::info_span!("round", of = %key);
            let started = self.rounds.spawn(
                async move {
                    let began = Instant::now();
                    let round = reconciler.round(&key, &mut memory, since);
                    // One that panics costs its own memory, and nobody else.
                    let outcome = match AssertUnwindSafe(round).catch_unwind().await {
                        Ok(outcome) => outcome,
                        Err(_) => {
                            reconciler.metrics().panicked();
                            *memory = R::Memory::default();
                            Err(RoundTrouble::new("the round panicked; it is made anew with an empty memory"))
                        }
                    };
                    reconciler.ended(&key, &mut memory, began.elapsed());
                    Finished { key, memory, outcome }
                }
                .instrument(span),
            );
            self.running.begin(started.id(), of, None);
        }
    }

    fn finish(&mut self, ended: Result<(Id, Finished<R>), tokio::task::JoinError>) {
        let (id, finished) = match ended {
            Ok((id, finished)) => (id, Some(finished)),
            Err(error) => (error.id(), None),
        };
        let Some(of) = self.running.end(id) else { return };
        let Some(Finished { key, memory, outcome }) = finished else {
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
                let most = if trouble.is_old_view { OLD_VIEW } else { LONGEST_WAIT };
                let wait = self.queue.failed_within(&key, memory, trouble.at_least(), most);
                // An old view is no news before a watch that hangs would have been begun anew.
                let patience = Duration::from_secs(if trouble.is_old_view { 120 } else { 10 });
                if self.queue.fails_for(&key) > patience {
                    tracing::warn!(of = %key, error = trouble.message, ?wait, "a round failed; it is made again");
                } else {
                    tracing::debug!(of = %key, error = trouble.message, ?wait, "a round failed; it is made again");
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use oarlock_core::job::key::JobKey;
    use oarlock_kube::Requests;
    use tokio::sync::Notify;

    use super::*;

    /// One object, whose first round panics.
    struct Fragile {
        metrics: Metrics,
        rounds: AtomicUsize,
        went_on: Arc<Notify>,
    }

    impl Reconcile for Fragile {
        type Key = JobKey;
        type Memory = usize;

        fn metrics(&self) -> &Metrics {
            &self.metrics
        }

        async fn ready(&self) {}

        fn all(&self) -> Vec<JobKey> {
            vec![JobKey { namespace: "d".into(), name: "j".into() }]
        }

        fn take_changed(&self) -> Vec<JobKey> {
            Vec::new()
        }

        async fn changed(&self) {
            std::future::pending().await
        }

        async fn round(
            &self,
            _key: &JobKey,
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

        fn ended(&self, _key: &JobKey, _memory: &mut usize, _took: Duration) {}

        fn is_gone(&self, _key: &JobKey) {}
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
