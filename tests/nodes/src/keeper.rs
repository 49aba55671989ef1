//! The life of a cluster on its machine: start, state, end, and the cleanup of clusters that died.
//!
//! A keeper holds the lock of the cluster's folder. The keeper is the parent of the outer namespaces, so they end with
//! the keeper in every case. The keeper also forwards connections from 127.0.0.1 to the API server inside. If no
//! process holds the lock of a folder, the cluster of the folder is dead.

use std::fs::{self, File};
use std::io;
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::os::unix::fs::chown;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use clap::Args;

use crate::cgroups;
use crate::layout::{Layout, MOST_NODES, Plan};
use crate::run::{enter_namespaces, package_of, pause, run, start, start_with};
use crate::states::{Order, ask, is_ready};

/// Time limit for all nodes to become Ready.
const READY_WITHIN: Duration = Duration::from_secs(300);
/// The programs of the machine that a cluster calls.
const PROGRAMS: [&str; 10] =
    ["unshare", "nsenter", "setpriv", "setsid", "ip", "mount", "umount", "hostname", "systemctl", "systemd-run"];
/// The socket in the cluster's folder that leads to the API server.
pub const API: &str = "api";

/// The arguments of `up`.
#[derive(Args, Debug)]
pub struct Start {
    /// Empty folder for the cluster
    #[arg(long)]
    folder: PathBuf,
    /// Number of nodes
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=i64::from(MOST_NODES)))]
    nodes: u8,
    /// Folder of containerd, runc and the network plugins
    #[arg(long)]
    node_binaries: PathBuf,
    /// Folder of kubelet and scheduler
    #[arg(long)]
    kubelet: PathBuf,
    /// The program nerdctl, for each node
    #[arg(long)]
    nerdctl: PathBuf,
    /// The program versitygw, for an object store
    #[arg(long)]
    store: Option<PathBuf>,
    /// Folder of the PostgreSQL programs, for a database
    #[arg(long)]
    database: Option<PathBuf>,
    /// Folder of etcd, the API server and kubectl
    #[arg(long)]
    plane_binaries: PathBuf,
    /// An image archive that every node imports; can be repeated
    #[arg(long = "image")]
    images: Vec<PathBuf>,
    /// End the cluster when the standard input closes
    #[arg(long)]
    bound: bool,
    /// Owner of the kubeconfig: a user and a group, as numbers
    #[arg(long, num_args = 2, value_names = ["UID", "GID"])]
    owner: Vec<u32>,
}

