//! `oarlock plugin`: creates plugins, prints facts about a plugin file, and prints the host's decision on it with the
//! reason.
//!
//! `try` runs a plugin on an in-memory cluster, and `roles` and `top` talk to a cluster. The other commands read and write
//! files.

mod annotate;
#[cfg(feature = "dev")]
mod build;
mod grant;
mod new;
mod record;
mod records;
mod replay;
mod roles;
mod top;
#[cfg(feature = "dev")]
mod trial;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use clap::{Args, Subcommand, ValueEnum};
use oarlock_core::plugin::manifest::{JSON_SCHEMA, Manifest};
use oarlock_core::plugin::rights::{Right, rights};
use oarlock_wasm::{CAPS, CompileWith, HelperTask, Inspection, Options, PluginState, Rejection, VetReport};
use serde_json::Value;

use super::in_runtime;
use super::output::{json, print};
use super::text_file::read_grants;

const INSPECT_EXAMPLES: &str = "\
Examples:
  oarlock plugin inspect replace.wasm
  oarlock plugin inspect replace.wasm -o json | jq .manifest.writes

The command runs no code of the file.";

const VET_EXAMPLES: &str = "\
Examples:
  oarlock plugin vet replace.wasm                          shows AwaitingGrant and the missing grants
  oarlock plugin vet replace.wasm --grants grants.yaml     shows Serving if no grant is missing
  oarlock plugin vet replace.wasm -o json | jq -r .status.missing[]
  oarlock plugin vet replace.wasm --grants grants.yaml --replay web.jsonl     finds answers that depend on earlier calls

Exit code: 0 if the host would serve the plugin, 1 if not, or if --replay finds state in globals.";

/// The commands on a plugin file.
#[derive(Debug, Subcommand)]
pub(crate) enum PluginCommand {
    /// Create the folder of a plugin: code, tests, manifest, grant and a job
    #[command(after_help = new::EXAMPLES)]
    New(new::NewArgs),
    /// Build a plugin, serve it on a cluster in memory, and follow a job with it
    #[cfg(feature = "dev")]
    #[command(after_help = trial::EXAMPLES)]
    Try(trial::TryArgs),
    /// Print a grant of everything that a plugin asks for
    #[command(after_help = grant::EXAMPLES)]
    Grant(grant::GrantArgs),
    /// Print the roles that the host needs for the grant of one plugin
    #[command(after_help = roles::EXAMPLES)]
    Roles(roles::RolesArgs),
    /// Show how much of each limit each plugin uses
    #[command(after_help = top::EXAMPLES)]
    Top(top::TopArgs),
    /// Write a manifest into a component, for languages whose linker cannot
    #[command(after_help = annotate::EXAMPLES)]
    Annotate(annotate::AnnotateArgs),
    /// Print the JSON Schema of a plugin's manifest, for editors
    #[command(after_help = "Example:\n  oarlock plugin schema > manifest.schema.json")]
    Schema,
    /// Show a plugin's manifest, requests, imports and exports
    #[command(after_help = INSPECT_EXAMPLES)]
    Inspect(InspectArgs),
    /// Check whether the host would serve a plugin, and print the reason if not
    #[command(after_help = VET_EXAMPLES)]
    Vet(VetArgs),
    /// Print the recorded visits of a job, for `oarlock plugin replay`
    #[command(after_help = record::EXAMPLES)]
    Record(record::RecordArgs),
    /// Play recorded visits with a plugin file, and show where it decides otherwise
    #[command(after_help = replay::EXAMPLES)]
    Replay(replay::ReplayArgs),
    /// Vet or compile the component on standard input; the host runs itself with this command
    #[command(hide = true)]
    CompileWorker(WorkerArgs),
}

/// Arguments of `oarlock plugin compile-worker`.
#[derive(Debug, Args)]
pub(crate) struct WorkerArgs {
    /// `vet` or `compile`
    task: String,
    /// The bytes of memory that the worker may allocate
    memory: Option<u64>,
}

/// Arguments of `oarlock plugin inspect`.
#[derive(Debug, Args)]
pub(crate) struct InspectArgs {
    /// A component, <name>.wasm
    file: PathBuf,
    /// Output format
    #[arg(short, long, value_enum, default_value = "text")]
    output: ListFormat,
}

/// Arguments of `oarlock plugin vet`.
#[derive(Debug, Args)]
pub(crate) struct VetArgs {
    /// A component, <name>.wasm
    file: PathBuf,
    /// Grants of the plugins; without the option, nothing is granted
    #[arg(long, value_name = "FILE")]
    grants: Option<PathBuf>,
    /// Records to play in a fresh and in a used instance, to find state in globals; can be repeated
    #[arg(long, value_name = "RECORDS")]
    replay: Vec<PathBuf>,
    /// Output format
    #[arg(short, long, value_enum, default_value = "text")]
    output: ListFormat,
}

/// The format of the output.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum ListFormat {
    /// For people.
    Text,
    /// For programs.
    Json,
}

