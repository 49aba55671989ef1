//! Requests to a running cluster, and their answers: one line each, over a socket in the cluster's folder.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;

use anyhow::{Context as _, bail};
use clap::ValueEnum;
use serde_json::Value;

use crate::layout::Layout;

/// An order for a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Order {
    /// Cut the power of the node
    Kill,
    /// Start the node again, with a new boot ID
    Boot,
}

impl Order {
    /// Returns the word for this order in a request to the cluster.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Kill => "kill",
            Self::Boot => "boot",
        }
    }
}

/// Returns true if the condition Ready of an object is True.
#[must_use]
pub fn is_ready(object: &Value) -> bool {
    let is = |condition: &Value, field: &str, word: &str| condition.get(field).is_some_and(|found| found == word);
    let conditions = object.pointer("/status/conditions").and_then(Value::as_array);
    conditions.into_iter().flatten().any(|one| is(one, "type", "Ready") && is(one, "status", "True"))
}

/// The socket that the cluster listens on, in its folder.
pub const SOCKET: &str = "control";

/// Sends a request to the cluster of this folder. Returns the answer.
///
/// # Errors
///
/// If no cluster runs in the folder, or the cluster refuses the request.
pub fn ask(layout: &Layout, line: &str) -> anyhow::Result<String> {
    let path = layout.at(SOCKET);
    let mut stream = UnixStream::connect(&path)
        .with_context(|| format!("no cluster runs in {}: start one with `cluster up`", layout.root.display()))?;
    writeln!(stream, "{line}").context("cannot ask the cluster")?;
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer).context("the cluster does not answer")?;
    match answer.trim().split_once(' ') {
        Some(("ok", said)) => Ok(said.to_owned()),
        None if answer.trim() == "ok" => Ok(String::new()),
        _ => bail!("{}", answer.trim().trim_start_matches("error ")),
    }
}
