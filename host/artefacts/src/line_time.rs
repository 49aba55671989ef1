//! The time of a log line, in a form whose bytes sort by time.

use k8s_openapi::jiff::{SignedDuration, Timestamp};

/// The bytes of a time such as `2026-01-01T00:00:00.000000000Z`.
pub const LENGTH: usize = 30;

/// A time in RFC 3339, in UTC and with nine digits after the second.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LineTime([u8; LENGTH]);

impl LineTime {
    /// Returns the form of a time. A time outside the years 0 to 9999 becomes the nearest time within them.
    pub fn of(time: Timestamp) -> Self {
        let text = format!("{time:.9}");
        text.as_bytes().try_into().map_or(Self::LEAST, Self)
    }

    /// The earliest time.
    pub const LEAST: Self = Self(*b"0000-01-01T00:00:00.000000000Z");
    /// The latest time.
    pub const MOST: Self = Self(*b"9999-12-31T23:59:59.999999999Z");

    /// Returns the end of the second of a time. The API server tells creation times only to the second.
    pub fn end_of(time: Timestamp) -> Self {
        let second = Timestamp::from_second(time.as_second()).unwrap_or(time);
        Self::of(second.checked_add(SignedDuration::new(0, 999_999_999)).unwrap_or(time))
    }

    /// Reads a time in RFC 3339, of any zone and precision. Returns `None` if the text is no such time.
    pub fn read(text: &[u8]) -> Option<Self> {
        if let Some(own) = Self::already(text) {
            return Some(own);
        }
        let time: Timestamp = std::str::from_utf8(text).ok()?.parse().ok()?;
        Some(Self::of(time))
    }

    /// Returns a time that is already in this form. Kubelets on nodes in UTC write this form. The check is fast, because it runs for every
    /// line.
    fn already(text: &[u8]) -> Option<Self> {
        let own: &[u8; LENGTH] = text.try_into().ok()?;
        let fits = own.iter().zip(&Self::LEAST.0).all(|(byte, form)| match form {
            b'0' | b'1' => byte.is_ascii_digit(),
            other => byte == other,
        });
        fits.then_some(Self(*own))
    }

    /// Returns the time that a line begins with, and the text after the next space. Returns `None` if the line does not begin with a time
    /// in this form.
    pub(crate) fn before_text(line: &[u8]) -> Option<(Self, &[u8])> {
        let (time, rest) = line.split_first_chunk::<LENGTH>()?;
        let text = rest.strip_prefix(b" ")?;
        Some((Self::already(time)?, text))
    }

    /// Returns the time that a line of a part begins with.
    pub fn of_line(line: &[u8]) -> Option<Self> {
        line.first_chunk().map(|own| Self(*own))
    }

    /// Returns the bytes of the time.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Returns the time as a timestamp.
    pub fn time(&self) -> Option<Timestamp> {
        std::str::from_utf8(&self.0).ok()?.parse().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_zone_and_precision_a_time_has_its_stamp_sorts_by_it() {
        let read = |text: &str| LineTime::read(text.as_bytes());
        let time = |text: &str| String::from_utf8(read(text).unwrap().as_bytes().to_vec()).unwrap();
        assert_eq!(time("2026-01-01T02:00:00.5+02:00"), "2026-01-01T00:00:00.500000000Z");
        assert_eq!(time("2026-01-01T00:00:00Z"), "2026-01-01T00:00:00.000000000Z");
        assert_eq!(time("2026-01-01T00:00:00.123456789Z"), "2026-01-01T00:00:00.123456789Z");
        let second = "2026-01-01T00:00:05.7Z".parse().unwrap();
        assert_eq!(LineTime::end_of(second), read("2026-01-01T00:00:05.999999999Z").unwrap());
        assert!(
            LineTime::LEAST < LineTime::of(Timestamp::UNIX_EPOCH) && LineTime::of(Timestamp::MAX) <= LineTime::MOST
        );
        assert!(read("2026-01-01T00:00:00.1Z") < read("2026-01-01T00:00:00.10000001Z"));
        for text in ["", "unable", "2026-01-01", "2026-13-01T00:00:00.000000000Q", "99999-01-01T00:00:00Z"] {
            assert_eq!(read(text), None, "{text}");
        }
    }
}
