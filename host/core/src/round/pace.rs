//! When the status may be written again.

use k8s_openapi::jiff::Timestamp;

use crate::job::time::after_millis;
use crate::round::memory::JobMemory;

/// Shortest time between two writes of a status that mutations wait for.
const URGENT_MS: i64 = 100;
/// Longest such time: where a write takes long, the next one waits for more to go with it.
const LONGEST_URGENT_MS: i64 = 250;
/// Shortest time between two writes that nothing waits for.
const LAZY_MS: i64 = 1_000;
/// Longest time that the end of a target or of the job waits.
const END_MS: i64 = 1_500;

/// When a status that mutations wait for may be written.
pub fn urgent_slot(memory: &JobMemory) -> Option<Timestamp> {
    let gap = |took: i64| took.saturating_mul(3).clamp(URGENT_MS, LONGEST_URGENT_MS);
    memory.written.map(|(at, took)| after_millis(at, gap(took)))
}

/// When a status that nothing waits for may be written: a second, or ten times the last write's duration, after it.
/// Ends do not wait longer than a second and a half.
pub fn lazy_slot(memory: &JobMemory) -> Option<Timestamp> {
    let most = if memory.latest.ended() > memory.durable.ended() { END_MS } else { i64::MAX };
    memory.written.map(|(at, took)| after_millis(at, took.saturating_mul(10).max(LAZY_MS).min(most)))
}
