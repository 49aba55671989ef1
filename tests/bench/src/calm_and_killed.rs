//! Runs a job whose host is left alone and a job whose host is killed again and again, for comparison. Their order alternates.

use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::arguments::Operations;
use crate::spread;

/// One of the two runs.
#[derive(Clone, Debug)]
pub(crate) struct Run {
    /// The namespace of the run. No other run uses it.
    pub(crate) namespace: String,
    /// How long the host lives, if it is killed.
    pub(crate) kill_every: Option<Duration>,
}

/// Runs both jobs in each round, and returns their figures with the spread of each.
///
/// # Errors
/// If a run fails.
pub(crate) async fn run(
    asked: &Operations,
    (label, targets): (&str, usize),
    once: impl AsyncFn(Run) -> anyhow::Result<Value>,
) -> anyhow::Result<Value> {
    let every = Duration::from_secs(asked.kill_every.into());
    let (count, mut rounds) = (asked.rounds(1), Vec::new());
    for number in 1..=count {
        let mut order = [("calm", None), ("killed", Some(every))];
        if number.is_multiple_of(2) {
            order.reverse();
        }
        let mut figures = Map::new();
        for (word, kill_every) in order {
            eprintln!("{label} {targets} nodes, {word}: round {number} of {count}");
            let namespace = format!("{label}-{word}-{number}");
            figures.insert(word.to_owned(), once(Run { namespace, kill_every }).await?);
        }
        rounds.push(Value::Object(figures));
    }
    let spread = spread::of(&rounds.iter().collect::<Vec<_>>());
    Ok(json!({"mode": label, "targets": targets, "rounds": rounds, "spread": spread}))
}
