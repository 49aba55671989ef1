//! The environment of a story: a Kubernetes API in memory, a simulated cluster, and a host as a process of its own.
//!
//! The environment serves the API on a free port of this machine. Nothing but the kubeconfig, the plugin directory and the
//! grants is between the host and the environment. At its end, the environment ends all processes and removes its folder.

use std::fs::{DirBuilder, create_dir, remove_dir_all, write};
use std::net::Ipv4Addr;
use std::os::unix::fs::{DirBuilderExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use kube::Client;
use oarlock_sim::world::{Ledger, Seedbed, Span, Timings, World, WorldOptions};
use oarlock_sim::{Cluster, ImageRegistry, RealClock};
use oarlock_support::children::Child;
use oarlock_support::install::{self, Way};
use serde_json::json;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use crate::play::until;

/// The namespace of the sets.
pub(crate) const NAMESPACE: &str = "default";

/// The grants of all plugins of the stories. The plugin `overreach` gets what it asks for. The plugin `greedy` gets one
/// line of five, so that it waits for the other four.
const GRANTS: &str = concat!(
    include_str!("../../../plugins/replace/grant.yaml"),
    include_str!("../../../plugins/restart/grant.yaml"),
    include_str!("../../../plugins/addon/grant.yaml"),
    include_str!("../../../plugins/dumplog/grant.yaml"),
    include_str!("../../../plugins/exportimage/grant.yaml"),
    include_str!("../../../plugins/preflight/grant.yaml"),
    include_str!("../../../plugins/reboot/grant.yaml"),
    include_str!("../grants.yaml")
);

/// Commands of the host's binary, which prepare the cluster and start the host.
const MANIFESTS: &str = "manifests --grants grants.yaml --flows --ops --rest";
const HOST: &str =
    "host --plugins plugins --identity demo --listen 127.0.0.1:0 --task-image oarlock --data data --log info";

/// Most lines of a log that the environment reads.
const LOG_LINES: usize = 1_000;
/// A simulated pod is ready within a second or two.
const SETTLED_WITHIN: Duration = Duration::from_secs(30);

/// The needs of a story.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Needs {
    /// The plugin files that the story adds.
    pub(crate) plugins: &'static [&'static str],
    /// The number of pods of the CollaSet `foo`.
    pub(crate) collaset: usize,
    /// The number of pods of the Deployment `web`.
    pub(crate) deployment: usize,
    /// The number of nodes.
    pub(crate) nodes: usize,
}

/// The environment of a story.
pub(crate) struct Environment {
    /// A client of the API server.
    pub(crate) client: Client,
    /// The scheduler, the kubelets and the controllers.
    pub(crate) world: World,
    /// The address of the registry of images.
    pub(crate) registry: String,
    /// How long a story watches that nothing happens: longer than anything in this world takes to begin.
    pub(crate) hold: Duration,
    /// The processes. They end before the folder goes.
    processes: Vec<Child>,
    folder: Folder,
    _served: JoinSet<std::io::Result<()>>,
}

/// A folder that is removed with this value. Only this user may read it.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        if let Err(cause) = remove_dir_all(&self.0) {
            eprintln!("cannot remove {}: {cause}", self.0.display());
        }
    }
}

impl Environment {
    /// Sets everything up: the host leads and serves nothing. If `hurried`, pods start at once.
    pub(crate) async fn set(scenery: Needs, plugins_from: &Path, hurried: bool) -> anyhow::Result<Self> {
        let Needs { plugins, collaset, deployment, nodes } = scenery;
        let folder = Folder(std::env::temp_dir().join(format!("oarlock-demo-{}", std::process::id())));
        let made = DirBuilder::new().mode(0o700).create(&folder.0);
        made.with_context(|| {
            format!("cannot create {}: set TMPDIR to a folder that can be written", folder.0.display())
        })?;
        fill(&folder.0, plugins_from, plugins)?;

        let clock = Arc::new(RealClock);
        let cluster = Cluster::new(oarlock_sim::Options { clock: clock.clone(), ..oarlock_sim::Options::default() });
        let client = Client::new(cluster.service(), NAMESPACE);
        let mut served = JoinSet::new();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.context("cannot listen for the API")?;
        let kubeconfig = json!({"apiVersion": "v1", "kind": "Config", "current-context": "demo",
            "clusters": [{"name": "demo", "cluster": {"server": format!("http://{}", listener.local_addr()?)}}],
            "contexts": [{"name": "demo", "context": {"cluster": "demo", "user": "demo", "namespace": NAMESPACE}}],
            "users": [{"name": "demo", "user": {}}]});
        served.spawn(async move { cluster.serve(listener).await });
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.context("cannot listen for a registry")?;
        let registry = listener.local_addr()?.to_string();
        served.spawn(ImageRegistry::default().serve(listener));
        write(folder.0.join("kubeconfig"), kubeconfig.to_string())?;
        write(folder.0.join("grants.yaml"), GRANTS.replace("[docker.io,", &format!("[{registry},")))?;

        let printed =
            tokio::process::Command::from(command(&folder.0, "oarlock")).args(MANIFESTS.split(' ')).output().await?;
        ensure!(printed.status.success(), "`oarlock {MANIFESTS}`: {}", String::from_utf8_lossy(&printed.stderr));
        let documents = install::documents(&String::from_utf8(printed.stdout)?)?;
        install::install(&client, &documents, Way::Apply).await?;
        let timings = if hurried { soon() } else { slow_enough_to_follow() };
        let sleep_factor = if hurried { 0.1 } else { 1.0 };
        let options = WorldOptions { timings, nodes, sleep_factor, ..WorldOptions::new(1, clock) };
        let world = World::start(client.clone(), options).await.context("the simulated cluster did not start")?;
        world.install_kruise().await.context("cannot install OpenKruise")?;
        let seedbed = Seedbed::namespace(client.clone(), NAMESPACE).await?;
        for set in [seedbed.collaset("foo", collaset).await?, seedbed.deployment("web", deployment).await?] {
            world.settled(&set, SETTLED_WITHIN).await?;
        }

        let hold = Duration::from_secs(if hurried { 1 } else { 3 });
        let mut environment = Self { client, world, registry, hold, processes: Vec::new(), folder, _served: served };
        environment.start(&format!("{HOST} --export-registry {}", environment.registry))?;
        environment.until_logged("host", "leading", |log| log.contains("took the lease").then_some(())).await?;
        Ok(environment)
    }

