//! JobFlows, JobTemplates and DaemonJobs while this process leads: each has rounds of its own, beside those of the jobs.

mod memory;
mod pace;
mod recall;
mod reporting;
mod requests;
mod round;
mod template;
mod trouble;

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures::FutureExt;
use k8s_openapi::jiff::Timestamp;
use oarlock_kube::flows::{FlowKey, Flows};
use oarlock_kube::lease::Fence;
use tokio::task::{Id, JoinSet};
use tokio::time::{Duration, Instant, sleep_until};
use tracing::Instrument;

use crate::controller::RESYNC;
use crate::flows::memory::FlowMemory;
use crate::flows::pace::Together;
use crate::flows::round::NextRound;
use crate::flows::trouble::RoundTrouble;
use crate::metrics::Metrics;
use crate::metrics::flows::ShownFlows;
use crate::queue::{LONGEST_WAIT, Queue};
use crate::running::{Places, RoundBounds, RunningRounds};

/// Longest wait for a newer view: once it is there, the round goes on soon.
const OLD_VIEW: Duration = Duration::from_secs(1);

/// What all rounds of one term share.
#[derive(Clone)]
pub(crate) struct FlowTerm {
    pub(crate) flows: Flows,
    pub(crate) fence: Fence,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) together: Together,
    /// When it began.
    pub(crate) began: Timestamp,
}

struct Finished {
    key: FlowKey,
    memory: Box<FlowMemory>,
    outcome: Result<NextRound, RoundTrouble>,
}

/// Has rounds until it is aborted, with the term that `fence` stands for.
pub(crate) async fn lead_flows(flows: Flows, fence: Fence, metrics: Arc<Metrics>) {
    flows.synced().await;
    let shown = ShownFlows::begin(metrics.clone());
    let began = flows.cluster().clock().now();
    let term = FlowTerm { flows, fence, metrics, together: Together::default(), began };
    let (queue, rounds, running) = (Queue::default(), JoinSet::new(), RunningRounds::within(RoundBounds::FLOWS));
    let mut lead = FlowLead { term, queue, rounds, running, shown };
    let mut resync = Instant::now();
    loop {
        if Instant::now() >= resync {
            resync = Instant::now() + RESYNC;
            lead.term.flows.cache().keys().iter().for_each(|key| lead.queue.enqueue(key, |_| {}));
        }
        lead.term.flows.cache().take_dirty().iter().for_each(|key| lead.queue.enqueue(key, |_| {}));
        lead.start_due();
        let due = lead.next_due().unwrap_or(resync).min(resync);
        tokio::select! {
            () = lead.term.flows.cache().dirtied() => {}
            Some(ended) = lead.rounds.join_next_with_id() => lead.finish(ended),
            () = sleep_until(due) => {}
        }
    }
}

struct FlowLead {
    term: FlowTerm,
    queue: Queue<FlowKey, FlowMemory, Option<Instant>>,
    rounds: JoinSet<Finished>,
    running: RunningRounds<FlowKey>,
    shown: ShownFlows,
}

impl FlowLead {
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
            memory.since = since;
            let (term, of) = (self.term.clone(), key.clone());
            let span = tracing::info_span!("round", of = %key);
            let started = self.rounds.spawn(
                async move {
                    let began = Instant::now();
                    let round = round::run(&term, &key, &mut memory);
                    // One that panics costs its own memory, and nobody else.
                    let outcome = match AssertUnwindSafe(round).catch_unwind().await {
                        Ok(outcome) => outcome,
                        Err(_) => {
                            *memory = FlowMemory::default();
                            Err(RoundTrouble::new("the round panicked; it is made anew with an empty memory"))
                        }
                    };
                    if let FlowKey::Parent(kind, ..) = key {
                        term.metrics.flows.of(kind).round_took(began.elapsed());
                    }
                    Finished { key, memory, outcome }
                }
                .instrument(span),
            );
            self.running.begin(started.id(), of, None);
        }
    }

    fn finish(&mut self, ended: Result<(Id, Finished), tokio::task::JoinError>) {
        let (id, finished) = match ended {
            Ok((id, finished)) => (id, Some(finished)),
            Err(error) => (error.id(), None),
        };
        let Some(of) = self.running.end(id) else { return };
        let Some(Finished { key, mut memory, outcome }) = finished else {
            self.queue.failed(&of, Box::default(), None);
            return;
        };
        if let Some(figures) = memory.figures.take() {
            self.shown.set(&key, Some(figures));
        }
        match outcome {
            Ok(NextRound::Gone) => {
                self.shown.set(&key, None);
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
