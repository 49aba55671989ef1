//! Limits the log lines about the failed visits of one plugin.
//!
//! A plugin that traps does so for each of thousands of targets, and would bury all other lines. The metric
//! `plugin_visits_total` counts all visits.

use std::collections::BTreeMap;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::metrics::VisitOutcome;

/// The number of lines for one plugin and one outcome in one window.
const LINES: u64 = 10;
/// The length of a window.
const WINDOW: Duration = Duration::from_secs(10);
/// The time to keep the number of omitted lines of a plugin's last window.
const KEPT: Duration = Duration::from_secs(600);

/// The decision about a log line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LogDecision {
    /// Log a full line.
    Full {
        /// The number of lines omitted before this one.
        left_out: u64,
    },
    /// Log the last line of this window, which says that further lines are omitted.
    Last,
    /// Log nothing.
    LeftOut,
}

/// The current window of each plugin and outcome.
#[derive(Debug, Default)]
pub(crate) struct LogShare {
    windows: Mutex<BTreeMap<(String, VisitOutcome), Window>>,
}

#[derive(Debug)]
struct Window {
    began: Instant,
    troubles: u64,
}

impl LogShare {
    /// Counts a failed visit. Returns the decision about its log line.
    pub(crate) fn of(&self, plugin: &str, outcome: VisitOutcome, now: Instant) -> LogDecision {
        let mut windows = self.windows.lock();
        let over = |window: &Window| now.duration_since(window.began) >= WINDOW;
        // Keeps the current windows. Keeps an old window for a while if its number of omitted lines was not logged yet.
        windows.retain(|_, window| !over(window) || window.troubles > LINES && now.duration_since(window.began) < KEPT);
        let fresh = || Window { began: now, troubles: 0 };
        let window = windows.entry((plugin.to_owned(), outcome)).or_insert_with(fresh);
        let mut left_out = 0;
        if over(window) {
            left_out = window.troubles.saturating_sub(LINES);
            *window = fresh();
        }
        window.troubles = window.troubles.saturating_add(1);
        match window.troubles {
            LINES => LogDecision::Last,
            troubles if troubles > LINES => LogDecision::LeftOut,
            _ => LogDecision::Full { left_out },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_plugin_that_traps_all_the_time_gets_ten_lines_and_the_number_of_the_others() {
        let share = LogShare::default();
        let lines = |times: u64| {
            let noted = (0..times).map(|_| share.of("p", VisitOutcome::Trapped, Instant::now()));
            noted.collect::<Vec<_>>()
        };
        let first = lines(1_000);
        assert_eq!(first.iter().filter(|line| **line == LogDecision::Full { left_out: 0 }).count(), 9);
        assert_eq!((first[9], first[10], first[999]), (LogDecision::Last, LogDecision::LeftOut, LogDecision::LeftOut));
        assert_eq!(share.of("q", VisitOutcome::Trapped, Instant::now()), LogDecision::Full { left_out: 0 });
        assert_eq!(share.of("p", VisitOutcome::Denied, Instant::now()), LogDecision::Full { left_out: 0 });
        tokio::time::advance(WINDOW).await;
        assert_eq!(lines(2), [LogDecision::Full { left_out: 990 }, LogDecision::Full { left_out: 0 }]);
    }

    #[tokio::test(start_paused = true)]
    async fn plugins_that_are_quiet_again_are_forgotten() {
        let share = LogShare::default();
        for number in 0..100 {
            share.of(&format!("p{number}"), VisitOutcome::Failed, Instant::now());
        }
        tokio::time::advance(WINDOW).await;
        share.of("last", VisitOutcome::Failed, Instant::now());
        assert_eq!(share.windows.lock().len(), 1);
        for number in 0..100 {
            for _ in 0..=LINES {
                share.of(&format!("p{number}"), VisitOutcome::Failed, Instant::now());
            }
        }
        tokio::time::advance(KEPT).await;
        share.of("last", VisitOutcome::Failed, Instant::now());
        assert_eq!(share.windows.lock().len(), 1, "also those that had left lines out");
    }
}
