//! Pages of the documentation: every command of a page runs as it is written there, on its own cluster in memory.
//! `oarlock_repository::pages` describes the marks of blocks.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::net::TcpListener;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use oarlock_repository::{Block, blocks};
use oarlock_scenarios::components;
use oarlock_scenarios::host_process::host_binary;
use oarlock_support::children::Child;

/// The address of the server in a page. The test uses a free port instead.
const SERVER: &str = "127.0.0.1:8090";
/// The build folder of pages that build a plugin. The next run builds faster.
const BUILT: &str = concat!(env!("CARGO_TARGET_TMPDIR"), "/built");
/// The time limit of a page. A page takes about a minute on an idle machine.
const PAGE_WITHIN: Duration = Duration::from_secs(420);

/// The commands of a page, as scripts for bash.
#[derive(Debug, Default)]
struct Page {
    /// The commands that start the cluster. The last one serves the cluster.
    start: String,
    /// The path of the kubeconfig that `start` writes.
    kubeconfig: PathBuf,
    /// All other commands.
    script: String,
}

impl Page {
    /// Reads the blocks of a page whose reader begins in `repository`, and changes to `empty` after a block `sh setup`.
    fn read(text: &str, repository: &Path, empty: &Path) -> anyhow::Result<Self> {
        let blocks = blocks(text);
        let of_kind = |kind: &'static str| blocks.iter().filter(move |block| block.in_memory() == Some(kind));
        let setup: String = of_kind("setup").map(|block| block.text.clone() + "\n").collect();
        let begin = if setup.is_empty() {
            format!("cd {}\n", repository.display())
        } else {
            format!("cd {}\n{setup}cd {}\n", repository.display(), empty.display())
        };
        let [Some(dev), None] = ({
            let mut all = of_kind("dev");
            [all.next(), all.next()]
        }) else {
            anyhow::bail!("the page does not start one cluster");
        };
        let (first, last) = dev.text.rsplit_once('\n').unwrap_or(("", &dev.text));
        let flag = last.split_once("--kubeconfig-out ").context("`oarlock dev` needs --kubeconfig-out")?;
        let kubeconfig = flag.1.split_whitespace().next().unwrap_or_default();
        let folder = if setup.is_empty() { repository } else { empty };
        let script = blocks.iter().filter_map(script_of).fold(begin.clone(), |script, block| script + &block);
        ensure!(script != begin, "the page has no commands");
        Ok(Self { start: format!("{begin}{first}\nexec {last}"), kubeconfig: folder.join(kubeconfig), script })
    }
}

/// Returns the script of a block that runs after the start of the cluster.
fn script_of(block: &Block) -> Option<String> {
    let Block { line, text, .. } = block;
    let mut script = format!("echo '# line {line}' >&2\n");
    let _always = match block.in_memory()? {
        "" => writeln!(script, "{text}"),
        "fails" => writeln!(
            script,
            "set +e\n(set -e\n{text}\n)\nended=$?\nset -e\n[ $ended -ne 0 ] || {{ echo 'it did not fail' >&2; exit 1; }}"
        ),
        _ => return None,
    };
    Some(script)
}

/// Returns the folder that the environment variable names, or else this folder in the home of the user.
fn of_user(name: &str, folder: &str) -> OsString {
    let at_home = || std::env::home_dir().unwrap_or_default().join(folder).into_os_string();
    std::env::var_os(name).unwrap_or_else(at_home)
}

