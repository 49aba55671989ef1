//! The host is killed at every write of a job of ten targets, at each of three moments, on the in-memory API.
//!
//! A run without faults counts the writes first, so that "every" is a fact. Time is paused and everything comes from one
//! seed, so that a point which fails fails again.

use std::time::Duration;

use oarlock_bed::faults::When;
use oarlock_bed::interception::WriteRecord;
use oarlock_tests::crash::script::{Mode, Script, Trouble};
use oarlock_tests::crash::{Outcome, run};

const TARGETS: usize = 10;
/// Longer than the world needs to finish whatever it was doing when the host was killed.
const LONG: Duration = Duration::from_secs(5);

/// What the runs at all points came to.
#[derive(Default)]
struct Sum {
    points: usize,
    killed: usize,
    failures: Vec<String>,
}

impl Sum {
    fn add(&mut self, point: &str, most: usize, script: Script) {
        self.points += 1;
        let before = self.failures.len();
        match run(script) {
            Ok(outcome) => {
                self.killed += usize::from(outcome.crashed);
                let mut breaches = outcome.breaches.clone();
                let writes = acts(&outcome).count();
                if writes > most {
                    breaches.push(format!("R1: {writes} writes, {most} were allowed"));
                }
                self.failures.extend(breaches.iter().map(|breach| format!("{point}: {breach}")));
            }
            Err(error) => self.failures.push(format!("{point}: {error:#}")),
        }
        // Told at once, for a run that never ends would keep all of it.
        self.failures.iter().skip(before).for_each(|failure| println!("{failure}"));
    }

    fn report(self, what: &str, writes: usize) {
        println!(
            "{what}: {writes} writes, {} points, {} kills, {} failures",
            self.points,
            self.killed,
            self.failures.len()
        );
        assert!(self.failures.is_empty(), "{what}:\n{}", self.failures.join("\n"));
    }
}

/// The writes that decide something.
fn acts(outcome: &Outcome) -> impl Iterator<Item = &WriteRecord> {
    outcome.writes.iter().filter(|write| decides(write))
}

/// An event is best effort, and the lease is renewed whatever happens.
fn decides(write: &WriteRecord) -> bool {
    !["/leases", "/events"].iter().any(|plural| write.path.contains(plural))
}

/// A run without faults. Its writes are the points.
fn counted(mode: Mode) -> anyhow::Result<Outcome> {
    let outcome = run(Script::of(mode, TARGETS))?;
    assert_eq!(outcome.breaches, Vec::<String>::new(), "without faults");
    Ok(outcome)
}

/// Alternates between a host that comes back at once and one that comes back when everything has happened.
fn crash(at: u64, when: When) -> Trouble {
    let turn = at / 2 + u64::from(when == When::AfterCommit);
    Trouble::Crash { at, when, down: if turn.is_multiple_of(2) { Duration::ZERO } else { LONG } }
}

/// One moment, another one for the next number.
fn one_moment(number: u64) -> Option<When> {
    When::ALL.into_iter().cycle().nth((number % 3) as usize)
}

/// At each write that decides something, the host is killed in three ways; at an event or a lease, in one.
fn killed_at_every_write(mode: Mode) -> anyhow::Result<()> {
    let calm = counted(mode)?;
    let (once, mut sum) = (acts(&calm).count(), Sum::default());
    let last = acts(&calm).map(|write| write.number).max().unwrap_or(0);
    for write in calm.writes.iter().filter(|write| write.number <= last) {
        let one = one_moment(write.number);
        for when in When::ALL.into_iter().filter(|when| decides(write) || Some(*when) == one) {
            let trouble = crash(write.number, when);
            sum.add(&format!("{trouble:?}"), 2 * once, Script { trouble: Some(trouble), ..Script::of(mode, TARGETS) });
        }
    }
    assert_eq!(sum.killed, sum.points, "every point is one");
    sum.report(&format!("{mode:?}, killed at every write"), once);
    Ok(())
}

/// Every other time the host is killed at the same write, so that it finds the job deleted when it comes back.
fn deleted_at_every_write(mode: Mode) -> anyhow::Result<()> {
    let calm = counted(mode)?;
    let (once, mut sum) = (acts(&calm).count(), Sum::default());
    for write in acts(&calm) {
        let at = write.number;
        let kill = one_moment(at / 2).filter(|_| at.is_multiple_of(2));
        let trouble = kill.map(|when| crash(at, when));
        let script = Script { delete_at: Some(at), trouble, ..Script::of(mode, TARGETS) };
        sum.add(&format!("deleted at {at}, {trouble:?}"), 3 * once, script);
    }
    sum.report(&format!("{mode:?}, deleted at every write"), once);
    Ok(())
}

#[test]
fn a_collaset_survives_a_kill_at_every_write() -> anyhow::Result<()> {
    killed_at_every_write(Mode::CollaSet)
}

#[test]
fn evictions_survive_a_kill_at_every_write() -> anyhow::Result<()> {
    killed_at_every_write(Mode::Evict)
}

#[test]
fn a_collaset_job_that_is_deleted_at_any_write_leaves_nothing() -> anyhow::Result<()> {
    deleted_at_every_write(Mode::CollaSet)
}

#[test]
fn an_eviction_job_that_is_deleted_at_any_write_leaves_nothing() -> anyhow::Result<()> {
    deleted_at_every_write(Mode::Evict)
}
