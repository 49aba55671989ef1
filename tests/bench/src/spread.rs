//! Combines the figures of several rounds: the minimum, the median and the maximum of each.
//!
//! The input is one JSON object of figures per round. The output has the same shape, with such a spread for each number.

use serde_json::{Map, Value, json};

/// Returns the spread of each figure of `rounds`. Text that is the same in all rounds stays; otherwise each text is kept.
pub(crate) fn of(rounds: &[&Value]) -> Value {
    let mut names: Vec<&String> = Vec::new();
    for name in rounds.iter().filter_map(|round| round.as_object()).flat_map(Map::keys) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    let figure = |name: &String| {
        let found: Vec<&Value> = rounds.iter().filter_map(|round| round.get(name)).collect();
        (name.clone(), one(&found))
    };
    names.into_iter().map(figure).collect::<Map<_, _>>().into()
}

fn one(found: &[&Value]) -> Value {
    if found.iter().any(|value| value.is_object()) {
        return of(found);
    }
    let numbers: Vec<f64> = found.iter().filter_map(|value| value.as_f64()).collect();
    if !numbers.is_empty() {
        return of_numbers(numbers);
    }
    let mut texts: Vec<&str> = found.iter().filter_map(|value| value.as_str()).collect();
    texts.dedup();
    if texts.is_empty() { Value::Null } else { texts.join("; ").into() }
}

/// Returns the minimum, the median and the maximum. Returns null without numbers.
pub(crate) fn of_numbers(mut numbers: Vec<f64>) -> Value {
    numbers.sort_by(f64::total_cmp);
    let (Some(least), Some(most)) = (numbers.first(), numbers.last()) else { return Value::Null };
    let half = numbers.len() / 2;
    let middle = |at: usize| numbers.get(at).copied().unwrap_or(*least);
    let median = if numbers.len() % 2 == 1 { middle(half) } else { f64::midpoint(middle(half - 1), middle(half)) };
    json!({"min": least, "median": round(median), "max": most})
}

/// Returns the number below which `share` of the numbers lie. It is one of the numbers.
pub(crate) fn quantile(numbers: &[f64], share: f64) -> Option<f64> {
    let mut sorted = numbers.to_vec();
    sorted.sort_by(f64::total_cmp);
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a rank within a list")]
    let rank = (share * as_f64(sorted.len())).ceil() as usize;
    sorted.get(rank.max(1) - 1).copied()
}

#[allow(clippy::cast_precision_loss, reason = "counts here are far below 2^52")]
pub(crate) fn as_f64(n: usize) -> f64 {
    n as f64
}

/// Rounds to three decimal places, or to three significant digits if the value is smaller.
pub(crate) fn round(value: f64) -> f64 {
    let mut factor = 1000.0;
    while (value * factor).abs() < 100.0 && factor < 1e9 {
        factor *= 10.0;
    }
    (value * factor).round() / factor
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_figure_has_its_own_spread() {
        let rounds = [
            json!({"a": 3.0, "k": {"x": 1}, "v": "clean"}),
            json!({"a": 1, "k": {"y": 4}}),
            json!({"a": 8, "v": "bad"}),
        ];
        let spread = of(&rounds.iter().collect::<Vec<_>>());
        assert_eq!(spread["a"], json!({"min": 1.0, "median": 3.0, "max": 8.0}));
        assert_eq!(spread["k"]["y"]["median"], json!(4.0));
        assert_eq!(spread["v"], json!("clean; bad"));
        assert_eq!(of_numbers(vec![4.0, 1.0])["median"], json!(2.5));
    }

    #[test]
    fn small_figures_keep_three_digits() {
        for (value, rounded) in [(12.34567, 12.346), (0.012_345_6, 0.0123), (0.0, 0.0), (0.000_1, 0.0001)] {
            assert!((round(value) - rounded).abs() < 1e-12, "{value}: {}", round(value));
        }
    }

    #[test]
    fn quantile_is_one_of_the_numbers() {
        let numbers: Vec<f64> = (1..=100).map(f64::from).collect();
        assert_eq!(quantile(&numbers, 0.99), Some(99.0));
        assert_eq!(quantile(&numbers, 0.5), Some(50.0));
        assert_eq!(quantile(&[7.0], 0.99), Some(7.0));
        assert_eq!(quantile(&[], 0.5), None);
    }
}