/// Makes a folder that looks like this repository after a build, for commands that name its `target`.
fn built_repository(folder: &Path) -> anyhow::Result<()> {
    let (debug, wasm) = (folder.join("target/debug"), folder.join("target/wasm32-wasip2"));
    std::fs::create_dir_all(&debug)?;
    std::fs::create_dir_all(&wasm)?;
    symlink(std::path::absolute(host_binary()?)?, debug.join("oarlock"))?;
    symlink(std::path::absolute(components::folder())?, wasm.join("release"))?;
    symlink(oarlock_repository::root().join("Cargo.lock"), folder.join("Cargo.lock"))?;
    Ok(())
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
    let name = name.replace('/', "-");
    let folder = Folder(std::env::temp_dir().join(format!("oarlock-page-{}-{name}", std::process::id())));
    let [repository, empty] = ["repository", "empty"].map(|inside| folder.0.join(inside));
    std::fs::create_dir_all(&empty)?;
    built_repository(&repository)?;
    let page = Page::read(&text.replace(SERVER, &free), &repository, &empty)?;
    let kubectl = controlplane::binaries(&|line| eprintln!("control plane: {line}"))?.kubectl;
    let before = std::env::var_os("PATH").unwrap_or_default();
    let path =
        std::env::join_paths(kubectl.parent().map(Path::to_owned).into_iter().chain(std::env::split_paths(&before)))?;
    // A page that builds a plugin needs the tools of this user, although it has a home of its own.
    let [cargo, rustup] =
        [("CARGO_HOME", ".cargo"), ("RUSTUP_HOME", ".rustup")].map(|(name, folder)| of_user(name, folder));
    let bash = |script: String| {
        let mut command = Command::new("bash");
        command.args(["-e", "-o", "pipefail", "-c", &script]).current_dir(&folder.0).stdin(Stdio::null());
        command.env("PATH", &path).env("HOME", &folder.0).env("XDG_CACHE_HOME", folder.0.join("cache"));
        command
            .env_remove("KUBECONFIG")
            .env("CARGO_HOME", &cargo)
            .env("RUSTUP_HOME", &rustup)
            .env("OARLOCK_BUILT", BUILT);
        command
    };
    let mut dev = Child::spawn("oarlock dev", bash(page.start), folder.0.join("dev.log"))?;
    let begun = Instant::now();
    while !page.kubeconfig.exists() {
        ensure!(dev.ended()?.is_none() && begun.elapsed() < PAGE_WITHIN, "it did not start:\n{}", dev.tail(30));
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let mut shell = Child::spawn("the commands", bash(page.script), folder.0.join("commands.log"))?;
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

/// Defines a test that runs the commands of one page.
macro_rules! page {
    ($test:ident, $page:literal) => {
        #[tokio::test]
        async fn $test() -> anyhow::Result<()> {
            every_command_works(stringify!($test), include_str!($page)).await.context($page)
        }
    };
}

page!(every_command_of_the_tutorial_of_operation_jobs_works, "../../../docs/operationjob-tutorial.md");
page!(every_command_of_the_tutorial_of_flows_works, "../../../docs/jobflow-tutorial.md");
page!(every_command_of_the_tutorial_of_ops_jobs_works, "../../../docs/opsjob-tutorial.md");
page!(every_command_of_the_tutorial_for_admins_works, "../../../docs/admin-tutorial.md");
page!(every_command_of_the_tutorial_of_plugins_works, "../../../docs/plugin-tutorial.md");
page!(every_command_of_the_tutorial_of_plugins_in_javascript_works, "../../../docs/plugin-tutorial-javascript.md");
page!(every_command_of_the_tutorial_of_plugins_in_python_works, "../../../docs/plugin-tutorial-python.md");
page!(every_command_of_readme_for_a_cluster_in_memory_works, "../../../README.md");
page!(every_command_of_the_page_on_grants_works, "../../../docs/grants.md");
page!(every_command_of_the_page_on_installation_that_needs_no_node_works, "../../../docs/install.md");
page!(every_command_of_the_reference_of_flows_works, "../../../docs/jobflow.md");
page!(every_command_of_the_reference_of_ops_jobs_works, "../../../docs/opsjob.md");
page!(every_command_of_the_reference_of_rest_works, "../../../docs/opsjob-rest.md");
page!(every_command_of_the_page_on_plans_works, "../../../docs/planning.md");
page!(every_command_of_the_page_on_browsers_works, "../../../docs/page.md");
page!(every_command_of_the_page_on_watching_works, "../../../docs/watching.md");
page!(every_command_for_people_who_know_kusionstack_works, "../../../docs/coming-from/kusionstack.md");
page!(every_command_for_people_who_know_the_jobflow_operator_works, "../../../docs/coming-from/jobflow.md");
page!(every_command_for_people_who_know_primus_safe_works, "../../../docs/coming-from/primus-safe.md");
page!(every_command_for_people_who_know_kured_works, "../../../docs/coming-from/kured.md");
page!(
    every_command_for_people_who_know_the_system_upgrade_controller_works,
    "../../../docs/coming-from/system-upgrade-controller.md"
);
page!(every_command_for_people_who_have_scripts_with_kubectl_works, "../../../docs/coming-from/kubectl-drain.md");

#[tokio::test]
async fn a_command_that_fails_and_one_that_was_to_fail_end_the_page() -> anyhow::Result<()> {
    let start = "```sh dev\noarlock dev --plugins plugins --kubeconfig-out dev.kubeconfig\n```\n";
    let start = format!("```sh setup\nexport PATH=$PWD/target/debug:$PATH\n```\n\n{start}");
    for (blocks, why) in [("```sh\nfalse\n```\n", "line 10"), ("```sh fails\ntrue\n```\n", "it did not fail")] {
        let failed = every_command_works("wrong", &format!("A page.\n{start}\n{blocks}")).await.unwrap_err();
        ensure!(failed.to_string().contains(why), "{failed:#}");
    }
    every_command_works("right", &format!("A page.\n{start}\n```sh\ntrue\n```\n\n```sh fails\nfalse\ntrue\n```\n"))
        .await
}
