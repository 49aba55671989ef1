//! The possible next steps of a state, and their effects.

use oarlock_api::TargetDetail;
use oarlock_core::object::api_object::Object;
use oarlock_core::object::time::{after_seconds, read_time};
use serde_json::json;
use stateright::{Model, Property as Checked};

use crate::api::Event;
use crate::host::{Host, Term, View};
use crate::ledger::{Property, ended};
use crate::part::Part;
use crate::record::Fate;
use crate::scenario::{DEADLINE, Scenario, at, second};
use crate::state::State;

/// One step of a model.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// A watch delivers an event of a pod (0) or of the job (1) to a process.
    Hear(usize, usize),
    /// A process makes a round, up to its record.
    Round(usize),
    /// The next request of a record completes.
    Record(usize, Fate),
    /// A process sends the next write batch.
    Send(usize),
    /// A request of a write batch completes.
    Arrive(usize, usize, Fate),
    /// The API server carries out a request that timed out before.
    Late(usize),
    /// A process dies and restarts.
    Crash(usize),
    /// A process takes the lease.
    Lead(usize),
    /// A terminating pod disappears.
    Gone(String),
    /// The controller creates a pod that replaces a pod that is gone.
    Replace(String),
    /// The controller creates a pod beside a marked pod.
    Partner(String),
    /// The controller deletes a pod that has a partner.
    Retire(String),
    /// Another client deletes a pod.
    Remove(String),
    /// The user deletes the job.
    Delete,
    /// The user raises the partition.
    Raise,
    /// Time passes to the next due time.
    Tick,
}

impl State {
    /// Adds the steps of the processes and of the cluster. None of these steps is a fault.
    pub fn usual(&self, scenario: &Scenario, steps: &mut Vec<Action>) {
        for (h, host) in self.hosts.iter().enumerate() {
            let Some(term) = &host.term else { continue };
            steps.extend((0..2).filter(|place| !host.news[*place].is_empty()).map(|place| Action::Hear(h, place)));
            if term.running.is_some() {
                steps.push(Action::Record(h, Fate::Done));
            } else if term.due.is_some_and(|due| due <= self.now) {
                steps.push(Action::Round(h));
            }
            if term.queue.has_next(|_| true) {
                steps.push(Action::Send(h));
            }
            steps.extend((0..term.in_flight.len()).map(|place| Action::Arrive(h, place, Fate::Done)));
        }
        self.world(scenario, steps);
    }

    fn faults(&self, steps: &mut Vec<Action>) {
        let left = &self.left;
        for (h, host) in self.hosts.iter().enumerate() {
            let Some(term) = &host.term else { continue };
            if left.losses > 0 {
                let fates = [Fate::Lost, Fate::Late];
                if term.running.is_some() {
                    steps.extend(fates.map(|fate| Action::Record(h, fate)));
                }
                steps.extend(
                    (0..term.in_flight.len()).flat_map(|place| fates.map(|fate| Action::Arrive(h, place, fate))),
                );
            }
            if left.crashes > 0 {
                steps.push(Action::Crash(h));
            }
        }
        let leads = |host: &Host| host.term.as_ref().is_some_and(|term| !term.over);
        if !self.hosts.iter().any(leads) {
            steps.extend([Action::Lead(0), Action::Lead(1)]);
        } else if left.takeovers > 0 {
            steps.extend((0..2).filter(|h| !leads(&self.hosts[*h])).map(Action::Lead));
            // A leader can lose the lease and get it back before the other process takes it.
            steps.extend((0..2).filter(|h| leads(&self.hosts[*h])).map(Action::Lead));
        }
        steps.extend((0..self.late.len()).map(Action::Late));
        if left.removals > 0 {
            let stays = self.api.pods.iter().filter(|(_, pod)| !pod.terminating());
            steps.extend(stays.map(|(name, _)| Action::Remove(name.clone())));
        }
        let there = self.api.job.as_ref().is_some_and(|job| job.job.metadata.deletion_timestamp.is_none());
        if there && left.deletions > 0 {
            steps.push(Action::Delete);
        }
        if there && left.edits > 0 {
            steps.push(Action::Raise);
        }
    }

    /// Returns the next time at which a step is due.
    pub fn next_time(&self) -> Option<u32> {
        let dues = self.hosts.iter().filter_map(|host| host.term.as_ref()?.due);
        let details = self.api.job.as_ref().and_then(|job| job.job.status.as_ref()?.target_details.as_ref());
        let in_flight = |detail: &&TargetDetail| !ended(detail);
        let starts = details
            .into_iter()
            .flatten()
            .filter(in_flight)
            .filter_map(|detail| read_time(detail.start_time.as_deref()));
        let deadlines = starts.map(|start| second(after_seconds(start, DEADLINE)));
        dues.chain(deadlines).filter(|time| *time > self.now).min()
    }