/// Starts a cluster and waits until its nodes are Ready.
///
/// # Errors
///
/// If this is not Linux, the user is not root, something is missing, or a part does not start. The message names the
/// log.
pub fn up(asked: &Start) -> anyhow::Result<()> {
    if !rustix::process::geteuid().is_root() {
        bail!("namespaces, mounts and control groups need root: run it by sudo");
    }
    check(&asked.folder)?;
    if asked.folder.exists() {
        clear_dead(&Layout::of_existing(&asked.folder)?)?;
    }
    fs::create_dir_all(&asked.folder).with_context(|| format!("cannot create {}", asked.folder.display()))?;
    let layout = Layout::of_existing(&asked.folder)?;
    let folder = layout.root.clone();
    let plan = Plan {
        id: id()?,
        nodes: asked.nodes,
        node_binaries: asked.node_binaries.clone(),
        kubelet: asked.kubelet.clone(),
        nerdctl: asked.nerdctl.clone(),
        store: asked.store.clone(),
        database: asked.database.clone(),
        plane_binaries: asked.plane_binaries.clone(),
        program: std::env::current_exe().context("cannot tell the path of this program")?,
        images: asked.images.clone(),
        port: TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
            .and_then(|free| free.local_addr())
            .context("no port is free")?
            .port(),
    };
    let text = serde_json::to_vec_pretty(&plan).context("cannot write the plan")?;
    fs::write(layout.at("plan.json"), text).with_context(|| format!("cannot write into {}", folder.display()))?;
    let mut keeper = Command::new("setsid");
    keeper.arg(&plan.program).arg("keep").arg(&folder);
    if asked.bound {
        keeper.arg("--bound");
    }
    let stdin = if asked.bound { Stdio::inherit() } else { Stdio::null() };
    let mut keeper = start_with(keeper, stdin, &layout.at("keeper.log"))?;
    let begun = Instant::now();
    let mut said = String::new();
    loop {
        if let Some(status) = keeper.try_wait().context("cannot ask whether the keeper runs")? {
            let log = fs::read_to_string(layout.at("keeper.log")).unwrap_or_default();
            bail!("the cluster ended with {status}:\n{log}");
        }
        let state = state(&layout, &plan);
        if let Some(dead) = ask(&layout, "nodes").ok().and_then(|nodes| dead_node(&nodes)) {
            let log = fs::read_to_string(layout.at(&format!("nodes/{dead}/node.log"))).unwrap_or_default();
            bail!("{dead} ended: {}", log.lines().last().unwrap_or_default());
        }
        if state != said {
            println!("{state}");
            said.clone_from(&state);
        }
        if state.starts_with("ready") {
            break;
        }
        if begun.elapsed() > READY_WITHIN {
            bail!("not ready after {} s: see the logs in {}", READY_WITHIN.as_secs(), folder.display());
        }
        pause(Duration::from_millis(300));
    }
    if let [user, group] = asked.owner.as_slice() {
        chown(layout.outside(), Some(*user), Some(*group)).context("cannot hand the kubeconfig over")?;
    }
    println!("{} nodes are Ready after {} s", plan.nodes, begun.elapsed().as_secs());
    println!("export KUBECONFIG={}", layout.outside().display());
    Ok(())
}

/// Checks that the machine has everything for a cluster in this folder, before anything is built.
///
/// # Errors
///
/// If something is missing, or a cluster runs in the folder. The message names the package or the cluster.
pub fn check(folder: &Path) -> anyhow::Result<()> {
    if !cfg!(target_os = "linux") {
        bail!("kubelets and containers need Linux");
    }
    for program in PROGRAMS {
        if which(program).is_none() {
            bail!("{program} is missing: {}", package_of(program));
        }
    }
    if cgroups::hierarchies().is_empty() {
        bail!("this machine has no control groups: mount them at /sys/fs/cgroup");
    }
    if folder.exists() {
        is_dead(&Layout::of_existing(folder)?)?;
    }
    Ok(())
}

fn which(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(program)).find(|path| path.is_file())
}

/// Returns the first node without power from the cluster's answer about all nodes.
fn dead_node(nodes: &str) -> Option<String> {
    nodes.split(' ').find_map(|pair| pair.strip_suffix("=off")).map(str::to_owned)
}

fn id() -> anyhow::Result<String> {
    let uuid = fs::read_to_string("/proc/sys/kernel/random/uuid").context("the kernel makes no UUID")?;
    Ok(uuid.chars().take(8).collect())
}

/// Returns the progress of the cluster's start as one line.
fn state(layout: &Layout, plan: &Plan) -> String {
    if !layout.at("started").exists() {
        return "the control plane starts".to_owned();
    }
    let ready = ready_nodes(layout, plan).unwrap_or_default();
    let count = ready.iter().filter(|(_, ready)| *ready).count();
    if count == usize::from(plan.nodes) {
        "ready".to_owned()
    } else {
        format!("{count} of {} nodes are Ready", plan.nodes)
    }
}

