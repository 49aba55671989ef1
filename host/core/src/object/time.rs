//! Arithmetic on the times in objects and statuses. It saturates, because stored times are not bounded.

use k8s_openapi::jiff::{SignedDuration, Timestamp};

/// Returns `time` plus `by`, or the end of the calendar.
pub fn after(time: Timestamp, by: SignedDuration) -> Timestamp {
    time.checked_add(by).unwrap_or(if by.is_negative() { Timestamp::MIN } else { Timestamp::MAX })
}

/// Returns `time` less `by`, or the beginning of the calendar.
pub fn before(time: Timestamp, by: SignedDuration) -> Timestamp {
    time.checked_sub(by).unwrap_or(if by.is_negative() { Timestamp::MAX } else { Timestamp::MIN })
}

/// Returns `time` plus whole seconds.
pub fn after_seconds(time: Timestamp, seconds: i64) -> Timestamp {
    after(time, SignedDuration::from_secs(seconds))
}

/// Returns `time` plus milliseconds.
pub fn after_millis(time: Timestamp, milliseconds: i64) -> Timestamp {
    after(time, SignedDuration::from_millis(milliseconds))
}

/// Returns `time` without its fraction of a second.
pub fn whole(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or(time)
}

/// Returns the time as RFC 3339 text in UTC, in whole seconds.
pub fn write_time(time: Timestamp) -> String {
    whole(time).to_string()
}

/// Reads a stored time. Returns `None` if the text is not a time.
pub fn read_time(text: Option<&str>) -> Option<Timestamp> {
    text?.parse().ok()
}

/// Returns the milliseconds since 1970, or 0 for an earlier time.
pub fn milliseconds(time: Timestamp) -> u64 {
    u64::try_from(time.as_millisecond()).unwrap_or(0)
}

/// Returns the earliest of times that may be absent.
pub fn earliest(times: impl IntoIterator<Item = Option<Timestamp>>) -> Option<Timestamp> {
    times.into_iter().flatten().min()
}

/// Returns the time after which a request that was sent at `sent` can no longer take effect. An API server gives up a request after one minute.
pub fn too_late_for(sent: Timestamp) -> Timestamp {
    after_seconds(sent, 65)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_at_the_ends_of_the_calendar_saturate() {
        let last: Timestamp = "9999-12-30T21:59:59Z".parse().unwrap();
        assert_eq!(after_seconds(last, i64::from(i32::MAX)), Timestamp::MAX);
        assert_eq!(before(Timestamp::UNIX_EPOCH, SignedDuration::from_secs(i64::MAX)), Timestamp::MIN);
        assert_eq!(after(Timestamp::UNIX_EPOCH, SignedDuration::MIN), Timestamp::MIN);
    }
}
