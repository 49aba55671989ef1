//! Arithmetic of times that objects and statuses carry. It saturates, since stored times are not bounded.

use k8s_openapi::jiff::{SignedDuration, Timestamp};

/// `time` plus `by`, or the end of the calendar.
pub fn after(time: Timestamp, by: SignedDuration) -> Timestamp {
    time.checked_add(by).unwrap_or(if by.is_negative() { Timestamp::MIN } else { Timestamp::MAX })
}

/// `time` less `by`, or the beginning of the calendar.
pub fn before(time: Timestamp, by: SignedDuration) -> Timestamp {
    time.checked_sub(by).unwrap_or(if by.is_negative() { Timestamp::MAX } else { Timestamp::MIN })
}

/// `time` plus whole seconds.
pub fn after_seconds(time: Timestamp, seconds: i64) -> Timestamp {
    after(time, SignedDuration::from_secs(seconds))
}

/// `time` plus milliseconds.
pub fn after_millis(time: Timestamp, milliseconds: i64) -> Timestamp {
    after(time, SignedDuration::from_millis(milliseconds))
}

/// `time` without its fraction of a second.
pub fn whole(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or(time)
}

/// RFC 3339, UTC, whole seconds.
pub fn write_time(time: Timestamp) -> String {
    whole(time).to_string()
}

/// A stored time; `None` if it cannot be read.
pub fn read_time(text: Option<&str>) -> Option<Timestamp> {
    text?.parse().ok()
}

/// Milliseconds since 1970, 0 before.
pub fn milliseconds(time: Timestamp) -> u64 {
    u64::try_from(time.as_millisecond()).unwrap_or(0)
}

/// The earliest of times that may be absent.
pub fn earliest(times: impl IntoIterator<Item = Option<Timestamp>>) -> Option<Timestamp> {
    times.into_iter().flatten().min()
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
