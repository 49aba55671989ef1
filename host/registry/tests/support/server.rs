//! Runs a real registry as a local process. The process ends when its `Server` is dropped.

#![allow(
    dead_code,
    clippy::unwrap_used,
    clippy::panic,
    unreachable_pub,
    reason = "it is a part of each harness, and may fail loudly"
)]

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};

/// The user name of a registry with a password.
pub const USER: &str = "me";
/// The password of a registry with a password.
pub const PASSWORD: &str = "s3cret-of-the-target";
/// The bcrypt hash of the password, with the lowest cost.
const HASH: &str = "$2y$04$abcdefghijklmnopqrstuuY9H7NwyGbjW2pnymCqQ7fqd85C7hqAq";

/// A temporary folder, removed on drop.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A running registry.
pub struct Server {
    /// The host and the port of the registry.
    pub address: String,
    /// The certificate authority, if the registry uses TLS.
    pub ca: Option<Vec<u8>>,
    child: Child,
    folder: Folder,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Server {
    /// Starts a registry without TLS and without a password.
    pub fn plain() -> Self {
        let folder = folder();
        let (child, address) = started(&folder.0, "127.0.0.1:0", "");
        Self { address, ca: None, child, folder }
    }

    /// Starts a registry without TLS that requires a password.
    pub fn private() -> Self {
        let folder = folder();
        let (child, address) = started(&folder.0, "127.0.0.1:0", &passwords(&folder.0));
        Self { address, ca: None, child, folder }
    }

    /// Starts a registry with TLS that requires a password.
    pub fn closed() -> Self {
        let folder = folder();
        let path = folder.0.display().to_string();
        let ca = certificates(&folder.0);
        let auth = passwords(&folder.0);
        let more = format!("  tls:\n    certificate: {path}/server.crt\n    key: {path}/server.key\n{auth}");
        let (child, address) = started(&folder.0, "127.0.0.1:0", &more);
        Self { address, ca: Some(ca), child, folder }
    }

    /// Kills the registry.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Restarts the registry at its address with its data. Only for a registry without TLS.
    pub fn start_again(&mut self) {
        self.kill();
        let address = self.address.clone();
        (self.child, self.address) = started(&self.folder.0, &address, "");
    }
}

/// Returns the configuration lines that make the registry require the password.
fn passwords(folder: &Path) -> String {
    fs::write(folder.join("htpasswd"), format!("{USER}:{HASH}\n")).unwrap();
    format!("auth:\n  htpasswd:\n    realm: test\n    path: {}/htpasswd\n", folder.display())
}

fn folder() -> Folder {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let name = format!("oarlock-registry-{}-{}", std::process::id(), COUNT.fetch_add(1, Relaxed));
    let path = std::env::temp_dir().join(name);
    fs::create_dir_all(&path).unwrap();
    Folder(path)
}

/// Starts the registry and waits until its log shows its address.
fn started(folder: &Path, address: &str, more: &str) -> (Child, String) {
    let data = folder.join("data");
    let config = format!(
        "version: 0.1\nlog:\n  level: info\n  accesslog:\n    disabled: true\nstorage:\n  filesystem:\n    rootdirectory: {}\n\
         http:\n  addr: {address}\n{more}",
        data.display()
    );
    let path = folder.join("config.yml");
    fs::write(&path, config).unwrap();
    let binary = controlplane::registry(&|line| eprintln!("{line}")).unwrap();
    let mut command = Command::new(binary);
    command.arg("serve").arg(&path).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.env("OTEL_TRACES_EXPORTER", "none").spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let mut said = String::new();
    for line in lines.by_ref().map_while(Result::ok) {
        if let Some((_, rest)) = line.split_once("listening on ") {
            let address = rest.split([',', '"']).next().unwrap().trim().to_owned();
            // A thread reads the rest of the log, so that the registry never blocks on a full pipe. The thread ends with the process.
            std::thread::spawn(move || lines.map_while(Result::ok).for_each(drop));
            return (child, address);
        }
        said.push_str(&line);
        said.push('\n');
    }
    panic!("the registry ended with {:?}:\n{said}", child.wait());
}

/// Writes a server certificate for 127.0.0.1. Returns its certificate authority.
fn certificates(folder: &Path) -> Vec<u8> {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca = params.self_signed(&key).unwrap().pem();
    let issuer = Issuer::new(params, key);
    let key = KeyPair::generate().unwrap();
    let server = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap().signed_by(&key, &issuer).unwrap();
    fs::write(folder.join("server.crt"), server.pem()).unwrap();
    fs::write(folder.join("server.key"), key.serialize_pem()).unwrap();
    ca.into_bytes()
}
