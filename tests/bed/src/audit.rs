//! What the API server itself says about the requests it served.
//!
//! Takes its audit log and its metrics; yields one entry per write with the user who made it, and totals by verb. The log tells
//! accounts apart, the totals cost nothing.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use serde_json::{Value, json};

use crate::workplace::Workplace;

/// One completed write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    /// Who.
    pub user: String,
    /// `create`, `update`, `patch`, `delete` or `deletecollection`.
    pub verb: String,
    /// The plural name.
    pub resource: String,
    /// `status`, `eviction` and so on, or empty.
    pub subresource: String,
    /// The namespace, or empty.
    pub namespace: String,
    /// The name, or empty where the server chose it.
    pub name: String,
    /// The HTTP status of the reply.
    pub code: u64,
}

/// One line of the metric `apiserver_request_total`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestTotal {
    /// `POST`, `PATCH`, `GET`, `LIST` and so on.
    pub verb: String,
    /// The plural name.
    pub resource: String,
    /// The subresource, or empty.
    pub subresource: String,
    /// The HTTP status of the replies.
    pub code: String,
    /// How many.
    pub count: u64,
}

/// Only writes, only once, and no bodies: the log must not become the load.
pub(crate) fn write_policy(place: &Workplace) -> anyhow::Result<PathBuf> {
    let policy = json!({
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived", "ResponseStarted"],
        "rules": [
            {"level": "Metadata", "verbs": ["create", "update", "patch", "delete", "deletecollection"]},
            {"level": "None"},
        ],
    });
    place.write("audit-policy.json", &policy.to_string())
}

pub(crate) fn read(path: &Path) -> anyhow::Result<Vec<Write>> {
    let failed =
        || format!("cannot read the audit log at {}: start the control plane with Options::audit", path.display());
    let text = std::fs::read_to_string(path).with_context(failed)?;
    // A last line without its end is still being written.
    let complete = text.rfind('\n').and_then(|end| text.get(..end)).unwrap_or_default();
    complete
        .lines()
        .map(|line| parse_line(line).with_context(|| format!("cannot read the audit line {line}")))
        .collect()
}

fn parse_line(line: &str) -> anyhow::Result<Write> {
    let event: Value = serde_json::from_str(line)?;
    let text = |pointer: &str| event.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
    Ok(Write {
        user: text("/user/username"),
        verb: text("/verb"),
        resource: text("/objectRef/resource"),
        subresource: text("/objectRef/subresource"),
        namespace: text("/objectRef/namespace"),
        name: text("/objectRef/name"),
        code: event.pointer("/responseStatus/code").and_then(Value::as_u64).unwrap_or_default(),
    })
}

pub(crate) fn request_totals(metrics: &str) -> Vec<RequestTotal> {
    metrics.lines().filter_map(parse_total).collect()
}

/// Reads `apiserver_request_total{code="200",verb="GET",...} 12`. Its label values hold neither commas nor escaped quotes.
fn parse_total(line: &str) -> Option<RequestTotal> {
    let (labels, count) = line.strip_prefix("apiserver_request_total{")?.split_once("} ")?;
    let label = |wanted: &str| {
        labels
            .split(',')
            .filter_map(|pair| pair.split_once('='))
            .find(|(name, _)| *name == wanted)
            .map(|(_, value)| value.trim_matches('"').to_owned())
            .unwrap_or_default()
    };
    Some(RequestTotal {
        verb: label("verb"),
        resource: label("resource"),
        subresource: label("subresource"),
        code: label("code"),
        count: count.trim().parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_are_read_from_the_text_of_metrics() {
        let text = "# HELP apiserver_request_total x\n\
                    apiserver_request_total{code=\"201\",component=\"apiserver\",dry_run=\"\",group=\"\",resource=\"pods\",\
                    scope=\"resource\",subresource=\"eviction\",verb=\"POST\",version=\"v1\"} 7\n\
                    apiserver_request_slo_duration_seconds_count{verb=\"POST\"} 7\n";
        let totals = request_totals(text);
        assert_eq!(totals.len(), 1);
        let total = &totals[0];
        assert_eq!((total.verb.as_str(), total.subresource.as_str(), total.code.as_str()), ("POST", "eviction", "201"));
        assert_eq!(total.count, 7);
    }
}
