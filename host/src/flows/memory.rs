//! What a term remembers of one JobFlow or DaemonJob between two rounds.

use oarlock_core::child::plan::Memory;
use oarlock_core::child::status::SHARD;
use oarlock_core::child::unit::Unit;
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
    /// The JobRecords hold what the stored status counts, as this term has seen.
    pub(crate) records_hold: bool,
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

    /// The shards of these units that are stored otherwise, or may be.
    pub(crate) fn changed_shards<'a>(&self, units: &'a [Unit]) -> Vec<(usize, &'a [Unit])> {
        let mut stored = self.records_hold.then(|| self.reported.units.chunks(SHARD)).into_iter().flatten();
        let all = units.chunks(SHARD).map(|shard| (stored.next() != Some(shard), shard)).enumerate();
        all.filter(|(_, (differs, _))| *differs).map(|(index, (_, shard))| (index, shard)).collect()
    }
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

    #[test]
    fn only_shards_with_another_unit_are_written_once_the_records_are_known() {
        let units: Vec<Unit> = (0..600).map(|index| Unit::new(&format!("n{index}"))).collect();
        let mut memory = FlowMemory::default();
        memory.reported.units.clone_from(&units);
        let changed = |memory: &FlowMemory, units: &[Unit]| -> Vec<(usize, usize)> {
            memory.changed_shards(units).into_iter().map(|(index, shard)| (index, shard.len())).collect()
        };
        assert_eq!(changed(&memory, &units), [(0, 250), (1, 250), (2, 100)]);
        memory.records_hold = true;
        assert_eq!(changed(&memory, &units), []);
        let mut other = units.clone();
        other[300].attempt = 1;
        assert_eq!(changed(&memory, &other), [(1, 250)]);
        assert_eq!(changed(&memory, &units[..500]), []);
        other.push(Unit::new("more"));
        assert_eq!(changed(&memory, &other), [(1, 250), (2, 101)]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_status_with_records_waits_two_seconds() {
        let mut memory = FlowMemory::default();
        assert_eq!(memory.next_write(true), None);
        memory.wrote();
        assert_eq!(memory.next_write(true), Some(Instant::now() + Duration::from_secs(2)));
    }
}
