//! `oarlock demo`: the product's main job on a cluster in memory, to be watched.
//!
//! Runs an API server, a world, the host and a user in one process, ends by itself, and exits by the verdict of the
//! world's ledger: the host's own status counts for nothing.

mod plugin_acts;
mod screen;
mod snapshot;
mod stage;
mod user;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Args;

use plugin_acts::Demo;
use screen::Screen;
use stage::Stage;
use user::User;

const EXAMPLES: &str = "\
Examples:
  cargo xtask demo                                          build host and plugins, then this
  oarlock demo --plugins-from target/wasm32-wasip2/release  with plugins that are built already
  oarlock demo --fast | cat                                 one line for each change, no time for reading

Exit code: 0 if every target was replaced exactly once and no other pod was lost, as the simulated world saw it; else 1.";

/// 128 and the number of SIGINT, as a shell would report it.
const INTERRUPTED: u8 = 130;

/// Arguments of `oarlock demo`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct DemoArgs {
    /// Folder with replace.wasm, greedy.wasm and overreach.wasm
    #[arg(long, value_name = "DIR", default_value = "target/wasm32-wasip2/release")]
    plugins_from: PathBuf,
    /// Skip the pauses for reading, and let pods start at once
    #[arg(long)]
    fast: bool,
}

/// Runs the demo.
pub(crate) async fn run(args: DemoArgs) -> anyhow::Result<ExitCode> {
    let screen = Screen::new(args.fast);
    screen.title("Oarlock: operations on pods as WebAssembly plugins").await?;
    let stage = Stage::set(args.plugins_from, args.fast).await?;
    screen
        .say("A Kubernetes API in memory, a CollaSet foo and a Deployment web, and a host that has no plugin yet.")
        .await?;
    let user = User::new(stage.client());
    let mut demo = Demo { stage, user, screen, replaced: Vec::new() };
    let played = tokio::select! {
        played = play(&mut demo) => played,
        asked = tokio::signal::ctrl_c() => {
            asked.context("cannot listen for SIGINT")?;
            demo.stage.strike().await?;
            return Ok(ExitCode::from(INTERRUPTED));
        }
    };
    let verdict = demo.verdict().await?;
    demo.stage.strike().await?;
    played?;
    Ok(if verdict.is_clean() && !demo.replaced.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn play(demo: &mut Demo) -> anyhow::Result<()> {
    demo.replace_a_collaset().await?;
    demo.replace_a_deployment().await?;
    demo.greedy_waits().await?;
    demo.overreach_is_denied().await
}
