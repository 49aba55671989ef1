//! `oarlock node-exec`: the program in the pod of a task, which runs one command on its node.
//!
//! The program writes the result as JSON into the pod's termination message, and the output of the command into the
//! pod's log. The program makes a marker on the node before the command starts. So the command runs at most once, even
//! if the pod, the kubelet or the host is killed. The program never talks to an API server.

mod command;
mod commit;
mod marker;
mod output;

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::Args;
use oarlock_core::operation_job::tasks::stored::{NodeResult, tail};
use sha2::{Digest as _, Sha256};
use tokio::signal::unix::{SignalKind, signal};

use self::command::{NoResult, NodeCommand, NodePaths};
use self::commit::CommitArgs;

/// The size of the longest termination message that the kubelet accepts.
const MOST_RESULT: usize = 4096;
/// The file from which the kubelet reads the termination message.
const TERMINATION_LOG: &str = "/dev/termination-log";
/// The script that reboots a node. systemd reboots 3 s later, so that the result of this command is known before.
const REBOOT: &str = "exec systemd-run --on-active=3s --timer-property=AccuracySec=100ms systemctl --no-block reboot\n";

/// Arguments of `oarlock node-exec`.
#[derive(Debug, Args)]
pub(crate) struct NodeExecArgs {
    /// Id of the command; a node runs the command of an id only once
    #[arg(long)]
    id: String,
    /// File of the script
    #[arg(long, requires = "sha256", conflicts_with = "builtin")]
    script: Option<PathBuf>,
    /// SHA-256 of the script, in hexadecimal digits
    #[arg(long)]
    sha256: Option<String>,
    /// Program on the node that runs the script
    #[arg(long, default_value = "/bin/sh")]
    interpreter: PathBuf,
    /// A built-in command: reboot or commit
    #[arg(long)]
    builtin: Option<String>,
    /// Seconds after which the command and all its processes are killed
    #[arg(long, default_value_t = 600)]
    timeout_seconds: u64,
    /// Do nothing if the node has another boot id
    #[arg(long)]
    expect_boot_id: Option<String>,
    #[command(flatten)]
    commit: CommitArgs,
}

/// Runs the command. Succeeds if the result was written, whatever the command's exit code is.
pub(crate) fn run(args: NodeExecArgs) -> anyhow::Result<ExitCode> {
    let mut log = File::options().write(true).open(TERMINATION_LOG).context("cannot open the termination message")?;
    let result = match begin(args) {
        Ok(result) => result,
        Err(error) => unfinished(&error),
    };
    log.write_all(&message(result)?).context("cannot write the termination message")?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the result of a command that did not finish. Plugins read the first word: only after `refused` is it certain
/// that the command did not run.
fn unfinished(error: &anyhow::Error) -> NodeResult {
    let word = match error.downcast_ref() {
        Some(NoResult::BegunBefore | NoResult::Unwatched) => "lost",
        Some(NoResult::OtherBootId { .. }) => "rebooted",
        None => "refused",
    };
    NodeResult { message: Some(format!("{word}: {error:#}")), ..NodeResult::default() }
}

fn begin(args: NodeExecArgs) -> anyhow::Result<NodeResult> {
    let (text, commit) = match (&args.script, args.builtin.as_deref()) {
        (Some(path), None) => (checked(path, args.sha256.as_deref().unwrap_or_default())?, None),
        (None, Some("reboot")) => (REBOOT.to_owned(), None),
        (None, Some("commit")) => {
            // The files of the pod are out of reach after the root changes to the node's.
            let commit = args.commit.begin()?;
            (commit.script(), Some(commit))
        }
        (_, other) => bail!("there is no command {other:?}"),
    };
    enter_node()?;
    let command = NodeCommand {
        id: args.id,
        text,
        interpreter: args.interpreter,
        timeout: Duration::from_secs(args.timeout_seconds),
        expect_boot_id: args.expect_boot_id,
    };
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start the runtime")?;
    runtime.block_on(async {
        let mut asked = signal(SignalKind::terminate()).context("cannot wait for SIGTERM")?;
        let stop = async move {
            let _asked = asked.recv().await;
        };
        let result = command.run(&NodePaths::of_node(), stop).await?;
        Ok(match commit {
            Some(commit) => commit.conclude(result).await,
            None => result,
        })
    })
}

/// Returns the script if its digest is the expected one.
fn checked(path: &Path, sha256: &str) -> anyhow::Result<String> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read the script {}", path.display()))?;
    let digest: String = Sha256::digest(text.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect();
    anyhow::ensure!(digest == sha256, "the script is another one than was asked for: its SHA-256 is {digest}");
    Ok(text)
}

/// Changes the root to that of the node's first process. From then on, paths and programs are those of the node.
fn enter_node() -> anyhow::Result<()> {
    let cannot = "cannot reach the root of the node: the pod must be privileged and have `hostPID`";
    std::os::unix::fs::chroot("/proc/1/root").context(cannot)?;
    std::env::set_current_dir("/").context(cannot)
}

/// Returns the result as JSON that the kubelet accepts. Cuts the output further if the result is too long.
fn message(mut result: NodeResult) -> anyhow::Result<Vec<u8>> {
    result.message = result.message.map(|message| tail(&message, 512));
    loop {
        let text = serde_json::to_vec(&result).context("cannot write the result as JSON")?;
        if text.len() <= MOST_RESULT {
            return Ok(text);
        }
        // JSON escapes make control characters longer than their bytes.
        result.truncated = true;
        result.output = match result.output.char_indices().nth(result.output.chars().count().div_ceil(2)) {
            Some((at, _)) => result.output.split_off(at),
            None => String::new(),
        };
    }
}

#[cfg(test)]
#[path = "node_exec/tests.rs"]
mod tests;
