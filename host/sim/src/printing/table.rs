//! The tables of `kubectl get`: fixed columns for built-in kinds, and the columns that definitions give their custom
//! kinds.

use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use crate::{
    kinds::{registry::Kind, schema::DEFINITIONS},
    object::{self, at, str_at},
    printing::{duration::age, json_path, rows},
};

const OBJECT_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";

/// A column: name, type, priority (above 0 only `-o wide` shows it), description and JSON path.
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
        let description = describe(name).to_owned();
        Self { name: name.into(), kind: kind.into(), priority, description, path: String::new() }
    }
}

/// Returns the real server's description of a column. For most columns, it is the description of the field shown.
fn describe(column: &str) -> &'static str {
    let pod = |part: &str, field: &str| field_description(&format!("io.k8s.api.core.v1.Pod{part}"), field);
    match column {
        "Name" => field_description(OBJECT_META, "name"),
        "Age" => field_description(OBJECT_META, "creationTimestamp"),
        "Ready" => "The aggregate readiness state of this pod for accepting traffic.",
        "Status" => "The aggregate status of the containers in this pod.",
        "Restarts" => {
            "The number of times the containers in this pod have been restarted and when the last container in this pod \
             has restarted."
        }
        "IP" => pod("Status", "podIP"),
        "Node" => pod("Spec", "nodeName"),
        "Nominated Node" => pod("Status", "nominatedNodeName"),
        "Readiness Gates" => pod("Spec", "readinessGates"),
        _ => "",
    }
}

fn field_description(definition: &str, field: &str) -> &'static str {
    DEFINITIONS.get(definition).map(|schema| str_at(schema, &["properties", field, "description"])).unwrap_or_default()
}

/// Returns the column definitions of a kind.
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
    let mut columns = Vec::new();
    if kind.kind != "Event" || kind.custom.is_some() {
        columns.push(Column::named("Name", "string", 0));
    }
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
        description: match str_at(column, &["description"]) {
            "" => {
                let path = str_at(column, &["jsonPath"]);
                format!("Custom resource definition column (in JSONPath format): {path}")
            }
            text => text.to_owned(),
        },
        path: str_at(column, &["jsonPath"]).to_owned(),
    }
}

/// Returns the cells of an object's row.
pub(crate) fn cells(kind: &Kind, object: &Value, now: Timestamp) -> Vec<Value> {
    // Rows of events do not begin with a name.
    if kind.kind == "Event" && kind.custom.is_none() {
        return rows::cells(kind, object, now);
    }
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
