//! What a term remembers of one JobFlow or DaemonJob between two rounds.

use std::collections::BTreeMap;

use oarlock_core::child::canonical::digest;
use oarlock_core::child::plan::Memory;
use tokio::time::{Duration, Instant};

/// Status writes that may follow each other at once.
const BURST: u32 = 3;
/// Time after which one more may.
const PACE: Duration = Duration::from_secs(1);
/// The same where JobRecords are written with it.
const PACE_OF_RECORDS: Duration = Duration::from_secs(2);

/// What a term remembers of one JobFlow or DaemonJob. It begins empty, and is read from the stored status.
#[derive(Debug, Default)]
pub(crate) struct FlowMemory {
    /// The object that it is of.
    pub(crate) uid: String,
    /// What the last plan decided.
    pub(crate) plan: Memory,
    /// What the stored status says.
    pub(crate) reported: Memory,
    /// Digests of the JobRecords as they are stored.
    pub(crate) shards: BTreeMap<usize, String>,
    pub(crate) pace: Pace,
}

#[derive(Debug, Default)]
pub(crate) struct Pace {
    used: u32,
    since: Option<Instant>,
}

impl FlowMemory {
    /// When the next status may be written; `None` is now.
    pub(crate) fn next_write(&self, with_records: bool) -> Option<Instant> {
        let now = Instant::now();
        let since = self.pace.since?;
        let pace = if with_records { PACE_OF_RECORDS } else { PACE };
        let left = self.left(since, now);
        let due = since + pace;
        if with_records { (due > now).then_some(due) } else { (left == 0 && due > now).then_some(due) }
    }

    fn left(&self, since: Instant, now: Instant) -> u32 {
        let gained = u32::try_from((now - since).as_millis() / PACE.as_millis()).unwrap_or(BURST);
        BURST.saturating_sub(self.pace.used.saturating_sub(gained))
    }

    /// Notes a status write.
    pub(crate) fn wrote(&mut self) {
        let now = Instant::now();
        let left = self.pace.since.map_or(BURST, |since| self.left(since, now));
        self.pace = Pace { used: (BURST - left + 1).min(BURST), since: Some(now) };
    }

    /// The shards that are stored otherwise.
    pub(crate) fn changed_shards<'a>(&self, shards: &'a [Vec<String>]) -> Vec<(usize, &'a Vec<String>)> {
        let differs = |(index, lines): &(usize, &Vec<String>)| self.shards.get(index) != Some(&digest_of(lines));
        shards.iter().enumerate().filter(differs).collect()
    }

    /// Notes that these shards are stored.
    pub(crate) fn stored_shards(&mut self, shards: &[Vec<String>]) {
        self.shards = shards.iter().map(|lines| digest_of(lines)).enumerate().collect();
    }
}

fn digest_of(lines: &[String]) -> String {
    digest(lines.join("\n").as_bytes(), 32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn three_statuses_follow_at_once_and_then_one_each_second() {
        let mut memory = FlowMemory::default();
        let mut times = Vec::new();
        let begun = Instant::now();
        for _ in 0..6 {
            if let Some(due) = memory.next_write(false) {
                tokio::time::sleep_until(due).await;
            }
            memory.wrote();
            times.push((Instant::now() - begun).as_secs());
        }
        assert_eq!(times, [0, 0, 0, 1, 2, 3]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_status_with_records_waits_two_seconds() {
        let mut memory = FlowMemory::default();
        assert_eq!(memory.next_write(true), None);
        memory.wrote();
        assert_eq!(memory.next_write(true), Some(Instant::now() + Duration::from_secs(2)));
    }
}
