//! What ran, how it ended and how long it took.
//!
//! Takes phases as they run, also beside one another; yields a table and an honest verdict: one failure fails the whole.

use std::fmt::Write as _;
use std::process::ExitCode;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// How a phase ended.
#[derive(Clone, Debug)]
pub(crate) enum Outcome {
    /// As it should.
    Passed,
    /// With this reason.
    Failed(String),
    /// Not at all, because another phase failed.
    NotRun(&'static str),
}

/// One row of the table.
#[derive(Clone, Debug)]
struct Phase {
    name: String,
    outcome: Outcome,
    took: Duration,
}

/// The phases of one run.
#[derive(Debug, Default)]
pub(crate) struct Phases {
    rows: Mutex<Vec<Phase>>,
}

impl Phases {
    /// Runs one phase and says whether it passed.
    pub(crate) fn run(&self, name: &str, work: impl FnOnce() -> anyhow::Result<()>) -> bool {
        println!("==> {name}");
        let began = Instant::now();
        let outcome = match work() {
            Ok(()) => Outcome::Passed,
            Err(cause) => {
                eprintln!("==> {name} FAILED: {cause:#}");
                Outcome::Failed(format!("{cause:#}"))
            }
        };
        let passed = matches!(outcome, Outcome::Passed);
        self.add(Phase { name: name.to_owned(), outcome, took: began.elapsed() });
        passed
    }

    /// Notes that a phase was not run, which counts as a failure of the whole.
    pub(crate) fn not_run(&self, name: &str, reason: &'static str) {
        self.add(Phase { name: name.to_owned(), outcome: Outcome::NotRun(reason), took: Duration::ZERO });
    }

    fn add(&self, phase: Phase) {
        self.rows.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(phase);
    }

    fn rows(&self) -> Vec<Phase> {
        self.rows.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone()
    }

    /// Whether every phase passed.
    pub(crate) fn passed(&self) -> bool {
        self.rows().iter().all(|phase| matches!(phase.outcome, Outcome::Passed))
    }

    /// Prints the table, with the time that all of it took, and yields the verdict.
    pub(crate) fn close(&self, took: Duration) -> ExitCode {
        let verdict = if self.passed() { "passed" } else { "FAILED" };
        println!("\n{}{:<44} {:>7.1} s  {verdict}", self.table(), "all", took.as_secs_f64());
        if self.passed() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }

    /// The table of phases.
    pub(crate) fn table(&self) -> String {
        self.rows().iter().fold(String::new(), |mut table, Phase { name, outcome, took }| {
            let words = match outcome {
                Outcome::Passed => "passed".to_owned(),
                Outcome::Failed(reason) => format!("FAILED: {}", reason.lines().next().unwrap_or_default()),
                Outcome::NotRun(reason) => format!("NOT RUN: {reason}"),
            };
            let _ = writeln!(table, "{name:<44} {:>7.1} s  {words}", took.as_secs_f64());
            table
        })
    }
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;

    use super::*;

    #[test]
    fn one_failed_phase_fails_the_whole_and_is_in_the_table() {
        let phases = Phases::default();
        assert!(phases.run("first", || Ok(())));
        assert!(!phases.run("second", || Err(anyhow!("no Go"))));
        assert!(!phases.passed());
        assert!(phases.table().contains("FAILED: no Go"), "{}", phases.table());
    }

    #[test]
    fn phase_that_was_not_run_fails_the_whole() {
        let phases = Phases::default();
        phases.not_run("tests", "nothing was built");
        assert!(!phases.passed());
        assert!(phases.table().contains("NOT RUN: nothing was built"));
    }
}
