//! The part of a status that is not about one unit.

use k8s_openapi::jiff::Timestamp;
use oarlock_api::{Condition, first_record};
use serde_json::Value;

use crate::child::fields::{flag, list, number, text};
use crate::child::parent::Parent;
use crate::child::unit::Unit;
use crate::job::time::{after_seconds, read_time};

/// What is remembered of an object as a whole.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// The first round.
    pub start_time: Option<Timestamp>,
    /// The time at which nothing was active any more.
    pub completion_time: Option<Timestamp>,
    /// The value of the annotation that was carried out last.
    pub retry_token: Option<String>,
    /// Time for which it was suspended before.
    pub suspended_seconds: i64,
    /// The time since which it is suspended.
    pub suspended_since: Option<Timestamp>,
    /// The generation for which the set of nodes was taken.
    pub set_generation: Option<i64>,
    /// The generation of an object that the original operator had ended: nothing is created for it.
    pub imported_generation: Option<i64>,
    /// The generation that the stored status was computed from.
    pub observed_generation: Option<i64>,
    /// `status.state` as stored.
    pub state: String,
    /// The conditions as stored.
    pub conditions: Vec<Condition>,
    /// The stored table is cut: all entries are in JobRecords.
    pub is_truncated: bool,
    /// Units that the JobRecords do not hold any more, and that are still to be given up.
    pub lost_units: i64,
    /// The number of the first JobRecord that the stored status counts.
    pub first_record: usize,
}

impl Header {
    /// The header of a stored status. What cannot be read counts as absent.
    pub fn read(status: &Value) -> Self {
        let conditions = list(status, "/conditions").iter();
        Self {
            start_time: read_time(text(status, "/startTime")),
            completion_time: read_time(text(status, "/completionTime")),
            retry_token: text(status, "/retryToken").map(str::to_owned),
            suspended_seconds: number(status, "/suspendedSeconds").unwrap_or(0).max(0),
            suspended_since: read_time(text(status, "/suspendedSince")),
            set_generation: number(status, "/nodeSetGeneration"),
            imported_generation: number(status, "/importedGeneration"),
            observed_generation: number(status, "/observedGeneration"),
            state: text(status, "/state").unwrap_or_default().to_owned(),
            conditions: conditions.filter_map(|one| serde_json::from_value(one.clone()).ok()).collect(),
            is_truncated: flag(status, "/tableTruncated"),
            lost_units: number(status, "/lostUnits").unwrap_or(0).max(0),
            first_record: first_record(status),
        }
    }

    /// Counts the time for which it is suspended.
    pub fn suspend(&mut self, suspended: bool, now: Timestamp) {
        match (suspended, self.suspended_since) {
            (true, None) => self.suspended_since = Some(now),
            (false, Some(since)) => {
                let suspended = now.duration_since(since).as_secs().max(0);
                self.suspended_seconds = self.suspended_seconds.saturating_add(suspended);
                self.suspended_since = None;
            }
            _ => {}
        }
    }

    /// The end of `seconds` from the start, not counting suspended time; `None` while it is suspended or has not begun.
    pub fn deadline(&self, seconds: i64) -> Option<Timestamp> {
        let start = self.start_time.filter(|_| self.suspended_since.is_none())?;
        Some(after_seconds(start, seconds.saturating_add(self.suspended_seconds)))
    }
}

/// The entries in a stored status. One that cannot be read counts as absent.
pub fn stored_units(parent: &Parent) -> Vec<Unit> {
    let table = list(&parent.status, &format!("/{}", parent.kind.table())).iter();
    table
        .filter_map(|entry| serde_json::from_value(entry.clone()).ok())
        .filter(|unit: &Unit| !unit.name.is_empty())
        .collect()
}
