//! How much of the log the troubles of one plugin may fill.
//!
//! A plugin that traps does so at each of thousands of targets, and the log is where an admin looks for everything else.
//! The metric `plugin_visits_total` counts all of them.

use std::collections::BTreeMap;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::metrics::VisitOutcome;

/// Lines of one plugin and one outcome in one window.
const LINES: u64 = 10;
/// Length of a window.
const WINDOW: Duration = Duration::from_secs(10);
/// How long it is kept what a plugin's last window left out.
const KEPT: Duration = Duration::from_secs(600);

/// What may be logged of a trouble.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Line {
    /// A line of its own.
    Full {
        /// Lines that were left out before it.
        left_out: u64,
    },
    /// The last line of its window: it says that others are left out.
    Last,
    /// None.
    LeftOut,
}

/// The lines of each plugin and outcome in the present window.
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
    /// Takes note of a trouble.
    pub(crate) fn of(&self, plugin: &str, outcome: VisitOutcome, now: Instant) -> Line {
        let mut windows = self.windows.lock();
        let over = |window: &Window| now.duration_since(window.began) >= WINDOW;
        // What is kept is of plugins that had a trouble just now, and for a while of those that have some left out to tell.
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
            LINES => Line::Last,
            troubles if troubles > LINES => Line::LeftOut,
            _ => Line::Full { left_out },
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
        assert_eq!(first.iter().filter(|line| **line == Line::Full { left_out: 0 }).count(), 9);
        assert_eq!((first[9], first[10], first[999]), (Line::Last, Line::LeftOut, Line::LeftOut));
        assert_eq!(share.of("q", VisitOutcome::Trapped, Instant::now()), Line::Full { left_out: 0 });
        assert_eq!(share.of("p", VisitOutcome::Denied, Instant::now()), Line::Full { left_out: 0 });
        tokio::time::advance(WINDOW).await;
        assert_eq!(lines(2), [Line::Full { left_out: 990 }, Line::Full { left_out: 0 }]);
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
