//! Takes objects, yields the rows that `kubectl get` prints: the columns that a definition names for its kind, and for
//! the built-in kinds the ones that the real server prints. May not be relied on by programs.

use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use crate::{
    duration::age,
    json_path,
    kinds::Kind,
    object::{self, at, str_at},
    rows,
};

/// One column: name, type, format, priority (above 0: with `-o wide` only), description.
#[derive(Debug, Clone)]
struct Column {
    name: String,
    kind: String,
    priority: i64,
    description: String,
    path: String,
}

impl Column {
    fn named(name: &str, kind: &str, priority: i64) -> Self {
        Self { name: name.into(), kind: kind.into(), priority, description: String::new(), path: String::new() }
    }
}

/// The column definitions of a kind.
pub(crate) fn columns(kind: &Kind) -> Vec<Value> {
    let definition = |column: Column| {
        let format = if column.name == "Name" { "name" } else { "" };
        json!({
            "name": column.name, "type": column.kind, "format": format, "description": column.description,
            "priority": column.priority,
        })
    };
    all(kind).into_iter().map(definition).collect()
}

fn all(kind: &Kind) -> Vec<Column> {
    let mut columns = vec![Column::named("Name", "string", 0)];
    match &kind.custom {
        Some(custom) if custom.columns.is_empty() => columns.push(age_column()),
        Some(custom) => columns.extend(custom.columns.iter().map(custom_column)),
        None => columns.extend(rows::columns(kind).iter().map(|(name, kind, wide)| Column::named(name, kind, *wide))),
    }
    columns
}

fn age_column() -> Column {
    Column { path: ".metadata.creationTimestamp".into(), ..Column::named("Age", "date", 0) }
}

fn custom_column(column: &Value) -> Column {
    Column {
        name: str_at(column, &["name"]).to_owned(),
        kind: str_at(column, &["type"]).to_owned(),
        priority: at(column, &["priority"]).and_then(Value::as_i64).unwrap_or_default(),
        description: str_at(column, &["description"]).to_owned(),
        path: str_at(column, &["jsonPath"]).to_owned(),
    }
}

/// The cells of an object's row.
pub(crate) fn cells(kind: &Kind, object: &Value, now: Timestamp) -> Vec<Value> {
    let mut cells = vec![json!(object::name(object))];
    if kind.custom.is_none() {
        cells.extend(rows::cells(kind, object, now));
        return cells;
    }
    cells.extend(all(kind).iter().skip(1).map(|column| cell(column, object, now)));
    cells
}

fn cell(column: &Column, object: &Value, now: Timestamp) -> Value {
    let found = json_path::find(object, &column.path);
    let Some(first) = found.first() else { return Value::Null };
    match column.kind.as_str() {
        "date" => json!(age(Some(first), now)),
        "integer" | "number" | "boolean" => (*first).clone(),
        _ => json!(found.iter().map(|one| json_path::text(one)).collect::<Vec<_>>().join(",")),
    }
}
