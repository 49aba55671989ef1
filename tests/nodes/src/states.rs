//! What is asked of a running cluster, and what it says: a line over a socket in its folder.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;

use anyhow::{Context as _, bail};
use clap::ValueEnum;
use serde_json::Value;

use crate::layout::Layout;

/// What is asked of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Order {
    /// It loses its power.
    Kill,
    /// It starts again, with another boot id.
    Boot,
}

impl Order {
    /// As the cluster is told it.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Kill => "kill",
            Self::Boot => "boot",
        }
    }
}

/// True if the condition Ready of an object is True.
#[must_use]
pub fn is_ready(object: &Value) -> bool {
    let is = |condition: &Value, field: &str, word: &str| condition.get(field).is_some_and(|found| found == word);
    let conditions = object.pointer("/status/conditions").and_then(Value::as_array);
    conditions.into_iter().flatten().any(|one| is(one, "type", "Ready") && is(one, "status", "True"))
}

/// The socket that the cluster listens at, in its folder.
pub const SOCKET: &str = "control";

/// Asks the cluster of this folder for something.
///
/// # Errors
///
/// If no cluster runs there, or it refuses.
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
