//! The command line: its arguments, its help, and the dispatch to the commands.
//!
//! Help is the first document that a user reads, so each command ends with examples. The modules below implement the
//! commands.

mod artefacts;
mod crds;
#[cfg(feature = "dev")]
mod dev;
mod drain;
mod explain;
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
mod output;
mod plan;
mod plugin;
mod retry;
mod run;
#[cfg(feature = "dev")]
mod scratch;
mod server;
mod text_file;

use std::path::Path;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{Args, CommandFactory as _, FromArgMatches as _, Parser, Subcommand};

use self::jobs::{get, watch};
use self::kubectl::CompletionsFor;
use self::output::print;
use crate::telemetry::{self, LogFormat};
use crate::traces::{OtlpArgs, TraceExport};

/// Examples of the commands behind the feature `dev`.
const IN_MEMORY_EXAMPLES: &str = if cfg!(feature = "dev") {
    "
  oarlock dev --plugins ./plugins                  an in-memory cluster for kubectl"
} else {
    ""
};

const EXAMPLES: &str = "
  oarlock manifests | kubectl apply -f -           prepare a cluster
  oarlock host --plugins ./plugins --identity me   run the controller against the current kubectl context
  oarlock server --data ./data                     serve the REST API of OpsJobs beside the host
  oarlock plugin vet my.wasm                       check whether the host would serve a plugin
  oarlock run Replace -l app=web --partition 1 -w  replace one pod and watch the job
  oarlock plan job.yaml --plugins ./plugins        show what a job would do, without creating it
  oarlock ops create reboot --name a --node n1     reboot a node
  oarlock graph nightly                            draw the steps of a JobFlow with their phases
  oarlock explain NotReady                         say what a reason means, and what to do

A plugin is a WebAssembly component that implements an action. Put <name>.wasm into the plugin directory. Grant its requests
in grants.yaml beside that directory. Then apply an OperationJob with this action in spec.action.";

/// Runs operations on pods and nodes. WebAssembly plugins implement the operations.
#[derive(Debug, Parser)]
#[command(name = "oarlock", version, about, after_help = format!("Examples:{IN_MEMORY_EXAMPLES}{EXAMPLES}"), arg_required_else_help = true)]
pub struct Cli {
    #[command(flatten)]
    logs: LogArgs,
    #[command(subcommand)]
    command: Command,
}

/// Log options, which all commands share.
#[derive(Debug, Args)]
struct LogArgs {
    /// Log filter: a level, or a list such as `info,oarlock_kube=debug`
    #[arg(long = "log", global = true, value_name = "LEVEL", env = "OARLOCK_LOG")]
    filter: Option<String>,
    /// Format of log lines
    #[arg(long, global = true, value_enum, default_value = "text")]
    log_format: LogFormat,
}

/// The commands of `oarlock`.
#[derive(Debug, Subcommand)]
enum Command {
    /// Run the controller against a Kubernetes cluster
    Host(Box<host::HostArgs>),
    /// Serve OpsJobs by REST, beside the host and with its own account
    Server(Box<server::RestServerArgs>),
    /// Print jobs with their progress and the reasons why they wait
    Get(get::GetArgs),
    /// Follow a job, a JobFlow or a DaemonJob live, until it ends
    Watch(watch::WatchArgs),
    /// Create a job from arguments
    Run(Box<run::RunArgs>),
    /// Show what a job would do, without creating it
    Plan(Box<plan::PlanArgs>),
    /// Create, list, watch, stop and delete OpsJobs, which reboot nodes, check nodes or run scripts on nodes
    Ops(ops::OpsArgs),
    /// Draw the steps of a JobFlow: as text or as a Mermaid flowchart
    Graph(graph::GraphArgs),
    /// Run the failed and omitted parts of a JobFlow or a DaemonJob again
    Retry(retry::RetryArgs),
    /// Explain a reason of a status: its meaning, and the next step
    Explain(explain::ExplainArgs),
    /// List the holds of jobs on pods, and remove leftover holds
    Holds(holds::HoldsArgs),
    /// Check that nothing needs the host, before you remove it
    Drain(drain::DrainArgs),
    /// Print the CustomResourceDefinitions
    Crds(crds::CrdsArgs),
    /// Print all manifests that a cluster needs before you run the host
    Manifests(manifests::ManifestsArgs),
    /// Serve an in-memory cluster for kubectl
    #[cfg(feature = "dev")]
    Dev(Box<dev::DevArgs>),
    /// Print completions for a shell, or for kubectl
    #[command(after_help = COMPLETIONS_EXAMPLES)]
    Completions {
        /// The shell, or kubectl for `kubectl oarlock`
        #[arg(value_enum, value_name = "SHELL")]
        shell: CompletionsFor,
    },
    /// Print the completions of the last word, in the format that kubectl reads
    #[command(name = "__complete", hide = true)]
    Complete {
        /// The words after `kubectl oarlock`
        #[arg(last = true, allow_hyphen_values = true)]
        words: Vec<String>,
    },
    /// Run one command on this node exactly once; the pods of tasks run this command
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
    /// Returns the flags of traces; `None` for a command without rounds.
    fn otlp(&self) -> Option<&OtlpArgs> {
        match self {
            Self::Host(args) => Some(args.otlp()),
            #[cfg(feature = "dev")]
            Self::Dev(args) => Some(args.otlp()),
            _ => None,
        }
    }

