//! One state of a model of OpsJobs, and the operations that every step uses: requests to the API server, events of the
//! watches, and changes of the lease.

use std::collections::VecDeque;

use oarlock_core::kind::locks::ClaimOrder;
use oarlock_core::ops_job::names::ops_kind;
use oarlock_core::requests::writes::{Stopped, Write};
use serde_json::Value;

use crate::ops::api::{OpsApi, OpsEvent, OpsReply};
use crate::ops::host::{Claims, OpsHost, OpsTerm, OpsView};
use crate::ops::ledger::OpsLedger;
use crate::ops::round::OpsRequest;
use crate::ops::scenario::{OpsBudget, OpsScenario};
use crate::ops::switch::OpsSwitch;
use crate::part::Part;
use crate::state::LateRequest;

/// A request that timed out, or whose sender is gone. The API server may still carry it out.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Stray {
    /// The request.
    pub write: LateRequest,
    /// True if nobody had stopped the OpsJob at the live read before the request.
    pub is_allowed: bool,
}

/// One state of a model of OpsJobs.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct OpsState {
    /// Seconds since the start.
    pub now: u32,
    /// True if the workspace has moved to another node.
    pub has_moved: bool,
    /// The API server.
    pub api: Part<OpsApi>,
    /// The requests that the API server may still carry out.
    pub late: Part<Vec<Stray>>,
    /// The two processes.
    pub hosts: [OpsHost; 2],
    /// The history, and its judge.
    pub ledger: Part<OpsLedger>,
    /// How often each event may still happen.
    pub left: OpsBudget,
}

impl OpsState {
    /// Creates the first state of a scenario. The first process leads and has listed all objects.
    pub fn new(scenario: &OpsScenario) -> Self {
        let mut api = OpsApi::default();
        scenario.tasks.iter().filter(|task| !task.is_later).for_each(|task| drop(api.create_job(task)));
        let view = Part::new(OpsView::listed(&api));
        let host = || OpsHost { view: view.clone(), ..OpsHost::default() };
        let mut state = Self {
            now: 0,
            has_moved: false,
            api: Part::new(api),
            late: Part::default(),
            hosts: [host(), host()],
            ledger: Part::default(),
            left: scenario.budget,
        };
        state.lead(scenario, 0);
        state
    }

    /// Carries out a request at the API server. Every process gets the change as an event.
    ///
    /// # Errors
    /// If the object is gone or a precondition does not hold.
    pub fn serve(&mut self, write: &Write, is_allowed: bool) -> Result<OpsReply, Stopped> {
        let (before, now) = (self.api.clone(), self.now);
        let mut api = OpsApi::clone(&before);
        let (reply, event) = api.write(write, now)?;
        let Some(event) = event else { return Ok(reply) };
        self.api = Part::new(api);
        let after = &self.api;
        self.ledger.edit(|ledger| ledger.written(&write.object().name, &before, after, is_allowed));
        self.publish(event);
        Ok(reply)
    }

    /// Changes the objects without a request of the host.
    pub fn change(&mut self, with: impl FnOnce(&mut OpsApi, u32) -> Option<OpsEvent>) {
        let now = self.now;
        let event = self.api.edit(|api| with(api, now));
        event.into_iter().for_each(|event| self.publish(event));
    }

    /// Queues an event of a watch for each process. A process that does not lead keeps only the newest event of each
    /// object, because its cache leads to nothing before its next term.
    fn publish(&mut self, event: OpsEvent) {
        for host in &mut self.hosts {
            let leads = host.term.is_some();
            host.news.edit(|news| {
                let queue = news.entry(event.subject()).or_default();
                if !leads {
                    queue.clear();
                }
                queue.push_back(event.clone());
            });
        }
    }

    /// Drops the events that change nothing in the cache of a process, and the requests that cannot succeed any more.
    pub fn drop_spent(&mut self) {
        for host in &mut self.hosts {
            let view = host.view.clone();
            let is_old = |queue: &VecDeque<OpsEvent>| queue.front().is_none_or(|event| view.is_old(event));
            while host.news.values().any(is_old) {
                host.news.edit(|news| {
                    news.values_mut().filter(|queue| is_old(queue)).for_each(|queue| drop(queue.pop_front()));
                    news.retain(|_, queue| !queue.is_empty());
                });
            }
        }
        let api = self.api.clone();
        if self.late.iter().any(|stray| is_spent(&api, &stray.write.0)) {
            self.late.edit(|late| late.retain(|stray| !is_spent(&api, &stray.write.0)));
        }
    }

