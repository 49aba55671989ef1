//! The control plane and the nodes inside the outer namespaces. All of them are children of this process.
//!
//! This process never ends by itself. Its keeper ends the process together with everything in its PID namespace, and so
//! does the death of the keeper.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, ErrorKind, Write as _};
use std::net::TcpStream;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use serde_json::json;

use crate::keeper::{API, join};
use crate::layout::{
    BUCKET, DATABASE, DATABASE_PASSWORD, EXPORTS, IMAGES, Layout, PLANE, PORT, Plan, REGISTRY, SERVICE, STORE,
    STORE_KEY, STORE_SECRET, USER, node_address, node_name, node_number, pod_range,
};
use crate::run::{enter_namespaces, pause, run, start};
use crate::states::SOCKET;
use crate::{certificates, cgroups};

/// The bcrypt hash of the registries' password, for the htpasswd file.
const HASH: &str = "$2b$04$abcdefghijklmnopqrstuuhG3pYqWdJFy/KtRyi1sS7JrDoXcC/bq";
/// Time limit for the API server to become ready. It takes 3 s, and a minute on a busy machine.
const READY_WITHIN: Duration = Duration::from_secs(180);

/// Starts the control plane and the nodes, writes the file `started`, and serves orders at the control socket.
///
/// # Errors
///
/// If a part cannot be started.
pub fn run_cluster(layout: &Layout, plan: &Plan) -> anyhow::Result<()> {
    run("mount", &["-t", "proc", "proc", "/proc"])?;
    // The names of network namespaces are in /run, and the machine's own /run must not change.
    run("mount", &["-t", "tmpfs", "tmpfs", "/run"])?;
    network(plan)?;
    certificates::write(layout, plan)?;
    let mut servers = Servers::default();
    servers.start(layout, plan)?;
    hand_on(layout)?;
    let listener = UnixListener::bind(layout.at(SOCKET)).context("cannot listen for orders")?;
    let mut nodes = Nodes { layout, plan, running: BTreeMap::new() };
    for number in 1..=plan.nodes {
        nodes.boot(number)?;
    }
    std::fs::write(layout.at("started"), "").context("cannot say that everything is started")?;
    for stream in listener.incoming() {
        let answered = stream.context("cannot take an order").and_then(|stream| nodes.answer(stream, &mut servers));
        if let Err(cause) = answered {
            eprintln!("order: {cause:#}");
        }
    }
    Ok(())
}

/// Runs the process `outer` of the program.
///
/// # Errors
///
/// If a part cannot be started.
pub fn run_in(folder: &Path) -> anyhow::Result<()> {
    let layout = Layout::new(folder);
    let plan = layout.plan()?;
    run_cluster(&layout, &plan)
}

/// Forwards connections from a socket in the folder to the API server, because the keeper is in another network
/// namespace.
fn hand_on(layout: &Layout) -> anyhow::Result<()> {
    let listener = UnixListener::bind(layout.at(API)).context("cannot listen for those outside")?;
    std::thread::spawn(move || {
        for client in listener.incoming().flatten() {
            std::thread::spawn(move || TcpStream::connect((PLANE, PORT)).and_then(|server| join(server, client)));
        }
    });
    Ok(())
}

/// Creates the bridge, and a network namespace for each node.
fn network(plan: &Plan) -> anyhow::Result<()> {
    let ip = |line: &str| run("ip", &line.split(' ').collect::<Vec<_>>());
    ip("link set lo up")?;
    ip("link add oarlock0 type bridge")?;
    ip(&format!("addr add {PLANE}/24 dev oarlock0"))?;
    ip("link set oarlock0 up")?;
    // Pods reach the API server by the address of its Service. This machine has the address, so no kube-proxy has to
    // translate it.
    ip(&format!("addr add {SERVICE}/32 dev lo"))?;
    forward()?;
    for number in 1..=plan.nodes {
        let (name, address) = (node_name(number), node_address(number));
        ip(&format!("netns add {name}"))?;
        ip(&format!("link add veth{number} type veth peer name eth0 netns {name}"))?;
        ip(&format!("link set veth{number} master oarlock0 up"))?;
        ip(&format!("-n {name} addr add {address}/24 dev eth0"))?;
        ip(&format!("-n {name} link set eth0 up"))?;
        ip(&format!("-n {name} link set lo up"))?;
        ip(&format!("-n {name} route add default via {PLANE}"))?;
        ip(&format!("route replace {} via {address}", pod_range(number)))?;
    }
    Ok(())
}

