//! Writes `schemas/protobuf.json`: the field numbers, names and types of the messages in `schemas/builtin.json`.
//! The output has one message per line. FOLDER is `k8s.io` in Go's module cache. The version is the version of the schemas.
//!
//! `cargo run -p oarlock-sim --example protobuf -- FOLDER v0.36.3 > host/sim/schemas/protobuf.json`

use std::{collections::BTreeMap, path::Path};

use serde_json::{Map, Value, json};

/// The `generated.proto` files that define the messages, as pairs of module and package path.
const FILES: [(&str, &str); 17] = [
    ("api", "core/v1"),
    ("api", "apps/v1"),
    ("api", "autoscaling/v1"),
    ("api", "batch/v1"),
    ("api", "policy/v1"),
    ("api", "networking/v1"),
    ("api", "coordination/v1"),
    ("api", "events/v1"),
    ("api", "rbac/v1"),
    ("api", "authentication/v1"),
    ("api", "authorization/v1"),
    ("api", "admissionregistration/v1"),
    ("apiextensions-apiserver", "pkg/apis/apiextensions/v1"),
    ("apimachinery", "pkg/apis/meta/v1"),
    ("apimachinery", "pkg/api/resource"),
    ("apimachinery", "pkg/util/intstr"),
    ("apimachinery", "pkg/runtime"),
];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(folder), Some(version)) = (arguments.next(), arguments.next()) else {
        return Err("give the folder of the modules and their version".into());
    };
    let mut messages = BTreeMap::new();
    for (module, path) in FILES {
        let file = Path::new(&folder).join(format!("{module}@{version}")).join(path).join("generated.proto");
        read(&std::fs::read_to_string(file)?, &mut messages);
    }
    let lines = messages.iter().map(|(name, fields)| format!("{name:?}: {}", Value::Object(fields.clone())));
    println!("{{\n{}\n}}", lines.collect::<Vec<_>>().join(",\n"));
    Ok(())
}

/// Adds the messages of one `generated.proto` file to `messages`.
fn read(text: &str, messages: &mut BTreeMap<String, Map<String, Value>>) {
    let mut package = String::new();
    let mut message: Option<(String, Map<String, Value>)> = None;
    for line in text.lines().map(str::trim).filter(|line| !line.starts_with("//")) {
        if let Some(name) = line.strip_prefix("package ") {
            package = openapi_name(name.trim_end_matches(';'));
        } else if let Some(name) = line.strip_prefix("message ") {
            message = Some((format!("{package}.{}", name.trim_end_matches(" {")), Map::new()));
        } else if line == "}" {
            messages.extend(message.take());
        } else if let (Some((_, fields)), Some((declaration, number))) = (&mut message, line.split_once(" = ")) {
            let number = number.trim_end_matches(';').split(' ').next().unwrap_or_default();
            if let Some((kind, name)) = declaration.rsplit_once(' ') {
                fields.insert(number.to_owned(), json!([name, field_type(kind, &package)]));
            }
        }
    }
}

/// Returns the type of a field: `string`, `[]string` or `map string`. For a message, the name of its definition replaces `string`.
fn field_type(declared: &str, package: &str) -> String {
    if let Some(list) = declared.strip_prefix("repeated ") {
        return format!("[]{}", plain_type(list, package));
    }
    if let Some(value) = declared.strip_prefix("map<string, ").and_then(|rest| rest.strip_suffix('>')) {
        return format!("map {}", plain_type(value, package));
    }
    plain_type(declared.trim_start_matches("optional "), package)
}

fn plain_type(name: &str, package: &str) -> String {
    match name {
        "string" | "bytes" | "bool" | "int32" | "int64" | "uint32" | "uint64" | "double" => name.to_owned(),
        other => match other.strip_prefix('.') {
            Some(full) => openapi_name(full),
            None => format!("{package}.{other}"),
        },
    }
}

/// Returns a package or message name in OpenAPI's form, such as `io.k8s.api.core.v1` for `k8s.io.api.core.v1`.
fn openapi_name(name: &str) -> String {
    name.strip_prefix("k8s.io.").map_or_else(|| name.to_owned(), |rest| format!("io.k8s.{rest}"))
}
