//! Runs one command on a node, from its marker to its result.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::Context as _;
use oarlock_core::operation_job::tasks::stored::NodeResult;
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::process::{Child, Command};
use tokio::time::timeout;

use super::marker;
use super::output::{Tail, read_both};

/// The time between SIGTERM and SIGKILL.
const PATIENCE: Duration = Duration::from_secs(5);
/// The time to read the rest of the output after the command ended. A background process of the command may hold the
/// output open.
const LAST_OUTPUT: Duration = Duration::from_secs(1);

/// The paths and the wrapper that commands use on a node.
pub(super) struct NodePaths {
    /// The folder of the markers.
    pub(super) markers: PathBuf,
    /// The file with the boot id.
    pub(super) boot_id: PathBuf,
    /// The words before the interpreter, which enter the node's namespaces.
    pub(super) within: Vec<String>,
}

impl NodePaths {
    /// Returns the places of a real node.
    pub(super) fn of_node() -> Self {
        // The namespaces of the first process give what a root alone does not: the node's mounts and its hostname.
        let within = ["nsenter", "--target", "1", "--mount", "--uts", "--ipc", "--net", "--"];
        Self {
            markers: "/var/lib/oarlock/commands".into(),
            boot_id: "/proc/sys/kernel/random/boot_id".into(),
            within: within.map(str::to_owned).to_vec(),
        }
    }
}

/// A command to run on a node.
pub(super) struct NodeCommand {
    /// The id of the command; a node runs the command of an id only once.
    pub(super) id: String,
    /// The script.
    pub(super) text: String,
    /// The program that runs the script.
    pub(super) interpreter: PathBuf,
    /// The time after which the command is killed.
    pub(super) timeout: Duration,
    /// The boot id that the node must have.
    pub(super) expect_boot_id: Option<String>,
}

/// The reason why a command has no result, if more is known than that the command did not start.
#[derive(Debug, thiserror::Error)]
pub(super) enum NoResult {
    /// The node has rebooted since the request.
    #[error("the node has the boot id {found}, and {expected} was expected")]
    OtherBootId {
        /// The boot id of the node.
        found: String,
        /// The boot id in the request.
        expected: String,
    },
    /// The marker of the command exists.
    #[error("it was begun on this node before, and runs at most once; its result is unknown")]
    BegunBefore,
    /// The command started, and its outcome is unknown.
    #[error("it was begun, and its result is unknown")]
    Unwatched,
}

/// The way in which a command ended.
enum End {
    ByItself(std::process::ExitStatus),
    TimedOut,
    Stopped,
}

impl NodeCommand {
    /// Runs the command, unless it started before. Kills it at its timeout, or when `stop` completes.
    ///
    /// # Errors
    /// If the command did not start now, or cannot be watched.
    pub(super) async fn run(self, place: &NodePaths, stop: impl Future<Output = ()>) -> anyhow::Result<NodeResult> {
        let boot_id = std::fs::read_to_string(&place.boot_id).context("cannot read the boot id of the node")?;
        let boot_id = boot_id.trim().to_owned();
        if let Some(expected) = self.expect_boot_id.as_ref().filter(|expected| **expected != boot_id) {
            return Err(NoResult::OtherBootId { found: boot_id, expected: expected.clone() }.into());
        }
        marker::remove_oldest(&place.markers, marker::KEPT);
        let marker = marker::make(&place.markers, &self.id)?;
        let script = marker.join("script");
        std::fs::write(&script, &self.text).context("cannot write the script")?;
        let mut child = self.start(&place.within, &script)?;
        let mut tail = Tail::default();
        let end = self.watch(&mut child, &mut tail, stop).await.context(NoResult::Unwatched)?;
        // The marker stays. The script is removed, because it may hold secrets.
        let _kept = std::fs::remove_file(&script).is_err();
        let (exit_code, message) = match end {
            End::ByItself(status) => {
                (status.code(), status.code().is_none().then(|| format!("it was ended by {status}")))
            }
            End::TimedOut => (None, Some(format!("timed out after {} s", self.timeout.as_secs()))),
            End::Stopped => (None, Some("cancelled: it was asked to end".to_owned())),
        };
        let (sha256, output, truncated) = (Some(tail.sha256()), tail.text(), tail.is_cut());
        Ok(NodeResult { exit_code, boot_id, sha256, output, truncated, message })
    }

    fn start(&self, within: &[String], script: &Path) -> anyhow::Result<Child> {
        let words: Vec<&OsStr> =
            within.iter().map(OsStr::new).chain([self.interpreter.as_os_str(), script.as_os_str()]).collect();
        let (program, arguments) = words.split_first().context("there is nothing to start")?;
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // A process group of its own can be killed as a whole.
        command.process_group(0).kill_on_drop(true);
        command.spawn().with_context(|| format!("cannot start {}", program.to_string_lossy()))
    }

    async fn watch(&self, child: &mut Child, tail: &mut Tail, stop: impl Future<Output = ()>) -> anyhow::Result<End> {
        let (out, err) = (child.stdout.take(), child.stderr.take());
        let (out, err) = out.zip(err).context("the output of the command cannot be read")?;
        let mut reading = std::pin::pin!(read_both(out, err, tail));
        let mut stop = std::pin::pin!(stop);
        let group = child.id();
        let mut is_open = true;
        let deadline = tokio::time::sleep(self.timeout);
        let mut deadline = std::pin::pin!(deadline);
        let end = loop {
            tokio::select! {
                status = child.wait() => break End::ByItself(status.context("cannot wait for the command")?),
                () = &mut deadline => break End::TimedOut,
                () = &mut stop => break End::Stopped,
                () = &mut reading, if is_open => is_open = false,
            }
        };
        if !matches!(end, End::ByItself(_)) {
            signal_group(group, Signal::TERM);
            {
                let mut polite = std::pin::pin!(timeout(PATIENCE, child.wait()));
                let mut ended = false;
                while !ended {
                    tokio::select! {
                        _ = &mut polite => ended = true,
                        () = &mut reading, if is_open => is_open = false,
                    }
                }
            }
            signal_group(group, Signal::KILL);
            child.wait().await.context("cannot wait for the command")?;
        }
        if is_open {
            let _held_open = timeout(LAST_OUTPUT, reading).await.is_err();
        }
        Ok(end)
    }
}

/// Signals all processes of a group. Ignores a group that has ended.
fn signal_group(group: Option<u32>, signal: Signal) {
    let group = group.and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
    let _gone = group.is_some_and(|group| kill_process_group(group, signal).is_err());
}
