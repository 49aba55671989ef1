//! Builds the bounded status of a JobFlow or DaemonJob. Source: docs/jobflow.md 5.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use oarlock_api::{RECORD_UNITS, counted_units, first_record, recorded_units};
use serde_json::{Map, Value, json};

use crate::attempts::header::Header;
use crate::attempts::owner_summary::ParentSummary;
use crate::attempts::parent::Parent;
use crate::attempts::unit::{Unit, UnitState};
use crate::attempts::view::ChildView;
use crate::object::bound::{fitting, shown_cause};
use crate::object::fields::{flag, object, text};
use crate::object::time::write_time;

/// The most units of a complete table.
const WHOLE: usize = 80;
/// The most bytes of a table.
const TABLE: usize = 32_000;
/// The most bytes of all messages of a table.
const MESSAGES: usize = 4_096;
/// The most bytes of `jobStatusList`.
const LIST: usize = 20 * 1_024;
/// The most sample entries of a cut table, by state.
const SAMPLES: [(&[UnitState], usize); 4] = [
    (&[UnitState::Failed], 30),
    (&[UnitState::Blocked], 20),
    (&[UnitState::Running, UnitState::Pending, UnitState::Retrying], 20),
    (&[UnitState::Waiting], 10),
];
/// The number of entries in a full JobRecord.
pub const SHARD: usize = RECORD_UNITS;

/// The inputs of a status.
#[derive(Clone, Copy)]
pub struct StatusInput<'a> {
    /// The JobFlow or DaemonJob.
    pub parent: &'a Parent,
    /// The entries of its units.
    pub units: &'a [Unit],
    /// The other fields of its status.
    pub header: &'a Header,
    /// The state and the conditions of the object.
    pub summary: &'a ParentSummary,
    /// The children of the object.
    pub children: &'a [Arc<ChildView>],
}

/// A built status.
#[derive(Clone, Debug, PartialEq)]
pub struct Reported {
    /// The content of `status`.
    pub status: Value,
    /// True if its table is cut. The host must then store all units in JobRecords before the status.
    pub is_cut: bool,
}

/// Builds the status.
pub fn report(from: StatusInput<'_>) -> Reported {
    let StatusInput { parent, units, header, summary, .. } = from;
    let (table, is_whole) = table(units);
    let (list, omitted) = job_status_list(from);
    let counts = summary.counts;
    let mut status = Map::new();
    let mut put = |field: &str, value: Value| drop(status.insert(field.to_owned(), value));
    put("state", summary.state.as_str().into());
    put("observedGeneration", parent.generation.into());
    let times = [
        ("startTime", header.start_time),
        ("completionTime", header.completion_time),
        ("suspendedSince", header.suspended_since),
    ];
    times
        .into_iter()
        .filter_map(|(field, time)| Some((field, time?)))
        .for_each(|(field, time)| put(field, write_time(time).into()));
    put("progress", format!("{}/{}", counts.succeeded, counts.desired).into());
    put("counts", json!(counts));
    put(parent.kind.table(), Value::Array(table));
    if !is_whole {
        put("tableTruncated", true.into());
        if header.first_record > 0 {
            put("firstRecord", header.first_record.into());
        }
    }
    put("jobStatusList", Value::Object(list));
    if omitted > 0 {
        put("jobStatusListOmitted", omitted.into());
    }
    if let Some(token) = &header.retry_token {
        put("retryToken", token.as_str().into());
    }
    for (field, number) in [("suspendedSeconds", header.suspended_seconds), ("lostUnits", header.lost_units)] {
        if number > 0 {
            put(field, number.into());
        }
    }
    for (field, number) in
        [("nodeSetGeneration", header.set_generation), ("importedGeneration", header.imported_generation)]
    {
        number.into_iter().for_each(|number| put(field, number.into()));
    }
    put("conditions", json!(summary.conditions));
    Reported { status: Value::Object(status), is_cut: !is_whole }
}

/// Returns the units of a JobRecord as stored: one line of JSON each.
pub fn lines_of(units: &[Unit]) -> Vec<String> {
    units.iter().map(|unit| serde_json::to_string(unit).unwrap_or_default()).collect()
}