    /// Returns the default log filter. A server logs its progress; a command that prints an answer logs only warnings.
    fn default_filter(&self) -> &'static str {
        match self {
            // The client logs each failed connection, and the caller logs it again with more detail.
            Self::Host(_) | Self::Server(_) => "info,kube_client::client::builder=off",
            #[cfg(feature = "dev")]
            Self::Dev(_) => "warn,oarlock_wasm=info,plugin=info",
            // These commands report their errors themselves, and a log line would break the screen.
            Self::Get(_)
            | Self::Watch(_)
            | Self::Run(_)
            | Self::Plan(_)
            | Self::Ops(_)
            | Self::Graph(_)
            | Self::Retry(_)
            | Self::Holds(_)
            | Self::Crds(_)
            | Self::Drain(_) => "off",
            Self::Complete { .. }
            | Self::Completions { .. }
            | Self::Explain(_)
            | Self::Manifests(_)
            | Self::NodeExec(_)
            | Self::Plugin(_) => "warn",
        }
    }
}

impl Cli {
    /// Parses the arguments of this process. Ends the process if the arguments are invalid or ask for help.
    pub fn from_arguments() -> Self {
        let binary = std::env::args_os().next();
        let command = kubectl::called_as(binary.as_deref().map(Path::new), Self::command());
        Self::from_arg_matches(&command.get_matches()).unwrap_or_else(|error| error.exit())
    }

    /// Returns the exit code of an error. A command that watches a job has a code of its own for an unknown outcome,
    /// because 1 means that the job failed.
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
/// If the command fails. The error names the operation that failed and the fix.
pub fn run(cli: Cli) -> anyhow::Result<ExitCode> {
    let traces = cli.command.otlp().map(OtlpArgs::open).transpose()?.flatten();
    let filter = cli.logs.filter.as_deref().unwrap_or_else(|| cli.command.default_filter());
    telemetry::start(filter, cli.logs.log_format, traces.as_ref().map(TraceExport::tracer))?;
    match cli.command {
        Command::Host(args) => in_runtime(host::run(*args, traces)),
        Command::Server(args) => in_runtime(server::run(*args)),
        Command::Get(args) => in_runtime(get::run(args)),
        Command::Watch(args) => in_runtime(watch::run(args)),
        Command::Run(args) => in_runtime(run::run(*args)),
        Command::Plan(args) => in_runtime(plan::run(*args)),
        Command::Ops(args) => in_runtime(ops::run(args)),
        Command::Graph(args) => in_runtime(graph::run(args)),
        Command::Retry(args) => in_runtime(retry::run(args)),
        Command::Explain(args) => explain::run(&args),
        Command::Holds(args) => in_runtime(holds::run(args)),
        Command::Drain(args) => in_runtime(drain::run(args)),
        Command::Crds(args) => in_runtime(crds::run(args)),
        Command::Manifests(args) => manifests::run(&args),
        #[cfg(feature = "dev")]
        Command::Dev(args) => in_runtime(dev::run(*args, traces)),
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
    // The process exits without waiting for a plugin that is being compiled.
    runtime.shutdown_background();
    ended
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
