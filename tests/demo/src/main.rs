//! The first thing that a newcomer runs: one of five stories on a cluster in memory, to be watched.
//!
//! This process is the API server, the simulated cluster and the user. The host is a process of its own, and the user
//! types the commands of `oarlock`. The exit code says what the simulated cluster saw. The host's own status counts for
//! nothing.

mod cluster;
mod environment;
mod play;
mod seen;
mod snapshot;
mod work;
/// The stories, each with its scenery.
mod stories {
    pub(crate) mod flows;
    pub(crate) mod nodes;
    pub(crate) mod ops;
    pub(crate) mod plugins;
    pub(crate) mod pods;
}

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{Parser, ValueEnum};
use tokio::signal::unix::{SignalKind, signal};

use self::environment::Environment;
use self::play::{Play, Screen};
use self::stories::{flows, nodes, ops, plugins, pods};

const EXAMPLES: &str = "\
Examples:
  cargo xtask demo                              build host and plugins, then this
  cargo xtask demo pods                         the same with another story
  target/debug/demo nodes --fast | cat          with a host and plugins that are built already, no time for reading

The host is the file `oarlock` beside this program, or the one that OARLOCK_BINARY names.

Exit code: 0 if everything went as said, as the simulated world saw it: each target operated on exactly once, no other pod
lost, and steps in their order; else 1.";

/// 128 and the number of SIGINT, as a shell would report it.
const INTERRUPTED: u8 = 130;

/// Shows what Oarlock does, on a simulated cluster.
#[derive(Debug, Parser)]
#[command(name = "demo", after_help = EXAMPLES)]
struct Arguments {
    /// The story to show
    #[arg(value_enum, default_value = "plugins")]
    story: Story,
    /// Folder with the components: those of the shipped plugins, greedy.wasm and overreach.wasm
    #[arg(long, value_name = "DIR", default_value = "target/wasm32-wasip2/release")]
    plugins_from: PathBuf,
    /// Skip the pauses for reading, and let pods start at once
    #[arg(long)]
    fast: bool,
}

/// The stories.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Story {
    /// Plugins come into a running host, replace pods, and are held to their grants; ten seconds
    Plugins,
    /// A plan; then pods are replaced and restarted within bounds, with a pause, a failure and a resume; a minute
    Pods,
    /// Nodes are checked, and rebooted two at a time, one of them held up by a disruption budget; a minute
    Nodes,
    /// OpsJobs by REST: a reboot, one that is refused, a check that is stopped; a quarter of a minute, with curl
    Ops,
    /// A JobFlow of Jobs and an operation, with a retry, a branch and finally; then a DaemonJob node by node; half a minute
    Flows,
}

#[tokio::main]
async fn main() -> ExitCode {
    // A stop signal drops the story, and with the story its processes and its folder.
    let told = tokio::select! {
        told = show(Arguments::parse()) => told,
        stopped = stop_signal() => stopped.map(|()| ExitCode::from(INTERRUPTED)),
    };
    told.unwrap_or_else(|cause| {
        eprintln!("error: {cause:#}");
        ExitCode::FAILURE
    })
}

async fn stop_signal() -> anyhow::Result<()> {
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen for SIGINT")?;
    let mut terminate = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
    tokio::select! { _ = interrupt.recv() => {}, _ = terminate.recv() => {} }
    Ok(())
}

/// Shows a story. The exit code says whether everything went as said.
async fn show(Arguments { story, plugins_from, fast }: Arguments) -> anyhow::Result<ExitCode> {
    let (title, scenery, judges) = match story {
        Story::Plugins => ("operations on pods as WebAssembly plugins", plugins::NEEDS, "the ledger"),
        Story::Pods => ("operations on pods, within bounds and step by step", pods::NEEDS, "the pods and the ledger"),
        Story::Nodes => ("operations on nodes", nodes::NEEDS, "the nodes and the ledger"),
        Story::Ops => ("operations on nodes by REST", ops::NEEDS, "the nodes and the ledger"),
        Story::Flows => ("flows of Jobs and operations, and Jobs on nodes", flows::NEEDS, "the ledger"),
    };
    let screen = Screen::new(fast);
    screen.title(&format!("Oarlock: {title}")).await?;
    let mut play = Play::new(Environment::set(scenery, &plugins_from, fast).await?, screen);
    let told = match story {
        Story::Plugins => plugins::tell(&mut play).await,
        Story::Pods => pods::tell(&mut play).await,
        Story::Nodes => nodes::tell(&mut play).await,
        Story::Ops => ops::tell(&mut play).await,
        Story::Flows => flows::tell(&mut play).await,
    };
    let all_hold = play.results(judges).await?;
    told.with_context(|| format!("the processes said at last:\n{}", play.environment.logs()))?;
    if matches!(story, Story::Flows) {
        play.title("The same by hand, on a cluster that stays").await?;
        play.say(&flows::by_hand()).await?;
    }
    Ok(if all_hold { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
