//! The binary as a plugin of kubectl, which runs `kubectl-oarlock` for `kubectl oarlock`.

use std::path::Path;

use clap::{Command, ValueEnum};
use clap_complete::Shell;

/// The file name by which kubectl finds a plugin.
const PLUGIN: &str = "kubectl-oarlock";
/// The words with which the user of the plugin calls it.
const CALLED: &str = "kubectl oarlock";
/// The user's commands. Their help shows examples in the words of the plugin.
const OF_PEOPLE: [&str; 6] = ["get", "watch", "run", "plan", "graph", "retry"];

/// The script that kubectl runs for completions of its plugin. kubectl finds it by its name in the PATH.
///
/// The script's arguments are the words so far; the last word may be empty. The script prints one line for each
/// candidate, and then a bit set. Bit 4 says that file names are no candidates.
pub(super) const COMPLETION_SCRIPT: &str = "\
#!/bin/sh
# Completions of `kubectl oarlock`. kubectl runs this file: put it into the PATH as kubectl_complete-oarlock, executable.
exec oarlock __complete -- \"$@\"
";

/// The program that reads the completions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CompletionsFor {
    /// A shell, for `oarlock`.
    Shell(Shell),
    /// kubectl, for `kubectl oarlock`.
    Kubectl,
}

impl ValueEnum for CompletionsFor {
    fn value_variants<'a>() -> &'a [Self] {
        &[
            Self::Shell(Shell::Bash),
            Self::Shell(Shell::Elvish),
            Self::Shell(Shell::Fish),
            Self::Shell(Shell::PowerShell),
            Self::Shell(Shell::Zsh),
            Self::Kubectl,
        ]
    }

    fn to_possible_value(&self) -> Option<clap::builder::PossibleValue> {
        match self {
            Self::Shell(shell) => shell.to_possible_value(),
            Self::Kubectl => Some("kubectl".into()),
        }
    }
}

/// Returns the command line for a binary of this name. For the plugin's name, help shows the words that its user types.
pub(super) fn called_as(binary: Option<&Path>, command: Command) -> Command {
    if binary.and_then(Path::file_stem).is_none_or(|name| name != PLUGIN) {
        return command;
    }
    let command = command.bin_name(CALLED).after_help(EXAMPLES);
    OF_PEOPLE.iter().fold(command, |command, name| {
        command.mut_subcommand(name, |inner| {
            let help = inner.get_after_help().map(ToString::to_string).unwrap_or_default();
            inner.after_help(help.replace("oarlock ", &format!("{CALLED} ")))
        })
    })
}

const EXAMPLES: &str = "\
Examples:
  kubectl oarlock get                                            print jobs and why they wait
  kubectl oarlock run Replace -l app=web --partition 1 --watch   replace one pod and watch the job
  kubectl oarlock plan job.yaml --plugins ./plugins              show what a job would do, without creating it
  kubectl oarlock watch opj/web                                  watch an existing job
  kubectl oarlock graph nightly                                  draw the steps of a JobFlow with their phases
  kubectl oarlock retry jf/nightly                               run failed and omitted steps again";

/// Returns the candidates for the last of `words`, and the directive for kubectl.
pub(super) fn complete(command: &Command, words: &[String]) -> String {
    let (last, before) = words.split_last().map_or(("", &[][..]), |(last, before)| (last.as_str(), before));
    let mut at = command;
    for word in before {
        at = at.find_subcommand(word).unwrap_or(at);
    }
    let mut found: Vec<String> = values_of(at, before.last().map(String::as_str).unwrap_or_default());
    if found.is_empty() {
        let commands = at.get_subcommands().filter(|inner| !inner.is_hide_set());
        found.extend(commands.map(|inner| inner.get_name().to_owned()));
        let options = at.get_arguments().filter(|argument| !argument.is_hide_set());
        found.extend(options.filter_map(|option| option.get_long()).map(|long| format!("--{long}")));
    }
    found.retain(|word| word.starts_with(last));
    found.into_iter().map(|word| word + "\n").collect::<String>() + ":4\n"
}

/// Returns the fixed values of the option before the word to complete, if it has any.
fn values_of(command: &Command, option: &str) -> Vec<String> {
    let is_meant = |argument: &&clap::Arg| {
        option.strip_prefix("--").is_some_and(|name| argument.get_long() == Some(name))
            || option.strip_prefix('-').is_some_and(|name| argument.get_short().is_some_and(|c| name == c.to_string()))
    };
    let argument = command.get_arguments().find(is_meant).filter(|argument| argument.get_action().takes_values());
    let values = argument.map(clap::Arg::get_possible_values).unwrap_or_default();
    values.iter().map(|value| value.get_name().to_owned()).collect()
}