/// Runs one of the commands.
pub(crate) fn run(command: PluginCommand) -> anyhow::Result<ExitCode> {
    match command {
        PluginCommand::New(args) => new::run(&args),
        #[cfg(feature = "dev")]
        PluginCommand::Try(args) => in_runtime(trial::run(args)),
        PluginCommand::Grant(args) => grant::run(args),
        PluginCommand::Roles(args) => in_runtime(roles::run(args)),
        PluginCommand::Top(args) => in_runtime(top::run(args)),
        PluginCommand::Annotate(args) => annotate::run(&args),
        PluginCommand::Schema => print(JSON_SCHEMA),
        PluginCommand::Inspect(args) => inspect(&args),
        PluginCommand::Vet(args) => in_runtime(vet(args)),
        PluginCommand::Record(args) => in_runtime(record::run(args)),
        PluginCommand::Replay(args) => in_runtime(replay::run(args)),
        PluginCommand::CompileWorker(args) => {
            let task = HelperTask::of(&args.task).with_context(|| format!("there is no task {}", args.task))?;
            oarlock_wasm::compile_worker(task, args.memory)?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn inspect(args: &InspectArgs) -> anyhow::Result<ExitCode> {
    let facts = oarlock_wasm::inspect(&read(&args.file)?).map_err(|rejection| refused(&args.file, &rejection))?;
    match args.output {
        ListFormat::Text => print(&facts_text(&facts)),
        ListFormat::Json => print(&json(&facts)?),
    }
}

async fn vet(args: VetArgs) -> anyhow::Result<ExitCode> {
    let bytes = read(&args.file)?;
    let grants = match &args.grants {
        None => Vec::new(),
        Some(path) => read_grants(path)?.1,
    };
    let compile_with =
        CompileWith::this_binary().context("cannot find the path of this executable, which compiles the plugin")?;
    let options = Options { compile_with, caps: CAPS, ..Options::in_memory() };
    let Some(verdict) = oarlock_wasm::dry_run(bytes, grants, options).await? else {
        bail!("the host reported nothing about {}", args.file.display());
    };
    match args.output {
        ListFormat::Text => print(&verdict_text(&args.file, &verdict))?,
        ListFormat::Json => print(&json(&verdict)?)?,
    };
    if !is_seen(&args.file) {
        bail!("the host does not look at {}: rename it to <name>.wasm, in lower case", args.file.display());
    }
    if !args.replay.is_empty() {
        let found = replay::state_in_globals(&args.file, &args.replay).await?;
        if let Some(first) = found.first() {
            bail!(
                "{}: the answers depend on earlier calls, so the plugin keeps state in globals or in the order of a hash map; \
                 keep state in extras, and sort what is hashed: {first}",
                args.file.display()
            );
        }
    }
    Ok(if verdict.status.state == PluginState::Serving { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

pub(super) fn read(file: &Path) -> anyhow::Result<Vec<u8>> {
    let metadata = std::fs::metadata(file).with_context(|| format!("cannot read {}", file.display()))?;
    if !metadata.is_file() {
        bail!("{} is not a file: name a component, <name>.wasm", file.display());
    }
    let size = metadata.len();
    if size > oarlock_wasm::MAX_BYTES {
        let (has, most) = (size >> 20, oarlock_wasm::MAX_BYTES >> 20);
        bail!("{} has {has} MiB; a plugin has at most {most}", file.display());
    }
    std::fs::read(file).with_context(|| format!("cannot read {}", file.display()))
}

/// Returns true if the host loads a file of this name from its plugin directory.
pub(super) fn is_seen(file: &Path) -> bool {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    name.ends_with(".wasm") && !name.starts_with('.')
}

fn refused(file: &Path, rejection: &Rejection) -> anyhow::Error {
    anyhow::anyhow!("{}: {}: {}", file.display(), rejection.reason, rejection.sentence)
}

fn verdict_text(file: &Path, verdict: &VetReport) -> String {
    let status = &verdict.status;
    let named = [status.name.as_deref(), status.version.as_deref()].into_iter().flatten().collect::<Vec<_>>().join(" ");
    // With missing grants, the message only repeats the lines below.
    let message = if status.missing.is_empty() { format!(": {}", status.message) } else { String::new() };
    let mut text = format!("{}: {:?}/{}{message}\n", file.display(), status.state, status.reason);
    let facts = [("plugin", named), ("action", status.action.clone().unwrap_or_default())];
    for (name, value) in facts.iter().filter(|(_, value)| !value.is_empty()) {
        // Writing to a string cannot fail, here and below.
        let _ = writeln!(text, "  {name:<8} {value}");
    }
    if !status.missing.is_empty() {
        let _ = writeln!(text, "  the grant lacks:");
        text.extend(status.missing.iter().map(|line| format!("    {line}\n")));
    }
    text
}

fn facts_text(facts: &Inspection) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: &str| text.push_str(&format!("{name:<12} {value}\n"));
    match &facts.manifest {
        None => line("manifest", "none: the host would reject this file"),
        Some(manifest) => {
            line("plugin", &format!("{} {}", manifest.name, manifest.version));
            line("action", &manifest.action);
            if !manifest.description.is_empty() {
                line("does", &manifest.description);
            }
        }
    }
    line("digest", &facts.digest);
    line("size", &format!("{} bytes", facts.bytes));
    for name in &facts.imports {
        let denied = oarlock_wasm::denied_interface(name).map_or("", |_| " (denied: each call of it fails)");
        line("import", &format!("{name}{denied}"));
    }
    facts.exports.iter().for_each(|name| line("export", name));
    for section in &facts.sections {
        let place = if section.own { "the component" } else { "a module inside" };
        line("section", &format!("{} ({} bytes, of {place})", section.name, section.bytes));
    }
    if let Some(manifest) = &facts.manifest {
        text.push_str("\nrequests\n");
        text.push_str(&requests_text(manifest));
        text.push_str(&schemas_text(manifest));
    }
    text
}

/// Returns the requests of a plugin, one line each, with the reason below.
fn requests_text(manifest: &Manifest) -> String {
    let rights = rights(manifest);
    let lines: Vec<String> =
        rights.iter().map(|Right { text, reason }| format!("  {text}\n      {reason}\n")).collect();
    if lines.is_empty() { "  nothing\n".to_owned() } else { lines.concat() }
}

/// Returns the settings that jobs may set in `spec.parameters` and an admin in `config` of the grant, each with its
/// description.
fn schemas_text(manifest: &Manifest) -> String {
    let schemas = [("parameters", &manifest.parameters), ("config", &manifest.config)];
    let given = schemas.into_iter().filter_map(|(what, schema)| Some((what, schema.as_ref()?)));
    given.map(|(what, schema)| format!("\n{what}\n{}", settings_text(schema))).collect()
}

fn settings_text(schema: &Value) -> String {
    let Some(settings) = schema.get("properties").and_then(Value::as_object) else {
        return format!("  {schema}\n");
    };
    let described = settings.iter().map(|(name, setting)| {
        let mut rules = setting.clone();
        let description = rules.as_object_mut().and_then(|rules| rules.remove("description"));
        let description = description.as_ref().and_then(Value::as_str).unwrap_or_default();
        format!(
            "  {name}: {rules}\n{}",
            if description.is_empty() { String::new() } else { format!("      {description}\n") }
        )
    });
    described.collect()
}

#[cfg(test)]
mod tests {
    use oarlock_wasm::PluginStatus;

    use super::*;

    #[test]
    fn a_verdict_names_the_file_the_state_and_every_line_that_is_missing() {
        let status = PluginStatus {
            source: "file".into(),
            name: Some("greedy".into()),
            version: Some("0.1.0".into()),
            action: Some("Greedy".into()),
            digest: None,
            state: PluginState::AwaitingGrant,
            reason: "AwaitingGrant".into(),
            message: "it asks for more than it is granted".into(),
            rights: Vec::new(),
            missing: vec!["read v1 Secret /data".into(), "delete v1 Pod".into()],
        };
        let text = verdict_text(Path::new("a/greedy.wasm"), &VetReport { inspection: None, status });
        assert!(text.starts_with("a/greedy.wasm: AwaitingGrant/AwaitingGrant\n"), "{text}");
        assert!(text.ends_with("  the grant lacks:\n    read v1 Secret /data\n    delete v1 Pod\n"), "{text}");
    }

    #[test]
    fn requests_are_told_in_words_with_their_reasons() {
        let manifest = br#"{"schema": 1, "name": "x", "version": "1.0.0", "action": "X", "target": ["Pod"],
            "writes": [{"verb": "metadata", "apiVersion": "v1", "kind": "Pod", "labels": ["a/b"], "reason": "to mark it"}]}"#;
        let text = requests_text(&Manifest::parse(manifest).unwrap());
        assert_eq!(text, "  metadata v1 Pod; labels a/b\n      to mark it\n");
    }

    #[test]
    fn parameters_and_settings_are_told_with_their_descriptions() {
        let manifest = br#"{"schema": 1, "name": "x", "version": "1.0.0", "action": "X", "target": ["Pod"],
            "parameters": {"type": "object", "properties": {"wait": {"type": "integer", "description": "In seconds."}}},
            "config": {"type": "object"}}"#;
        let text = schemas_text(&Manifest::parse(manifest).unwrap());
        let wanted =
            "\nparameters\n  wait: {\"type\":\"integer\"}\n      In seconds.\n\nconfig\n  {\"type\":\"object\"}\n";
        assert_eq!(text, wanted);
    }

    #[test]
    fn the_host_looks_at_lower_case_wasm_files_that_are_not_hidden() {
        assert!(is_seen(Path::new("a/b.wasm")));
        for name in ["a/B.WASM", "a/b", "a/.b.wasm", ".."] {
            assert!(!is_seen(Path::new(name)), "{name}");
        }
    }
}