/// Turns on packet forwarding in this network namespace.
///
/// # Errors
///
/// If the kernel refuses.
pub fn forward() -> anyhow::Result<()> {
    std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").context("cannot have packets forwarded")
}

/// The servers of the control plane, by name.
#[derive(Default)]
struct Servers {
    running: BTreeMap<&'static str, Child>,
}

impl Servers {
    fn start(&mut self, layout: &Layout, plan: &Plan) -> anyhow::Result<()> {
        for name in ["etcd", "kube-apiserver"] {
            self.spawn(name, layout, plan)?;
        }
        self.until_ready(layout, plan)?;
        configure_registries(layout)?;
        for name in ["kube-controller-manager", "kube-scheduler", "registry", "exports", "images"] {
            self.spawn(name, layout, plan)?;
        }
        if plan.store.is_some() {
            let bucket = layout.at("store").join(BUCKET);
            std::fs::create_dir_all(&bucket).with_context(|| format!("cannot create {}", bucket.display()))?;
            std::fs::create_dir_all(layout.at("about-store")).context("cannot create a folder of the store")?;
            self.spawn("store", layout, plan)?;
        }
        if let Some(programs) = &plan.database {
            make_database(programs, layout)?;
            self.spawn("database", layout, plan)?;
        }
        Ok(())
    }

    fn spawn(&mut self, name: &'static str, layout: &Layout, plan: &Plan) -> anyhow::Result<()> {
        let command = server(name, layout, plan);
        self.running.insert(name, start(command, &layout.at("plane").join(format!("{name}.log")))?);
        Ok(())
    }

    fn until_ready(&mut self, layout: &Layout, plan: &Plan) -> anyhow::Result<()> {
        let (kubectl, admin) = (plan.plane_binaries.join("kubectl"), layout.kubeconfig("admin"));
        let begun = Instant::now();
        loop {
            let mut asked = Command::new(&kubectl);
            asked.arg("--kubeconfig").arg(&admin).args(["get", "--raw", "/readyz"]);
            let asked = asked.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
            if asked.context("cannot run kubectl")?.success() {
                return Ok(());
            }
            for (name, child) in &mut self.running {
                if let Some(status) = child.try_wait().with_context(|| format!("cannot ask whether {name} runs"))? {
                    bail!("{name} ended with {status}: see {}", layout.at(&format!("plane/{name}.log")).display());
                }
            }
            if begun.elapsed() > READY_WITHIN {
                bail!("the API server is not ready: see {}", layout.at("plane/kube-apiserver.log").display());
            }
            pause(Duration::from_millis(200));
        }
    }

    /// Kills a server and starts it again. A server that is down starts too.
    fn restart(&mut self, name: &str, layout: &Layout, plan: &Plan) -> anyhow::Result<()> {
        let name = self.kill(name)?;
        self.spawn(name, layout, plan)
    }

    fn kill(&mut self, name: &str) -> anyhow::Result<&'static str> {
        let names = || self.running.keys().copied().collect::<Vec<_>>().join(", ");
        let Some(found) = self.running.keys().copied().find(|known| *known == name) else {
            bail!("no server is named {name}; there are {}", names())
        };
        if let Some(child) = self.running.get_mut(found) {
            let _ = child.kill();
            let _ = child.wait();
        }
        Ok(found)
    }
}

/// Makes nodes pull every image from a registry in the cluster, under the image's usual name. Two other registries need
/// a password.
fn configure_registries(layout: &Layout) -> anyhow::Result<()> {
    let mirrors = layout.at("registries/_default");
    std::fs::create_dir_all(&mirrors).with_context(|| format!("cannot create {}", mirrors.display()))?;
    // No fallback to another registry: an image that is not in this registry must be missing at once.
    let hosts = format!(
        "server = \"http://{REGISTRY}\"\n[host.\"http://{REGISTRY}\"]\n  capabilities = [\"pull\", \"resolve\"]\n"
    );
    std::fs::write(mirrors.join("hosts.toml"), hosts).context("cannot write the mirror of all registries")?;
    let file = |name: &str| layout.at("plane").join(name);
    std::fs::write(file("htpasswd"), format!("{USER}:{HASH}\n")).context("cannot write the registries' password")?;
    let tls = json!({"certificate": file("registries.crt"), "key": file("registries.key")});
    let auth = json!({"htpasswd": {"realm": "registries", "path": file("htpasswd")}});
    for (name, http, auth, storage) in [
        ("registry", json!({"addr": REGISTRY}), json!({}), "registry"),
        ("exports", json!({"addr": EXPORTS, "tls": tls}), auth.clone(), "exports"),
        ("images", json!({"addr": IMAGES, "tls": tls}), auth.clone(), "registry"),
    ] {
        let storage = json!({"filesystem": {"rootdirectory": layout.at(storage)}});
        let config =
            json!({"version": "0.1", "log": {"level": "warn"}, "http": http, "auth": auth, "storage": storage});
        // The registry reads YAML, and JSON is YAML.
        std::fs::write(file(&format!("{name}.json")), config.to_string())
            .context("cannot write a registry's configuration")?;
    }
    Ok(())
}

