//! Reads single figures from the host's `/metrics`. A figure that this host does not count is absent, never 0.

use serde_json::Value;

/// Returns the value of the only series of `name`, such as a counter without labels.
pub(crate) fn value(text: &str, name: &str) -> Option<f64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
    line.split(' ').next()?.parse().ok()
}

/// Returns the number of rounds of the host.
pub(crate) fn rounds(text: &str) -> Option<f64> {
    value(text, "oarlock_operationjob_rounds_total")
        .or_else(|| value(text, "oarlock_operationjob_round_duration_seconds_count"))
}

/// Returns the number of visits of the host.
pub(crate) fn visits(text: &str) -> Option<f64> {
    value(text, "oarlock_operationjob_visits_total")
}

/// Returns the upper edge, in milliseconds, of the bucket with the 99th percentile of the times from event to action. The last
/// bucket has no edge.
pub(crate) fn event_to_action_p99(text: &str) -> Value {
    match percentile_edge(text) {
        Some(edge) if edge.is_infinite() => "beyond the last bucket".into(),
        edge => edge.into(),
    }
}

fn percentile_edge(text: &str) -> Option<f64> {
    let mut buckets = Vec::new();
    for line in text.lines().filter(|line| line.contains("event_to_action_seconds_bucket")) {
        let edge = line.split("le=\"").nth(1)?.split('"').next()?.parse::<f64>().ok()?;
        buckets.push((edge, line.rsplit(' ').next()?.parse::<f64>().ok()?));
    }
    let all = buckets.last().map(|(_, count)| *count).filter(|count| *count > 0.0)?;
    buckets.into_iter().find(|(_, count)| *count >= 0.99 * all).map(|(edge, _)| edge * 1000.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentile_is_the_edge_of_its_bucket() {
        let bucket = |edge: &str, count: u32| format!("x_event_to_action_seconds_bucket{{le=\"{edge}\"}} {count}\n");
        let text = bucket("0.001", 50) + &bucket("0.002", 99) + &bucket("0.004", 100) + &bucket("+Inf", 100);
        assert_eq!(event_to_action_p99(&text), 2.0);
        assert_eq!(event_to_action_p99(&bucket("+Inf", 0)), Value::Null);
        assert_eq!(event_to_action_p99(&bucket("+Inf", 3)), "beyond the last bucket");
    }

    #[test]
    fn rounds_are_counted_by_either_name_and_visits_may_be_absent() {
        let old = "oarlock_operationjob_round_duration_seconds_count 7\n";
        assert_eq!((rounds(old), visits(old)), (Some(7.0), None));
        let new = format!("{old}oarlock_operationjob_rounds_total 8\noarlock_operationjob_visits_total 9\n");
        assert_eq!((rounds(&new), visits(&new)), (Some(8.0), Some(9.0)));
    }
}
