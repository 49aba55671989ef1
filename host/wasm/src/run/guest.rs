//! What the host keeps for one running instance.
//!
//! Takes a plugin's terms; yields the data of a store. May not outlive a wave.

use std::sync::Arc;

use oarlock_core::plugin::grant::Grant;
use oarlock_core::plugin::manifest::Manifest;
use oarlock_core::plugin::visit::Visit;
use serde_json::Value;
use wasmtime::component::ResourceTable;
use wasmtime_wasi::WasiCtx;
use wasmtime_wasi::p2::pipe::MemoryOutputPipe;

use crate::run::limits::{Effective, Meter};
use crate::run::plugin_log::Budget;
use crate::run::wasi::{self, Numbers};

/// On what terms a plugin runs: what it asked for, what it was granted and how it is configured.
pub(crate) struct Terms {
    pub manifest: Arc<Manifest>,
    pub grant: Grant,
    pub limits: Effective,
    pub config: Value,
    /// What all instances of the plugin may log together.
    pub log: Budget,
}

/// The data of a store.
pub(crate) struct Guest {
    pub terms: Arc<Terms>,
    pub table: ResourceTable,
    pub wasi: WasiCtx,
    pub stderr: MemoryOutputPipe,
    pub meter: Meter,
    /// Seeded when they are first asked for.
    numbers: Option<Numbers>,
    pub now_ms: u64,
    /// The visit of the running call; `None` during `setup`.
    pub visit: Option<Arc<Visit>>,
    /// Log lines of this call that were not kept.
    pub dropped_lines: u32,
    /// How much of standard error belongs to earlier calls.
    stderr_seen: usize,
}

impl Guest {
    pub(crate) fn new(terms: Arc<Terms>) -> Self {
        let (wasi, stderr) = wasi::denied();
        let meter = Meter::new(terms.limits);
        Self {
            terms,
            table: ResourceTable::new(),
            wasi,
            stderr,
            meter,
            numbers: None,
            now_ms: 0,
            visit: None,
            dropped_lines: 0,
            stderr_seen: 0,
        }
    }

    /// Begins a call: fresh budgets, and clocks and numbers that depend on the visit alone.
    pub(crate) fn begin(&mut self, visit: Option<Arc<Visit>>) {
        self.meter.begin();
        self.dropped_lines = 0;
        self.stderr_seen = self.stderr.contents().len();
        if let Some(visit) = &visit {
            self.now_ms = visit.job.now_ms;
        }
        self.numbers = None;
        self.visit = visit;
    }

    /// Numbers that are the same whenever this call is repeated.
    pub(crate) fn numbers(&mut self) -> &mut Numbers {
        self.numbers.get_or_insert_with(|| match &self.visit {
            Some(visit) => Numbers::seeded(&visit.job.uid, &visit.target.name, visit.target.attempt),
            None => Numbers::seeded("", "", 0),
        })
    }

    /// What the running call wrote to standard error, on one line and not endless.
    pub(crate) fn last_words(&self) -> String {
        let contents = self.stderr.contents();
        let text = String::from_utf8_lossy(contents.get(self.stderr_seen..).unwrap_or_default()).into_owned();
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with("note: "));
        let joined = lines.collect::<Vec<_>>().join(" ");
        joined.chars().filter(|c| !c.is_control()).take(400).collect()
    }
}