/// Returns the nodes that the API server knows, and whether each node is Ready.
fn ready_nodes(layout: &Layout, plan: &Plan) -> anyhow::Result<Vec<(String, bool)>> {
    let kubectl = plan.plane_binaries.join("kubectl").display().to_string();
    let config = format!("--kubeconfig={}", layout.outside().display());
    let text = run(&kubectl, &[&config, "get", "nodes", "-o", "json", "--request-timeout=5s"])?;
    let list: serde_json::Value = serde_json::from_str(&text).context("kubectl prints no JSON")?;
    let items = list.pointer("/items").and_then(serde_json::Value::as_array).cloned().unwrap_or_default();
    let read = |node: &serde_json::Value| {
        let name = node.pointer("/metadata/name")?.as_str()?.to_owned();
        Some((name, is_ready(node)))
    };
    Ok(items.iter().filter_map(read).collect())
}

/// Holds the lock, starts the cluster in its namespaces, and forwards connections until the cluster ends.
///
/// # Errors
///
/// If another keeper holds the lock, the namespaces cannot be created, or the cluster ends.
pub fn keep(folder: &Path, is_bound: bool) -> anyhow::Result<()> {
    let layout = Layout::new(folder);
    let plan = layout.plan()?;
    let lock = File::create(layout.at("lock")).context("cannot create the lock")?;
    lock.try_lock().with_context(|| format!("another cluster runs in {}", folder.display()))?;
    fs::write(layout.at("keeper.pid"), std::process::id().to_string()).context("cannot write the keeper's number")?;
    let mut within = Command::new("setpriv");
    within.args(["--pdeathsig", "KILL"]);
    enter_namespaces(&mut within, &["--net"], &plan.program);
    within.arg("outer").arg(folder);
    let mut within = start(within, &layout.at("outer.log"))?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, plan.port));
    let listener = listener.with_context(|| format!("cannot listen on 127.0.0.1:{}", plan.port))?;
    let api = layout.at(API);
    thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let api = api.clone();
            thread::spawn(move || UnixStream::connect(api).and_then(|server| join(client, server)));
        }
    });
    if is_bound {
        thread::spawn(|| {
            let _ = io::copy(&mut io::stdin(), &mut io::sink());
            // The kernel kills the cluster when this process ends.
            std::process::exit(0);
        });
    }
    let status = within.wait().context("cannot wait for the cluster")?;
    let log = fs::read_to_string(layout.at("outer.log")).unwrap_or_default();
    let last: Vec<&str> = log.lines().rev().take(5).collect();
    bail!("what runs within ended with {status}: {}", last.into_iter().rev().collect::<Vec<_>>().join("; "))
}

/// Forwards bytes in both directions until both ends are closed.
///
/// # Errors
///
/// If a connection cannot be shared.
pub fn join(client: TcpStream, server: UnixStream) -> io::Result<()> {
    let (mut from_client, mut to_client) = (client.try_clone()?, client);
    let (mut from_server, mut to_server) = (server.try_clone()?, server);
    let up = thread::spawn(move || {
        let _ = io::copy(&mut from_client, &mut to_server);
        let _ = to_server.shutdown(Shutdown::Write);
    });
    let _ = io::copy(&mut from_server, &mut to_client);
    let _ = to_client.shutdown(Shutdown::Both);
    let _ = up.join();
    Ok(())
}

/// Prints the state of the cluster in a folder.
///
/// # Errors
///
/// If no cluster runs in the folder.
pub fn status(folder: &Path, json: bool) -> anyhow::Result<()> {
    let layout = Layout::of_existing(folder)?;
    let plan = layout.plan()?;
    let power = ask(&layout, "nodes")?;
    let ready = ready_nodes(&layout, &plan).unwrap_or_default();
    let rows = power.split(' ').filter_map(|pair| pair.split_once('='));
    let rows = rows.map(|(name, power)| {
        let ready = ready.iter().any(|(one, ready)| one == name && *ready);
        (name.to_owned(), power.to_owned(), ready)
    });
    if json {
        let nodes: Vec<_> = rows
            .map(|(name, power, ready)| serde_json::json!({"name": name, "power": power, "ready": ready}))
            .collect();
        let all = serde_json::json!({"folder": folder, "kubeconfig": layout.outside(), "nodes": nodes});
        println!("{}", serde_json::to_string_pretty(&all).context("cannot write JSON")?);
        return Ok(());
    }
    println!("NODE      POWER   READY");
    rows.for_each(|(name, power, ready)| println!("{name:10}{power:8}{ready}"));
    println!("export KUBECONFIG={}", layout.outside().display());
    Ok(())
}

