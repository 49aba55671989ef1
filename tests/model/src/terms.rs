//! The lease goes from one process to the other, or is lost and got back.

use crate::host::Term;
use crate::ledger::Author;
use crate::part::Part;
use crate::record::next_write;
use crate::scene::Scene;
use crate::state::{State, newest};
use crate::switch::Switch;
use crate::wire::{author, rewritten};

impl State {
    /// A process takes the lease. The requests of the term before that are on the wire may still be carried out.
    pub fn lead(&mut self, scene: &Scene, h: usize) {
        let contested = self.hosts.iter().any(|host| host.term.as_ref().is_some_and(|term| !term.over));
        self.left.takeovers -= u8::from(contested && self.left.takeovers > 0);
        for other in 0..2 {
            let goes_on = other != h && scene.lacks(Switch::AsksNoFence);
            match &mut self.hosts[other].term {
                Some(term) if goes_on => term.over = true,
                _ => self.drop_term(scene, other),
            }
        }
        self.terms += 1;
        let host = &mut self.hosts[h];
        let mut term = Term::begin(self.terms, &host.view);
        if let Some((memory, tables, queue)) = host.last.take() {
            if scene.lacks(Switch::RemembersItsLastTerm) {
                (term.memory, term.tables) = (memory, tables);
            } else {
                term.queue = queue;
            }
        }
        host.term = Some(term);
    }

    /// Ends a term. What is on the wire may still be carried out.
    pub fn drop_term(&mut self, scene: &Scene, h: usize) {
        let Some(term) = self.hosts[h].term.take() else { return };
        for sending in term.wire.iter() {
            self.astray(rewritten(scene, sending), author(&term, sending));
        }
        if let Some(write) = term.running.as_ref().and_then(|running| next_write(&running.record)) {
            let by = Author { term: term.number, index: None, attempt: 0 };
            self.astray(write, by);
        }
        if scene.lacks(Switch::RemembersItsLastTerm) || scene.lacks(Switch::KeepsItsQueue) {
            self.hosts[h].last = Some((term.memory, term.tables, term.queue));
        }
        let host = &mut self.hosts[h];
        for news in &mut host.news {
            *news = Part::new(newest(news));
        }
    }
}
