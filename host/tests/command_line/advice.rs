//! Every command that a document, a help text or an error advises is valid.

use std::path::{Path, PathBuf};

use clap::CommandFactory as _;
use oarlock::commands::Cli;

/// Folders and files with texts for users.
const SPEAKERS: [&str; 10] = [
    "README.md",
    "CONTRIBUTING.md",
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "Dockerfile",
    "docs",
    "wit",
    "sdk",
    "plugins",
    "host",
];

fn texts(path: &Path, into: &mut Vec<(PathBuf, String)>) {
    if path.is_dir() {
        let entries = std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path());
        entries.filter(|path| !path.ends_with("target")).for_each(|path| texts(&path, into));
    } else if let Ok(text) = std::fs::read_to_string(path) {
        into.push((path.to_owned(), text));
    }
}

/// Returns the commands in a text: those in backticks, and those at the beginning of a line, as in a code block or a help text.
fn advised(text: &str) -> Vec<String> {
    let quoted = text.split('`').skip(1).step_by(2).filter(|part| !part.contains('\n'));
    let lines = text.lines().map(str::trim_start).filter(|line| !line.contains('`'));
    let all = quoted.chain(lines).map(|line| line.trim_start_matches("target/debug/").trim_start_matches("$ "));
    let own = all.filter_map(|line| line.strip_prefix("oarlock ")).map(|line| {
        let end = line.find(['|', '>', '#', ';', '"', '{', '`', '\\']).unwrap_or(line.len());
        line.get(..end).unwrap_or(line).to_owned()
    });
    own.collect()
}

/// Returns the reason why a command is not valid.
fn wrong(line: &str) -> Option<String> {
    let mut cli = Cli::command();
    cli.build();
    let mut command = &cli;
    for word in line.split_whitespace() {
        if command.has_subcommands() && !word.starts_with('-') {
            match command.find_subcommand(word) {
                Some(found) => command = found,
                None => return Some(format!("there is no command {word}")),
            }
        }
        let flag = word.strip_prefix("--").map(|flag| flag.split(['=', ',', ')', '.', ']']).next().unwrap_or(flag));
        let knows = |flag: &str| {
            let aliases = |argument: &clap::Arg| argument.get_visible_aliases().is_some_and(|all| all.contains(&flag));
            command.get_arguments().any(|argument| argument.get_long() == Some(flag) || aliases(argument))
        };
        if let Some(flag) = flag.filter(|flag| !flag.is_empty() && !knows(flag)) {
            return Some(format!("{} has no --{flag}", command.get_name()));
        }
    }
    None
}

#[test]
fn every_command_that_is_advised_can_be_typed() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut all = Vec::new();
    SPEAKERS.iter().for_each(|speaker| texts(&root.join(speaker), &mut all));
    let mut found = 0;
    for (path, text) in &all {
        for line in advised(text) {
            found += 1;
            if let Some(wrong) = wrong(&line) {
                panic!("{}: `oarlock {line}`: {wrong}", path.display());
            }
        }
    }
    assert!(found > 60, "{found}");
}

#[test]
fn a_command_that_is_not_there_is_found_out() {
    assert_eq!(wrong("plugin inspect FILE -o json"), None);
    assert_eq!(wrong("plugin polish FILE").as_deref(), Some("there is no command polish"));
    assert_eq!(wrong("manifests --grant FILE").as_deref(), Some("manifests has no --grant"));
    assert_eq!(advised("say `oarlock plugin vet x`\n  oarlock crds | kubectl apply -f -"), ["plugin vet x", "crds "]);
}
