//! The command line: arguments, help, and the command that runs.
//!
//! Help is the first document that a user reads, so each command ends with examples. The commands themselves are in the
//! modules below.

mod demo;
mod dev;
mod host;
mod in_memory;
mod plugin;
mod scratch;

use std::io::Write as _;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{Args, Parser, Subcommand};

use crate::manifests;
use crate::telemetry::{self, LogFormat};

const EXAMPLES: &str = "\
Examples:
  oarlock demo                                     see it work, without a cluster
  oarlock dev --plugins ./plugins                  a cluster in memory that kubectl can talk to
  oarlock manifests | kubectl apply -f -           prepare a cluster
  oarlock host --plugins ./plugins --identity me   run the controller against the current kubectl context
  oarlock plugin vet my.wasm                       what the host would say of a plugin, and why

An action is a WebAssembly component: drop <name>.wasm into the plugin directory, allow what it asks for in grants.yaml
beside that directory, and apply an OperationJob whose spec.action names it.";

/// Runs operations on pods as WebAssembly plugins.
#[derive(Debug, Parser)]
#[command(name = "oarlock", version, about, after_help = EXAMPLES, arg_required_else_help = true)]
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
    Host(host::HostArgs),
    /// Print the CustomResourceDefinitions
    #[command(after_help = "Example:\n  oarlock crds | kubectl apply -f -")]
    Crds,
    /// Print all documents that a cluster needs before the host runs there
    #[command(after_help = MANIFESTS_EXAMPLES)]
    Manifests(ManifestsArgs),
    /// Serve a cluster in memory that kubectl can talk to
    Dev(dev::DevArgs),
    /// Replace pods on a simulated cluster, and show each step
    Demo(demo::DemoArgs),
    /// Inspect and vet plugin files
    #[command(subcommand)]
    Plugin(plugin::PluginCommand),
}

const MANIFESTS_EXAMPLES: &str = "\
Examples:
  oarlock manifests | kubectl apply -f -
      namespace, CRDs, admission policy, account and roles; the host then runs anywhere with that account
  oarlock manifests --deployment registry.example/oarlock:0.1.0 | kubectl apply -f -
      the same, and the host itself";

/// Arguments of `oarlock manifests`.
#[derive(Debug, Args)]
struct ManifestsArgs {
    /// Print the host as a Deployment of this image, too
    #[arg(long, value_name = "IMAGE")]
    deployment: Option<String>,
}

impl Command {
    /// The default filter: a server logs its progress, a command that prints an answer only warns.
    fn default_filter(&self) -> &'static str {
        match self {
            // The client logs each failed connection; so does its caller, with more detail.
            Self::Host(_) => "info,kube_client::client::builder=off",
            Self::Dev(_) => "warn,oarlock_wasm=info",
            // The demo prints its progress on standard output, denied plugins included.
            Self::Demo(_) => "error",
            Self::Crds | Self::Manifests(_) | Self::Plugin(_) => "warn",
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
        Command::Host(args) => in_runtime(host::run(args)),
        Command::Crds => print(&manifests::crds()),
        Command::Manifests(args) => {
            let host =
                args.deployment.map(|image| format!("---\n{}", manifests::deployment(&image))).unwrap_or_default();
            print(&(manifests::manifests() + &host))
        }
        Command::Dev(args) => in_runtime(dev::run(args)),
        Command::Demo(args) => in_runtime(demo::run(args)),
        Command::Plugin(command) => plugin::run(command),
    }
}

fn in_runtime(command: impl Future<Output = anyhow::Result<ExitCode>>) -> anyhow::Result<ExitCode> {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().enable_all().build().context("cannot start the async runtime")?;
    runtime.block_on(command)
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
    use clap::CommandFactory as _;

    use super::*;

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