    /// Returns true if nobody had stopped the OpsJob at the live read before a request. No live read precedes a create.
    pub fn is_allowed(&self, request: &OpsRequest) -> bool {
        let OpsRequest { write, is_allowed } = request;
        let is_stopped = || self.api.jobs.get(&write.object().name).is_none_or(|job| job.is_stopped());
        *is_allowed && !(matches!(write, Write::Create { .. }) && is_stopped())
    }

    /// Keeps a request that timed out. The API server may still carry it out.
    pub fn astray(&mut self, request: &OpsRequest) {
        let stray = Stray { is_allowed: self.is_allowed(request), write: LateRequest(request.write.clone()) };
        self.late.edit(|all| {
            all.push(stray);
            all.sort();
            all.dedup();
        });
    }

    /// Carries out a request that timed out before.
    pub fn carry_out_late(&mut self, place: usize) {
        let stray = self.late.edit(|all| all.remove(place));
        // No process gets a reply, because the request has timed out at its sender.
        let _unheard = self.serve(&stray.write.0, stray.is_allowed).is_err();
    }

    /// Gives the lease to a process. The term begins with a live list of the OpsJobs, and restores their claims from it.
    pub fn lead(&mut self, scenario: &OpsScenario, h: usize) {
        for other in 0..2 {
            let goes_on = other != h && scenario.lacks(OpsSwitch::AsksNoFence);
            match &mut self.hosts[other].term {
                Some(term) if goes_on => term.is_over = true,
                _ => self.drop_term(other),
            }
        }
        if !scenario.lacks(OpsSwitch::RestoresFromTheCache) {
            let jobs = self.api.jobs.clone();
            self.hosts[h].view.edit(|view| jobs.values().for_each(|job| drop(view.put_job(job))));
        }
        let host = &mut self.hosts[h];
        let mut jobs: Vec<_> = host.view.jobs.values().map(|job| job.job.clone()).collect();
        let mut claims = Claims::none(scenario.tasks);
        let by_age = scenario.lacks(OpsSwitch::RestoresByAge);
        jobs.sort_by_cached_key(|job| {
            let order = job.view.claim_order();
            (ClaimOrder { is_idle: order.is_idle && !by_age, ..order }, job.view.name.clone())
        });
        if !scenario.lacks(OpsSwitch::RestoresNoClaims) {
            let lacks_ended = scenario.lacks(OpsSwitch::RestoresNoEndedJob);
            for job in jobs.iter().filter(|job| !(lacks_ended && job.view.status.has_ended())) {
                // The other one finds out in its next round.
                let _busy = claims.locks.take(&job.view.uid, &job.view.name, &job.view.stored_locks()).is_err();
            }
        }
        let dirty = host.view.jobs.keys().cloned().collect();
        host.term = Some(OpsTerm { claims: Part::new(claims), dirty, ..OpsTerm::default() });
    }

    /// Ends a term. The API server may still carry out the requests in flight.
    fn drop_term(&mut self, h: usize) {
        let Some(term) = self.hosts[h].term.take() else { return };
        for request in term.rounds.values().filter_map(|round| round.requests.front()) {
            self.astray(request);
        }
        self.hosts[h].news.edit(|news| {
            news.values_mut().for_each(|queue| drop(queue.drain(..queue.len() - 1)));
        });
    }

    /// Restarts a process, which lists all objects.
    pub fn crash(&mut self, h: usize) {
        self.drop_term(h);
        self.hosts[h] = OpsHost { view: Part::new(OpsView::listed(&self.api)), ..OpsHost::default() };
    }
}

/// Returns true if a request can never succeed again, because its preconditions name an object or a version of the past.
fn is_spent(api: &OpsApi, write: &Write) -> bool {
    let name = &write.object().name;
    if write.object().kind == ops_kind() {
        let Write::Patch { body, .. } = write else { return false };
        let tested = body.pointer("/0/path").is_some_and(|path| path == "/metadata/resourceVersion");
        let version = body.pointer("/0/value").and_then(Value::as_str).filter(|_| tested);
        return api.jobs.get(name).is_none_or(|job| version.is_some_and(|version| version != job.job.view.version));
    }
    let child = api.children.get(name).map(|child| &child.child);
    let is_other = child.is_none_or(|child| write.uid().is_some_and(|uid| uid != child.uid));
    let version = child.map(|child| child.version.to_string());
    let is_past = write.version().is_some_and(|tested| version.is_some_and(|version| version != tested));
    !matches!(write, Write::Create { .. }) && (is_other || is_past)
}