    /// Makes a step.
    pub fn step(&mut self, scenario: &Scenario, action: &Action) {
        self.make(scenario, action);
        self.drop_old_news();
    }

    fn make(&mut self, scenario: &Scenario, action: &Action) {
        match action {
            Action::Hear(h, place) => self.hear(*h, *place),
            Action::Round(h) => self.round(scenario, *h),
            Action::Record(h, fate) => {
                self.left.losses -= u8::from(*fate != Fate::Done && self.left.losses > 0);
                self.record(scenario, *h, *fate);
            }
            Action::Send(h) => self.send(scenario, *h),
            Action::Arrive(h, place, fate) => {
                self.left.losses -= u8::from(*fate != Fate::Done && self.left.losses > 0);
                self.arrive(scenario, *h, *place, *fate);
            }
            Action::Late(place) => self.late(scenario, *place),
            Action::Crash(h) => {
                self.left.crashes -= 1;
                self.drop_term(scenario, *h);
                let view = Part::new(View::listed(&self.api));
                self.hosts[*h] = Host { view, news: [Part::default(), Part::default()], term: None, last: None };
            }
            Action::Lead(h) => self.lead(scenario, *h),
            Action::Tick => {
                self.left.ticks = self.left.ticks.saturating_sub(1);
                self.now = self.next_time().unwrap_or(self.now);
                let now = self.now;
                if self.late.iter().any(|late| late.until < now) {
                    self.late.edit(|all| all.retain(|late| late.until >= now));
                }
            }
            Action::Delete => {
                self.left.deletions -= 1;
                let now = at(self.now).to_string();
                self.edit(|document| document["metadata"]["deletionTimestamp"] = json!(now));
            }
            Action::Raise => {
                self.left.edits -= 1;
                self.raise();
            }
            step => self.act(scenario, step),
        }
    }

    /// Removes the partition from the job, as its user does.
    pub fn raise(&mut self) {
        self.edit(|document| {
            if let Some(spec) = document["spec"].as_object_mut()
                && spec.remove("partition").is_some()
            {
                document["metadata"]["generation"] = json!(2);
            }
        });
    }

    fn edit(&mut self, with: impl FnOnce(&mut serde_json::Value)) {
        self.change(|api, _| api.edit_job(&json!({}), with).ok().and_then(|(_, event)| event));
    }

    fn hear(&mut self, h: usize, place: usize) {
        let Some(event) = self.hosts[h].news[place].edit(std::collections::VecDeque::pop_front) else { return };
        let host = &mut self.hosts[h];
        match event {
            Event::Pod(pod) => hear_pod(host, &pod, false),
            Event::PodGone(pod) => hear_pod(host, &pod, true),
            Event::Job(job) => {
                if host.view.job.as_ref().is_some_and(|known| known.version() < job.version()) {
                    host.view.edit(|view| view.take_job(&job));
                    host.term.iter_mut().for_each(Term::wake);
                }
            }
            Event::JobGone => {
                if host.view.job.is_some() {
                    host.view.edit(|view| view.job = None);
                    host.term.iter_mut().for_each(Term::wake);
                }
            }
        }
        let news = host.news[0].clone();
        if news.is_empty() || place == 0 {
            host.view.edit(|view| view.forget_gone(&news));
        }
    }
}

fn hear_pod(host: &mut Host, pod: &Part<Object>, gone: bool) {
    let store = host.view.store();
    let change = host.view.edit(|view| view.pod(pod, gone, &store));
    if let (Some(change), Some(term)) = (change, host.term.as_mut()) {
        term.hear(&change, None, &store);
    }
}

impl Model for Scenario {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        if self.from_anywhere { crate::heal::life(self) } else { vec![State::new(self)] }
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if !state.ledger.broken.is_empty() {
            return;
        }
        state.usual(self, actions);
        state.faults(actions);
        if state.left.ticks > 0 && state.next_time().is_some() {
            actions.push(Action::Tick);
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        state.step(self, &action);
        Some(state)
    }

    fn properties(&self) -> Vec<Checked<Self>> {
        fn holds(state: &State, property: Property) -> bool {
            !state.ledger.broken.contains_key(&property)
        }
        vec![
            Checked::always("S1", |_, state| holds(state, Property::S1)),
            Checked::always("S2", |_, state| holds(state, Property::S2)),
            Checked::always("S3", |_, state| holds(state, Property::S3)),
            Checked::always("S4", |_, state| holds(state, Property::S4)),
            Checked::always("S5", |_, state| holds(state, Property::S5)),
            Checked::always("S6", |_, state| holds(state, Property::S6)),
            Checked::always("S7", |_, state| holds(state, Property::S7)),
            Checked::always("L", crate::heal::heals),
        ]
    }
}
