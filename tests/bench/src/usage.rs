//! Measures the CPU time, wake-ups and memory of a process, from `/proc`. Linux only, like all benches.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Context as _;

/// Clock ticks in a second. `/proc/<pid>/stat` counts CPU time in this unit on every Linux.
const TICKS: u64 = 100;

/// The error of a span in ticks. CPU time in ticks is truncated at each end of the span.
const CUT: Duration = Duration::from_millis(20);

/// The usage of a process so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct Usage {
    /// CPU time and wake-ups of each living thread.
    threads: BTreeMap<u32, Thread>,
    /// CPU time of all threads, ended threads included, in whole ticks of 10 ms.
    ticks: Duration,
}

#[derive(Clone, Copy, Debug, Default)]
struct Thread {
    cpu: Duration,
    wake_ups: u64,
}

/// The usage of a process between two moments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Spent {
    /// User and system time.
    pub(crate) cpu: Duration,
    /// How often a thread of the process woke up after a wait.
    pub(crate) wake_ups: u64,
}

impl Usage {
    /// Reads the usage of `process` so far.
    ///
    /// # Errors
    /// If the process has ended.
    pub(crate) fn of(process: u32) -> anyhow::Result<Self> {
        let mut threads = BTreeMap::new();
        let tasks = std::fs::read_dir(format!("/proc/{process}/task"));
        for task in tasks.with_context(|| format!("process {process} has ended"))? {
            let Some(id) = task?.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
            // A thread may end while its files are read.
            if let Some(thread) = thread(process, id) {
                threads.insert(id, thread);
            }
        }
        let stat = std::fs::read_to_string(format!("/proc/{process}/stat"))?;
        Ok(Self { threads, ticks: ticks(&stat) })
    }

    /// Returns the usage since `earlier`. Threads report nanoseconds. Threads that ended in between appear only in whole ticks, so
    /// the ticks count if they are clearly more.
    pub(crate) fn since(&self, earlier: &Self) -> Spent {
        let mut spent = Spent::default();
        for (id, now) in &self.threads {
            let before = earlier.threads.get(id).copied().unwrap_or_default();
            spent.cpu += now.cpu.saturating_sub(before.cpu);
            spent.wake_ups += now.wake_ups.saturating_sub(before.wake_ups);
        }
        let ticks = self.ticks.saturating_sub(earlier.ticks);
        if ticks > spent.cpu + CUT {
            spent.cpu = ticks;
        }
        spent
    }
}

fn thread(process: u32, id: u32) -> Option<Thread> {
    let file = |name: &str| std::fs::read_to_string(format!("/proc/{process}/task/{id}/{name}")).ok();
    let cpu = file("schedstat")?.split_whitespace().next()?.parse().ok()?;
    let wake_ups = number(&file("status")?, "voluntary_ctxt_switches:")?;
    Some(Thread { cpu: Duration::from_nanos(cpu), wake_ups })
}

/// Returns user and system time from `/proc/<pid>/stat`. The name in this file may contain spaces and brackets.
fn ticks(stat: &str) -> Duration {
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let field = |at: usize| fields.get(at).and_then(|text| text.parse::<u64>().ok()).unwrap_or(0);
    Duration::from_millis((field(11) + field(12)) * 1000 / TICKS)
}

/// Returns the peak resident memory, in KiB.
///
/// # Errors
/// If the process has ended.
pub(crate) fn peak_rss_kib(process: u32) -> anyhow::Result<u64> {
    of_status(process, "VmHWM:")
}

/// Returns the resident memory, in KiB.
///
/// # Errors
/// If the process has ended.
pub(crate) fn rss_kib(process: u32) -> anyhow::Result<u64> {
    of_status(process, "VmRSS:")
}

fn of_status(process: u32, field: &str) -> anyhow::Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status"))?;
    number(&status, field).with_context(|| format!("process {process} tells no {field}"))
}

/// Returns the number after `field` in `/proc/<pid>/status`.
fn number(status: &str, field: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(field))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage(threads: &[(u32, u64)], ticks: u64) -> Usage {
        let thread = |cpu| Thread { cpu: Duration::from_micros(cpu), wake_ups: 1 };
        Usage {
            threads: threads.iter().map(|(id, cpu)| (*id, thread(*cpu))).collect(),
            ticks: Duration::from_millis(ticks),
        }
    }

    #[test]
    fn threads_tell_more_finely_than_ticks() {
        let (before, after) = (usage(&[(1, 100)], 0), usage(&[(1, 350), (2, 50)], 10));
        assert_eq!(after.since(&before).cpu, Duration::from_micros(300));
    }

    #[test]
    fn ticks_count_where_a_thread_has_ended() {
        let (before, after) = (usage(&[(1, 0), (2, 0)], 0), usage(&[(1, 1000)], 500));
        assert_eq!(after.since(&before).cpu, Duration::from_millis(500));
    }

    #[test]
    fn name_of_a_process_may_hold_brackets() {
        let stat = "7 (a) b) S 1 7 7 0 -1 0 0 0 0 0 12 3 0 0 20 0 1 0";
        assert_eq!(ticks(stat), Duration::from_millis(150));
    }

    #[test]
    fn own_process_can_be_looked_at() {
        let process = std::process::id();
        assert!(peak_rss_kib(process).unwrap() >= 1 && rss_kib(process).unwrap() >= 1);
        assert!(!Usage::of(process).unwrap().threads.is_empty());
    }
}
