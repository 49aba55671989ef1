//! `oarlock explain`: prints the meaning of a reason and the next step.

use std::collections::BTreeSet;
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use clap::{Args, ValueEnum};
use oarlock_view::{
    ReasonEntry, ReasonKind, entries_of_reason, reason_entries, reason_list, reasons_text, similar_reasons,
};

use super::output::{json, print};

const EXAMPLES: &str = "\
Examples:
  oarlock explain NotReady                         all meanings of a word, with the next step of each
  oarlock explain NotReady --kind OpsJob           only the meaning that an OpsJob has
  oarlock explain Budget web                       the text of a wait, as `oarlock get` prints it
  oarlock explain                                  a list of all reasons
  oarlock explain -o json | jq -r '.[].reason'     all entries for a script

A reason is the first word of a condition, of the error of a target, of an event or of WAITS FOR. The command needs no cluster.
Words of plugins that do not come with Oarlock, and words of Kubernetes, have no entry here.
Exit code: 0 if the word has an entry, 1 if not.";

/// Arguments of `oarlock explain`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ExplainArgs {
    /// The reason, in upper or lower case [default: a list of all reasons]
    #[arg(value_name = "REASON")]
    reason: Vec<String>,
    /// Print only the meanings of this kind, such as OpsJob, jf or Plugin
    #[arg(long, value_name = "KIND", value_parser = kind)]
    kind: Option<ReasonKind>,
    /// Output format
    #[arg(short, long, value_enum, default_value = "text")]
    output: ExplainOutput,
}

/// The format of the entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ExplainOutput {
    /// For people.
    Text,
    /// One list, for programs.
    Json,
}

fn kind(text: &str) -> Result<ReasonKind, String> {
    let names = || ReasonKind::ALL.map(ReasonKind::name).join(", ");
    ReasonKind::read(text).ok_or_else(|| format!("no reason belongs to a {text}; the kinds are {}", names()))
}

/// Prints the entries.
pub(crate) fn run(args: &ExplainArgs) -> anyhow::Result<ExitCode> {
    let all = reason_entries().context("cannot read the catalogue of reasons in this binary")?;
    let text = args.reason.join(" ");
    let mut found = if text.is_empty() { all.iter().collect() } else { entries_of_reason(&all, &text) };
    if found.is_empty() {
        bail!(unknown(&all, &text));
    }
    if let Some(kind) = args.kind {
        let others: BTreeSet<&str> = found.iter().flat_map(|entry| &entry.kinds).map(|kind| kind.name()).collect();
        found.retain(|entry| entry.kinds.contains(&kind));
        if found.is_empty() {
            bail!("{text} is no reason of a {}, but of: {}", kind.name(), Vec::from_iter(others).join(", "));
        }
    }
    print(&match (args.output, text.is_empty()) {
        (ExplainOutput::Json, _) => json(&found)?,
        (ExplainOutput::Text, true) => reason_list(&found),
        (ExplainOutput::Text, false) => reasons_text(&found),
    })
}

/// Returns the answer for a word without an entry.
fn unknown(all: &[ReasonEntry], text: &str) -> String {
    let similar = similar_reasons(all, text);
    let meant = if similar.is_empty() { String::new() } else { format!("; similar words: {}", similar.join(", ")) };
    format!(
        "{text} is no reason of Oarlock{meant}\n  A reason can also come from another plugin, or from the Job or pod of a step: read \
         the message beside it, and the\n  documentation of that plugin or of Kubernetes. `oarlock explain` lists all reasons of Oarlock."
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_without_an_entry_leads_to_similar_words_and_to_its_source() {
        let all = reason_entries().unwrap();
        let said = unknown(&all, "NotRaedy");
        assert!(said.starts_with("NotRaedy is no reason of Oarlock; similar words: NotReady"), "{said}");
        let said = unknown(&all, "CrashLoopBackOff");
        assert!(!said.contains("similar") && said.contains("another plugin") && said.contains("Kubernetes"), "{said}");
    }

    #[test]
    fn a_kind_that_shows_no_reasons_is_refused_with_the_kinds_that_do() {
        assert_eq!(kind("jf"), Ok(ReasonKind::JobFlow));
        assert!(kind("Deployment").unwrap_err().contains("OperationJob, OpsJob"), "{:?}", kind("Deployment"));
    }
}
