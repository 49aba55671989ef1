//! `oarlock demo`: one of five stories on a cluster in memory, to be watched.
//!
//! Runs an API server, a world, the host and a user in one process, ends by itself, and exits by what the simulated world
//! saw: the host's own status counts for nothing.

mod checks;
mod flow_acts;
mod flow_show;
mod node_acts;
mod ops_acts;
mod play;
mod plugin_acts;
mod pod_acts;
mod screen;
mod snapshot;
mod stage;
mod user;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{Args, ValueEnum};

use play::Play;
use screen::Screen;
use stage::{Scenery, Stage};
use user::User;

const EXAMPLES: &str = "\
Examples:
  cargo xtask demo                                          build host and plugins, then this
  cargo xtask demo pods                                     the same with another story
  cargo xtask demo nodes                                    and with the third
  cargo xtask demo flows                                    and with the fourth
  cargo xtask demo ops                                      and with the fifth
  oarlock demo --plugins-from target/wasm32-wasip2/release  with plugins that are built already
  oarlock demo --fast | cat                                 one line for each change, no time for reading

Exit code: 0 if everything went as said, as the simulated world saw it: each target operated on exactly once, no other pod
lost, and steps in their order; else 1.";

/// 128 and the number of SIGINT, as a shell would report it.
const INTERRUPTED: u8 = 130;

/// Arguments of `oarlock demo`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct DemoArgs {
    /// What is shown
    #[arg(value_enum, default_value = "plugins")]
    story: Story,
    /// Folder with the components: those of the shipped plugins, greedy.wasm and overreach.wasm
    #[arg(long, value_name = "DIR", default_value = "target/wasm32-wasip2/release")]
    plugins_from: PathBuf,
    /// Skip the pauses for reading, and let pods start at once
    #[arg(long)]
    fast: bool,
}

/// What is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
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

impl Story {
    fn title(self) -> &'static str {
        match self {
            Self::Plugins => "Oarlock: operations on pods as WebAssembly plugins",
            Self::Pods => "Oarlock: operations on pods, within bounds and step by step",
            Self::Nodes => "Oarlock: operations on nodes",
            Self::Ops => "Oarlock: operations on nodes by REST",
            Self::Flows => "Oarlock: flows of Jobs and operations, and Jobs on nodes",
        }
    }

    fn scenery(self) -> Scenery {
        match self {
            Self::Plugins => plugin_acts::SCENERY,
            Self::Pods => pod_acts::SCENERY,
            Self::Nodes => node_acts::SCENERY,
            Self::Ops => ops_acts::SCENERY,
            Self::Flows => flow_acts::SCENERY,
        }
    }

    /// Tells it; yields whether everything went as said.
    async fn tell(self, play: &Play) -> anyhow::Result<bool> {
        match self {
            Self::Plugins => plugin_acts::tell(play).await,
            Self::Pods => pod_acts::tell(play).await,
            Self::Nodes => node_acts::tell(play).await,
            Self::Ops => ops_acts::tell(play).await,
            Self::Flows => flow_acts::tell(play).await,
        }
    }
}

/// Runs the demo.
pub(crate) async fn run(args: DemoArgs) -> anyhow::Result<ExitCode> {
    let DemoArgs { story, plugins_from, fast } = args;
    let screen = Screen::new(fast);
    screen.title(story.title()).await?;
    let stage = Stage::set(story.scenery(), plugins_from, fast).await?;
    let user = User::new(stage.client());
    let play = Play { stage, user, screen };
    let told = tokio::select! {
        told = story.tell(&play) => told,
        asked = tokio::signal::ctrl_c() => {
            asked.context("cannot listen for SIGINT")?;
            play.stage.strike().await?;
            return Ok(ExitCode::from(INTERRUPTED));
        }
    };
    play.stage.strike().await?;
    Ok(if told? { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