/// Returns the program of a server.
fn program(name: &str) -> &str {
    if matches!(name, "exports" | "images") { "registry" } else { name }
}

/// Returns the command of the store. The store keeps metadata in files beside the objects, because some file systems do
/// not support extended attributes.
fn store(program: &Path, layout: &Layout) -> Command {
    let mut command = Command::new(program);
    command.args(["--access", STORE_KEY, "--secret", STORE_SECRET, "--port", STORE, "--quiet"]);
    command.arg("--cert").arg(layout.at("plane/registries.crt")).arg("--key").arg(layout.at("plane/registries.key"));
    command.arg("posix").arg("--sidecar").arg(layout.at("about-store")).arg(layout.at("store"));
    command
}

/// Returns the command of a database program as the user of its package, because these programs refuse to run as root.
fn of_database(program: &Path) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--reuid=postgres", "--regid=postgres", "--clear-groups"]).arg(program);
    command
}

/// Creates an empty database. Nodes and pods reach it with the password.
fn make_database(programs: &Path, layout: &Layout) -> anyhow::Result<()> {
    let (folder, password) = (layout.at("database"), layout.at("plane/database-password"));
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    std::fs::write(&password, DATABASE_PASSWORD).context("cannot write the password of the database")?;
    let [folder_text, password_text] = [&folder, &password].map(|path| path.display().to_string());
    run("chown", &["postgres", &folder_text, &password_text])?;
    let mut init = of_database(&programs.join("initdb"));
    init.args(["-D", &folder_text, "-U", USER]).args(controlplane::INITDB);
    let made = init.arg(format!("--pwfile={password_text}")).output().context("cannot run initdb")?;
    if !made.status.success() {
        bail!("initdb ended with {}: {}", made.status, String::from_utf8_lossy(&made.stderr));
    }
    let rules = folder.join("pg_hba.conf");
    let mut rules =
        std::fs::File::options().append(true).open(&rules).context("cannot open the rules of the database")?;
    writeln!(rules, "host all all 10.0.0.0/8 scram-sha-256").context("cannot write the rules of the database")
}

/// Returns the command of the database. The database does not wait for the disk.
fn database(programs: &Path, layout: &Layout) -> Command {
    let mut command = of_database(&programs.join("postgres"));
    command.arg("-D").arg(layout.at("database")).args(["-c", &format!("listen_addresses={DATABASE}")]);
    command.args(["-c", "unix_socket_directories=", "-c", "fsync=off", "-c", "shared_buffers=64MB"]);
    command
}

fn server(name: &str, layout: &Layout, plan: &Plan) -> Command {
    if let Some(programs) = plan.database.as_ref().filter(|_| name == "database") {
        return database(programs, layout);
    }
    if let Some(program) = plan.store.as_ref().filter(|_| name == "store") {
        return store(program, layout);
    }
    let file = |file: &str| layout.at("plane").join(file).display().to_string();
    let admin = layout.kubeconfig("admin").display().to_string();
    let (binaries, flags) = match name {
        "etcd" => (
            &plan.plane_binaries,
            vec![format!("--data-dir={}", file("etcd")), "--log-level=warn".to_owned(), "--unsafe-no-fsync".to_owned()],
        ),
        "kube-apiserver" => (
            &plan.plane_binaries,
            vec![
                "--etcd-servers=http://127.0.0.1:2379".to_owned(),
                format!("--secure-port={PORT}"),
                format!("--advertise-address={PLANE}"),
                format!("--tls-cert-file={}", file("apiserver.crt")),
                format!("--tls-private-key-file={}", file("apiserver.key")),
                format!("--client-ca-file={}", file("ca.crt")),
                format!("--kubelet-certificate-authority={}", file("ca.crt")),
                format!("--kubelet-client-certificate={}", file("kubelet-client.crt")),
                format!("--kubelet-client-key={}", file("kubelet-client.key")),
                "--kubelet-preferred-address-types=InternalIP".to_owned(),
                "--service-cluster-ip-range=10.0.0.0/24".to_owned(),
                "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
                format!("--service-account-key-file={}", file("accounts.pub")),
                format!("--service-account-signing-key-file={}", file("accounts.key")),
                "--authorization-mode=Node,RBAC".to_owned(),
                "--enable-admission-plugins=NodeRestriction".to_owned(),
                "--allow-privileged=true".to_owned(),
            ],
        ),
        "kube-controller-manager" => (
            &plan.plane_binaries,
            vec![
                format!("--kubeconfig={admin}"),
                format!("--service-account-private-key-file={}", file("accounts.key")),
                format!("--root-ca-file={}", file("ca.crt")),
                "--leader-elect=false".to_owned(),
                "--secure-port=0".to_owned(),
            ],
        ),
        "registry" | "exports" | "images" => {
            (&plan.node_binaries, vec!["serve".to_owned(), file(&format!("{name}.json"))])
        }
        _ => (
            &plan.kubelet,
            vec![format!("--kubeconfig={admin}"), "--leader-elect=false".to_owned(), "--secure-port=0".to_owned()],
        ),
    };
    let mut command = Command::new(binaries.join(program(name)));
    command.args(flags);
    // Otherwise the registry looks for a trace collector.
    command.env("OTEL_TRACES_EXPORTER", "none");
    command
}

