//! The API server's own account of the requests that it served.
//!
//! The audit log has one entry per request, with the user. The metrics have totals by verb. Only the log tells accounts apart; only
//! the totals are free.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::PathBuf;

use anyhow::Context as _;
use serde_json::{Value, json};

use crate::accounts::Account;
use crate::workplace::Workplace;

/// Which requests the API server logs. It logs each request once, with the answer and without the body, so that the log does not
/// become the load. A watch is logged when it ends.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Audit {
    /// No request.
    #[default]
    Off,
    /// Every write of every user.
    Writes,
    /// Every request of these accounts, reads included.
    RequestsOf(Vec<Account>),
}

/// One answered request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The user name of the sender.
    pub user: String,
    /// The user whom the sender impersonated, or empty.
    pub as_user: String,
    /// `create`, `update`, `patch`, `delete`, `deletecollection`, `get`, `list` or `watch`.
    pub verb: String,
    /// The plural name of the resource.
    pub resource: String,
    /// `status`, `eviction` and so on, or empty.
    pub subresource: String,
    /// The namespace, or empty.
    pub namespace: String,
    /// The name, or empty if the server chose it.
    pub name: String,
    /// The HTTP status of the reply.
    pub code: u64,
    /// True for a dry run.
    pub dry_run: bool,
    /// The time when the server received the request, RFC 3339 with microseconds.
    pub received: String,
    /// The time when the server had answered the request, RFC 3339 with microseconds.
    pub answered: String,
}

/// One line of the metric `apiserver_request_total`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestTotal {
    /// `POST`, `PATCH`, `GET`, `LIST` and so on.
    pub verb: String,
    /// The plural name of the resource.
    pub resource: String,
    /// The subresource, or empty.
    pub subresource: String,
    /// The HTTP status of the replies.
    pub code: String,
    /// The number of requests.
    pub count: u64,
}

/// Writes the audit policy for these options, and returns its path. Returns `None` if the API server logs nothing.
pub(crate) fn write_policy(audit: &Audit, place: &Workplace) -> anyhow::Result<Option<PathBuf>> {
    let logged = match audit {
        Audit::Off => return Ok(None),
        Audit::Writes => {
            json!({"level": "Metadata", "verbs": ["create", "update", "patch", "delete", "deletecollection"]})
        }
        Audit::RequestsOf(accounts) => {
            let users: Vec<&str> = accounts.iter().map(|account| account.user()).collect();
            json!({"level": "Metadata", "users": users})
        }
    };
    let policy = json!({
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived", "ResponseStarted"],
        "rules": [logged, {"level": "None"}],
    });
    place.write("audit-policy.json", &policy.to_string()).map(Some)
}

/// Reads an audit log as it grows. It returns each request once.
#[derive(Debug)]
pub struct Tail {
    path: PathBuf,
    read: u64,
}

impl Tail {
    pub(crate) fn from_start(path: PathBuf) -> Self {
        Self { path, read: 0 }
    }

    pub(crate) fn from_end(path: PathBuf) -> anyhow::Result<Self> {
        let read = open(&path)?.metadata().context("cannot see how long the audit log is")?.len();
        Ok(Self { path, read })
    }

    /// Returns the requests that were logged since the last call.
    ///
    /// # Errors
    ///
    /// If the log cannot be read.
    pub fn more(&mut self) -> anyhow::Result<Vec<Request>> {
        let mut file = open(&self.path)?;
        file.seek(SeekFrom::Start(self.read)).context("cannot seek in the audit log")?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).context("cannot read the audit log")?;
        // A last line without a line end is still being written.
        let complete = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        bytes.truncate(complete);
        self.read += complete as u64;
        let text = String::from_utf8(bytes).context("the audit log is not UTF-8")?;
        text.lines()
            .map(|line| parse_line(line).with_context(|| format!("cannot read the audit line {line}")))
            .collect()
    }
}

fn open(path: &std::path::Path) -> anyhow::Result<File> {
    File::open(path).with_context(|| {
        format!("cannot read the audit log at {}: start the control plane with Options::audit", path.display())
    })
}

fn parse_line(line: &str) -> anyhow::Result<Request> {
    let event: Value = serde_json::from_str(line)?;
    let text = |pointer: &str| event.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
    Ok(Request {
        user: text("/user/username"),
        as_user: text("/impersonatedUser/username"),
        verb: text("/verb"),
        resource: text("/objectRef/resource"),
        subresource: text("/objectRef/subresource"),
        namespace: text("/objectRef/namespace"),
        name: text("/objectRef/name"),
        code: event.pointer("/responseStatus/code").and_then(Value::as_u64).unwrap_or_default(),
        dry_run: text("/requestURI").contains("dryRun=All"),
        received: text("/requestReceivedTimestamp"),
        answered: text("/stageTimestamp"),
    })
}

pub(crate) fn request_totals(metrics: &str) -> Vec<RequestTotal> {
    metrics.lines().filter_map(parse_total).collect()
}

/// Reads `apiserver_request_total{code="200",verb="GET",...} 12`. The label values contain neither commas nor escaped quotes.
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
    fn tail_yields_each_whole_line_once() {
        let path = std::env::temp_dir().join(format!("audit-tail-{}.log", std::process::id()));
        let line = |name: &str| json!({"verb": "create", "objectRef": {"name": name}}).to_string();
        std::fs::write(&path, line("old") + "\n").unwrap();
        let mut tail = Tail::from_end(path.clone()).unwrap();
        let names = |tail: &mut Tail| tail.more().unwrap().into_iter().map(|found| found.name).collect::<Vec<_>>();
        std::fs::write(&path, line("old") + "\n" + &line("a") + "\n{\"verb\"").unwrap();
        assert_eq!(names(&mut tail), ["a"]);
        std::fs::write(&path, line("old") + "\n" + &line("a") + "\n" + &line("b") + "\n").unwrap();
        assert_eq!(names(&mut tail), ["b"]);
        assert!(names(&mut tail).is_empty());
        std::fs::remove_file(path).unwrap();
    }

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
