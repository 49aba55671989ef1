//! The part of a status that is about the object as a whole.

use k8s_openapi::jiff::Timestamp;
use oarlock_api::{Condition, first_record};
use serde_json::Value;

use crate::attempts::parent::Parent;
use crate::attempts::unit::Unit;
use crate::object::fields::{flag, list, number, text};
use crate::object::time::{after_seconds, read_time};

/// The status fields of an object as a whole.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// Time of the first round.
    pub start_time: Option<Timestamp>,
    /// Time at which nothing was active any more.
    pub completion_time: Option<Timestamp>,
    /// The last value of the retry annotation that the host carried out.
    pub retry_token: Option<String>,
    /// Total time of earlier suspensions, in seconds.
    pub suspended_seconds: i64,
    /// Time at which the current suspension began.
    pub suspended_since: Option<Timestamp>,
    /// The generation for which the host took the set of nodes.
    pub set_generation: Option<i64>,
    /// The generation of an object that the original operator had ended. The host creates nothing for this generation.
    pub imported_generation: Option<i64>,
    /// The generation that the stored status was computed from.
    pub observed_generation: Option<i64>,
    /// `status.state` as stored.
    pub state: String,
    /// The conditions as stored.
    pub conditions: Vec<Condition>,
    /// True if the stored table is cut. All entries are in JobRecords then.
    pub is_truncated: bool,
    /// The number of units that the JobRecords have lost and that the host still has to give up.
    pub lost_units: i64,
    /// The number of the first JobRecord that belongs to the stored status.
    pub first_record: usize,
}

impl Header {
    /// Reads the header of a stored status. An unreadable field counts as absent.
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

    /// Updates the times of suspension.
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

    /// Returns the end of `seconds` from the start, without suspended time. Returns `None` if the object is suspended or has not begun.
    pub fn deadline(&self, seconds: i64) -> Option<Timestamp> {
        let start = self.start_time.filter(|_| self.suspended_since.is_none())?;
        Some(after_seconds(start, seconds.saturating_add(self.suspended_seconds)))
    }
}

/// Returns the entries in a stored status. An unreadable entry counts as absent.
pub fn stored_units(parent: &Parent) -> Vec<Unit> {
    let table = list(&parent.status, &format!("/{}", parent.kind.table())).iter();
    table
        .filter_map(|entry| serde_json::from_value(entry.clone()).ok())
        .filter(|unit: &Unit| !unit.name.is_empty())
        .collect()
}