/// The nodes that have power.
struct Nodes<'a> {
    layout: &'a Layout,
    plan: &'a Plan,
    running: BTreeMap<u8, Child>,
}

impl Nodes<'_> {
    fn boot(&mut self, number: u8) -> anyhow::Result<()> {
        if let Some(child) = self.running.get_mut(&number)
            && child.try_wait().context("cannot ask whether a node runs")?.is_none()
        {
            bail!("{} runs", node_name(number));
        }
        cgroups::make(&format!("{}/{}", cgroups::name_of(&self.plan.id), node_name(number)))?;
        let folder = self.layout.node(number);
        std::fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/run/netns/{}", node_name(number)));
        enter_namespaces(&mut command, &[], &self.plan.program);
        command.arg("inner").arg(&self.layout.root).arg(number.to_string());
        self.running.insert(number, start(command, &folder.join("node.log"))?);
        Ok(())
    }

    fn kill(&mut self, number: u8) -> anyhow::Result<()> {
        let mut child = self.running.remove(&number).with_context(|| format!("{} has no power", node_name(number)))?;
        child.kill().context("cannot kill a node")?;
        child.wait().context("cannot wait for a node")?;
        // A node without power has no boot id. So nobody takes the last one for that of the next boot.
        let boot_id = self.layout.boot_id(&node_name(number));
        match std::fs::remove_file(&boot_id) {
            Err(cause) if cause.kind() != ErrorKind::NotFound => {
                Err(cause).with_context(|| format!("cannot remove {}", boot_id.display()))
            }
            _ => Ok(()),
        }
    }

    /// Carries out the order in a line, and writes the outcome.
    fn answer(&mut self, stream: UnixStream, servers: &mut Servers) -> anyhow::Result<()> {
        let mut line = String::new();
        BufReader::new(&stream).read_line(&mut line).context("cannot read an order")?;
        let done = self.obey(line.trim(), servers);
        let said = match done {
            Ok(said) => format!("ok {said}"),
            Err(cause) => format!("error {cause:#}"),
        };
        writeln!(&stream, "{}", said.replace('\n', " ")).context("cannot answer")
    }

    fn obey(&mut self, line: &str, servers: &mut Servers) -> anyhow::Result<String> {
        let number = |name: &str| {
            node_number(name)
                .filter(|number| (1..=self.plan.nodes).contains(number))
                .with_context(|| format!("no node is named {name}; the last one is {}", node_name(self.plan.nodes)))
        };
        match line.split_once(' ') {
            Some(("kill", name)) => {
                let number = number(name)?;
                self.kill(number).map(|()| String::new())
            }
            Some(("boot", name)) => {
                let number = number(name)?;
                self.boot(number).map(|()| String::new())
            }
            Some(("stop", name)) => servers.kill(name).map(|_| String::new()),
            Some(("restart", name)) => servers.restart(name, self.layout, self.plan).map(|()| String::new()),
            None if line == "nodes" => {
                let mut runs = |number: u8| {
                    let child = self.running.get_mut(&number);
                    child.is_some_and(|child| matches!(child.try_wait(), Ok(None)))
                };
                let mut on = |number: u8| if runs(number) { "on" } else { "off" };
                Ok((1..=self.plan.nodes)
                    .map(|number| format!("{}={}", node_name(number), on(number)))
                    .collect::<Vec<_>>()
                    .join(" "))
            }
            _ => bail!("{line:?} is no order"),
        }
    }
}