/// Returns the table. The flag is true if the table has every entry in full, except for long messages.
fn table(units: &[Unit]) -> (Vec<Value>, bool) {
    let room = |count: usize| MESSAGES / count.max(1);
    if units.len() <= WHOLE {
        let told = units.iter().filter(|unit| !unit.message.is_empty()).count();
        let whole: Vec<Value> = units.iter().map(|unit| entry(unit, room(told))).collect();
        if whole.iter().map(|entry| entry.to_string().len()).sum::<usize>() <= TABLE {
            return (whole, true);
        }
    }
    let mut left = SAMPLES.map(|(_, most)| most);
    let mut sample = Vec::new();
    for unit in units {
        let place = SAMPLES.iter().position(|(states, _)| states.contains(&unit.state));
        let Some(left) = place.and_then(|place| left.get_mut(place)).filter(|left| **left > 0) else { continue };
        *left -= 1;
        sample.push(unit);
    }
    let entries = sample.iter().map(|unit| entry(unit, room(sample.len())));
    (fitting(entries, TABLE, |entry| entry.to_string().len()).collect(), false)
}

fn entry(unit: &Unit, message: usize) -> Value {
    json!(Unit { message: shown_cause(&unit.message, message), ..unit.clone() })
}

/// Value of one child for `jobStatusList`. An object may have 5,000 children, and the host parses only the values that fit.
struct Listed<'a> {
    rank: u8,
    key: String,
    seen: Option<&'a str>,
    stored: Option<&'a Value>,
}

impl Listed<'_> {
    fn value(&self) -> Value {
        let seen = self.seen.and_then(|seen| serde_json::from_str(seen).ok());
        seen.or_else(|| self.stored.cloned()).unwrap_or_else(|| json!({}))
    }

    /// Returns the bytes of a value of this size with its key.
    fn with_key(&self, value: usize) -> usize {
        self.key.len() + value + 4
    }

    fn bytes(&self) -> usize {
        let stored = || self.stored.map_or(2, |stored| stored.to_string().len());
        self.with_key(self.seen.map_or_else(stored, str::len))
    }
}

/// Returns `jobStatusList` and the number of values that do not fit. It has full values if all fit, and otherwise counters and times. If those do not
/// fit either, failed and unfinished children come first.
fn job_status_list(from: StatusInput<'_>) -> (Map<String, Value>, usize) {
    let mut all = listed(from);
    let count = all.len();
    if all.iter().map(Listed::bytes).sum::<usize>() <= LIST {
        return (all.into_iter().map(|one| (one.key.clone(), one.value())).collect(), 0);
    }
    all.sort_by(|one, other| (one.rank, &one.key).cmp(&(other.rank, &other.key)));
    let counted = all.into_iter().map(|one| (counters(&one.value()), one));
    let fits = fitting(counted, LIST, |(value, one)| one.with_key(value.to_string().len()));
    let kept: Map<String, Value> = fits.map(|(value, one)| (one.key, value)).collect();
    let omitted = count - kept.len();
    (kept, omitted)
}

