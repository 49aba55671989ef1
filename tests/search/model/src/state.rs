//! One state of a model, and the operations that every step uses: requests to the API server, and events of the
//! watches.

use std::collections::VecDeque;

use oarlock_core::object::api_object::Kind;
use oarlock_core::requests::writes::{Stopped, Write};

use crate::api::{Api, Event, Reply, StoredJob};
use crate::host::{Host, Term, View};
use crate::ledger::{Author, Ledger};
use crate::part::Part;
use crate::scenario::{Budget, Scenario};

/// A request that timed out, or whose sender is gone. The API server may still carry it out.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LateWrite {
    /// The author of the request.
    pub by: Author,
    /// The time until which the API server may carry it out.
    pub until: u32,
    /// The request.
    pub write: LateRequest,
}

/// A write, ordered by its text, so that equal sets of writes are one state whatever their order of arrival.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LateRequest(pub Write);

impl PartialOrd for LateRequest {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for LateRequest {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        format!("{:?}", self.0).cmp(&format!("{:?}", other.0))
    }
}

/// One state of a model.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    /// Seconds since the start.
    pub now: u32,
    /// The API server.
    pub api: Part<Api>,
    /// The requests that the API server may still carry out.
    pub late: Part<Vec<LateWrite>>,
    /// The two processes.
    pub hosts: [Host; 2],
    /// The number of terms so far.
    pub terms: u8,
    /// The history, and its judge.
    pub ledger: Part<Ledger>,
    /// How often each fault may still happen.
    pub left: Budget,
}

/// The longest time for which an API server works on a request, in seconds.
const LATEST: u32 = 60;

impl State {
    /// Creates the first state of a scenario. The first process leads and has listed all objects.
    pub fn new(scenario: &Scenario) -> Self {
        let api = Api::new(scenario);
        let view = Part::new(View::listed(&api));
        let host = || Host { view: view.clone(), news: [Part::default(), Part::default()], term: None, last: None };
        let mut hosts = [host(), host()];
        hosts[0].term = Some(Term::begin(1, &view));
        Self {
            now: 0,
            api: Part::new(api),
            late: Part::default(),
            hosts,
            terms: 1,
            ledger: Part::default(),
            left: scenario.budget,
        }
    }

    /// Carries out a request at the API server. Every process gets the change as an event.
    pub fn serve(&mut self, scenario: &Scenario, write: &Write, by: Author) -> Result<Reply, Stopped> {
        let before = self.api.clone();
        let now = self.now;
        let mut api = Api::clone(&before);
        let (reply, event) = api.write(write, now)?;
        let Some(event) = event else { return Ok(reply) };
        self.api = Part::new(api);
        let (ledger, after) = (&mut self.ledger, &self.api);
        let job = before.job.as_ref().map(|job| -> &StoredJob { job });
        ledger.edit(|ledger| match (write.object().kind == Kind::job(), before.pods.get(&write.object().name), job) {
            (true, _, Some(job)) => ledger.job_written(scenario, by, job, after),
            (false, Some(pod), job) => ledger.pod_written(by, pod, after, job),
            _ => {}
        });
        self.publish(&event);
        Ok(reply)
    }

    /// Changes the objects without a request of the host.
    pub fn change(&mut self, with: impl FnOnce(&mut Api, u32) -> Option<Event>) {
        let (now, before) = (self.now, self.api.job.clone());
        let event = self.api.edit(|api| with(api, now));
        if let (Some(Event::JobGone), Some(before)) = (&event, before) {
            self.ledger.edit(|ledger| ledger.gone(&before));
        }
        event.iter().for_each(|event| self.publish(event));
    }

    /// Queues an event of a watch for each process. A process that does not lead keeps only the newest view of each
    /// object, because events before its term lead to nothing.
    fn publish(&mut self, event: &Event) {
        for host in &mut self.hosts {
            let leads = host.term.is_some();
            let place = usize::from(matches!(event, Event::Job(_) | Event::JobGone));
            host.news[place].edit(|news| {
                if !leads {
                    news.retain(|old| !supersedes(event, old));
                }
                news.push_back(event.clone());
            });
        }
    }

    /// Drops the events whose view a process already has, because such events change nothing.
    pub fn drop_old_news(&mut self) {
        for host in &mut self.hosts {
            let view = host.view.clone();
            let old = |event: &Event| match event {
                Event::Pod(pod) => view.pods.get(&pod.key.name).is_some_and(|known| known.version() >= pod.version()),
                Event::Job(job) => view.job.as_ref().is_none_or(|known| known.version() >= job.version()),
                Event::JobGone => view.job.is_none(),
                Event::PodGone(_) => false,
            };
            for news in &mut host.news {
                if news.iter().any(old) {
                    news.edit(|news| news.retain(|event| !old(event)));
                }
            }
        }
    }

    /// Keeps a request that timed out. The API server may still carry it out.
    pub fn astray(&mut self, write: Write, by: Author) {
        let late = LateWrite { by, until: self.now + LATEST, write: LateRequest(write) };
        self.late.edit(|all| {
            all.push(late);
            all.sort();
        });
    }
}

fn supersedes(new: &Event, old: &Event) -> bool {
    match (new, old) {
        (Event::Pod(new) | Event::PodGone(new), Event::Pod(old)) => new.uid == old.uid,
        (Event::Job(_) | Event::JobGone, Event::Job(_)) => true,
        _ => false,
    }
}

/// Drops all but the newest event of each object. A process whose term has ended needs only the newest views.
pub fn newest(news: &VecDeque<Event>) -> VecDeque<Event> {
    let mut kept: VecDeque<Event> = VecDeque::new();
    for event in news {
        kept.retain(|old| !supersedes(event, old));
        kept.push_back(event.clone());
    }
    kept
}
