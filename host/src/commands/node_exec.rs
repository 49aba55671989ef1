//! `oarlock node-exec`: what the pod of a task runs on its node.
//!
//! Takes one command; leaves its result as JSON in the termination message of the pod, and its output in the pod's log. A
//! marker on the node is made before anything is begun, so that the command runs at most once, whatever becomes of the pod,
//! the kubelet or the host. May not know a cluster.

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
use oarlock_core::job::task::{NodeResult, tail};
use sha2::{Digest as _, Sha256};
use tokio::signal::unix::{SignalKind, signal};

use self::command::{NoResult, NodeCommand, Place};
use self::commit::CommitArgs;

/// What the kubelet takes of a termination message.
const MOST_RESULT: usize = 4096;
/// Where the kubelet reads the termination message.
const TERMINATION_LOG: &str = "/dev/termination-log";
/// What reboots a node: systemd does it 3 s later, when the result of this command is known.
const REBOOT: &str = "exec systemd-run --on-active=3s --timer-property=AccuracySec=100ms systemctl --no-block reboot\n";

/// Arguments of `oarlock node-exec`.
#[derive(Debug, Args)]
pub(crate) struct NodeExecArgs {
    /// Id of the command: of one id a node runs one command, once
    #[arg(long)]
    id: String,
    /// File of the script
    #[arg(long, requires = "sha256", conflicts_with = "builtin")]
    script: Option<PathBuf>,
    /// SHA-256 of the script, in hexadecimal digits
    #[arg(long)]
    sha256: Option<String>,
    /// Program on the node that is given the script
    #[arg(long, default_value = "/bin/sh")]
    interpreter: PathBuf,
    /// A command of the host: reboot or commit
    #[arg(long)]
    builtin: Option<String>,
    /// Time after which the command and all that it began are ended
    #[arg(long, default_value_t = 600)]
    timeout_seconds: u64,
    /// Do nothing where the node has another boot id
    #[arg(long)]
    expect_boot_id: Option<String>,
    #[command(flatten)]
    commit: CommitArgs,
}

/// Runs the command. It ends well where its result was left, whatever that is.
pub(crate) fn run(args: NodeExecArgs) -> anyhow::Result<ExitCode> {
    let mut log = File::options().write(true).open(TERMINATION_LOG).context("cannot open the termination message")?;
    let result = match begin(args) {
        Ok(result) => result,
        Err(error) => unfinished(&error),
    };
    log.write_all(&message(result)?).context("cannot write the termination message")?;
    Ok(ExitCode::SUCCESS)
}

/// The result of a command that has none of its own. Plugins go by its first word: only one that was refused did not run.
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
            // What the pod has of it is out of reach once the root is that of the node.
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
        let result = command.run(&Place::of_node(), stop).await?;
        Ok(match commit {
            Some(commit) => commit.conclude(result).await,
            None => result,
        })
    })
}

/// The script, if it is the one that was asked for.
fn checked(path: &Path, sha256: &str) -> anyhow::Result<String> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read the script {}", path.display()))?;
    let digest: String = Sha256::digest(text.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect();
    anyhow::ensure!(digest == sha256, "the script is another one than was asked for: its SHA-256 is {digest}");
    Ok(text)
}

/// Goes where the first process of the node has its root: from then on paths and programs are those of the node.
fn enter_node() -> anyhow::Result<()> {
    let cannot = "cannot reach the root of the node: the pod must be privileged and have `hostPID`";
    std::os::unix::fs::chroot("/proc/1/root").context(cannot)?;
    std::env::set_current_dir("/").context(cannot)
}

/// The result as the kubelet takes it: where it is too long, more of the output is left out.
fn message(mut result: NodeResult) -> anyhow::Result<Vec<u8>> {
    result.message = result.message.map(|message| tail(&message, 512));
    loop {
        let text = serde_json::to_vec(&result).context("cannot write the result as JSON")?;
        if text.len() <= MOST_RESULT {
            return Ok(text);
        }
        // Control characters take more room than they have bytes.
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
