//! How far a plan is, for whoever waits at a terminal: one line on standard error that is overwritten, and nothing in a pipe.

use std::cell::Cell;
use std::io::{IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

/// A line is not written again before.
const PACE: Duration = Duration::from_millis(100);

/// The line.
pub(in crate::commands) struct Progress {
    shows: bool,
    written: Cell<Option<Instant>>,
}

impl Progress {
    /// Shown only where standard error is a terminal.
    pub(in crate::commands) fn on_terminal() -> Self {
        Self { shows: std::io::stderr().is_terminal(), written: Cell::new(None) }
    }

    /// Says what is being done.
    pub(super) fn say(&self, what: &str) {
        if self.shows {
            let mut out = std::io::stderr().lock();
            // Where nobody can be told, the plan is made all the same.
            let _untold = write!(out, "\r\x1b[K{what} ...").and_then(|()| out.flush()).is_err();
        }
    }

    /// Says how many targets are dealt with, from time to time.
    pub(super) fn targets(&self, done: usize, all: usize) {
        self.count("planning", done, all);
    }

    /// Says how many requests are answered, from time to time.
    pub(super) fn requests(&self, done: usize, all: usize) {
        self.count("asking the API server", done, all);
    }

    fn count(&self, what: &str, done: usize, all: usize) {
        if self.written.get().is_none_or(|written| written.elapsed() >= PACE) {
            self.written.set(Some(Instant::now()));
            self.say(&format!("{what}: {done} of {all}"));
        }
    }

    /// Takes the line away.
    pub(super) fn end(&self) {
        if self.shows {
            let _untold = write!(std::io::stderr(), "\r\x1b[K").is_err();
        }
    }
}
