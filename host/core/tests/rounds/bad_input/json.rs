//! Strategies of JSON: optional fields, and values from a short list, some of them absurd.

use proptest::prelude::*;
use proptest::sample::select;
use serde_json::{Map, Value};

use crate::bench::START;

/// Returns a strategy of objects with these fields, each present or missing.
pub(super) fn object(fields: Vec<(&'static str, BoxedStrategy<Value>)>) -> BoxedStrategy<Value> {
    let fields: Vec<_> = fields
        .into_iter()
        .map(|(name, value)| proptest::option::weighted(0.7, value).prop_map(move |value| (name, value)))
        .collect();
    fields
        .prop_map(|fields| {
            let there = fields.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
            Value::Object(there.collect::<Map<_, _>>())
        })
        .boxed()
}

pub(super) fn one_of<T: Into<Value> + Clone + std::fmt::Debug + 'static>(values: Vec<T>) -> BoxedStrategy<Value> {
    select(values).prop_map(Into::into).boxed()
}

pub(super) fn list(of: BoxedStrategy<Value>, most: usize) -> BoxedStrategy<Value> {
    proptest::collection::vec(of, 0..=most).prop_map(Value::Array).boxed()
}

pub(super) fn time() -> BoxedStrategy<Value> {
    one_of(vec![
        "0000-01-01T00:00:00Z",
        "-009999-01-02T01:59:59Z",
        "1969-12-31T23:59:59Z",
        "2025-12-31T23:00:00Z",
        "2025-12-31T23:59:58Z",
        START,
        "2026-01-01T00:00:30Z",
        "9999-12-30T21:59:59Z",
        "9999-12-31T23:59:59Z",
        "soon",
        "",
    ])
}
