//! Parsers of amounts, durations and policies in arguments.

use k8s_openapi::jiff::SignedDuration;
use oarlock_api::{FailurePolicy, IntOrPercent};

/// Parses an amount: `10` or `10%`.
pub(super) fn amount(text: &str) -> Result<IntOrPercent, String> {
    let number =
        |digits: &str| digits.parse::<u32>().map_err(|_| format!("{text:?} is neither a number nor a percentage"));
    match text.strip_suffix('%') {
        Some(percent) => number(percent).map(|_| IntOrPercent::Percent(text.to_owned())),
        None => number(text).map(|count| IntOrPercent::Int(i64::from(count))),
    }
}

/// Parses a duration in whole seconds: `90s`, `1h 30m`, or a bare number of seconds.
pub(in crate::commands) fn seconds(text: &str) -> Result<i32, String> {
    if let Ok(seconds) = text.parse::<i32>() {
        return Ok(seconds);
    }
    let span: SignedDuration = text
        .parse()
        .map_err(|_| format!("{text:?} is no span of time: write 90s, 10m, 1h30m or a number of seconds"))?;
    if span.subsec_nanos() != 0 {
        return Err("whole seconds, please".to_owned());
    }
    i32::try_from(span.as_secs()).map_err(|_| format!("{text:?} is too long: at most {} seconds", i32::MAX))
}

/// Parses a failure policy: `Continue`, `FailFast` or `Pause`, and after `:` the number of tolerated failures.
pub(super) fn failure_policy(text: &str) -> Result<FailurePolicy, String> {
    let (kind, failures) = text.split_once(':').map_or((text, None), |(kind, failures)| (kind, Some(failures)));
    let known = ["Continue", "FailFast", "Pause"];
    let Some(kind) = known.iter().find(|known| known.eq_ignore_ascii_case(kind)) else {
        return Err(format!("{kind:?} is no failure policy: write one of {}", known.join(", ")));
    };
    Ok(FailurePolicy { kind: Some((*kind).to_owned()), max_failures: failures.map(amount).transpose()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_numbers_or_percentages() {
        assert_eq!(amount("10"), Ok(IntOrPercent::Int(10)));
        assert_eq!(amount("25%"), Ok(IntOrPercent::Percent("25%".into())));
        for text in ["", "%", "-1", "1.5", "ten", "10 %"] {
            assert!(amount(text).is_err(), "{text}");
        }
    }

    #[test]
    fn spans_are_whole_seconds() {
        assert_eq!(["90", "90s", "1h", "1h30m", "1h 30m"].map(seconds), [90, 90, 3600, 5400, 5400].map(Ok));
        for text in ["soon", "1ms", "1h30", "100000000h"] {
            assert!(seconds(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_failure_policy_may_say_how_many_failures_it_tolerates() {
        let policy = |kind: &str, most| FailurePolicy { kind: Some(kind.into()), max_failures: most };
        assert_eq!(failure_policy("FailFast:1"), Ok(policy("FailFast", Some(IntOrPercent::Int(1)))));
        assert_eq!(failure_policy("pause:5%"), Ok(policy("Pause", Some(IntOrPercent::Percent("5%".into())))));
        assert_eq!(failure_policy("Continue"), Ok(policy("Continue", None)));
        assert!(failure_policy("Explode:1").is_err() && failure_policy("Pause:x").is_err());
    }
}
