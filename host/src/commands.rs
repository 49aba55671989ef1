//! The command line: arguments, help, and the command that runs.
//!
//! Help is the first document that a user reads, so each command ends with examples. The commands themselves are in the
//! modules below.

mod artefacts;
#[cfg(feature = "dev")]
mod demo;
#[cfg(feature = "dev")]
mod dev;
mod exports;
mod graph;
mod history;
mod holds;
mod host;
#[cfg(feature = "dev")]
mod in_memory;
mod jobs;
mod kubectl;
mod manifests;
mod memory;
mod node_exec;
mod ops;
mod plan;
mod plugin;
mod retry;
mod run;
#[cfg(feature = "dev")]
mod scratch;
mod server;
mod text_file;

use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{Args, CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use oarlock_core::plugin::grant::Grant;

use self::jobs::{get, watch};
use self::kubectl::CompletionsFor;
use crate::telemetry::{self, LogFormat};

/// Examples of the commands that the feature `dev` brings.
const IN_MEMORY_EXAMPLES: &str = if cfg!(feature = "dev") {
    "
  oarlock demo                                     see it work, without a cluster
  oarlock dev --plugins ./plugins                  a cluster in memory that kubectl can talk to"
} else {
    ""
};

const EXAMPLES: &str = "
  oarlock manifests | kubectl apply -f -           prepare a cluster
  oarlock host --plugins ./plugins --identity me   run the controller against the current kubectl context
  oarlock server --data ./data                     serve OpsJobs by REST, beside that host
  oarlock plugin vet my.wasm                       what the host would say of a plugin, and why
  oarlock run Replace -l app=web --partition 1 -w  replace one pod, and watch
  oarlock plan job.yaml --plugins ./plugins        what a job would do, before it is created
  oarlock ops create reboot --name a --node n1     reboot a node
  oarlock graph nightly                            the steps of a JobFlow, and how far each is

An action is a WebAssembly component: drop <name>.wasm into the plugin directory, allow what it asks for in grants.yaml
beside that directory, and apply an OperationJob whose spec.action names it.";

/// Runs operations on pods as WebAssembly plugins.
#[derive(Debug, Parser)]
#[command(name = "oarlock", version, about, after_help = format!("Examples:{IN_MEMORY_EXAMPLES}{EXAMPLES}"), arg_required_else_help = true)]
pub struct Cli {
    #[command(flatten)]
    logs: LogArgs,
    #[command(subcommand)]
    command: Command,
}

/// Log options, the same for every command.
#[derive(Debug, Args)]
struct LogArgs {
    /// Log filter: a level, or a list such as `info,oarlock_kube=debug`
    #[arg(long = "log", global = true, value_name = "LEVEL", env = "OARLOCK_LOG")]
    filter: Option<String>,
    /// Format of log lines
    #[arg(long, global = true, value_enum, default_value = "text")]
    log_format: LogFormat,
}

/// The commands.
#[derive(Debug, Subcommand)]
enum Command {
    /// Run the controller against a Kubernetes cluster
    Host(Box<host::HostArgs>),
    /// Serve OpsJobs by REST, beside the host and with an account of its own
    Server(Box<server::RestServerArgs>),
    /// Print jobs: how far each is, and what it waits for
    Get(get::GetArgs),
    /// Follow a job, a JobFlow or a DaemonJob live, until it ends
    Watch(watch::WatchArgs),
    /// Create a job from arguments
    Run(Box<run::RunArgs>),
    /// Show what a job would do, before it is created
    Plan(Box<plan::PlanArgs>),
    /// Make, list, follow, stop and delete OpsJobs: reboots and checks of nodes, and scripts that are run there
    Ops(ops::OpsArgs),
    /// Draw the steps of a JobFlow: as text, as a Mermaid flowchart, as SVG
    Graph(graph::GraphArgs),
    /// Run what failed or was omitted of a JobFlow or a DaemonJob again
    Retry(retry::RetryArgs),
    /// List what jobs hold on pods, and take off what no job will
    Holds(holds::HoldsArgs),
    /// Print the CustomResourceDefinitions
    #[command(after_help = "Example:\n  oarlock crds | kubectl apply -f -")]
    Crds {
        /// Output format; json is one list
        #[arg(short, long, value_enum, default_value = "yaml")]
        output: manifests::DocumentFormat,
    },
    /// Print all documents that a cluster needs before the host runs there
    Manifests(manifests::ManifestsArgs),
    /// Serve a cluster in memory that kubectl can talk to
    #[cfg(feature = "dev")]
    Dev(dev::DevArgs),
    /// Replace and restart pods on a simulated cluster, and show each step
    #[cfg(feature = "dev")]
    Demo(demo::DemoArgs),
    /// Print completions for a shell, or for kubectl
    #[command(after_help = COMPLETIONS_EXAMPLES)]
    Completions {
        /// The shell, or kubectl for `kubectl oarlock`
        #[arg(value_enum, value_name = "SHELL")]
        shell: CompletionsFor,
    },
    /// Print the candidates for the last of the words, as kubectl asks for them
    #[command(name = "__complete", hide = true)]
    Complete {
        /// The words after `kubectl oarlock`
        #[arg(last = true, allow_hyphen_values = true)]
        words: Vec<String>,
    },
    /// Run one command on this node, once: the pods of tasks do this
    #[command(hide = true)]
    NodeExec(Box<node_exec::NodeExecArgs>),
    /// Inspect and vet plugin files
    #[command(subcommand)]
    Plugin(plugin::PluginCommand),
}

const COMPLETIONS_EXAMPLES: &str = "\
Examples:
  oarlock completions bash > ~/.local/share/bash-completion/completions/oarlock
  oarlock completions zsh > ~/.zfunc/_oarlock          with ~/.zfunc in $fpath
  oarlock completions fish > ~/.config/fish/completions/oarlock.fish
  oarlock completions kubectl > ~/.local/bin/kubectl_complete-oarlock && chmod +x ~/.local/bin/kubectl_complete-oarlock
                                                       for `kubectl oarlock`, with ~/.local/bin in $PATH";

impl Command {
    /// The default filter: a server logs its progress, a command that prints an answer only warns.
    fn default_filter(&self) -> &'static str {
        match self {
            // The client logs each failed connection; so does its caller, with more detail.
            Self::Host(_) | Self::Server(_) => "info,kube_client::client::builder=off",
            #[cfg(feature = "dev")]
            Self::Dev(_) => "warn,oarlock_wasm=info,plugin=info",
            // The demo prints its progress on standard output, denied plugins included.
            #[cfg(feature = "dev")]
            Self::Demo(_) => "error",
            // What they cannot do they say themselves; a log line would break the screen.
            Self::Get(_)
            | Self::Watch(_)
            | Self::Run(_)
            | Self::Plan(_)
            | Self::Ops(_)
            | Self::Graph(_)
            | Self::Retry(_)
            | Self::Holds(_) => "off",
            Self::Crds { .. }
            | Self::Complete { .. }
            | Self::Completions { .. }
            | Self::Manifests(_)
            | Self::NodeExec(_)
            | Self::Plugin(_) => "warn",
        }
    }
}

