//! The two contenders that a scenario compares: the host, and the bare client that makes the same writes.

use std::time::Duration;

use serde_json::{Map, Value};

use crate::spread::{as_f64, round};

/// The figures whose ratio of host to bare client is reported.
const RATIOS: [&str; 8] = [
    "targetsPerSecond",
    "cpuMillisecondsPerTarget",
    "apiServerCpuMillisecondsPerTarget",
    "wakeUpsPerTarget",
    "kibReceivedPerTarget",
    "requestsPerTarget",
    "writesPerTarget",
    "peakRssMib",
];

/// A contender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Contender {
    Bare,
    Host,
}

impl Contender {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Bare => "bare",
            Self::Host => "host",
        }
    }

    /// Returns both contenders in the order of this round. The order alternates from round to round.
    pub(crate) fn in_order(round: u32) -> [Self; 2] {
        if round.is_multiple_of(2) { [Self::Host, Self::Bare] } else { [Self::Bare, Self::Host] }
    }
}

/// Returns the time that a contender took for all targets, and its rate.
pub(crate) fn speed(targets: usize, took: Duration) -> Map<String, Value> {
    let seconds = took.as_secs_f64();
    let rate = round(as_f64(targets) / seconds);
    [("seconds".to_owned(), round(seconds).into()), ("targetsPerSecond".to_owned(), rate.into())].into_iter().collect()
}

/// Returns the figures of one round: each contender's by its word, the first contender, and the ratios. The ratios are null without
/// `with_ratios`.
pub(crate) fn figures_of_round(mut figures: Map<String, Value>, first: Contender, with_ratios: bool) -> Value {
    let ratios = if with_ratios { ratios(&figures) } else { Value::Null };
    figures.insert("first".to_owned(), first.word().into());
    figures.insert("ratios".to_owned(), ratios);
    figures.into()
}

/// Returns the host's figures divided by the bare client's.
fn ratios(figures: &Map<String, Value>) -> Value {
    let figure = |who: &str, name: &str| figures.get(who)?.get(name)?.as_f64();
    let ratio = |name: &&str| {
        let bare = figure("bare", name).filter(|bare| *bare > 0.0)?;
        Some(((*name).to_owned(), round(figure("host", name)? / bare).into()))
    };
    RATIOS.iter().filter_map(ratio).collect::<Map<_, _>>().into()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn ratio_needs_both_sides() {
        let figures = json!({"host": {"peakRssMib": 20.0, "writesPerTarget": 3.0}, "bare": {"peakRssMib": 8.0}});
        let figures = figures.as_object().cloned().unwrap();
        let whole = figures_of_round(figures.clone(), Contender::Host, true);
        assert_eq!((&whole["ratios"], &whole["first"]), (&json!({"peakRssMib": 2.5}), &json!("host")));
        assert_eq!(figures_of_round(figures, Contender::Host, false)["ratios"], Value::Null);
    }

    #[test]
    fn each_contender_begins_every_other_round() {
        let first = [1, 2, 3].map(|round| Contender::in_order(round)[0]);
        assert_eq!(first, [Contender::Bare, Contender::Host, Contender::Bare]);
        assert_eq!(Contender::in_order(2), [Contender::Host, Contender::Bare]);
    }
}
