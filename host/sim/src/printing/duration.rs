//! Durations as kubectl's tables show them: in at most two units.

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use serde_json::Value;

/// Returns the age of a timestamp, `<unknown>` without a timestamp.
pub(crate) fn age(since: Option<&Value>, now: Timestamp) -> String {
    let since = since.and_then(Value::as_str).and_then(|text| text.parse::<Timestamp>().ok());
    since.map_or_else(|| "<unknown>".to_owned(), |since| human(now.duration_since(since)))
}

/// Formats a duration as kubectl does.
pub(crate) fn human(span: SignedDuration) -> String {
    let seconds = span.as_secs();
    if seconds < -1 {
        return "<invalid>".to_owned();
    }
    let seconds = seconds.max(0);
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    let two = |big: i64, small: i64, units: (&str, &str)| {
        if small == 0 { format!("{big}{}", units.0) } else { format!("{big}{}{small}{}", units.0, units.1) }
    };
    match () {
        () if seconds < 120 => format!("{seconds}s"),
        () if minutes < 10 => two(minutes, seconds % 60, ("m", "s")),
        () if minutes < 180 => format!("{minutes}m"),
        () if hours < 8 => two(hours, minutes % 60, ("h", "m")),
        () if hours < 48 => format!("{hours}h"),
        () if days < 8 => two(days, hours % 24, ("d", "h")),
        () if days < 365 * 2 => format!("{days}d"),
        () if days < 365 * 8 => two(days / 365, days % 365, ("y", "d")),
        () => format!("{}y", days / 365),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_read_like_kubectls() {
        let shown = |seconds| human(SignedDuration::from_secs(seconds));
        assert_eq!(
            [shown(0), shown(119), shown(125), shown(600), shown(3 * 3600 + 60)],
            ["0s", "119s", "2m5s", "10m", "3h1m"]
        );
        assert_eq!([shown(9 * 3600), shown(3 * 86_400), shown(400 * 86_400)], ["9h", "3d", "400d"]);
    }
}