impl Cli {
    /// The arguments of this process. Ends it where they cannot be read, or ask for help.
    pub fn from_arguments() -> Self {
        let binary = std::env::args_os().next();
        let command = kubectl::called_as(binary.as_deref().map(Path::new), Self::command());
        Self::from_arg_matches(&command.get_matches()).unwrap_or_else(|error| error.exit())
    }

    /// The exit code of an error. That of a command that follows a job says that the outcome is not known, since 1 says that
    /// the job failed.
    pub fn exit_code_of_error(&self) -> ExitCode {
        match &self.command {
            Command::Watch(_) => ExitCode::from(watch::NOT_KNOWN),
            Command::Ops(args) if args.watches() => ExitCode::from(watch::NOT_KNOWN),
            Command::Run(args) if args.watches() => ExitCode::from(watch::NOT_KNOWN),
            _ => ExitCode::FAILURE,
        }
    }
}

/// Runs the command that `cli` names.
///
/// # Errors
///
/// Fails with the undone operation and its fix.
pub fn run(cli: Cli) -> anyhow::Result<ExitCode> {
    let filter = cli.logs.filter.as_deref().unwrap_or_else(|| cli.command.default_filter());
    telemetry::start(filter, cli.logs.log_format)?;
    match cli.command {
        Command::Host(args) => in_runtime(host::run(*args)),
        Command::Server(args) => in_runtime(server::run(*args)),
        Command::Get(args) => in_runtime(get::run(args)),
        Command::Watch(args) => in_runtime(watch::run(args)),
        Command::Run(args) => in_runtime(run::run(*args)),
        Command::Plan(args) => in_runtime(plan::run(*args)),
        Command::Ops(args) => in_runtime(ops::run(args)),
        Command::Graph(args) => in_runtime(graph::run(args)),
        Command::Retry(args) => in_runtime(retry::run(args)),
        Command::Holds(args) => in_runtime(holds::run(args)),
        Command::Crds { output } => manifests::print_documents(&crate::manifests::crds(), output),
        Command::Manifests(args) => manifests::run(&args),
        #[cfg(feature = "dev")]
        Command::Dev(args) => in_runtime(dev::run(args)),
        #[cfg(feature = "dev")]
        Command::Demo(args) => in_runtime(demo::run(args)),
        Command::Complete { words } => {
            let mut command = Cli::command();
            command.build();
            print(&kubectl::complete(&command, &words))
        }
        Command::Completions { shell: CompletionsFor::Kubectl } => print(kubectl::COMPLETION_SCRIPT),
        Command::Completions { shell: CompletionsFor::Shell(shell) } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "oarlock", &mut script);
            print(&String::from_utf8(script).context("the completions are not UTF-8")?)
        }
        Command::NodeExec(args) => node_exec::run(*args),
        Command::Plugin(command) => plugin::run(command),
    }
}

