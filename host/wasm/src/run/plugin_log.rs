//! Writes the log lines of plugins to the host's log, with the plugin, the job and the target.
//!
//! Logging never fails and cannot flood the log. Lines beyond a call's limit or a plugin's rate are dropped and counted.

use crate::run::bindings::log::{Host, Level};
use crate::run::guest::Guest;

/// The cost of each line besides its bytes, so that empty lines are not free.
const LINE_BYTES: usize = 64;

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
    /// Logs the output of the call: standard output as information, and standard error as warnings.
    pub(crate) fn log_what_was_printed(&mut self) {
        for (level, pipe) in [(Level::Info, self.stdout.clone()), (Level::Warn, self.stderr.clone())] {
            let (text, is_cut) = pipe.take();
            let lines = text.lines().map(str::trim_end).filter(|line| !line.is_empty());
            lines.for_each(|line| self.keep_line(level, line));
            self.dropped_lines = self.dropped_lines.saturating_add(is_cut.into());
        }
    }

    /// Logs a line, if the call and the plugin may still log.
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

/// Returns at most `bytes` of `text`, without characters that move a cursor or begin a line.
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
}
