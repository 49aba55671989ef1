//! The possible next steps of a state of OpsJobs, and their effects.

use serde_json::json;
use stateright::{Model, Property as Checked};

use crate::ops::api::Subject;
use crate::ops::host::OpsHost;
use crate::ops::ledger::OpsProperty;
use crate::ops::scenario::OpsScenario;
use crate::ops::state::OpsState;
use crate::record::Fate;
use crate::scenario::at;

/// One step of a model of OpsJobs.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum OpsAction {
    /// A watch delivers the next event of an object to a process.
    Hear(usize, Subject),
    /// A process makes a round of an OpsJob, up to its first request.
    Round(usize, String),
    /// The next request of a round completes.
    Arrive(usize, String, Fate),
    /// The API server carries out a request that timed out before.
    Late(usize),
    /// A process dies and restarts.
    Crash(usize),
    /// A process takes the lease.
    Lead(usize),
    /// An OperationJob takes its node.
    Start(String),
    /// An OperationJob ends its work.
    End(String),
    /// An OperationJob that is being deleted releases its node, and disappears.
    Release(String),
    /// The API server deletes an OperationJob whose OpsJob is gone.
    Collect(String),
    /// The user creates an OpsJob.
    Create(String),
    /// A user stops an OpsJob.
    Stop(String),
    /// A user deletes an OpsJob.
    Delete(String),
    /// Another client deletes an OperationJob.
    Remove(String),
    /// An admin moves the workspace to another node.
    Move,
    /// Time passes to the next due time.
    Tick,
}

impl OpsState {
    /// Adds the steps of the processes, the user and the cluster. None of these steps is a fault.
    pub fn usual(&self, scenario: &OpsScenario, steps: &mut Vec<OpsAction>) {
        for (h, host) in self.hosts.iter().enumerate() {
            let Some(term) = &host.term else { continue };
            steps.extend(host.news.keys().map(|subject| OpsAction::Hear(h, subject.clone())));
            steps.extend(term.rounds.keys().map(|name| OpsAction::Arrive(h, name.clone(), Fate::Done)));
            let ready = term.dirty.iter().filter(|name| !term.rounds.contains_key(*name));
            steps.extend(ready.map(|name| OpsAction::Round(h, name.clone())));
        }
        for (name, child) in &self.api.children {
            let (has_started, deleting) = (child.has_started(), child.child.deleting);
            let step = match self.api.owner(&child.owner) {
                _ if deleting => OpsAction::Release,
                None => OpsAction::Collect,
                Some(_) if !has_started && !child.child.paused => OpsAction::Start,
                Some(_) if has_started && !child.child.has_ended => OpsAction::End,
                Some(_) => continue,
            };
            steps.push(step(name.clone()));
        }
        let later = scenario.tasks.iter().filter(|task| task.is_later && !self.created(task.name));
        steps.extend(later.map(|task| OpsAction::Create(task.name.to_owned())));
    }

    /// Returns true if the user has created the OpsJob of this name.
    fn created(&self, name: &str) -> bool {
        self.ledger.created.contains(name)
    }

    fn faults(&self, scenario: &OpsScenario, steps: &mut Vec<OpsAction>) {
        let left = &self.left;
        for (h, host) in self.hosts.iter().enumerate() {
            let Some(term) = &host.term else { continue };
            if left.losses > 0 {
                let names = term.rounds.keys();
                steps
                    .extend(names.flat_map(|name| {
                        [Fate::Lost, Fate::Late].map(|fate| OpsAction::Arrive(h, name.clone(), fate))
                    }));
            }
            if left.crashes > 0 {
                steps.push(OpsAction::Crash(h));
            }
        }
        let leads = |host: &OpsHost| host.term.as_ref().is_some_and(|term| !term.is_over);
        // A leader can lose the lease and get it back before the other process takes it.
        if !self.hosts.iter().any(leads) || left.takeovers > 0 {
            let processes = if scenario.is_alone { 1 } else { 2 };
            steps.extend((0..processes).map(OpsAction::Lead));
        }
        steps.extend((0..self.late.len()).map(OpsAction::Late));
        steps.extend((left.moves > 0 && !self.has_moved).then_some(OpsAction::Move));
        let jobs = self.api.jobs.values().filter(|job| !job.job.view.status.has_ended() && !job.is_stopped());
        for job in jobs {
            steps.extend((left.stops > 0).then(|| OpsAction::Stop(job.name().to_owned())));
            steps.extend((left.deletions > 0).then(|| OpsAction::Delete(job.name().to_owned())));
        }
        if left.removals > 0 {
            let stays = self.api.children.iter().filter(|(_, child)| !child.child.deleting);
            steps.extend(stays.map(|(name, _)| OpsAction::Remove(name.clone())));
        }
    }

    /// Returns the next time at which a round is due.
    pub fn next_time(&self) -> Option<u32> {
        let terms = self.hosts.iter().filter_map(|host| host.term.as_ref());
        terms.flat_map(|term| term.due.values().copied()).filter(|due| *due > self.now).min()
    }