    /// Returns the list of the physical effects on pods and nodes.
    pub(crate) fn ledger(&self) -> &Ledger {
        self.world.ledger()
    }

    /// Returns a path in the folder of the environment.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.0.join(name)
    }

    /// Starts a command of the host's binary that runs until the environment ends.
    pub(crate) fn start(&mut self, arguments: &str) -> anyhow::Result<()> {
        let mut command = command(&self.folder.0, "oarlock");
        command.args(arguments.split(' '));
        let name = arguments.split(' ').next().unwrap_or_default();
        self.processes.push(Child::spawn(name, command, self.path(&format!("{name}.log")))?);
        Ok(())
    }

    /// Waits until the log of a process, `host` or `server`, has something, and returns it.
    pub(crate) async fn until_logged<T>(
        &mut self,
        name: &str,
        what: &str,
        find: impl Fn(&str) -> Option<T>,
    ) -> anyhow::Result<T> {
        let process = self.processes.iter_mut().find(|process| process.name() == name);
        let process = process.with_context(|| format!("`oarlock {name}` was not started"))?;
        until(&format!("`oarlock {name}` to log that it is {what}"), async || {
            ensure!(process.ended()?.is_none(), "`oarlock {name}` ended by itself:\n{}", process.tail(20));
            Ok(find(&process.tail(LOG_LINES)))
        })
        .await
    }

    /// Returns the last lines of each process.
    pub(crate) fn logs(&self) -> String {
        self.processes.iter().map(|process| format!("oarlock {}:\n{}\n", process.name(), process.tail(20))).collect()
    }

    /// Returns a command of the shell, as the user types it. It ends when it is dropped.
    pub(crate) fn shell(&self, line: &str) -> tokio::process::Command {
        let mut shell = tokio::process::Command::from(command(&self.folder.0, "/bin/sh"));
        // The shell becomes the command, so that the command is what ends.
        shell.arg("-c").arg(format!("exec {line}")).kill_on_drop(true);
        shell
    }
}

/// Fills the folder: the binary of the host, the plugins that can be dropped, and the directory that the host watches.
fn fill(folder: &Path, plugins_from: &Path, plugins: &[&str]) -> anyhow::Result<()> {
    let own = std::env::current_exe().context("cannot find the path of this program")?;
    let binary = std::env::var_os("OARLOCK_BINARY").map_or_else(|| own.with_file_name("oarlock"), PathBuf::from);
    ensure!(binary.is_file(), "there is no host at {}: run `cargo xtask demo`, which builds it", binary.display());
    ["bin", "plugins"].iter().try_for_each(|name| create_dir(folder.join(name)))?;
    symlink(std::path::absolute(binary)?, folder.join("bin/oarlock"))?;
    for plugin in plugins {
        let name = format!("{plugin}.wasm");
        // Cargo puts some into `examples`.
        let found = [plugins_from.join(&name), plugins_from.join("examples").join(&name)];
        let found = found.into_iter().find(|path| path.is_file()).with_context(|| {
            let from = plugins_from.display();
            format!(
                "{from} has no {name}: run `cargo xtask demo`, which builds it, or name its folder with --plugins-from"
            )
        })?;
        symlink(std::path::absolute(found)?, folder.join(name))?;
    }
    Ok(())
}

/// A program that knows nothing but the cluster and the folder of the environment.
fn command(folder: &Path, program: &str) -> Command {
    let own = folder.join("bin");
    let program = if program == "oarlock" { own.join(program) } else { PathBuf::from(program) };
    let mut command = Command::new(program);
    let path = std::env::var("PATH").unwrap_or_default();
    command.current_dir(folder).env_clear().env("PATH", format!("{}:{path}", own.display()));
    command.env("KUBECONFIG", folder.join("kubeconfig")).env("XDG_CACHE_HOME", folder.join("cache"));
    command
}

fn soon() -> Timings {
    let soon = Span::millis(5, 20);
    Timings { react: soon, start: soon, ready: soon, available: soon, terminate: soon }
}

fn slow_enough_to_follow() -> Timings {
    Timings { start: Span::millis(300, 800), ready: Span::millis(300, 900), ..Timings::default() }
}
