//! What becomes of writes and looks, by verb and name; and what was sent.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use oarlock_core::cluster::live_reads::LiveRead;
use oarlock_core::cluster::writes::Write;
use serde_json::json;

use crate::bench::Bench;
use crate::bench::weather::{Fate, Look, Weather};

/// What becomes of writes and of live reads, as a test says it.
#[derive(Clone, Default)]
pub(super) struct Script(pub(super) Rc<RefCell<Lines>>);

#[derive(Default)]
pub(super) struct Lines {
    /// By verb and name of the object.
    writes: BTreeMap<(&'static str, &'static str), Fate>,
    /// By name of the object.
    looks: BTreeMap<&'static str, Look>,
    /// The writes that were sent.
    pub(super) sent: Vec<Write>,
    /// The live reads that were made of objects.
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
    /// A bench of one job with the target `a` and a deadline of 60 s.
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

    /// The writes of this verb to this object.
    pub(super) fn sent(&self, verb: &str, name: &str) -> Vec<Write> {
        let of = |write: &&Write| write.verb() == verb && write.object().name == name;
        self.0.borrow().sent.iter().filter(of).cloned().collect()
    }

    pub(super) fn looked(&self, name: &str) -> usize {
        self.0.borrow().looked.iter().filter(|looked| *looked == name).count()
    }
}