    /// Makes a step.
    pub fn step(&mut self, scenario: &OpsScenario, action: &OpsAction) {
        match action {
            OpsAction::Hear(h, subject) => self.hear(*h, subject),
            OpsAction::Round(h, name) => self.round(scenario, *h, name),
            OpsAction::Arrive(h, name, fate) => {
                self.left.losses = self.left.losses.saturating_sub(u8::from(*fate != Fate::Done));
                self.arrive(scenario, *h, name, *fate);
            }
            OpsAction::Late(place) => self.carry_out_late(*place),
            OpsAction::Crash(h) => {
                self.left.crashes -= 1;
                self.crash(*h);
            }
            OpsAction::Lead(h) => {
                let contested = self.hosts.iter().any(|host| host.term.as_ref().is_some_and(|term| !term.is_over));
                self.left.takeovers = self.left.takeovers.saturating_sub(u8::from(contested));
                self.lead(scenario, *h);
            }
            OpsAction::Move => {
                self.left.moves = self.left.moves.saturating_sub(1);
                self.has_moved = true;
            }
            OpsAction::Tick => self.tick(),
            of_cluster => self.act(scenario, of_cluster),
        }
        self.drop_spent();
    }

    fn hear(&mut self, h: usize, subject: &Subject) {
        let host = &mut self.hosts[h];
        let event = host.news.edit(|news| news.get_mut(subject).and_then(std::collections::VecDeque::pop_front));
        event.into_iter().for_each(|event| host.cache(|view| view.take(&event)));
    }

    fn tick(&mut self) {
        self.left.ticks = self.left.ticks.saturating_sub(1);
        self.now = self.next_time().unwrap_or(self.now);
        let now = self.now;
        for term in self.hosts.iter_mut().filter_map(|host| host.term.as_mut()) {
            let due: Vec<String> =
                term.due.iter().filter(|(_, due)| **due <= now).map(|(name, _)| name.clone()).collect();
            term.due.retain(|_, due| *due > now);
            term.dirty.extend(due);
        }
    }

    /// Makes a step of the user or of the cluster.
    fn act(&mut self, scenario: &OpsScenario, step: &OpsAction) {
        match step {
            OpsAction::Start(name) => {
                let (child, api) = (self.api.children[name].clone(), self.api.clone());
                self.ledger.edit(|ledger| ledger.starts(&child, &api));
            }
            OpsAction::Create(name) => self.ledger.edit(|ledger| ledger.created.extend([name.clone()])),
            OpsAction::Stop(_) => self.left.stops = self.left.stops.saturating_sub(1),
            OpsAction::Delete(_) => self.left.deletions -= 1,
            OpsAction::Remove(_) => self.left.removals -= 1,
            _ => {}
        }
        self.change(|api, now| match step {
            OpsAction::Start(name) => api.start_child(name, now),
            OpsAction::End(name) => api.end_child(name),
            OpsAction::Release(name) => api.remove_child(name),
            OpsAction::Collect(name) | OpsAction::Remove(name) => {
                let (_, event) = api.delete_child(name, now);
                event
            }
            OpsAction::Create(name) => scenario.task(name).map(|task| api.create_job(task)),
            OpsAction::Stop(name) => edited(api.edit_job(name, |document| {
                document["spec"]["stop"] = json!(true);
                true
            })),
            OpsAction::Delete(name) => edited(api.edit_job(name, |document| {
                document["metadata"]["deletionTimestamp"] = json!(at(now).to_string());
                true
            })),
            _ => None,
        });
    }
}

fn edited(served: crate::ops::api::Served) -> Option<crate::ops::api::OpsEvent> {
    served.ok().and_then(|(_, event)| event)
}

impl Model for OpsScenario {
    type State = OpsState;
    type Action = OpsAction;

    fn init_states(&self) -> Vec<OpsState> {
        if self.from_anywhere {
            return crate::ops::heal::life(self);
        }
        let mut state = OpsState::new(self);
        self.begin.into_iter().for_each(|begin| begin(self, &mut state));
        vec![state]
    }

    fn actions(&self, state: &OpsState, actions: &mut Vec<OpsAction>) {
        if !state.ledger.broken.is_empty() {
            return;
        }
        state.usual(self, actions);
        state.faults(self, actions);
        if state.left.ticks > 0 && state.next_time().is_some() {
            actions.push(OpsAction::Tick);
        }
    }

    fn next_state(&self, last: &OpsState, action: OpsAction) -> Option<OpsState> {
        let mut state = last.clone();
        state.step(self, &action);
        Some(state)
    }

    fn properties(&self) -> Vec<Checked<Self>> {
        fn holds(state: &OpsState, property: OpsProperty) -> bool {
            !state.ledger.broken.contains_key(&property)
        }
        vec![
            Checked::always("one job", |_, state| holds(state, OpsProperty::OneJob)),
            Checked::always("stop", |_, state| holds(state, OpsProperty::Stop)),
            Checked::always("once", |_, state| holds(state, OpsProperty::Once)),
            Checked::always("outcomes", |_, state| holds(state, OpsProperty::Outcomes)),
            Checked::always("end", |_, state| holds(state, OpsProperty::End)),
            Checked::always("L", crate::ops::heal::heals),
        ]
    }
}
