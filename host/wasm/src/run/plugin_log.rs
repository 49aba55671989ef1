//! Log lines of plugins, in the host's log, with the plugin, the job and the target.
//!
//! May not fail, nor be flooded: lines beyond a call's bytes or a plugin's rate are dropped and counted.

use std::time::Instant;

use parking_lot::Mutex;

use crate::run::bindings::log::{Host, Level};
use crate::run::guest::Guest;

/// Bytes that all instances of one plugin may log in a second, on average.
const BYTES_PER_SECOND: f64 = 64.0 * 1024.0;
/// The cost of each line beside its bytes, so that empty lines are not free.
const LINE_BYTES: usize = 64;

/// The bytes that a plugin may still log.
pub(crate) struct LogBudget(Mutex<(Instant, f64)>);

impl LogBudget {
    pub(crate) fn full() -> Self {
        Self(Mutex::new((Instant::now(), BYTES_PER_SECOND)))
    }

    fn take(&self, bytes: usize) -> bool {
        let mut state = self.0.lock();
        let now = Instant::now();
        let earned = now.duration_since(state.0).as_secs_f64() * BYTES_PER_SECOND;
        *state = (now, (state.1 + earned).min(BYTES_PER_SECOND));
        let enough = state.1 >= bytes as f64;
        if enough {
            state.1 -= bytes as f64;
        }
        enough
    }
}

impl Host for Guest {
    fn enabled(&mut self, level: Level) -> wasmtime::Result<bool> {
        self.meter.host_call(1).map_err(wasmtime::Error::new)?;
        Ok(match level {
            Level::Debug => tracing::enabled!(target: "plugin", tracing::Level::DEBUG),
            Level::Info => tracing::enabled!(target: "plugin", tracing::Level::INFO),
            Level::Warn => tracing::enabled!(target: "plugin", tracing::Level::WARN),
            Level::Error => tracing::enabled!(target: "plugin", tracing::Level::ERROR),
        })
    }

    fn write(&mut self, level: Level, message: String, fields: Vec<(String, String)>) -> wasmtime::Result<()> {
        if !self.enabled(level)? {
            return Ok(());
        }
        let mut line = message;
        for (key, value) in fields {
            line.push_str(&format!(" {key}={value:?}"));
        }
        self.keep_line(level, &line);
        Ok(())
    }
}

impl Guest {
    /// Logs what the call printed: standard output for information, standard error as a warning.
    pub(crate) fn log_what_was_printed(&mut self) {
        for (level, pipe) in [(Level::Info, self.stdout.clone()), (Level::Warn, self.stderr.clone())] {
            let (text, is_cut) = pipe.take();
            let lines = text.lines().map(str::trim_end).filter(|line| !line.is_empty());
            lines.for_each(|line| self.keep_line(level, line));
            self.dropped_lines = self.dropped_lines.saturating_add(is_cut.into());
        }
    }

    /// Logs a line, as far as the call and the plugin may log more.
    fn keep_line(&mut self, level: Level, line: &str) {
        let kept = self.meter.log(line.len() + LINE_BYTES).saturating_sub(LINE_BYTES);
        if kept == 0 || !self.settings.log.take(kept + LINE_BYTES) {
            self.dropped_lines = self.dropped_lines.saturating_add(1);
        } else {
            self.emit(level, &printable(line, kept));
        }
    }

    /// Logs the number of dropped lines, once for each call.
    pub(crate) fn warn_of_dropped_lines(&mut self) {
        let dropped = std::mem::take(&mut self.dropped_lines);
        if dropped > 0 {
            tracing::warn!(target: "plugin", plugin = %self.settings.manifest.name, dropped, "dropped log lines of a plugin that logs more than its limit");
        }
    }

    fn emit(&self, level: Level, line: &str) {
        let plugin = self.settings.manifest.name.as_str();
        let visit = self.visit.as_ref();
        let namespace = visit.map_or("", |visit| visit.job.namespace.as_str());
        let job = visit.map_or("", |visit| visit.job.name.as_str());
        let on = visit.map_or("", |visit| visit.target.name.as_str());
        macro_rules! emit {
            ($level:ident) => {
                tracing::event!(target: "plugin", tracing::Level::$level, plugin, namespace, job, on, "{line}")
            };
        }
        match level {
            Level::Debug => emit!(DEBUG),
            Level::Info => emit!(INFO),
            Level::Warn => emit!(WARN),
            Level::Error => emit!(ERROR),
        }
    }
}

/// At most `bytes` of `text`, without anything that moves a cursor or begins a line.
fn printable(text: &str, bytes: usize) -> String {
    let end = text.char_indices().map(|(at, c)| at + c.len_utf8()).take_while(|end| *end <= bytes).last().unwrap_or(0);
    let kept = text.get(..end).unwrap_or_default();
    kept.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_cannot_forge_another_one() {
        assert_eq!(printable("a\n2026 ERROR \u{1b}[2J", 100), "a 2026 ERROR  [2J");
        assert_eq!(printable("äöü", 3), "ä");
    }

    #[test]
    fn a_flood_is_cut_off() {
        let budget = LogBudget::full();
        let kept = (0..10_000).filter(|_| budget.take(1024)).count();
        assert!((64..200).contains(&kept), "{kept}");
    }
}
