//! The progress of a plan on a terminal: one line on standard error that is overwritten. Prints nothing into a pipe.

use std::cell::Cell;
use std::io::{IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

/// The shortest time between two updates of the line.
const PACE: Duration = Duration::from_millis(100);

/// The progress line.
pub(super) struct Progress {
    shows: bool,
    written: Cell<Option<Instant>>,
}

impl Progress {
    /// Makes a progress line, which prints only if standard error is a terminal.
    pub(super) fn on_terminal() -> Self {
        Self { shows: std::io::stderr().is_terminal(), written: Cell::new(None) }
    }

    /// Shows the current step.
    pub(super) fn say(&self, what: &str) {
        if self.shows {
            let mut out = std::io::stderr().lock();
            // A plan does not fail because its progress cannot be shown.
            let _untold = write!(out, "\r\x1b[K{what} ...").and_then(|()| out.flush()).is_err();
        }
    }

    /// Shows the number of planned targets, at most every [`PACE`].
    pub(super) fn targets(&self, done: usize, all: usize) {
        self.count("planning", done, all);
    }

    /// Shows the number of answered requests, at most every [`PACE`].
    pub(super) fn requests(&self, done: usize, all: usize) {
        self.count("asking the API server", done, all);
    }

    fn count(&self, what: &str, done: usize, all: usize) {
        if self.written.get().is_none_or(|written| written.elapsed() >= PACE) {
            self.written.set(Some(Instant::now()));
            self.say(&format!("{what}: {done} of {all}"));
        }
    }

    /// Removes the line.
    pub(super) fn end(&self) {
        if self.shows {
            let _untold = write!(std::io::stderr(), "\r\x1b[K").is_err();
        }
    }
}
