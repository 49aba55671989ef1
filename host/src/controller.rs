//! Turns changes into rounds while this process leads.
//!
//! Takes the news of the Cluster port, the plugins' and the election's; runs rounds, a few jobs at once, and makes one
//! again that could not be judged. A term is born with empty memory. May not decide anything about a job.

use std::sync::Arc;

use oarlock_core::cluster::store::Change;
use oarlock_core::cluster::writes::{JobKey, Record};
use oarlock_core::round::memory::JobMemory;
use oarlock_core::round::target::asked_to_go;
use oarlock_core::shared::orphans::Sweep;
use oarlock_kube::watch::watches::WatchEvent;
use oarlock_kube::lease::LeaderElector;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::task::JoinSet;
use tokio::time::{Duration, Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use crate::host::Host;
use crate::queue::{Inbox, Queue};
use crate::round::{RoundError, round};
use crate::steps::Rest;
use crate::term::Term;

/// Jobs whose rounds run at once. Rounds are short, and writes are bounded elsewhere.
const ROUNDS_AT_ONCE: usize = 8;
/// How often everything is read anew, in case something was missed.
const RESYNC: Duration = Duration::from_secs(600);
/// How long rounds may take to finish once the process is to stop.
const LAST_ROUNDS: Duration = Duration::from_secs(15);

/// What a round left behind.
struct Finished {
    key: JobKey,
    memory: Box<JobMemory>,
    outcome: Result<Rest, RoundError>,
    inbox_since: Option<Instant>,
    acts_before: u64,
}

/// Turns changes into rounds.
pub struct Controller {
    host: Arc<Host>,
    news: UnboundedReceiver<WatchEvent>,
}

impl Controller {
    /// A controller on these ports, which hears this news.
    pub fn new(host: Arc<Host>, news: UnboundedReceiver<WatchEvent>) -> Self {
        Self { host, news }
    }

    /// Leads whenever `election` says so, until `stop`. The lease is given back at the end.
    pub async fn run(mut self, election: LeaderElector, stop: CancellationToken) {
        let mut leadership = election.leadership();
        let declaring = tokio::spawn(self.host.clone().keep_declared(stop.clone()));
        while !stop.is_cancelled() {
            if leadership.borrow_and_update().leading {
                self.lead(&election, &stop).await;
                continue;
            }
            tokio::select! {
                () = stop.cancelled() => {}
                changed = leadership.changed() => if changed.is_err() { break },
                // Caches are kept by the port; a term reads everything when it begins.
                heard = self.news.recv() => if heard.is_none() { break },
            }
        }
        declaring.abort();
        election.resign().await;
    }

    /// One term.
    async fn lead(&mut self, election: &LeaderElector, stop: &CancellationToken) {
        let mut leadership = election.leadership();
        let number = leadership.borrow_and_update().term;
        tracing::info!(term = number, "leading");
        let mut lead = Lead {
            host: self.host.clone(),
            term: Arc::new(Term::new(election.fence())),
            queue: Queue::default(),
            rounds: JoinSet::new(),
            sweep: Sweep::default(),
        };
        tokio::select! {
            () = stop.cancelled() => return,
            () = self.host.cluster.synced() => {}
        }
        self.host.metrics.leads(true);
        lead.begin();
        lead.sweep().await;
        let mut plugins = self.host.listed();
        let mut resync = Instant::now() + RESYNC;
        while !stop.is_cancelled() && leadership.borrow().leading && leadership.borrow().term == number {
            lead.start_due();
            let due = lead.queue.next().filter(|_| lead.rounds.len() < ROUNDS_AT_ONCE).unwrap_or(resync).min(resync);
            tokio::select! {
                () = stop.cancelled() => {}
                _ = leadership.changed() => {}
                Some(news) = self.news.recv() => lead.hear(news),
                Some(finished) = lead.rounds.join_next() => lead.finish(finished),
                Ok(()) = plugins.changed() => lead.wake_all(|_| {}),
                () = sleep_until(due) => if Instant::now() >= resync {
                    resync = Instant::now() + RESYNC;
                    lead.wake_all(|inbox| inbox.resync = true);
                    lead.sweep().await;
                },
            }
        }
        lead.end().await;
        self.host.metrics.leads(false);
        tracing::info!(term = number, "no longer leading");
    }
}

/// One term of leadership at work.
struct Lead {
    host: Arc<Host>,
    term: Arc<Term>,
    queue: Queue,
    rounds: JoinSet<Finished>,
    sweep: Sweep,
}

impl Lead {
    /// Every job is read before claims are granted in its namespace.
    fn begin(&mut self) {
        for key in self.host.cluster.jobs() {
            self.term.claims(|claims| claims.expect(&key));
            self.queue.happened(&key, |_| {});
        }
    }

    /// Lets go of holds whose job is gone.
    async fn sweep(&mut self) {
        let writes = self.sweep.sweep(self.host.cluster.store(), &self.host.cluster.job_uids());
        if !writes.is_empty() {
            tracing::warn!(pods = writes.len(), "letting go of holds whose jobs are gone");
            self.host.cluster.apply(Record::default().confirmed(writes, Vec::new()), &self.term.fence).await;
        }
    }

    fn hear(&mut self, news: WatchEvent) {
        match news {
            WatchEvent::Job(key) => self.queue.happened(&key, |_| {}),
            WatchEvent::Object(change) => {
                self.term.heard(&change);
                for (key, index) in self.term.concerned(&change, self.host.cluster.store()) {
                    self.queue.happened(&key, |inbox| note(inbox, index, &change));
                }
            }
        }
    }

    fn wake_all(&mut self, with: impl Fn(&mut Inbox)) {
        for key in self.queue.keys() {
            self.queue.happened(&key, &with);
        }
    }

    fn start_due(&mut self) {
        while self.rounds.len() < ROUNDS_AT_ONCE
            && let Some((key, memory, inbox)) = self.queue.take(Instant::now())
        {
            let (host, term) = (self.host.clone(), self.term.clone());
            let span = tracing::info_span!("round", job = %key);
            self.rounds.spawn(run_round(host, term, key, memory, inbox).instrument(span));
        }
    }

    fn finish(&mut self, finished: Result<Finished, tokio::task::JoinError>) {
        let Finished { key, mut memory, outcome, inbox_since, acts_before } = match finished {
            Ok(finished) => finished,
            Err(error) => {
                // The panic hook has told where; the job's memory went with it, and the next resync finds the job.
                tracing::error!(%error, "a round broke off");
                return self.wake_all(|_| {});
            }
        };
        if let Some(since) = inbox_since.filter(|_| memory.acts > acts_before) {
            self.host.metrics.acted_after(since.elapsed());
        }
        match outcome {
            Ok(Rest::Gone) => {
                self.term.forget(&key);
                self.host.metrics.job_is(&key, None);
                self.queue.gone(&key);
            }
            Ok(Rest::Until(time)) => {
                let now = self.host.clock();
                let wait = time.map(|time| Duration::try_from(time.duration_since(now)).unwrap_or_default());
                self.queue.done(&key, memory, wait);
            }
            Err(error) => {
                memory.forget_plan();
                let wait = self.queue.failed(&key, memory);
                tracing::warn!(job = %key, error = chain(&error), retry_ms = wait.as_millis(), "the round is made again");
            }
        }
    }

    /// Lets the rounds that run come to their end.
    async fn end(&mut self) {
        let all = async { while self.rounds.join_next().await.is_some() {} };
        if timeout(LAST_ROUNDS, all).await.is_err() {
            tracing::warn!("rounds still ran and were broken off");
        }
        self.host.metrics.no_jobs();
    }
}

async fn run_round(
    host: Arc<Host>,
    term: Arc<Term>,
    key: JobKey,
    mut memory: Box<JobMemory>,
    inbox: Inbox,
) -> Finished {
    let began = Instant::now();
    let inbox_since = inbox.since;
    let acts_before = memory.acts;
    inbox.empty_into(&mut memory);
    let outcome = round(&host, &term, &key, &mut memory).await;
    host.metrics.round_took(began.elapsed());
    Finished { key, memory, outcome, inbox_since, acts_before }
}

/// What a change means for one target. When it was asked to go is noted as soon as it is seen: a target that rests is
/// not visited before its object is gone, and the last view of an object may not tell any more.
fn note(inbox: &mut Inbox, index: u32, change: &Change) {
    inbox.dirty.insert(index);
    let going = [&change.new, &change.old].into_iter().flatten().find(|object| object.terminating());
    if let Some(object) = going
        && let Some(time) = asked_to_go(object)
    {
        inbox.departed.push((index, object.uid.clone(), time));
    }
}

/// An error with its causes.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        text.push_str(": ");
        text.push_str(&next.to_string());
        cause = next.source();
    }
    text
}
