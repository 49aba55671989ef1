//! Changes of the lease: the other process takes it, or a process loses it and gets it back.

use crate::host::Term;
use crate::in_flight::{author, rewritten};
use crate::ledger::Author;
use crate::part::Part;
use crate::record::next_write;
use crate::scenario::Scenario;
use crate::state::{State, newest};
use crate::switch::Switch;

impl State {
    /// Gives the lease to a process. The API server may still carry out the requests that the term before has in
    /// flight.
    pub fn lead(&mut self, scenario: &Scenario, h: usize) {
        let contested = self.hosts.iter().any(|host| host.term.as_ref().is_some_and(|term| !term.over));
        self.left.takeovers -= u8::from(contested && self.left.takeovers > 0);
        for other in 0..2 {
            let goes_on = other != h && scenario.lacks(Switch::AsksNoFence);
            match &mut self.hosts[other].term {
                Some(term) if goes_on => term.over = true,
                _ => self.drop_term(scenario, other),
            }
        }
        self.terms += 1;
        let host = &mut self.hosts[h];
        let mut term = Term::begin(self.terms, &host.view);
        if let Some((memory, tables, queue)) = host.last.take() {
            if scenario.lacks(Switch::RemembersItsLastTerm) {
                (term.memory, term.tables) = (memory, tables);
            } else {
                term.queue = queue;
            }
        }
        host.term = Some(term);
    }

    /// Ends a term. The API server may still carry out the requests in flight.
    pub fn drop_term(&mut self, scenario: &Scenario, h: usize) {
        let Some(term) = self.hosts[h].term.take() else { return };
        for sending in term.in_flight.iter() {
            self.astray(rewritten(scenario, sending), author(&term, sending));
        }
        if let Some(write) = term.running.as_ref().and_then(|running| next_write(&running.record)) {
            let by = Author { term: term.number, index: None, attempt: 0 };
            self.astray(write, by);
        }
        if scenario.lacks(Switch::RemembersItsLastTerm) || scenario.lacks(Switch::KeepsItsQueue) {
            self.hosts[h].last = Some((term.memory, term.tables, term.queue));
        }
        let host = &mut self.hosts[h];
        for news in &mut host.news {
            *news = Part::new(newest(news));
        }
    }
}