fn listed(from: StatusInput<'_>) -> Vec<Listed<'_>> {
    let views: HashMap<&str, &ChildView> = from.children.iter().map(|child| (child.uid.as_str(), &**child)).collect();
    let stored = object(&from.parent.status, "/jobStatusList");
    let one = |unit: &Unit| {
        let key = from.parent.list_key(&unit.job);
        let seen = views.get(unit.job_uid.as_str()).map(|child| &*child.status).filter(|seen| !seen.is_empty());
        let stored = stored.filter(|_| seen.is_none()).and_then(|stored| stored.get(&key));
        let rank = match unit.state {
            UnitState::Failed => 0,
            UnitState::Succeed | UnitState::Omitted => 2,
            _ => 1,
        };
        Listed { rank, key, seen, stored }
    };
    from.units.iter().filter(|unit| !unit.job.is_empty()).map(one).collect()
}

fn counters(value: &Value) -> Value {
    let fields = ["startTime", "completionTime", "active", "succeeded", "failed", "ready"];
    let kept = fields.iter().filter_map(|field| Some(((*field).to_owned(), value.get(*field)?.clone())));
    Value::Object(kept.collect())
}

/// Returns the entries in JobRecords, as far as the stored status counts them.
pub fn units_of_records(status: &Value, records: &[Value]) -> Vec<Unit> {
    recorded_units(status, records, |unit: &Unit| Some(unit.name.as_str()))
}

/// Returns the number of the first JobRecord of these units. `stored` are the units that `parent.status` counts, if they are known.
///
/// If units join, leave or change places, they get records with other numbers. The records that the stored status counts stay whole until a status
/// counts the new records. So an interrupted write loses no unit.
pub fn next_first_record(units: &[Unit], parent: &Parent, stored: Option<&[Unit]>) -> usize {
    if !flag(&parent.status, "/tableTruncated") {
        return 0;
    }
    let first = first_record(&parent.status);
    // A lost record counts too.
    let total = counted_units(&parent.status).unwrap_or(0);
    let is_same = |stored: &[Unit]| {
        let named = units.iter().zip(stored).all(|(unit, stored)| unit.name == stored.name);
        stored.len() == total && units.len() == total && named
    };
    if stored.is_some_and(is_same) {
        first
    } else if first >= units.len().div_ceil(SHARD) {
        0
    } else {
        first.saturating_add(total.div_ceil(SHARD))
    }
}

/// Returns the versions of these JobRecords of an object, by number.
pub fn record_versions(parent: &Parent, records: &[Value]) -> BTreeMap<usize, String> {
    let version = |record: &Value| {
        let number = record.get("shard")?.as_u64()?.try_into().ok()?;
        let is_named_so = text(record, "/metadata/name") == Some(&record_name(parent, number));
        is_named_so.then_some((number, text(record, "/metadata/resourceVersion")?.to_owned()))
    };
    records.iter().filter_map(version).collect()
}

/// Returns the name of a JobRecord.
pub fn record_name(parent: &Parent, shard: usize) -> String {
    let cut: String = parent.name.chars().take(200).collect();
    let uid: String = parent.uid.chars().take(8).collect();
    format!("{}-{uid}-{shard}", cut.trim_end_matches(['-', '.']))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attempts::parent::{API_VERSION, ParentKind};
    use crate::attempts::unit::CountsByState;

    fn parent() -> Parent {
        let object = json!({"apiVersion": API_VERSION, "metadata": {"name": "p".repeat(60), "namespace": "n", "uid": "12345678-1"}});
        Parent::read(ParentKind::Daemon, object).unwrap()
    }

    fn reported(units: &[Unit]) -> Reported {
        let summary = ParentSummary { counts: CountsByState::of(units), ..ParentSummary::default() };
        report(StatusInput { parent: &parent(), units, header: &Header::default(), summary: &summary, children: &[] })
    }

    fn unit(index: usize, state: UnitState) -> Unit {
        let mut unit = Unit {
            job: format!("{}-{index}", "j".repeat(56)),
            job_uid: "u".repeat(36),
            ..Unit::new(&format!("{}{index}", "n".repeat(56)))
        };
        unit.set(state, "BackoffLimitExceeded", &"x".repeat(256));
        unit
    }

    #[test]
    fn the_status_of_five_thousand_long_names_is_bounded_and_its_records_hold_all() {
        let units: Vec<Unit> = (0..5_000)
            .map(|index| unit(index, if index % 2 == 0 { UnitState::Failed } else { UnitState::Succeed }))
            .collect();
        let Reported { status, is_cut } = reported(&units);
        assert!(is_cut && status.to_string().len() < 64_000, "{}", status.to_string().len());
        assert_eq!(status["counts"]["failed"], 2_500);
        let record = |(shard, units): (usize, &[Unit])| json!({"shard": shard, "units": lines_of(units)});
        let mut records: Vec<Value> = units.chunks(SHARD).enumerate().map(record).collect();
        assert_eq!(records.len(), 20);
        records.push(json!({"shard": 20, "units": [r#"{"name": "of-before"}"#]}));
        records.reverse();
        assert_eq!(units_of_records(&status, &records), units);
        let listed = status["jobStatusList"].as_object().unwrap().len();
        assert_eq!(status["jobStatusListOmitted"], 5_000 - listed);
    }

    #[test]
    fn a_small_table_is_whole() {
        let units: Vec<Unit> = (0..3).map(|index| unit(index, UnitState::Waiting)).collect();
        let Reported { status, is_cut } = reported(&units);
        assert_eq!((status["nodes"].as_array().unwrap().len(), is_cut), (3, false));
        assert_eq!(record_name(&parent(), 2), format!("{}-12345678-2", "p".repeat(60)));
    }

    #[test]
    fn eighty_long_units_stay_within_the_room_of_a_status() {
        let units: Vec<Unit> = (0..80).map(|index| unit(index, UnitState::Failed)).collect();
        assert!(reported(&units).status.to_string().len() < 64_000);
    }
}
