//! One node: containerd and kubelet, and scripts in place of the programs that would reboot the machine.
//!
//! A reboot happens only within the namespaces: this process kills all processes of the node, changes the boot ID, and
//! starts containerd and kubelet again. `node-exec` enters the namespaces of the node's first process and calls
//! `systemd-run` and `systemctl`. On a node, both are scripts that leave a request for a reboot. The files that a node
//! writes are in the node's folder. The rest of its file system is the machine's, so root on a node is root on the
//! machine.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use crate::cgroups;
use crate::layout::{Layout, Plan, REGISTRY, node_address, node_name, pod_range};
use crate::outer::forward;
use crate::run::{pause, run, start};

/// Time limit for containerd to answer.
const READY_WITHIN: Duration = Duration::from_secs(60);
/// Delay between an order and the reboot, as with `systemd-run --on-active`.
const REBOOT_AFTER: Duration = Duration::from_secs(3);
/// Delay before this process restarts a service that ended.
const RESTART_AFTER: Duration = Duration::from_secs(1);
/// Time for which a machine is off while it reboots.
const OFF_FOR: Duration = Duration::from_secs(3);
/// The boot id that the kubelet, `node-exec` and the node read.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
/// The socket of containerd in the node.
const CONTAINERD: &str = "/run/containerd/containerd.sock";

/// Folders of which each node has its own, with their names in the node's folder.
const OWN: [(&str, &str); 6] = [
    ("/var/lib/oarlock", "lib-oarlock"),
    ("/var/lib/kubelet", "kubelet"),
    ("/var/lib/cni", "cni"),
    ("/var/log", "log"),
    ("/var/lib/nerdctl", "nerdctl"),
    // On most machines, this folder is otherwise empty.
    ("/usr/local/sbin", "sbin"),
];

/// Kernel settings that a kubelet changes. No namespace separates them, so each node has files in their place.
const SETTINGS: [&str; 6] = [
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
];

/// Runs the node until it is killed.
///
/// # Errors
///
/// If a part of the node cannot be started.
pub fn run_node(folder: &Path, number: u8) -> anyhow::Result<()> {
    let layout = Layout::new(folder);
    let plan = layout.plan()?;
    let node = Node { folder: layout.node(number), name: node_name(number), layout: &layout, plan: &plan, number };
    node.prepare()?;
    loop {
        let mut running = node.boot()?;
        node.until_reboot(&mut running)?;
        println!("{} goes down", node.name);
        node.go_down(running);
        pause(OFF_FOR);
    }
}

struct Node<'a> {
    layout: &'a Layout,
    plan: &'a Plan,
    number: u8,
    name: String,
    folder: PathBuf,
}

