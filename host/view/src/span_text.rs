//! Times in RFC 3339, and durations in the format of kubectl, with at most two units.

use k8s_openapi::jiff::{SignedDuration, Timestamp};

const UNITS: [(i64, char); 4] = [(86_400, 'd'), (3600, 'h'), (60, 'm'), (1, 's')];

/// Returns a duration such as `45s`, `2m5s`, `10m` or `3h1m`. A negative duration becomes `0s`, because clocks differ.
pub(crate) fn span(span: SignedDuration) -> String {
    let seconds = span.as_secs().max(0);
    let at = UNITS.iter().position(|(size, _)| seconds >= *size).unwrap_or(UNITS.len() - 1);
    let Some((size, unit)) = UNITS.get(at) else { return String::new() };
    let big = seconds / size;
    let smaller = UNITS.get(at + 1).map(|(small, name)| (seconds % size / small, name));
    match smaller {
        Some((rest, name)) if big < 10 && rest > 0 => format!("{big}{unit}{rest}{name}"),
        _ => format!("{big}{unit}"),
    }
}

/// Returns the duration between two times, such as `2m5s`, if both are known.
pub fn between(from: Option<Timestamp>, to: Option<Timestamp>) -> Option<String> {
    Some(span(to?.duration_since(from?)))
}

/// Returns a time in RFC 3339, in UTC and with whole seconds.
pub fn rfc_3339(time: Timestamp) -> String {
    Timestamp::from_second(time.as_second()).unwrap_or(time).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_have_two_units_at_most() {
        let seconds = [-5, 0, 59, 60, 125, 600, 3660, 90_000, 864_000];
        let texts: Vec<String> = seconds.map(|seconds| span(SignedDuration::from_secs(seconds))).into();
        assert_eq!(texts, ["0s", "0s", "59s", "1m", "2m5s", "10m", "1h1m", "1d1h", "10d"]);
        assert_eq!(span(SignedDuration::MAX), "106751991167300d");
    }
}
