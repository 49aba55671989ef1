//! JobRecord: up to 250 entries of a JobFlow or DaemonJob that has more than its status can hold.
//!
//! Source: docs/jobflow.md 5.

use std::collections::HashSet;

use serde::de::DeserializeOwned;
use serde_json::Value;

/// Most entries of a JobRecord.
pub const RECORD_UNITS: usize = 250;

/// The entries of those of an object's `records` that its stored `status` counts, in their order. None, where its table is
/// whole; a record beyond their number is from when there were more, for none is ever deleted. A line that cannot be read
/// counts as absent; of two with one `name` the earlier counts.
pub fn recorded_units<'a, T: DeserializeOwned>(
    status: &Value,
    records: impl IntoIterator<Item = &'a Value>,
    name: impl Fn(&T) -> Option<&str>,
) -> RecordedUnits<T> {
    let number = |value: &Value| value.as_u64().and_then(|number| usize::try_from(number).ok());
    let is_cut = status.get("tableTruncated").and_then(Value::as_bool) == Some(true);
    let total = status.pointer("/counts/total").and_then(number);
    let shards = if is_cut { total.unwrap_or(usize::MAX).div_ceil(RECORD_UNITS) } else { 0 };
    let shard = |record: &Value| record.get("shard").and_then(number);
    let counted =
        records.into_iter().filter_map(|record| Some((shard(record).filter(|shard| *shard < shards)?, record)));
    let mut counted: Vec<(usize, &Value)> = counted.collect();
    counted.sort_by_key(|(shard, _)| *shard);
    let lines = counted.iter().filter_map(|(_, record)| record.get("units")?.as_array()).flatten();
    let mut known = HashSet::new();
    let mut read = RecordedUnits { units: Vec::new(), is_complete: true };
    for line in lines {
        let unit: Option<T> = line.as_str().and_then(|line| serde_json::from_str(line).ok());
        match unit.as_ref().and_then(&name).filter(|name| !name.is_empty()) {
            Some(name) if known.insert(name.to_owned()) => read.units.extend(unit),
            Some(_) => {}
            None => read.is_complete = false,
        }
    }
    counted.dedup_by_key(|(shard, _)| *shard);
    read.is_complete &= !is_cut || total.is_none() || counted.len() == shards;
    read
}

/// The entries that JobRecords hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordedUnits<T> {
    /// Those that can be read.
    pub units: Vec<T>,
    /// Every record that the status counts is there, and each of its lines can be read.
    pub is_complete: bool,
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails loudly")]

    use serde_json::json;

    use super::*;

    fn names(status: &Value, records: &[Value]) -> Vec<String> {
        let read = recorded_units(status, records, |unit: &Value| unit.get("name")?.as_str());
        read.units.iter().map(|unit| unit.pointer("/name").unwrap().as_str().unwrap().to_owned()).collect()
    }

    fn record(shard: u64, names: &[&str]) -> Value {
        json!({"shard": shard, "units": names.iter().map(|name| json!({"name": name}).to_string()).collect::<Vec<_>>()})
    }

    #[test]
    fn records_beyond_what_the_status_counts_are_of_before() {
        let records = [record(2, &["d"]), record(1, &["b", "a", "c"]), record(0, &["a"])];
        let status = |total: u64| json!({"tableTruncated": true, "counts": {"total": total}});
        assert_eq!(names(&status(501), &records), ["a", "b", "c", "d"]);
        assert_eq!(names(&status(500), &records), ["a", "b", "c"]);
        assert_eq!(names(&status(250), &records), ["a"]);
        assert_eq!(names(&json!({"counts": {"total": 501}}), &records), [""; 0], "the table is whole");
    }

    #[test]
    fn a_record_that_is_missing_or_cannot_be_read_is_missed() {
        let is_complete = |total: Option<u64>, records: &[Value]| {
            let status = json!({"tableTruncated": true, "counts": {"total": total}});
            recorded_units(&status, records, |unit: &Value| unit.get("name")?.as_str()).is_complete
        };
        let both = [record(0, &["a"]), record(1, &["b"])];
        assert!(is_complete(Some(500), &both) && is_complete(Some(250), &both) && is_complete(None, &[]));
        assert!(!is_complete(Some(501), &both) && !is_complete(Some(500), &both[1..]));
        assert!(!is_complete(Some(500), &[both[1].clone(), both[1].clone()]));
        assert!(!is_complete(Some(500), &[both[0].clone(), json!({"shard": 1, "units": ["{"]})]));
    }

    #[test]
    fn a_record_or_line_that_cannot_be_read_costs_no_other_its_own() {
        let odd =
            json!({"shard": 0, "units": ["{", 5, "{\"name\": 5}", "{}", "{\"name\": \"\"}", "{\"name\": \"b\"}"]});
        let records = [json!({"units": []}), json!({"shard": -1}), json!({"shard": 1, "units": 3}), odd];
        assert_eq!(names(&json!({"tableTruncated": true}), &records), ["b"]);
    }
}
