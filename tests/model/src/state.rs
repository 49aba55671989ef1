//! One state of a model, and what every step uses: requests that reach the API server, and what the watches tell of it.

use std::collections::VecDeque;

use oarlock_core::cluster::object::Kind;
use oarlock_core::cluster::writes::{Stopped, Write};

use crate::api::{Api, Event, Reply, StoredJob};
use crate::host::{Host, Term, View};
use crate::ledger::{Author, Ledger};
use crate::part::Part;
use crate::scene::{Budget, Scene};

/// A request that timed out, or whose sender is gone: it may still be made.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LateWrite {
    /// Who made it.
    pub by: Author,
    /// The time until which the API server may carry it out.
    pub until: u32,
    /// The request.
    pub write: LateRequest,
}

/// A write, ordered by its text so that a set of them is one state however they came.
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

/// One state.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    /// Seconds since the beginning.
    pub now: u32,
    /// The API server.
    pub api: Part<Api>,
    /// The requests that may still be made.
    pub late: Part<Vec<LateWrite>>,
    /// The two processes.
    pub hosts: [Host; 2],
    /// The number of terms so far.
    pub terms: u8,
    /// What happened so far.
    pub ledger: Part<Ledger>,
    /// How often something may still happen.
    pub left: Budget,
}

/// The longest time that an API server works on a request, in seconds.
const LATEST: u32 = 60;

impl State {
    /// The state with which a scene begins: the first process leads, and has listed everything.
    pub fn new(scene: &Scene) -> Self {
        let api = Api::new(scene);
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
            left: scene.budget,
        }
    }

    /// A request reaches the API server. What it changes is news to every process.
    pub fn serve(&mut self, scene: &Scene, write: &Write, by: Author) -> Result<Reply, Stopped> {
        let before = self.api.clone();
        let now = self.now;
        let mut api = Api::clone(&before);
        let (reply, event) = api.write(write, now)?;
        let Some(event) = event else { return Ok(reply) };
        self.api = Part::new(api);
        let (ledger, after) = (&mut self.ledger, &self.api);
        let job = before.job.as_ref().map(|job| -> &StoredJob { job });
        ledger.edit(|ledger| match (write.object().kind == Kind::job(), before.pods.get(&write.object().name), job) {
            (true, _, Some(job)) => ledger.job_written(scene, by, job, after),
            (false, Some(pod), job) => ledger.pod_written(by, pod, after, job),
            _ => {}
        });
        self.publish(&event);
        Ok(reply)
    }

    /// Something else changes the objects.
    pub fn change(&mut self, with: impl FnOnce(&mut Api, u32) -> Option<Event>) {
        let (now, before) = (self.now, self.api.job.clone());
        let event = self.api.edit(|api| with(api, now));
        if let (Some(Event::JobGone), Some(before)) = (&event, before) {
            self.ledger.edit(|ledger| ledger.gone(&before));
        }
        event.iter().for_each(|event| self.publish(event));
    }

    /// The watches have something to tell. One that does not lead is told the newest view of each object alone: what it
    /// hears of before its term begins leads to nothing.
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

    /// Drops the news of what a process knows already: to hear it would change nothing.
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

    /// A request goes astray: it may still be made.
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

/// Drops all but the newest event of each object: a process whose term has ended goes on with what it will know then.
pub fn newest(news: &VecDeque<Event>) -> VecDeque<Event> {
    let mut kept: VecDeque<Event> = VecDeque::new();
    for event in news {
        kept.retain(|old| !supersedes(event, old));
        kept.push_back(event.clone());
    }
    kept
}
