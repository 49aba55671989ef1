//! The data of a running instance, which ends with its session.

use std::sync::Arc;

use oarlock_contract::limits::PluginLimits;
use oarlock_core::plugin::grant::Grant;
use oarlock_core::plugin::manifest::Manifest;
use oarlock_core::plugin::visit::Visit;
use serde_json::Value;
use wasmtime::component::ResourceTable;
use wasmtime_wasi::WasiCtx;

use crate::run::limits::Meter;
use crate::run::log_budget::LogBudget;
use crate::run::output_pipe::OutputPipe;
use crate::run::peak_use::PeakUse;
use crate::run::seeded_random::SeededRandom;

/// The manifest, grant, limits and configuration that all instances of a plugin share.
pub(crate) struct PluginSettings {
    pub manifest: Arc<Manifest>,
    pub grant: Grant,
    pub limits: PluginLimits,
    pub config: Value,
    /// The bytes that all instances of the plugin together may log.
    pub log: LogBudget,
    /// The peak use of the limits by all instances of the plugin.
    pub peaks: PeakUse,
}

/// The data of a wasmtime store.
pub(crate) struct Guest {
    pub settings: Arc<PluginSettings>,
    pub table: ResourceTable,
    pub wasi: WasiCtx,
    pub stdout: OutputPipe,
    pub stderr: OutputPipe,
    pub meter: Meter,
    /// The random numbers of the running call. They get their seed at the first request.
    random: Option<SeededRandom>,
    pub now_ms: u64,
    /// The visit of the running call, or `None` during `setup`.
    pub visit: Option<Arc<Visit>>,
    /// The number of dropped log lines of this call.
    pub dropped_lines: u32,
}

impl Guest {
    pub(crate) fn new(settings: Arc<PluginSettings>) -> Self {
        let (stdout, stderr) = (OutputPipe::default(), OutputPipe::default());
        let wasi = denied(&stdout, &stderr);
        let meter = Meter::new(settings.limits);
        Self {
            settings,
            table: ResourceTable::new(),
            wasi,
            stdout,
            stderr,
            meter,
            random: None,
            now_ms: 0,
            visit: None,
            dropped_lines: 0,
        }
    }

    /// Begins a call with fresh budgets. Its clocks and random numbers depend only on the visit.
    pub(crate) fn begin_call(&mut self, visit: Option<Arc<Visit>>) {
        self.meter.begin();
        self.dropped_lines = 0;
        if let Some(visit) = &visit {
            self.now_ms = visit.job.now_ms;
        }
        self.random = None;
        self.visit = visit;
    }

    /// Adds the use of the call that has ended to the peaks of the plugin.
    pub(crate) fn note_use(&self) {
        self.settings.peaks.note(&self.meter);
    }

    /// Returns random numbers that are the same each time the host repeats this call.
    pub(crate) fn random(&mut self) -> &mut SeededRandom {
        self.random.get_or_insert_with(|| match &self.visit {
            Some(visit) => SeededRandom::new(&visit.job.uid, &visit.target.name, visit.target.attempt),
            None => SeededRandom::new("", "", 0),
        })
    }

    /// Returns the standard error of the running call, shortened and on one line.
    pub(crate) fn stderr_of_call(&self) -> String {
        let (text, _) = self.stderr.take();
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with("note: "));
        let joined = lines.collect::<Vec<_>>().join(" ");
        joined.chars().filter(|c| !c.is_control()).take(400).collect()
    }
}

/// Returns a context that denies everything except output.
fn denied(stdout: &OutputPipe, stderr: &OutputPipe) -> WasiCtx {
    let mut builder = WasiCtx::builder();
    builder.stdout(stdout.clone()).stderr(stderr.clone());
    builder.allow_tcp(false).allow_udp(false).allow_ip_name_lookup(false).build()
}
