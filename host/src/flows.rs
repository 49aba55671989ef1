//! JobFlows, JobTemplates and DaemonJobs while this process leads: each has rounds of its own, beside those of the jobs.

mod memory;
mod pace;
mod round;
mod template;

use std::collections::HashMap;
use std::panic::AssertUnwindSafe;

use futures::FutureExt;
use oarlock_kube::flows::{FlowKey, Flows};
use oarlock_kube::lease::Fence;
use tokio::task::{Id, JoinSet};
use tokio::time::{Duration, Instant, sleep_until};
use tracing::Instrument;

use crate::controller::RESYNC;
use crate::flows::memory::FlowMemory;
use crate::flows::pace::Together;
use crate::flows::round::{NextRound, RoundTrouble};
use crate::queue::Queue;

/// Most rounds at once.
const ROUNDS: usize = 16;

struct Finished {
    key: FlowKey,
    memory: Box<FlowMemory>,
    outcome: Result<NextRound, RoundTrouble>,
}

/// Has rounds until it is aborted, with the term that `fence` stands for.
pub(crate) async fn lead_flows(flows: Flows, fence: Fence) {
    flows.synced().await;
    let mut lead = FlowLead {
        flows,
        fence,
        together: Together::default(),
        queue: Queue::default(),
        rounds: JoinSet::new(),
        running: HashMap::new(),
    };
    let mut resync = Instant::now();
    loop {
        if Instant::now() >= resync {
            resync = Instant::now() + RESYNC;
            lead.flows.cache().keys().iter().for_each(|key| lead.queue.enqueue(key, |()| {}));
        }
        lead.flows.cache().take_dirty().iter().for_each(|key| lead.queue.enqueue(key, |()| {}));
        lead.start_due();
        let due = lead.queue.next(|_| lead.rounds.len() < ROUNDS).unwrap_or(resync).min(resync);
        tokio::select! {
            () = lead.flows.cache().dirtied() => {}
            Some(ended) = lead.rounds.join_next_with_id() => lead.finish(ended),
            () = sleep_until(due), if lead.rounds.len() < ROUNDS => {}
        }
    }
}

struct FlowLead {
    flows: Flows,
    fence: Fence,
    together: Together,
    queue: Queue<FlowKey, FlowMemory, ()>,
    rounds: JoinSet<Finished>,
    running: HashMap<Id, FlowKey>,
}

impl FlowLead {
    fn start_due(&mut self) {
        while self.rounds.len() < ROUNDS {
            let Some((key, mut memory, ())) = self.queue.take(Instant::now(), |_| true) else { break };
            let (flows, fence, together) = (self.flows.clone(), self.fence.clone(), self.together.clone());
            let of = key.clone();
            let span = tracing::info_span!("round", of = %key);
            let started = self.rounds.spawn(
                async move {
                    let round = round::run(&flows, (&fence, &together), &key, &mut memory);
                    // One that panics costs its own memory, and nobody else.
                    let outcome = match AssertUnwindSafe(round).catch_unwind().await {
                        Ok(outcome) => outcome,
                        Err(_) => {
                            *memory = FlowMemory::default();
                            Err(RoundTrouble::new("the round panicked; it is made anew with an empty memory"))
                        }
                    };
                    Finished { key, memory, outcome }
                }
                .instrument(span),
            );
            self.running.insert(started.id(), of);
        }
    }

    fn finish(&mut self, ended: Result<(Id, Finished), tokio::task::JoinError>) {
        let (id, finished) = match ended {
            Ok((id, finished)) => (id, Some(finished)),
            Err(error) => (error.id(), None),
        };
        let Some(of) = self.running.remove(&id) else { return };
        let Some(Finished { key, memory, outcome }) = finished else {
            self.queue.failed(&of, Box::default(), None);
            return;
        };
        match outcome {
            Ok(NextRound::Gone) => self.queue.gone(&key),
            Ok(NextRound::After(wait)) => self.queue.done(&key, memory, wait),
            Err(trouble) => {
                let wait = self.queue.failed(&key, memory, trouble.at_least());
                let again = self.queue.fails_for(&key) > Duration::from_secs(10);
                if again && !trouble.is_old_view {
                    tracing::warn!(of = %key, error = trouble.message, ?wait, "a round failed; it is made again");
                } else {
                    tracing::debug!(of = %key, error = trouble.message, ?wait, "a round failed; it is made again");
                }
            }
        }
    }
}
