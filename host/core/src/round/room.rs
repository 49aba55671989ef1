//! How many further targets a status has room for.
//!
//! Takes the targets in flight; yields the number of starts that their ranges leave room for. Source: docs/operationjob.md
//! 2.5.

use crate::job::ranges;
use crate::round::memory::JobMemory;
use crate::round::plan::BATCH;
use crate::round::status::PROCESSING_BYTES;

/// Bytes that one index can add to a text of ranges.
const INDEX_BYTES: usize = 6;

/// The number of further targets that may be in flight before their ranges exceed the status.
pub(super) fn ranges_room(memory: &JobMemory) -> usize {
    let processing = &memory.latest.processing;
    if processing.len() * INDEX_BYTES + BATCH * INDEX_BYTES < PROCESSING_BYTES {
        return usize::MAX;
    }
    let (text, cut) = ranges::format(processing, PROCESSING_BYTES);
    if cut { 0 } else { PROCESSING_BYTES.saturating_sub(text.len()) / INDEX_BYTES }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ranges_of_those_in_flight_are_never_cut_by_starts() {
        // Every second target is in flight: no two are neighbours, so that each costs most.
        for (begun, most) in [(3_000, 1), (0, 7), (0, BATCH)] {
            let mut memory = JobMemory::default();
            let mut free = (0..10_000).step_by(2);
            memory.latest.processing.extend(free.by_ref().take(begun));
            loop {
                let room = ranges_room(&memory).min(most);
                let started = free.by_ref().take(room);
                memory.latest.processing.extend(started);
                let (text, cut) = ranges::format(&memory.latest.processing, PROCESSING_BYTES);
                assert!(!cut && text.len() <= PROCESSING_BYTES, "{} in flight", memory.latest.processing.len());
                if room == 0 {
                    assert!(text.len() + INDEX_BYTES > PROCESSING_BYTES, "{} bytes, and no room", text.len());
                    break;
                }
            }
            assert!(free.next().is_some(), "all of them would not fit");
        }
        let memory = |last: u32| {
            let mut memory = JobMemory::default();
            memory.latest.processing.extend((0..last).step_by(2));
            memory
        };
        assert_eq!(ranges_room(&memory(10_000)), 0, "what is cut already has no room");
        assert_eq!(ranges_room(&memory(2_000)), usize::MAX);
    }
}
