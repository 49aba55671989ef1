//! The time of a line of a log, in a form that sorts as its bytes do.

use k8s_openapi::jiff::{SignedDuration, Timestamp};

/// Its bytes: `2026-01-01T00:00:00.000000000Z`.
pub const LENGTH: usize = 30;

/// A time in RFC 3339, in UTC and with nine digits of a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LineTime([u8; LENGTH]);

impl LineTime {
    /// That of a time; of one before the year 0 or after 9999, the nearest that has one.
    pub fn of(time: Timestamp) -> Self {
        let text = format!("{time:.9}");
        text.as_bytes().try_into().map_or(Self::LEAST, Self)
    }

    /// Before every other.
    pub const LEAST: Self = Self(*b"0000-01-01T00:00:00.000000000Z");
    /// After every other.
    pub const MOST: Self = Self(*b"9999-12-31T23:59:59.999999999Z");

    /// The end of the second in which a time is: the API tells when an object was made to the second.
    pub fn end_of(time: Timestamp) -> Self {
        let second = Timestamp::from_second(time.as_second()).unwrap_or(time);
        Self::of(second.checked_add(SignedDuration::new(0, 999_999_999)).unwrap_or(time))
    }

    /// Reads a time in RFC 3339, of whatever zone and precision; `None` where it is none.
    pub fn read(text: &[u8]) -> Option<Self> {
        if let Some(own) = Self::already(text) {
            return Some(own);
        }
        let time: Timestamp = std::str::from_utf8(text).ok()?.parse().ok()?;
        Some(Self::of(time))
    }

    /// What has this form already, as kubelets of nodes in UTC write it. It is read once a line.
    fn already(text: &[u8]) -> Option<Self> {
        let own: &[u8; LENGTH] = text.try_into().ok()?;
        let fits = own.iter().zip(&Self::LEAST.0).all(|(byte, form)| match form {
            b'0' | b'1' => byte.is_ascii_digit(),
            other => byte == other,
        });
        fits.then_some(Self(*own))
    }

    /// The time in this form that a line begins with, and the rest of the line after the space. `None` where the line begins otherwise.
    pub(crate) fn before_text(line: &[u8]) -> Option<(Self, &[u8])> {
        let (time, rest) = line.split_first_chunk::<LENGTH>()?;
        let text = rest.strip_prefix(b" ")?;
        Some((Self::already(time)?, text))
    }

    /// The one that a line of a part begins with.
    pub fn of_line(line: &[u8]) -> Option<Self> {
        line.first_chunk().map(|own| Self(*own))
    }

    /// Its bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The time.
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
