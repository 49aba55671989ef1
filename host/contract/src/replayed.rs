//! Compares the answer of a replay with the recorded answer, by value.

use serde::Serialize;
use serde_json::{Map, Value};

use crate::names::shown;
use crate::visit_record::{RecordedAnswer, withhold};

/// The most differences that a comparison returns. A reader needs no more.
const MOST: usize = 32;
/// The longest text of a value in [`AnswerDifference`], in characters.
const MOST_CHARS: usize = 400;

/// One place where two answers differ.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AnswerDifference {
    /// The place, as a JSON Pointer into the answer.
    pub place: String,
    /// The recorded value. `None` if the recorded answer has nothing here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recorded: Option<Value>,
    /// The value of the replay. `None` if the replayed answer has nothing here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replayed: Option<Value>,
}

impl std::fmt::Display for AnswerDifference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let text = |value: &Option<Value>| {
            value.as_ref().map_or("nothing".to_owned(), |value| {
                let text = shown(&value.to_string());
                match text.char_indices().nth(MOST_CHARS) {
                    Some((end, _)) => format!("{}...", text.get(..end).unwrap_or_default()),
                    None => text,
                }
            })
        };
        write!(f, "{}: recorded {}, replayed {}", shown(&self.place), text(&self.recorded), text(&self.replayed))
    }
}

/// Returns the places where the answers differ, at most 32. Extras count as a map, mutations and events in their order. Two traps are equal
/// if the same function trapped for the same reason, because messages name addresses and lines.
pub fn differences(recorded: &RecordedAnswer, replayed: &RecordedAnswer) -> Vec<AnswerDifference> {
    let mut found = Vec::new();
    compare("", Some(comparable(recorded)), Some(comparable(replayed)), &mut found);
    found
}

fn compare(place: &str, recorded: Option<Value>, replayed: Option<Value>, found: &mut Vec<AnswerDifference>) {
    if recorded == replayed || found.len() >= MOST {
        return;
    }
    match (recorded, replayed) {
        (Some(Value::Object(recorded)), Some(Value::Object(mut replayed))) => {
            for (key, value) in recorded {
                // `remove` would reorder the other keys.
                let other = replayed.shift_remove(&key);
                compare(&below(place, &key), Some(value), other, found);
            }
            replayed.into_iter().for_each(|(key, value)| compare(&below(place, &key), None, Some(value), found));
        }
        (Some(Value::Array(recorded)), Some(Value::Array(replayed))) => {
            let (mut recorded, mut replayed) = (recorded.into_iter(), replayed.into_iter());
            for index in 0_usize.. {
                match (recorded.next(), replayed.next()) {
                    (None, None) => break,
                    (one, other) => compare(&below(place, &index.to_string()), one, other, found),
                }
            }
        }
        (recorded, replayed) => found.push(AnswerDifference { place: place.to_owned(), recorded, replayed }),
    }
}

fn below(place: &str, key: &str) -> String {
    format!("{place}/{}", key.replace('~', "~0").replace('/', "~1"))
}

/// Returns the value of an answer for the comparison.
fn comparable(answer: &RecordedAnswer) -> Value {
    let mut answer = answer.clone();
    match &mut answer {
        RecordedAnswer::Proposed(proposal) => withhold(proposal),
        RecordedAnswer::Reported { operate, report } => {
            withhold(operate);
            withhold(&mut report.proposal);
        }
        RecordedAnswer::Failed(_) => {}
        RecordedAnswer::Trapped { message, .. } => {
            message.truncate(message.find(' ').unwrap_or(message.len()));
        }
    }
    let mut value = serde_json::to_value(answer).unwrap_or_default();
    for place in ["/proposed", "/reported/operate", "/reported/report/proposal"] {
        if let Some(Value::Object(proposal)) = value.pointer_mut(place) {
            order_extras(proposal);
        }
    }
    value
}

/// Turns the list of extras into a map, and sorts the removed extras. The host applies them as a map.
fn order_extras(proposal: &mut Map<String, Value>) {
    if let Some(Value::Array(pairs)) = proposal.get_mut("setExtra") {
        let pair = |pair: &Value| Some((pair.get(0)?.as_str()?.to_owned(), pair.get(1)?.clone()));
        let map: Map<String, Value> = pairs.iter().filter_map(pair).collect();
        proposal.insert("setExtra".to_owned(), Value::Object(map));
    }
    if let Some(Value::Array(keys)) = proposal.get_mut("removeExtra") {
        keys.sort_by_key(|key| key.as_str().map(str::to_owned));
        keys.dedup();
    }
}
