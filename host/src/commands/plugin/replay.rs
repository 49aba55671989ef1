//! `oarlock plugin replay`: plays recorded visits with a plugin file, and shows where the plugin decides otherwise.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context as _, bail};
use clap::Args;
use oarlock_contract::names::shown;
use oarlock_contract::replayed::differences;
use oarlock_contract::visit_record::VisitRecord;
use oarlock_wasm::{CAPS, CompileWith, Options, ReplayVerdict, ReplayedVisit, Replayer};
use serde::Serialize;
use serde_json::Value;

use super::records::RecordFile;
use super::{ListFormat, read};
use crate::commands::output::{json, print};
use crate::commands::text_file::{documents, text_of};

pub(super) const EXAMPLES: &str = "\
Examples:
  oarlock plugin record web -n shop --data /var/lib/oarlock > web.jsonl
  oarlock plugin replay replace.wasm web.jsonl                     with the recorded file, each visit is the same
  oarlock plugin replay new/replace.wasm web.jsonl                 shows what a new version would decide otherwise
  oarlock plugin replay replace.wasm *.jsonl.gz --config settings.yaml -o json | jq .different

Each visit has one of three verdicts:
  same                       the plugin gives the recorded answer
  different answer           the plugin gives another answer; the lines below show each difference
  asked for something else   the plugin makes a read that the record lacks; no answer is made up

The plugin runs in a fresh instance for each visit, without a cluster and without a limit on time.
Exit code: 0 if all visits are the same, 1 if not.";

/// Arguments of `oarlock plugin replay`.
#[derive(Debug, Args)]
pub(crate) struct ReplayArgs {
    /// A component, <name>.wasm
    file: PathBuf,
    /// Files of records as `oarlock plugin record` prints them, plain or compressed by gzip; `-` is standard input
    #[arg(required = true)]
    records: Vec<PathBuf>,
    /// The operator's settings, as `config` of the grant has them; a record has only their digest
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Output format
    #[arg(short, long, value_enum, default_value = "text")]
    output: ListFormat,
}

/// The report of one visit.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct VisitReport {
    file: String,
    line: usize,
    namespace: String,
    job: String,
    target: String,
    round: u64,
    #[serde(flatten)]
    replayed: ReplayedVisit,
}

/// The report of all visits.
#[derive(Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct ReplaySummary {
    same: usize,
    different: usize,
    asked_for_something_else: usize,
    visits: Vec<VisitReport>,
}

/// Replays the records.
pub(super) async fn run(args: ReplayArgs) -> anyhow::Result<ExitCode> {
    let replayer = load(&args.file, args.config.as_deref()).await?;
    let mut summary = ReplaySummary::default();
    for path in &args.records {
        let mut file = RecordFile::open(path)?;
        while let Some((line, record)) = file.next()? {
            let replayed = replayer.play(&record).await.with_context(|| format!("{}, line {line}", path.display()))?;
            summary.add(path, line, &record, replayed);
        }
    }
    if summary.total() == 0 {
        bail!("the files have no records; `oarlock plugin record JOB` prints those of a job");
    }
    match args.output {
        ListFormat::Text => print(&summary.text())?,
        ListFormat::Json => print(&json(&summary)?)?,
    };
    Ok(if summary.same == summary.total() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Loads a plugin file for replays.
async fn load(file: &Path, config: Option<&Path>) -> anyhow::Result<Replayer> {
    let bytes = read(file)?;
    let config = config.map(settings).transpose()?;
    let compile_with =
        CompileWith::this_binary().context("cannot find the path of this executable, which compiles the plugin")?;
    let options = Options { compile_with, caps: CAPS, ..Options::in_memory() };
    Replayer::load(bytes, config, options).await.with_context(|| format!("cannot replay with {}", file.display()))
}

fn settings(path: &Path) -> anyhow::Result<Value> {
    let text = text_of(path).with_context(|| format!("cannot read the settings in {}", path.display()))?;
    let [settings] = documents(&text).ok().and_then(|found| found.try_into().ok()).with_context(|| {
        format!("{}: write one YAML or JSON document, as `config` of the grant has it", path.display())
    })?;
    Ok(settings)
}

impl ReplaySummary {
    fn total(&self) -> usize {
        self.same + self.different + self.asked_for_something_else
    }

    fn add(&mut self, path: &Path, line: usize, record: &VisitRecord, replayed: ReplayedVisit) {
        match &replayed.verdict {
            ReplayVerdict::Same => self.same += 1,
            ReplayVerdict::DifferentAnswer { .. } => self.different += 1,
            ReplayVerdict::AskedForSomethingElse { .. } => self.asked_for_something_else += 1,
        }
        self.visits.push(VisitReport {
            file: path.display().to_string(),
            line,
            namespace: record.job.namespace.clone(),
            job: record.job.name.clone(),
            target: record.target.name.clone(),
            round: record.round,
            replayed,
        });
    }

    /// Returns the visits that are not the same, and the counts.
    fn text(&self) -> String {
        let mut text: String = self.visits.iter().map(VisitReport::text).collect();
        let Self { same, different, asked_for_something_else, .. } = self;
        let visits = if self.total() == 1 { "visit" } else { "visits" };
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "{} {visits}: {same} same, {different} different answer, {asked_for_something_else} asked for something else",
            self.total()
        );
        text
    }
}

impl VisitReport {
    fn text(&self) -> String {
        let ReplayedVisit { verdict, notes, .. } = &self.replayed;
        let (verdict, lines) = match verdict {
            ReplayVerdict::Same => return String::new(),
            ReplayVerdict::DifferentAnswer { differences } => {
                ("different answer", differences.iter().map(ToString::to_string).collect())
            }
            ReplayVerdict::AskedForSomethingElse { read, why } => {
                ("asked for something else", vec![format!("{read}: {why}")])
            }
        };
        let Self { file, line, namespace, job, target, round, .. } = self;
        let place = shown(&format!("{namespace}/{job} {target}, round {round} ({file}, line {line})"));
        let lines: String = lines.iter().chain(notes).map(|line| format!("    {line}\n")).collect();
        format!("{verdict}: {place}\n{lines}")
    }
}

/// Plays each record in a fresh instance and twice in one that has served the others, and returns the visits whose answers differ, in words.
pub(super) async fn state_in_globals(file: &Path, records: &[PathBuf]) -> anyhow::Result<Vec<String>> {
    let replayer = load(file, None).await?;
    let mut all: Vec<Arc<VisitRecord>> = Vec::new();
    for path in records {
        let mut file = RecordFile::open(path)?;
        while let Some((_, record)) = file.next()? {
            all.push(record);
        }
    }
    let Some(first) = all.first() else { bail!("the files of --replay have no records") };
    let mut warm = replayer.warm(&first.plugin.limits);
    let mut found = Vec::new();
    for _ in 0..2 {
        for record in &all {
            let (fresh, warm) = (replayer.play(record).await?, warm.play(record).await?);
            let differing = differences(&fresh.answer, &warm.answer);
            if let Some(difference) = differing.first() {
                let (recorded, replayed) = (&difference.recorded, &difference.replayed);
                let text = |value: &Option<Value>| value.as_ref().map_or("nothing".to_owned(), ToString::to_string);
                let (place, recorded, replayed) = (&difference.place, text(recorded), text(replayed));
                let line =
                    format!("{}: {place}: {recorded} in a fresh instance, {replayed} in a used one", record.subject());
                found.push(shown(&line));
            }
        }
    }
    found.dedup();
    Ok(found)
}