/// Kills or boots a node.
///
/// # Errors
///
/// If there is no such node, or the node is already in that state.
pub fn order(folder: &Path, what: Order, name: &str) -> anyhow::Result<()> {
    ask(&Layout::of_existing(folder)?, &format!("{} {name}", what.word())).map(drop)
}

/// Ends the cluster of a folder, and removes its files and control groups.
///
/// # Errors
///
/// If the keeper cannot be ended, or something cannot be removed.
pub fn down(folder: &Path) -> anyhow::Result<()> {
    let layout = Layout::of_existing(folder)?;
    let plan = layout.plan()?;
    let keeper = fs::read_to_string(layout.at("keeper.pid")).ok().and_then(|text| text.trim().parse::<i32>().ok());
    // A folder without a lock belongs to a cluster that ended and was removed in part.
    if let (Some(keeper), Ok(lock)) = (keeper, File::open(layout.at("lock"))) {
        // Only a living keeper holds the lock, so the number cannot belong to another process.
        if lock.try_lock().is_err()
            && let Some(pid) = rustix::process::Pid::from_raw(keeper)
        {
            rustix::process::kill_process(pid, rustix::process::Signal::KILL).context("cannot end the keeper")?;
            lock.lock().context("cannot wait for the keeper")?;
        }
    }
    remove(&layout, &plan)
}

/// Removes what a dead cluster left.
fn clear_dead(layout: &Layout) -> anyhow::Result<()> {
    is_dead(layout)?;
    match layout.plan() {
        Ok(plan) => remove(layout, &plan),
        // The folder is empty.
        Err(_) => Ok(()),
    }
}

/// Returns an error if the folder is neither empty nor of a dead cluster.
fn is_dead(layout: &Layout) -> anyhow::Result<()> {
    let root = layout.root.display();
    if layout.plan().is_err() {
        let is_empty = fs::read_dir(&layout.root).is_ok_and(|mut entries| entries.next().is_none());
        if !is_empty {
            bail!("{root} has files that are of no cluster: name an empty folder");
        }
    }
    if File::open(layout.at("lock")).is_ok_and(|lock| lock.try_lock().is_err()) {
        bail!("a cluster runs in {root}: end it with `cluster down`");
    }
    Ok(())
}

/// Removes the cluster's files and control groups. Control groups stay busy for a moment after their processes end, and
/// mounts stay until their namespace is gone. If this function is interrupted, you can repeat it, because it removes
/// the plan last.
fn remove(layout: &Layout, plan: &Plan) -> anyhow::Result<()> {
    let group = cgroups::name_of(&plan.id);
    let begun = Instant::now();
    loop {
        let emptied = empty(layout);
        cgroups::remove(&group);
        match emptied {
            Ok(()) if !cgroups::exists(&group) => break,
            Err(cause) if begun.elapsed() > Duration::from_secs(20) => return Err(cause),
            Ok(()) if begun.elapsed() > Duration::from_secs(20) => bail!("cannot remove the control groups {group}"),
            _ => pause(Duration::from_millis(200)),
        }
    }
    fs::remove_dir_all(&layout.root).with_context(|| format!("cannot remove {}", layout.root.display()))
}

/// Removes all files except the plan.
fn empty(layout: &Layout) -> anyhow::Result<()> {
    let entries = fs::read_dir(&layout.root).with_context(|| format!("cannot list {}", layout.root.display()))?;
    for entry in entries.flatten().filter(|entry| entry.file_name() != "plan.json") {
        let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
        let removed = if is_folder { fs::remove_dir_all(entry.path()) } else { fs::remove_file(entry.path()) };
        removed.with_context(|| format!("cannot remove {}", entry.path().display()))?;
    }
    Ok(())
}