impl Node<'_> {
    /// Makes the preparations that stay across reboots.
    fn prepare(&self) -> anyhow::Result<()> {
        run("hostname", &[&self.name])?;
        run("mount", &["-t", "proc", "proc", "/proc"])?;
        run("mount", &["-t", "tmpfs", "tmpfs", "/run"])?;
        fs::create_dir_all("/run/netns").context("cannot create /run/netns")?;
        forward()?;
        for (place, name) in OWN {
            let own = self.folder.join(name);
            fs::create_dir_all(&own).with_context(|| format!("cannot create {}", own.display()))?;
            // This leaves an empty folder on a machine that had none. Nothing removes it, because other programs may
            // use it.
            fs::create_dir_all(place).with_context(|| format!("cannot create {place}"))?;
            run("mount", &["--bind", &own.display().to_string(), place])?;
        }
        run("mount", &["--make-rshared", "/var/lib/kubelet"])?;
        let nerdctl = Path::new("/usr/local/sbin/nerdctl");
        if !nerdctl.is_symlink() {
            std::os::unix::fs::symlink(&self.plan.nerdctl, nerdctl).context("cannot give the node nerdctl")?;
        }
        for setting in SETTINGS {
            let place = Path::new("/proc/sys").join(setting);
            let own = self.folder.join(setting.replace('/', "-"));
            // A kernel without key support has no settings for keys.
            if let Ok(text) = fs::read_to_string(&place) {
                fs::write(&own, text).with_context(|| format!("cannot write {}", own.display()))?;
                run("mount", &["--bind", &own.display().to_string(), &place.display().to_string()])?;
            }
        }
        for program in ["systemctl", "systemd-run"] {
            self.play(program)?;
        }
        self.configure()
    }

    /// Covers a program of the machine with a script that requests a reboot of the node.
    fn play(&self, program: &str) -> anyhow::Result<()> {
        let own = self.folder.join(program);
        let script = format!(
            "#!/bin/sh\necho \"{program} $*\" >> /var/lib/oarlock/reboots.log\ncase \"$*\" in *reboot*) touch /run/reboot;; esac\n"
        );
        fs::write(&own, script).with_context(|| format!("cannot write {}", own.display()))?;
        fs::set_permissions(&own, fs::Permissions::from_mode(0o755)).context("cannot make a script executable")?;
        let place = Path::new("/usr/bin").join(program);
        if !place.exists() {
            bail!("{} is not there to be covered: install the package systemd", place.display());
        }
        run("mount", &["--bind", &own.display().to_string(), &place.display().to_string()]).map(drop)
    }

    fn at(&self, name: &str) -> String {
        self.folder.join(name).display().to_string()
    }

    /// Writes the configuration of containerd, the network plugins and the kubelet.
    fn configure(&self) -> anyhow::Result<()> {
        let write = |name: &str, text: String| {
            let path = self.folder.join(name);
            fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
        };
        let networks = self.folder.join("networks");
        fs::create_dir_all(&networks).context("cannot create the folder of networks")?;
        let range = json!([[{ "subnet": pod_range(self.number) }]]);
        let addresses = json!({"type": "host-local", "dataDir": self.at("addresses"), "ranges": range, "routes": [{"dst": "0.0.0.0/0"}]});
        let bridge =
            json!({"type": "bridge", "bridge": "pods0", "isGateway": true, "ipMasq": false, "ipam": addresses});
        let list = json!({"cniVersion": "1.0.0", "name": "pods", "plugins": [bridge]});
        write("networks/10-pods.conflist", list.to_string())?;
        write("containerd.toml", self.containerd_config())?;
        write("kubelet.json", self.kubelet_config().to_string())
    }

    fn containerd_config(&self) -> String {
        let (binaries, networks) = (self.plan.node_binaries.display(), self.at("networks"));
        format!(
            r#"version = 3
root = "{root}"
state = "/run/containerd"
[grpc]
  address = "{CONTAINERD}"
[ttrpc]
  address = "{CONTAINERD}.ttrpc"
[plugins.'io.containerd.internal.v1.opt']
  path = "{opt}"
[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = "registry.k8s.io/pause:3.10"
[plugins.'io.containerd.cri.v1.images'.registry]
  config_path = "{registries}"
[plugins.'io.containerd.cri.v1.runtime']
  restrict_oom_score_adj = true
[plugins.'io.containerd.cri.v1.runtime'.cni]
  bin_dirs = ["{binaries}"]
  conf_dir = "{networks}"
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
  BinaryName = "{binaries}/runc"
  SystemdCgroup = false
"#,
            root = self.at("containerd"),
            opt = self.at("opt"),
            registries = self.layout.at("registries").display(),
        )
    }

    fn kubelet_config(&self) -> serde_json::Value {
        let authority = self.layout.at("plane/ca.crt");
        let certificate = |end: &str| self.layout.at(&format!("plane/{}-server.{end}", self.name));
        json!({
            "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
            "failCgroupV1": false,
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": format!("/{}/{}", cgroups::name_of(&self.plan.id), self.name),
            "containerRuntimeEndpoint": format!("unix://{CONTAINERD}"),
            "authentication": {"anonymous": {"enabled": false}, "webhook": {"enabled": true}, "x509": {"clientCAFile": authority}},
            "authorization": {"mode": "Webhook"},
            "tlsCertFile": certificate("crt"), "tlsPrivateKeyFile": certificate("key"),
            "enforceNodeAllocatable": [],
            "failSwapOn": false,
            // Nobody can collect a log that the kubelet has rotated away.
            "containerLogMaxSize": "200Mi",
            "volumePluginDir": self.at("volume-plugins"),
            "address": "0.0.0.0", "port": 10250, "healthzPort": 0, "readOnlyPort": 0,
            "nodeStatusUpdateFrequency": "2s",
            "evictionPressureTransitionPeriod": "5s",
            "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
            "imageGCHighThresholdPercent": 100,
        })
    }

    /// Starts containerd, gives it the images, and starts the kubelet.
    fn boot(&self) -> anyhow::Result<[Child; 2]> {
        self.change_boot_id()?;
        let _ = fs::remove_file("/run/reboot");
        // All pods of the last boot are gone, so no address is in use.
        let _ = fs::remove_dir_all(self.folder.join("addresses"));
        let containerd = self.start_containerd()?;
        self.until_containerd()?;
        self.import_images()?;
        let kubelet = self.start_kubelet()?;
        println!("{} booted with {}", self.name, fs::read_to_string(BOOT_ID).unwrap_or_default().trim());
        Ok([containerd, kubelet])
    }

    fn path(&self) -> String {
        format!("{}:{}", self.plan.node_binaries.display(), std::env::var("PATH").unwrap_or_default())
    }

    fn start_containerd(&self) -> anyhow::Result<Child> {
        let mut containerd = Command::new(self.plan.node_binaries.join("containerd"));
        containerd.arg("--config").arg(self.folder.join("containerd.toml")).env("PATH", self.path());
        start(containerd, &self.folder.join("containerd.log"))
    }

    fn start_kubelet(&self) -> anyhow::Result<Child> {
        let mut kubelet = Command::new(self.plan.kubelet.join("kubelet"));
        kubelet.arg("--kubeconfig").arg(self.layout.kubeconfig(&self.name));
        kubelet.arg("--config").arg(self.folder.join("kubelet.json")).env("PATH", self.path());
        kubelet.args(["--root-dir=/var/lib/kubelet", &format!("--hostname-override={}", self.name)]);
        kubelet.arg(format!("--node-ip={}", node_address(self.number)));
        start(kubelet, &self.folder.join("kubelet.log"))
    }

    fn change_boot_id(&self) -> anyhow::Result<()> {
        let _ = run("umount", &[BOOT_ID]);
        let id = fs::read_to_string("/proc/sys/kernel/random/uuid").context("the kernel makes no UUID")?;
        let own = self.layout.boot_id(&self.name);
        fs::write(&own, id).with_context(|| format!("cannot write {}", own.display()))?;
        run("mount", &["--bind", &own.display().to_string(), BOOT_ID]).map(drop)
    }

    fn ctr(&self, arguments: &[&str]) -> anyhow::Result<String> {
        let ctr = self.plan.node_binaries.join("ctr").display().to_string();
        run(&ctr, &[&["--address", CONTAINERD, "--namespace", "k8s.io"], arguments].concat())
    }

    fn until_containerd(&self) -> anyhow::Result<()> {
        let begun = Instant::now();
        loop {
            match self.ctr(&["version"]) {
                Ok(_) => return Ok(()),
                Err(cause) if begun.elapsed() > READY_WITHIN => {
                    return Err(cause)
                        .with_context(|| format!("containerd does not answer: see {}", self.at("containerd.log")));
                }
                Err(_) => pause(Duration::from_millis(100)),
            }
        }
    }

    /// Imports the images in the first boot. Later boots find them.
    fn import_images(&self) -> anyhow::Result<()> {
        let done = self.folder.join("imported");
        if done.exists() {
            return Ok(());
        }
        for image in &self.plan.images {
            self.ctr(&["images", "import", "--local", &image.display().to_string()])?;
        }
        if self.number == 1 {
            self.push_images()?;
        }
        fs::write(&done, "").context("cannot note that the images are there")
    }

    /// Pushes the images into the registry, because the kubelet pulls an image without a tag each time.
    fn push_images(&self) -> anyhow::Result<()> {
        let names = self.ctr(&["images", "list", "--quiet"])?;
        let named = names.lines().filter(|name| !name.starts_with("sha256:"));
        for (name, path) in named.filter_map(|name| Some((name, name.split_once('/')?.1))) {
            self.ctr(&["images", "push", "--plain-http", &format!("{REGISTRY}/{path}"), name])?;
        }
        Ok(())
    }

    /// Waits until a reboot is ordered, and for its delay. Until then the function restarts services that end, as
    /// systemd does.
    fn until_reboot(&self, running: &mut [Child; 2]) -> anyhow::Result<()> {
        while !Path::new("/run/reboot").exists() {
            let [containerd, kubelet] = running;
            if containerd.try_wait().context("cannot ask whether containerd runs")?.is_some() {
                pause(RESTART_AFTER);
                *containerd = self.start_containerd()?;
            }
            if kubelet.try_wait().context("cannot ask whether the kubelet runs")?.is_some() {
                pause(RESTART_AFTER);
                *kubelet = self.start_kubelet()?;
            }
            pause(Duration::from_millis(200));
        }
        pause(REBOOT_AFTER);
        Ok(())
    }

    /// Kills every process of the node except the first process and this one, and unmounts what containers had mounted.
    fn go_down(&self, running: [Child; 2]) {
        let (own, first) = (std::process::id(), 1);
        for _ in 0..50 {
            let others: Vec<u32> = processes().filter(|&pid| pid != own && pid != first).collect();
            if others.is_empty() {
                break;
            }
            for pid in others.iter().filter_map(|&pid| Pid::from_raw(i32::try_from(pid).ok()?)) {
                // The process may have ended meanwhile.
                let _ = kill_process(pid, Signal::KILL);
            }
            pause(Duration::from_millis(100));
        }
        running.into_iter().for_each(|mut child| drop(child.wait()));
        for place in mounts() {
            let _ = run("umount", &["--lazy", &place]);
        }
        let _ = fs::remove_dir_all("/run/containerd");
        cgroups::remove_below(&format!("{}/{}", cgroups::name_of(&self.plan.id), self.name));
    }
}

/// Returns the processes of this PID namespace.
fn processes() -> impl Iterator<Item = u32> {
    fs::read_dir("/proc").into_iter().flatten().flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// Returns the mounts of containers and pods, the innermost first.
fn mounts() -> Vec<String> {
    let text = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let places = text.lines().filter_map(|line| line.split(' ').nth(1));
    let mut places: Vec<String> = places
        .filter(|place| place.starts_with("/var/lib/kubelet/") || place.starts_with("/run/"))
        .map(str::to_owned)
        .collect();
    places.reverse();
    places
}
