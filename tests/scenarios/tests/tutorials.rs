//! The tutorials: every command of a page runs as it is written there, on its own cluster in memory.

use std::fmt::Write as _;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use oarlock_scenarios::components;
use oarlock_scenarios::host_process::host_binary;
use oarlock_support::children::Child;

/// The address of the server in a page. The test uses a free port instead.
const SERVER: &str = "127.0.0.1:8090";
/// The time limit of a page. A page takes about a minute on an idle machine.
const PAGE_WITHIN: Duration = Duration::from_secs(420);

/// The commands of a page.
#[derive(Debug, Default)]
struct Page {
    /// The command that starts the cluster.
    start: String,
    /// All other commands, as one script.
    script: String,
}

impl Page {
    /// Reads the blocks `sh dev`, `sh` and `sh fails`. The commands of a block `sh fails` must fail.
    fn read(text: &str) -> Self {
        let mut page = Self::default();
        let blocks = text.split("\n```").collect::<Vec<_>>();
        // Texts and blocks alternate.
        for (number, block) in blocks.iter().skip(1).step_by(2).enumerate() {
            let (kind, commands) = block.split_once('\n').unwrap_or_default();
            let script = &mut page.script;
            let _always = match kind {
                "sh dev" => {
                    page.start = commands.to_owned();
                    Ok(())
                }
                "sh" => writeln!(script, "echo '# block {number}' >&2\n{commands}"),
                "sh fails" => writeln!(
                    script,
                    "echo '# block {number}, which fails' >&2\nset +e\n(set -e\n{commands}\n)\nended=$?\nset -e\n[ $ended -ne 0 ] || {{ echo 'it did not fail' >&2; exit 1; }}"
                ),
                _ => Ok(()),
            };
        }
        page
    }
}

/// Returns a free port below the range from which the system takes ports by itself, so that no process gets it before the page uses it.
fn unclaimed_port() -> anyhow::Result<u16> {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let first = 20_000 + u16::try_from(std::process::id() % 1_000)? * 10;
    let mut ports = std::iter::repeat_with(|| first + NEXT.fetch_add(1, Ordering::Relaxed)).take(1_000);
    ports.find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok()).context("no port is free")
}

/// Runs all commands of a page from first to last.
async fn every_command_works(name: &str, text: &str) -> anyhow::Result<()> {
    let free = format!("127.0.0.1:{}", unclaimed_port()?);
    let page = Page::read(&text.replace(SERVER, &free));
    ensure!(!page.start.is_empty() && !page.script.is_empty(), "the page has no commands");
    let folder = Folder(std::env::temp_dir().join(format!("oarlock-page-{}-{name}", std::process::id())));
    std::fs::create_dir_all(folder.0.join("plugins"))?;
    let kubectl = controlplane::binaries(&|line| eprintln!("control plane: {line}"))?.kubectl;
    let host = host_binary()?;
    let folders = [host.parent(), kubectl.parent()].into_iter().flatten().map(|folder| folder.to_owned());
    let before = std::env::var_os("PATH").unwrap_or_default();
    let path = std::env::join_paths(folders.chain(std::env::split_paths(&before)))?;
    let bash = |script: String| {
        let mut command = Command::new("bash");
        command.args(["-e", "-o", "pipefail", "-c", &script]).current_dir(&folder.0).env("PATH", &path);
        command
            .env("PLUGINS", components::folder())
            .env("HOME", &folder.0)
            .env("XDG_CACHE_HOME", folder.0.join("cache"));
        command
    };
    let mut dev = Child::spawn("oarlock dev", bash(format!("exec {}", page.start)), folder.0.join("dev.log"))?;
    let kubeconfig = folder.0.join("dev.kubeconfig");
    let begun = Instant::now();
    while !kubeconfig.exists() {
        ensure!(dev.ended()?.is_none() && begun.elapsed() < PAGE_WITHIN, "it did not start:\n{}", dev.tail(30));
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let mut shell = bash(page.script);
    shell.env("KUBECONFIG", &kubeconfig).stdin(Stdio::null());
    let mut shell = Child::spawn("the commands", shell, folder.0.join("commands.log"))?;
    let status = loop {
        if let Some(status) = shell.ended()? {
            break status;
        }
        ensure!(begun.elapsed() < PAGE_WITHIN, "they do not end:\n{}", shell.tail(60));
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    ensure!(status.success(), "they ended with {status}:\n{}\noarlock dev:\n{}", shell.tail(60), dev.tail(30));
    dev.kill();
    Ok(())
}

/// A folder that is removed when this value is dropped.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _gone = std::fs::remove_dir_all(&self.0).is_ok();
    }
}

#[tokio::test]
async fn every_command_of_the_tutorial_of_operation_jobs_works() -> anyhow::Result<()> {
    every_command_works("operationjob", include_str!("../../../docs/operationjob-tutorial.md"))
        .await
        .context("OperationJob")
}

#[tokio::test]
async fn every_command_of_the_tutorial_of_flows_works() -> anyhow::Result<()> {
    every_command_works("jobflow", include_str!("../../../docs/jobflow-tutorial.md")).await.context("JobFlow")
}

#[tokio::test]
async fn every_command_of_the_tutorial_of_ops_jobs_works() -> anyhow::Result<()> {
    every_command_works("opsjob", include_str!("../../../docs/opsjob-tutorial.md")).await.context("OpsJob")
}

#[tokio::test]
async fn a_command_that_fails_and_one_that_was_to_fail_end_the_page() -> anyhow::Result<()> {
    let start = "```sh dev\noarlock dev --plugins plugins --kubeconfig-out dev.kubeconfig\n```\n";
    for (blocks, why) in [("```sh\nfalse\n```\n", "block 1"), ("```sh fails\ntrue\n```\n", "it did not fail")] {
        let failed = every_command_works("wrong", &format!("A page.\n{start}\n{blocks}")).await.unwrap_err();
        ensure!(failed.to_string().contains(why), "{failed:#}");
    }
    every_command_works("right", &format!("A page.\n{start}\n```sh\ntrue\n```\n\n```sh fails\nfalse\ntrue\n```\n"))
        .await
}
