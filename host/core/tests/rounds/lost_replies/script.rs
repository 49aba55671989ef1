//! Scripted outcomes of writes and live reads by verb and name, and a log of the sent writes.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use oarlock_core::requests::live_reads::LiveRead;
use oarlock_core::requests::writes::Write;
use serde_json::json;

use crate::bench::Bench;
use crate::bench::weather::{Fate, Look, Weather};

/// Weather with scripted outcomes of writes and live reads.
#[derive(Clone, Default)]
pub(super) struct Script(pub(super) Rc<RefCell<Lines>>);

#[derive(Default)]
pub(super) struct Lines {
    /// Outcomes of writes, by verb and name of the object.
    writes: BTreeMap<(&'static str, &'static str), Fate>,
    /// Outcomes of live reads, by name of the object.
    looks: BTreeMap<&'static str, Look>,
    /// The writes that were sent.
    pub(super) sent: Vec<Write>,
    /// The names of the objects that were read live.
    looked: Vec<String>,
}

impl Weather for Script {
    fn write(&mut self, write: &Write) -> Fate {
        let mut lines = self.0.borrow_mut();
        lines.sent.push(write.clone());
        lines.writes.get(&(write.verb(), write.object().name.as_str())).cloned().unwrap_or(Fate::Done)
    }

    fn look(&mut self, read: &LiveRead) -> Look {
        let LiveRead::Object(key) = read else { return Look::Answered };
        let mut lines = self.0.borrow_mut();
        lines.looked.push(key.name.clone());
        lines.looks.get(key.name.as_str()).copied().unwrap_or(Look::Answered)
    }
}

impl Script {
    /// Returns a bench of one job with the target `a` and a deadline of 60 s.
    pub(super) fn bench() -> (Bench, Self) {
        let mut spec = Bench::targets(&["a"]);
        spec["activeDeadlineSeconds"] = json!(60);
        let mut bench = Bench::new(spec);
        bench.pod("a", "1");
        let script = Self::default();
        bench.weather = Box::new(script.clone());
        (bench, script)
    }

    pub(super) fn on(&self, verb: &'static str, name: &'static str, fate: Fate) {
        self.0.borrow_mut().writes.insert((verb, name), fate);
    }

    pub(super) fn look(&self, name: &'static str, look: Look) {
        self.0.borrow_mut().looks.insert(name, look);
    }

    /// Returns the sent writes of this verb to this object.
    pub(super) fn sent(&self, verb: &str, name: &str) -> Vec<Write> {
        let of = |write: &&Write| write.verb() == verb && write.object().name == name;
        self.0.borrow().sent.iter().filter(of).cloned().collect()
    }

    pub(super) fn looked(&self, name: &str) -> usize {
        self.0.borrow().looked.iter().filter(|looked| *looked == name).count()
    }
}
