//! The binary as a plugin of kubectl, which runs `kubectl-oarlock` for `kubectl oarlock`.

use std::path::Path;

use clap::{Command, ValueEnum};
use clap_complete::Shell;

/// The file name by which kubectl finds a plugin.
const PLUGIN: &str = "kubectl-oarlock";
/// The words by which its user calls it.
const CALLED: &str = "kubectl oarlock";
/// Commands of people, whose examples are shown in the words of the plugin.
const OF_PEOPLE: [&str; 6] = ["get", "watch", "run", "plan", "graph", "retry"];

/// kubectl asks an executable of this name in the PATH for completions of its plugin: the words so far, the last one perhaps
/// empty; a line for each candidate; and then a bit set, in which 4 says that files are none.
pub(super) const COMPLETION_SCRIPT: &str = "\
#!/bin/sh
# Completions of `kubectl oarlock`. kubectl runs this file: put it into the PATH as kubectl_complete-oarlock, executable.
exec oarlock __complete -- \"$@\"
";

/// What completions are printed for.
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

/// The command line for a binary of this name: where that is the plugin's, help speaks as its user does.
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
  kubectl oarlock get                                            jobs, and what each waits for
  kubectl oarlock run Replace -l app=web --partition 1 --watch   one pod first, live
  kubectl oarlock plan job.yaml --plugins ./plugins              what a job would do, before it is created
  kubectl oarlock watch opj/web                                  a job that runs already
  kubectl oarlock graph nightly                                  the steps of a JobFlow, and how far each is
  kubectl oarlock retry jf/nightly                               what failed of it, once more";

/// The candidates for the last of `words`, and the directive of kubectl.
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

/// The values of the option that comes before the word to complete, if it has a fixed choice of them.
fn values_of(command: &Command, option: &str) -> Vec<String> {
    let is_meant = |argument: &&clap::Arg| {
        option.strip_prefix("--").is_some_and(|name| argument.get_long() == Some(name))
            || option.strip_prefix('-').is_some_and(|name| argument.get_short().is_some_and(|c| name == c.to_string()))
    };
    let argument = command.get_arguments().find(is_meant).filter(|argument| argument.get_action().takes_values());
    let values = argument.map(clap::Arg::get_possible_values).unwrap_or_default();
    values.iter().map(|value| value.get_name().to_owned()).collect()
}
