//! The commands for a real cluster on this machine.
//!
//! The module builds everything as the user, and runs the program of `tests/nodes` for the rest. If the user is not
//! root, the module uses sudo for that program only: root has no Rust, and files in `target` must not belong to root.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context as _, bail};

use crate::arguments::{Cluster, word};
use crate::workspace::{binary, cargo, succeed, target_folder};

/// The command `cargo xtask cluster`.
pub(crate) fn run(asked: &Cluster) -> anyhow::Result<ExitCode> {
    let folder = folder()?;
    let mut command = match asked {
        Cluster::Up { nodes, images } => up(&program()?, &folder, *nodes, images)?,
        Cluster::Status { json } => {
            let mut command = as_root(&program()?);
            command.arg("status").arg(&folder).args(json.then_some("--json"));
            command
        }
        Cluster::Build => return build().map(|()| ExitCode::SUCCESS),
        Cluster::Kubeconfig => {
            println!("{}", folder.join("kubeconfig").display());
            return Ok(ExitCode::SUCCESS);
        }
        Cluster::Node { order, name } => {
            let mut command = as_root(&program()?);
            command.arg("node").arg(&folder).args([&word(order), name]);
            command
        }
        Cluster::Down => {
            let mut command = as_root(&program()?);
            command.arg("down").arg(&folder);
            command
        }
    };
    let status = command.status().context("cannot run the program of the cluster")?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Builds the programs of nodes, and the S3 server of the scenarios on nodes.
fn build() -> anyhow::Result<()> {
    controlplane::node_binaries(&|line| println!("nodes: {line}"))?;
    controlplane::s3_server(&|line| println!("store: {line}"))?;
    Ok(())
}

/// Builds the program of `tests/nodes`. Returns its path.
pub(crate) fn program() -> anyhow::Result<PathBuf> {
    succeed(&mut cargo(&["build", "--quiet", "--package", "oarlock-nodes"]))?;
    Ok(binary("debug", "oarlock-nodes"))
}

/// Returns the folder of the user's cluster. The default is on a disk, because containers write there.
fn folder() -> anyhow::Result<PathBuf> {
    if let Some(folder) = std::env::var_os("OARLOCK_CLUSTER") {
        return std::path::absolute(folder).context("OARLOCK_CLUSTER is no path");
    }
    Ok(PathBuf::from(format!("/var/tmp/oarlock-cluster-{}", id("-u")?)))
}

/// Returns the number of the user (`-u`) or of its group (`-g`).
fn id(of: &str) -> anyhow::Result<String> {
    let output = Command::new("id").arg(of).output().context("cannot run id")?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Returns true if the user is root.
pub(crate) fn is_root() -> bool {
    id("-u").is_ok_and(|user| user == "0")
}

fn as_root(program: &Path) -> Command {
    if is_root() {
        return Command::new(program);
    }
    let mut command = Command::new("sudo");
    command.arg(program);
    command
}

fn up(program: &Path, folder: &Path, nodes: u8, own: &[PathBuf]) -> anyhow::Result<Command> {
    if let Some(missing) = own.iter().find(|path| !path.is_file()) {
        bail!("there is no image archive {}", missing.display());
    }
    let own = own.iter().map(std::path::absolute).collect::<Result<Vec<_>, _>>().context("an image has no path")?;
    if !is_root() && Command::new("sudo").arg("--version").output().is_err() {
        bail!(
            "containers need root, and sudo is missing: install the package sudo, or run this as root with Rust and Go for root"
        );
    }
    // This check must fail before a quarter of an hour of builds, not after it.
    succeed(Command::new(program).arg("check").arg(folder))?;
    let plane = controlplane::binaries(&|line| println!("control plane: {line}"))?;
    let node = controlplane::node_binaries(&|line| println!("nodes: {line}"))?;
    let images = base_images(program, &node.containers.join("busybox"))?;
    let mut command = as_root(program);
    command.arg("up").arg("--folder").arg(folder).arg("--nodes").arg(nodes.to_string());
    command.arg("--node-binaries").arg(&node.containers).arg("--kubelet").arg(&node.kubelet);
    command.arg("--nerdctl").arg(&node.nerdctl);
    command.arg("--plane-binaries").arg(plane.etcd.parent().unwrap_or(&node.kubelet));
    // The nodes get the image of `cargo xtask image` if it was built.
    let host = Some(target_folder().join("images").join("oarlock.tar")).filter(|path| path.exists());
    for image in images.into_iter().chain(host).chain(own) {
        command.arg("--image").arg(image);
    }
    command.arg("--owner").arg(id("-u")?).arg(id("-g")?);
    Ok(command)
}

/// The busybox programs that README's examples and the tests call.
const APPLETS: [&str; 30] = [
    "sh", "sleep", "cat", "echo", "true", "false", "ls", "date", "id", "hostname", "kill", "ps", "test", "touch",
    "mkdir", "rm", "grep", "head", "tail", "dd", "wget", "stat", "env", "seq", "wc", "cp", "mv", "setsid", "nslookup",
    "df",
];

/// Writes the images of every node: a shell, and the pause image that holds the namespaces of a pod.
pub(crate) fn base_images(program: &Path, busybox: &Path) -> anyhow::Result<[PathBuf; 2]> {
    let folder = target_folder().join("images");
    let root = folder.join("busybox");
    let bin = root.join("bin");
    std::fs::create_dir_all(&bin).with_context(|| format!("cannot create {}", bin.display()))?;
    std::fs::create_dir_all(root.join("tmp")).context("cannot create a folder")?;
    std::fs::create_dir_all(root.join("etc")).context("cannot create a folder")?;
    std::fs::write(root.join("etc/passwd"), "root:x:0:0:root:/:/bin/sh\n").context("cannot write a file")?;
    std::fs::copy(busybox, bin.join("busybox")).with_context(|| format!("cannot copy {}", busybox.display()))?;
    for applet in APPLETS {
        let link = bin.join(applet);
        let _ = std::fs::remove_file(&link);
        std::os::unix::fs::symlink("busybox", &link).with_context(|| format!("cannot link {}", link.display()))?;
    }
    let image = |name: &str, config: &str, file: &str| {
        let out = folder.join(file);
        let mut command = Command::new(program);
        command.arg("image").arg("--root").arg(&root).args(["--name", name, "--config", config]).arg("--out").arg(&out);
        succeed(&mut command).map(|()| out)
    };
    let shell = r#"{"Env": ["PATH=/bin"], "Cmd": ["sh"]}"#;
    let waits = r#"{"Env": ["PATH=/bin"], "Entrypoint": ["sh", "-c", "trap exit TERM INT; while :; do sleep 1000 & wait; done"]}"#;
    Ok([
        image("docker.io/library/busybox:latest", shell, "busybox.tar")?,
        image("registry.k8s.io/pause:3.10", waits, "pause.tar")?,
    ])
}
