//! `oarlock watch`: follows one job to its end, on the whole terminal, or with a line for each change.

use std::io::IsTerminal as _;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use clap::{Args, ValueEnum};
use oarlock_view::{JobView, ShownProgress, TargetRows, ViewChange, change_line, change_text, changes, job_text};

use super::follow::{FollowEvent, Follower};
use super::{JobClient, NamespaceArgs, job_name, now, print_line, terminal};
use crate::commands::print;

/// The outcome of the job is not known: the command failed, was left, or the job was deleted.
pub(in crate::commands) const NOT_KNOWN: u8 = 3;
/// Changes within this time are one view.
const GATHER: Duration = Duration::from_millis(100);

const EXAMPLES: &str = "\
Examples:
  oarlock watch opj/web                            live, until it ends; `q` leaves, and the job goes on
  oarlock watch opj/web && echo all replaced       exit code 0: succeeded, 1: failed, 3: not known (an error, left, deleted)
  oarlock watch opj/web | tee web.log              a line for each change
  oarlock watch opj/web -o json                    a JSON object for each change; docs/watching.md lists the fields

On a terminal: arrows, PgUp, PgDn, Home and End scroll, `f` changes which targets are shown, `q` or Ctrl-C leaves.";

/// Arguments of `oarlock watch`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct WatchArgs {
    /// The job, as NAME or opj/NAME
    #[arg(value_name = "NAME", value_parser = job_name)]
    name: String,
    /// Output format [default: a screen on a terminal, lines of text elsewhere]
    #[arg(short, long, value_enum)]
    output: Option<WatchOutput>,
    #[command(flatten)]
    place: NamespaceArgs,
}

/// The format of what is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum WatchOutput {
    /// A line of JSON for each change.
    Json,
    /// A line of text for each change, also on a terminal.
    Text,
}

/// How a watch ended.
pub(super) enum Ended {
    /// The job has ended; its last view.
    Job(JobView),
    /// The job was deleted before that.
    Gone(JobView),
    /// The user left.
    Left,
    /// Whoever read the lines has gone.
    Unread,
}

/// Follows the job.
pub(crate) async fn run(args: WatchArgs) -> anyhow::Result<ExitCode> {
    let client = JobClient::new(args.place).await?;
    follow(client, &args.name, args.output).await
}

/// Follows the job of this name to its end. The exit code says how it ended.
pub(in crate::commands) async fn follow(
    client: JobClient,
    name: &str,
    output: Option<WatchOutput>,
) -> anyhow::Result<ExitCode> {
    let follower = Follower::new(client, name).await?;
    let live = output.is_none() && std::io::stdout().is_terminal() && std::io::stdin().is_terminal();
    let ended = if live { terminal::show(follower).await? } else { print_changes(follower, output).await? };
    match ended {
        Ended::Job(job) => {
            if live {
                print(&job_text(&job, TargetRows::First, now()))?;
            }
            let succeeded = job.progress == ShownProgress::Succeeded;
            Ok(if succeeded { ExitCode::SUCCESS } else { ExitCode::FAILURE })
        }
        Ended::Gone(job) => {
            if live {
                print(&(change_text(&ViewChange::Deleted, &job, now()) + "\n"))?;
            }
            Ok(ExitCode::from(NOT_KNOWN))
        }
        Ended::Unread => Ok(ExitCode::from(NOT_KNOWN)),
        Ended::Left => {
            print(&format!("The job goes on; `oarlock watch opj/{name}` shows it again.\n"))?;
            Ok(ExitCode::from(NOT_KNOWN))
        }
    }
}

/// Prints a line for each change.
async fn print_changes(mut follower: Follower, output: Option<WatchOutput>) -> anyhow::Result<Ended> {
    let mut shown: Option<JobView> = None;
    let line = |change: &ViewChange, job: &JobView| match output {
        Some(WatchOutput::Json) => change_line(change, job, now()).context("cannot write a change as JSON"),
        _ => Ok(change_text(change, job, now())),
    };
    loop {
        let mut job = follower.view();
        let has_ended = job.progress.is_terminal();
        if has_ended {
            job = follower.last_view().await;
        }
        for change in changes(shown.as_ref(), &job) {
            if !print_line(&line(&change, &job)?)? && !has_ended {
                return Ok(Ended::Unread);
            }
        }
        if has_ended {
            return Ok(Ended::Job(job));
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
            && !print_line(&line(&change, &job)?)?
        {
            return Ok(Ended::Unread);
        }
        shown = Some(job);
    }
}

/// The end of a job that is gone: its last view may say that it had ended.
fn gone(follower: &Follower, line: &impl Fn(&ViewChange, &JobView) -> anyhow::Result<String>) -> anyhow::Result<Ended> {
    let job = follower.view();
    if job.progress.is_terminal() {
        let _read = print_line(&line(&ViewChange::Job, &job)?)?;
        return Ok(Ended::Job(job));
    }
    let _read = print_line(&line(&ViewChange::Deleted, &job)?)?;
    Ok(Ended::Gone(job))
}