fn in_runtime(command: impl Future<Output = anyhow::Result<ExitCode>>) -> anyhow::Result<ExitCode> {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().enable_all().build().context("cannot start the async runtime")?;
    let ended = runtime.block_on(command);
    // A component that is being compiled keeps nobody waiting who has asked the process to stop.
    runtime.shutdown_background();
    ended
}

/// Reads a file of grants. One that is missing is an error: whoever names it means it.
fn read_grants(path: &Path) -> anyhow::Result<(String, Vec<Grant>)> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read the grants {}", path.display()))?;
    let grants =
        oarlock_wasm::parse_grants(&text).with_context(|| format!("cannot use the grants {}", path.display()))?;
    Ok((text, grants))
}

/// An answer for programs.
fn json(value: &impl serde::Serialize) -> anyhow::Result<String> {
    Ok(serde_json::to_string_pretty(value).context("cannot write the answer as JSON")? + "\n")
}

/// Prints an answer. A reader that stops early (`oarlock crds | head`) is no error.
fn print(text: &str) -> anyhow::Result<ExitCode> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(error).context("cannot write to standard output")
        }
        _ => Ok(ExitCode::SUCCESS),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn help_of_the_kubectl_plugin_speaks_as_its_user_does() {
        let mut command = kubectl::called_as(Some(Path::new("/usr/bin/kubectl-oarlock")), Cli::command());
        command.build();
        let help = command.find_subcommand_mut("get").unwrap().render_help().to_string();
        assert!(help.contains("Usage: kubectl oarlock get") && help.contains("  kubectl oarlock get -A"), "{help}");
        let help = command.find_subcommand_mut("plan").unwrap().render_help().to_string();
        assert!(help.contains("  kubectl oarlock plan job.yaml --plugins"), "{help}");
        let mut usual = kubectl::called_as(Some(Path::new("oarlock")), Cli::command());
        usual.build();
        let help = usual.find_subcommand_mut("get").unwrap().render_help().to_string();
        assert!(help.contains("Usage: oarlock get") && !help.contains("kubectl oarlock"), "{help}");
    }

    #[test]
    fn kubectl_is_told_the_words_that_may_come_next() {
        let mut command = Cli::command();
        command.build();
        let complete = |words: &[&str]| {
            let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
            kubectl::complete(&command, &words)
        };
        assert_eq!(complete(&["wat"]), "watch\n:4\n");
        assert_eq!(complete(&["run", "Replace", "--max"]), "--max-unavailable\n:4\n");
        assert_eq!(complete(&["get", "-o", ""]), "json\nwide\n:4\n");
        assert_eq!(complete(&["__com"]), ":4\n");
    }

    #[test]
    fn the_command_line_is_consistent_and_every_command_teaches_by_example() {
        let mut cli = Cli::command();
        cli.clone().debug_assert();
        cli.build();
        let plugin = cli.find_subcommand("plugin").unwrap();
        let all = cli.get_subcommands().filter(|command| !command.has_subcommands()).chain(plugin.get_subcommands());
        for command in all.filter(|command| command.get_name() != "help" && !command.is_hide_set()) {
            assert!(command.get_about().is_some(), "{} says nothing", command.get_name());
            assert!(command.get_after_help().is_some(), "{} shows no example", command.get_name());
        }
    }
}
