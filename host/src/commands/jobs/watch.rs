//! `oarlock watch`: follows one job, flow or run on nodes to its end, on the whole terminal or with a line for each
//! change.

use std::io::IsTerminal as _;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use clap::{Args, ValueEnum};
use oarlock_view::{ViewChange, Watched};

use super::flows::FlowClient;
use super::follow::{FollowEvent, Followed, Follower};
use super::names::{JobName, WatchedName, watched_name};
use super::ops::OpsClient;
use super::{JobClient, NamespaceArgs, now, print_line, terminal};
use crate::commands::output::print;

/// The exit code for an unknown outcome: the command failed, the user left, or the job was deleted.
pub(in crate::commands) const NOT_KNOWN: u8 = 3;
/// The time during which changes are collected into one view.
const GATHER: Duration = Duration::from_millis(100);

const EXAMPLES: &str = "\
Examples:
  oarlock watch opj/web                            follow the job to its end; `q` leaves, and the job goes on
  oarlock watch opj/web && echo all replaced       exit code 0: succeeded, 1: failed, 3: unknown (an error, `q`, or the job is deleted)
  oarlock watch opj/web | tee web.log              a line for each change
  oarlock watch ops/reboot-a                       an OpsJob with its phase and nodes
  oarlock watch jf/nightly                         a JobFlow as a graph; `d` changes to a table of the steps
  oarlock watch dj/patch-kernel                    a DaemonJob with its nodes, those with problems first
  oarlock watch opj/web -o json                    a JSON object for each change; docs/watching.md lists the fields

On a terminal: arrows, PgUp, PgDn, Home and End scroll. `f` goes to the next filter of rows. `q` or Ctrl-C leaves.";

/// Arguments of `oarlock watch`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct WatchArgs {
    /// Object to follow: a job as NAME or opj/NAME, an OpsJob as ops/NAME, a JobFlow as jf/NAME, a DaemonJob as dj/NAME
    #[arg(value_name = "NAME", value_parser = watched_name)]
    name: WatchedName,
    /// Output format [default: a screen on a terminal, lines of text elsewhere]
    #[arg(short, long, value_enum)]
    output: Option<WatchOutput>,
    #[command(flatten)]
    place: NamespaceArgs,
}

/// The format of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum WatchOutput {
    /// A line of JSON for each change.
    Json,
    /// A line of text for each change, also on a terminal.
    Text,
}

/// The end of a watch.
pub(super) enum Ended<V> {
    /// The object has ended; its last view.
    Whole(V),
    /// The object was deleted before it ended; its last view.
    Gone(V),
    /// The user left.
    Left,
    /// The reader of the lines has gone.
    Unread,
}

/// Follows the named object.
pub(crate) async fn run(args: WatchArgs) -> anyhow::Result<ExitCode> {
    let WatchArgs { name, output, place } = args;
    match name {
        WatchedName::Job(JobName::Operation(name)) => follow(JobClient::new(place).await?, &name, output).await,
        WatchedName::Job(JobName::Ops(name)) => follow(OpsClient::new(place).await?, &name, output).await,
        WatchedName::Flow(flow) => follow(FlowClient::new(place, flow.kind).await?, &flow.name, output).await,
    }
}

/// Follows the object of this name to its end. The exit code says how it ended.
pub(in crate::commands) async fn follow<C: Followed>(
    client: C,
    name: &str,
    output: Option<WatchOutput>,
) -> anyhow::Result<ExitCode> {
    let follower = Follower::new(client, name).await?;
    let handle = follower.view().handle();
    let live = output.is_none() && std::io::stdout().is_terminal() && std::io::stdin().is_terminal();
    let ended = if live { terminal::show(follower).await? } else { print_changes(follower, output).await? };
    match ended {
        Ended::Whole(view) => {
            if live {
                print(&view.text(now()))?;
            }
            Ok(if view.has_succeeded() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
        }
        Ended::Gone(view) => {
            if live {
                print(&(view.change_text(&ViewChange::Deleted, now()) + "\n"))?;
            }
            Ok(ExitCode::from(NOT_KNOWN))
        }
        Ended::Unread => Ok(ExitCode::from(NOT_KNOWN)),
        Ended::Left => {
            print(&format!("The job goes on; `oarlock watch {handle}` shows it again.\n"))?;
            Ok(ExitCode::from(NOT_KNOWN))
        }
    }
}

/// Prints a line for each change.
async fn print_changes<C: Followed>(
    mut follower: Follower<C>,
    output: Option<WatchOutput>,
) -> anyhow::Result<Ended<C::View>> {
    let mut shown: Option<C::View> = None;
    let line = |change: &ViewChange, view: &C::View| match output {
        Some(WatchOutput::Json) => view.change_line(change, now()).context("cannot write a change as JSON"),
        _ => Ok(view.change_text(change, now())),
    };
    loop {
        let mut view = follower.view();
        let has_ended = view.has_ended();
        if has_ended {
            view = follower.last_view().await;
        }
        for change in view.changes(shown.as_ref()) {
            if !print_line(&line(&change, &view)?)? && !has_ended {
                return Ok(Ended::Unread);
            }
        }
        if has_ended {
            return Ok(Ended::Whole(view));
        }
        let told = match follower.next().await? {
            FollowEvent::Changed => {
                tokio::time::sleep(GATHER).await;
                None
            }
            FollowEvent::Disconnected(cause) => Some(ViewChange::Disconnected(cause)),
            FollowEvent::Connected => Some(ViewChange::Connected),
            FollowEvent::Gone => return gone(&follower, &line),
        };
        if let Some(change) = told
            && !print_line(&line(&change, &view)?)?
        {
            return Ok(Ended::Unread);
        }
        shown = Some(view);
    }
}

/// Returns the end of a watch of a deleted object, whose last view may say that it had ended.
fn gone<C: Followed>(
    follower: &Follower<C>,
    line: &impl Fn(&ViewChange, &C::View) -> anyhow::Result<String>,
) -> anyhow::Result<Ended<C::View>> {
    let view = follower.view();
    if view.has_ended() {
        let _read = print_line(&line(&ViewChange::Job, &view)?)?;
        return Ok(Ended::Whole(view));
    }
    let _read = print_line(&line(&ViewChange::Deleted, &view)?)?;
    Ok(Ended::Gone(view))
}
