//! The timeline of a run: each phase with its start, its duration, its processor time and its outcome.
//!
//! Phases may run in parallel. The module prints a table, and one failure fails the whole run.

use std::cell::Cell;
use std::fmt::Write as _;
use std::io;
use std::process::{Command, ExitCode, ExitStatus};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use wait4::Wait4 as _;

thread_local! {
    /// Processor time of the commands that this thread has run since its phase began.
    static SPENT: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

/// Runs `command` to its end. The phase of this thread counts its processor time, and that of the processes it waited
/// for.
pub(crate) fn counted(command: &mut Command) -> io::Result<ExitStatus> {
    let ended = command.spawn()?.wait4()?;
    let spent = ended.rusage.utime.saturating_add(ended.rusage.stime);
    SPENT.set(SPENT.get().saturating_add(spent));
    Ok(ended.status)
}

/// The outcome of a phase.
#[derive(Clone, Debug)]
pub(crate) enum Outcome {
    /// The phase succeeded.
    Passed,
    /// The phase failed with this reason.
    Failed(String),
    /// The phase did not run because another phase failed.
    NotRun(&'static str),
}

/// One row of the table.
#[derive(Clone, Debug)]
struct Phase {
    name: String,
    outcome: Outcome,
    /// Time from the start of the run to the start of the phase.
    began: Duration,
    took: Duration,
    /// Processor time.
    spent: Duration,
}

/// The phases of one run.
#[derive(Debug)]
pub(crate) struct Phases {
    began: Instant,
    rows: Mutex<Vec<Phase>>,
}

impl Default for Phases {
    fn default() -> Self {
        Self { began: Instant::now(), rows: Mutex::default() }
    }
}

impl Phases {
    /// Runs one phase. Returns true if it passed.
    pub(crate) fn run(&self, name: &str, work: impl FnOnce() -> anyhow::Result<()>) -> bool {
        println!("==> {name}");
        let began = Instant::now();
        SPENT.set(Duration::ZERO);
        let outcome = match work() {
            Ok(()) => Outcome::Passed,
            Err(cause) => {
                let reason = format!("{cause:#}");
                eprintln!("==> {name} FAILED: {}", reason.lines().next().unwrap_or_default());
                Outcome::Failed(reason)
            }
        };
        let passed = matches!(outcome, Outcome::Passed);
        self.add(Phase {
            name: name.to_owned(),
            outcome,
            began: began.duration_since(self.began),
            took: began.elapsed(),
            spent: SPENT.get(),
        });
        passed
    }

    /// Adds a phase that did not run. This fails the whole run.
    pub(crate) fn not_run(&self, name: &str, reason: &'static str) {
        self.add(Phase {
            name: name.to_owned(),
            outcome: Outcome::NotRun(reason),
            began: self.began.elapsed(),
            took: Duration::ZERO,
            spent: Duration::ZERO,
        });
    }

    fn add(&self, phase: Phase) {
        self.rows.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(phase);
    }

    fn rows(&self) -> Vec<Phase> {
        self.rows.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone()
    }

    /// Returns true if every phase passed.
    pub(crate) fn passed(&self) -> bool {
        self.rows().iter().all(|phase| matches!(phase.outcome, Outcome::Passed))
    }

    /// Prints the table with the time of the whole run. Returns the exit code.
    pub(crate) fn close(&self) -> ExitCode {
        let verdict = if self.passed() { "passed" } else { "FAILED" };
        let spent: Duration = self.rows().iter().map(|phase| phase.spent).sum();
        let all = row("all", [Duration::ZERO, self.began.elapsed(), spent], verdict);
        println!("\n{}{all}", self.table());
        // There is much output between a failure and the end, so the reasons stand at the end.
        for Phase { name, outcome, .. } in self.rows() {
            if let Outcome::Failed(reason) = outcome
                && let Some((_, more)) = reason.split_once('\n')
            {
                println!("\n{name}:\n{more}");
            }
        }
        if self.passed() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }

    /// Returns the table of phases, in the order of their starts.
    pub(crate) fn table(&self) -> String {
        let heads = format!("{:<44} {:>8} {:>10} {:>10}\n", "phase", "begins", "takes", "processor");
        let mut rows = self.rows();
        rows.sort_by_key(|phase| phase.began);
        rows.iter().fold(heads, |mut table, Phase { name, outcome, began, took, spent }| {
            let words = match outcome {
                Outcome::Passed => "passed".to_owned(),
                Outcome::Failed(reason) => format!("FAILED: {}", reason.lines().next().unwrap_or_default()),
                Outcome::NotRun(reason) => format!("NOT RUN: {reason}"),
            };
            let _ = writeln!(table, "{}", row(name, [*began, *took, *spent], &words));
            table
        })
    }
}

fn row(name: &str, times: [Duration; 3], words: &str) -> String {
    let [began, took, spent] = times.map(|time| time.as_secs_f64());
    format!("{name:<44} {began:>6.0} s {took:>8.1} s {spent:>8.1} s  {words}")
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
    fn a_phase_counts_the_processor_time_of_its_commands_and_of_their_children() {
        let phases = Phases::default();
        let spin = "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done";
        phases.run("computes", || {
            counted(Command::new("sh").args(["-c", &format!("sh -c '{spin}'; true")]))?;
            Ok(())
        });
        phases.run("rests", || Ok(()));
        let spent: Vec<bool> = phases.rows().iter().map(|phase| !phase.spent.is_zero()).collect();
        assert_eq!(spent, [true, false]);
    }

    #[test]
    fn phase_that_was_not_run_fails_the_whole() {
        let phases = Phases::default();
        phases.not_run("tests", "nothing was built");
        assert!(!phases.passed());
        assert!(phases.table().contains("NOT RUN: nothing was built"));
    }
}
