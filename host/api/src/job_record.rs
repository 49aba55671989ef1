//! JobRecord: up to 250 entries of a JobFlow or DaemonJob whose status cannot hold all its entries.
//!
//! Source: docs/jobflow.md 5.

use std::collections::HashSet;

use serde::de::DeserializeOwned;
use serde_json::Value;

/// The most entries of a JobRecord.
pub const RECORD_UNITS: usize = 250;

/// A number above the JobRecords of any object. 5,000 units have 20 JobRecords, which alternate with 20 others.
const MOST_RECORDS: usize = 1 << 20;

fn number(value: &Value) -> Option<usize> {
    usize::try_from(value.as_u64()?).ok()
}

/// Returns the number of the first JobRecord that a stored status counts. A value that the host cannot have written counts as absent.
pub fn first_record(status: &Value) -> usize {
    status.get("firstRecord").and_then(number).filter(|first| *first < MOST_RECORDS).unwrap_or(0)
}

/// Returns the number of units that a stored status counts, if the status has it.
pub fn counted_units(status: &Value) -> Option<usize> {
    status.pointer("/counts/total").and_then(number)
}

/// Returns the entries in those `records` of an object that its stored `status` counts, in their order. The counted records begin at
/// `firstRecord`. The result is empty if the table of the status is complete. Other records are old or come from an interrupted write,
/// because the host never deletes a record. An unreadable line counts as absent. The earlier of two entries with one `name` counts.
pub fn recorded_units<'a, T: DeserializeOwned>(
    status: &Value,
    records: impl IntoIterator<Item = &'a Value>,
    name: impl Fn(&T) -> Option<&str>,
) -> Vec<T> {
    let is_cut = status.get("tableTruncated").and_then(Value::as_bool) == Some(true);
    let total = counted_units(status).unwrap_or(usize::MAX);
    let shards = if is_cut { total.div_ceil(RECORD_UNITS) } else { 0 };
    let first = first_record(status);
    let place =
        |record: &Value| record.get("shard").and_then(number)?.checked_sub(first).filter(|place| *place < shards);
    let counted = records.into_iter().filter_map(|record| Some((place(record)?, record)));
    let mut counted: Vec<(usize, &Value)> = counted.collect();
    counted.sort_by_key(|(shard, _)| *shard);
    let lines = counted.iter().filter_map(|(_, record)| record.get("units")?.as_array()).flatten();
    let mut known = HashSet::new();
    let units = lines.filter_map(|line| serde_json::from_str(line.as_str()?).ok());
    units.filter(|unit| name(unit).is_some_and(|name| !name.is_empty() && known.insert(name.to_owned()))).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails loudly")]

    use serde_json::json;

    use super::*;

    fn names(status: &Value, records: &[Value]) -> Vec<String> {
        let units: Vec<Value> = recorded_units(status, records, |unit: &Value| unit.get("name")?.as_str());
        units.iter().map(|unit| unit.pointer("/name").unwrap().as_str().unwrap().to_owned()).collect()
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
    fn records_before_the_first_one_that_the_status_names_are_of_before() {
        let records = [record(0, &["a"]), record(1, &["b"]), record(2, &["c"]), record(3, &["d"])];
        let status = json!({"tableTruncated": true, "counts": {"total": 300}, "firstRecord": 1});
        assert_eq!(names(&status, &records), ["b", "c"]);
        let odd = json!({"tableTruncated": true, "counts": {"total": 300}, "firstRecord": -1});
        assert_eq!(names(&odd, &records), ["a", "b"]);
    }

    #[test]
    fn a_record_or_line_that_cannot_be_read_costs_no_other_its_own() {
        let odd =
            json!({"shard": 0, "units": ["{", 5, "{\"name\": 5}", "{}", "{\"name\": \"\"}", "{\"name\": \"b\"}"]});
        let records = [json!({"units": []}), json!({"shard": -1}), json!({"shard": 1, "units": 3}), odd];
        assert_eq!(names(&json!({"tableTruncated": true}), &records), ["b"]);
    }
}
