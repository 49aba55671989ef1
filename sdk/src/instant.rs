//! Converts between RFC 3339 times, as Kubernetes writes them, and milliseconds
//! since 1970.

/// Reads a time such as `2026-01-31T12:00:00Z`, as milliseconds since 1970.
/// Returns `None` if the text is no such time, or the time is before 1970.
#[must_use]
pub fn parse_instant(text: &str) -> Option<u64> {
    let (date, time) = text.split_once(['T', 't'])?;
    let mut date = date.splitn(3, '-').map(number);
    let (year, month, day) = (date.next()??, date.next()??, date.next()??);
    let (time, zone) = time.split_at(time.find(['Z', 'z', '+', '-'])?);
    let (time, fraction) = time.split_once('.').unwrap_or((time, ""));
    let mut time = time.splitn(3, ':').map(number);
    let (hour, minute, second) = (time.next()??, time.next()??, time.next()??);
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) || hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    let seconds = days(year, month, day) * 86_400 + hour * 3600 + minute * 60 + second - offset(zone)?;
    u64::try_from(seconds * 1000 + milliseconds(fraction)?).ok()
}

/// Returns the days from 1970-01-01 to a date. Years are counted from March, so
/// that a leap day is the last day of its year. There are 719,468 days between
/// 0000-03-01 and 1970-01-01.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let (year, month) = if month < 3 { (year - 1, month + 9) } else { (year, month - 3) };
    year * 365 + year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400) + (month * 153 + 2) / 5 + day
        - 1
        - 719_468
}

/// Writes a time as Kubernetes does, in UTC and in whole seconds.
#[cfg(not(target_family = "wasm"))]
pub(crate) fn format_instant(ms: u64) -> String {
    let seconds = i64::try_from(ms / 1000).unwrap_or(i64::MAX);
    let (day, second) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    // The year and month are found with the function above, so that there is
    // only one calendar.
    let mut year = 1970 + day / 366;
    while days(year + 1, 1, 1) <= day {
        year += 1;
    }
    let month = (1..=12).rev().find(|month| days(year, *month, 1) <= day).unwrap_or(1);
    let date = day - days(year, month, 1) + 1;
    format!("{year:04}-{month:02}-{date:02}T{:02}:{:02}:{:02}Z", second / 3600, second / 60 % 60, second % 60)
}

/// Returns the seconds that a zone is ahead of UTC.
fn offset(zone: &str) -> Option<i64> {
    let sign = match zone.get(..1)? {
        "Z" | "z" => return (zone.len() == 1).then_some(0),
        "+" => 1,
        _ => -1,
    };
    let (hours, minutes) = zone.get(1..)?.split_once(':')?;
    Some(sign * (number(hours)? * 3600 + number(minutes)? * 60))
}

/// Reads the first three digits after the point, and ignores the rest.
fn milliseconds(fraction: &str) -> Option<i64> {
    let digits = fraction.get(..fraction.len().min(3))?;
    let missing = 3 - u32::try_from(digits.len()).ok()?;
    if digits.is_empty() { Some(0) } else { Some(number(digits)? * 10_i64.pow(missing)) }
}

fn number(digits: &str) -> Option<i64> {
    if digits.is_empty() || digits.len() > 4 || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    digits.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::{format_instant, parse_instant};

    #[test]
    fn times_of_kubernetes_are_read() {
        assert_eq!(parse_instant("1970-01-01T00:00:00Z"), Some(0));
        assert_eq!(parse_instant("2026-01-31T12:00:00Z"), Some(1_769_860_800_000));
        assert_eq!(parse_instant("2024-02-29T23:59:59.1234567Z"), Some(1_709_251_199_123));
        assert_eq!(parse_instant("2024-03-01T01:59:59+02:00"), Some(1_709_251_199_000));
        assert_eq!(parse_instant("2000-03-01T00:00:00.5Z"), Some(951_868_800_500));
    }

    #[test]
    fn a_time_that_is_written_is_read_back() {
        for ms in [0, 951_782_399_000, 951_782_400_000, 1_709_251_199_000, 1_769_860_800_000, 4_102_444_799_000] {
            assert_eq!(parse_instant(&format_instant(ms)), Some(ms));
        }
        assert_eq!(format_instant(1_709_251_199_123), "2024-02-29T23:59:59Z");
    }

    #[test]
    fn what_is_no_time_is_none() {
        for text in
            ["", "now", "2026-01-31", "2026-13-01T00:00:00Z", "2026-01-31T12:00:00", "1969-12-31T23:59:59Z", "TZ"]
        {
            assert_eq!(parse_instant(text), None, "{text}");
        }
    }
}
