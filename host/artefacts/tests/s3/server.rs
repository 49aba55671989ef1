//! Runs a real S3 server on the loopback interface, with its own folder.
//!
//! Takes the options of the server; yields a server that accepts connections. When the value is dropped, the server ends and its folder is removed.

#![allow(dead_code, clippy::unwrap_used, clippy::panic, reason = "it is a part of each harness, and may fail loudly")]

use std::fs::{self, File};
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use oarlock_artefacts::{Artefacts, S3Options, S3Place};
use rustix::process::{Pid, Signal, kill_process};
use tokio::net::TcpStream;
use tokio::time::timeout;

pub(crate) const BUCKET: &str = "artefacts";
pub(crate) const KEY: &str = "AKIATEST";
pub(crate) const SECRET: &str = "a-secret-that-is-not-shown";

/// The options of the server.
#[derive(Default)]
pub(crate) struct Runs {
    /// The certificate and the key of TLS, in PEM. `None` means no TLS.
    pub(crate) tls: Option<(String, String)>,
    /// The size of the server's disk in MiB. `None` means the disk of this machine.
    pub(crate) disk: Option<u32>,
}

pub(crate) struct Server {
    process: Child,
    folder: PathBuf,
    runs: Runs,
    port: u16,
}

impl Server {
    pub(crate) async fn start(name: &str) -> Self {
        Self::start_as(name, Runs::default()).await
    }

    pub(crate) async fn start_as(name: &str, runs: Runs) -> Self {
        let folder = std::env::temp_dir().join(format!("oarlock-s3-{name}-{}", std::process::id()));
        let _none = fs::remove_dir_all(&folder);
        fs::create_dir_all(folder.join("root").join(BUCKET)).unwrap();
        fs::create_dir_all(folder.join("about")).unwrap();
        if let Some((certificate, key)) = &runs.tls {
            fs::write(folder.join("cert.pem"), certificate).unwrap();
            fs::write(folder.join("key.pem"), key).unwrap();
        }
        // Another process may take the free port before the server uses it.
        for _ in 0..5 {
            let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port();
            let mut process = spawn(&folder, &runs, port);
            if is_up(&mut process, port).await {
                return Self { process, folder, runs, port };
            }
        }
        panic!("{}", fs::read_to_string(folder.join("log")).unwrap());
    }

    /// Returns the folder with the files of the bucket.
    pub(crate) fn bucket(&self) -> PathBuf {
        self.folder.join("root").join(BUCKET)
    }

    /// Returns the names of the finished files of the bucket, sorted.
    pub(crate) fn files(&self) -> Vec<String> {
        let mut files = Vec::new();
        walk(&self.bucket(), &mut files);
        let mut names: Vec<String> =
            files.iter().map(|path| path.strip_prefix(self.bucket()).unwrap().to_str().unwrap().to_owned()).collect();
        names.retain(|name| !name.starts_with(".sgwtmp"));
        names.sort();
        names
    }

    /// Returns the number of parts of unfinished uploads.
    pub(crate) fn pieces(&self) -> usize {
        let mut files = Vec::new();
        walk(&self.bucket().join(".sgwtmp/multipart"), &mut files);
        files
            .iter()
            .filter(|path| path.file_name().unwrap().to_str().unwrap().bytes().all(|b| b.is_ascii_digit()))
            .count()
    }

    pub(crate) fn options(&self) -> S3Options {
        let scheme = if self.runs.tls.is_some() { "https" } else { "http" };
        S3Options {
            endpoint: Some(format!("{scheme}://127.0.0.1:{}", self.port)),
            access_key: Some(KEY.to_owned()),
            secret_key: Some(SECRET.to_owned()),
            ..S3Options::default()
        }
    }

    /// Returns the bucket as a store.
    pub(crate) async fn artefacts(&self) -> Artefacts {
        let place = S3Place::read(&format!("s3://{BUCKET}"), &self.options()).unwrap();
        Artefacts::in_bucket(place).await.unwrap()
    }

    /// Returns the bucket as a store with a timeout of 1 s.
    pub(crate) async fn hasty(&self) -> Artefacts {
        let place = S3Place::read(&format!("s3://{BUCKET}"), &self.options()).unwrap();
        Artefacts::in_bucket(place.with_timeout(Duration::from_secs(1))).await.unwrap()
    }

    /// Pauses the server process, also in the middle of a request.
    pub(crate) fn freeze(&self) {
        self.signal(Signal::STOP);
    }

    pub(crate) fn thaw(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        let id = Pid::from_raw(i32::try_from(self.process.id()).unwrap()).unwrap();
        kill_process(id, signal).unwrap();
    }

    pub(crate) fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    /// Starts the server again, at its port and with its folder.
    pub(crate) async fn restart(&mut self) {
        self.process = spawn(&self.folder, &self.runs, self.port);
        assert!(is_up(&mut self.process, self.port).await);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _gone = self.process.kill();
        let _gone = self.process.wait();
        let _gone = fs::remove_dir_all(&self.folder);
    }
}

fn spawn(folder: &Path, runs: &Runs, port: u16) -> Child {
    let program = controlplane::s3_server(&|line| eprintln!("S3 server: {line}")).unwrap();
    let root = folder.join("root");
    let mut command = match runs.disk {
        None => Command::new(program),
        // Only the server sees this disk. The disk disappears with the server.
        Some(size) => {
            let mut command = Command::new("unshare");
            if !rustix::process::geteuid().is_root() {
                command.args(["--user", "--map-root-user"]);
            }
            let script = format!("mount -t tmpfs -o size={size}m tmpfs \"$0\" && mkdir \"$0/{BUCKET}\" && exec \"$@\"");
            command.args(["--mount", "sh", "-c", &script]).arg(&root).arg(program);
            command
        }
    };
    command.args(["--access", KEY, "--secret", SECRET, "--port", &format!("127.0.0.1:{port}"), "--quiet"]);
    if runs.tls.is_some() {
        command.arg("--cert").arg(folder.join("cert.pem")).arg("--key").arg(folder.join("key.pem"));
    }
    // The server keeps metadata in separate files, because not every file system supports extended attributes.
    command.arg("posix").arg("--sidecar").arg(folder.join("about")).arg(root);
    let log = File::options().create(true).append(true).open(folder.join("log")).unwrap();
    command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap()
}

/// Waits until the server accepts connections. Returns false if the process has ended.
async fn is_up(process: &mut Child, port: u16) -> bool {
    let up = async {
        while TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.is_err() {
            if process.try_wait().unwrap().is_some() {
                return false;
            }
            tokio::task::yield_now().await;
        }
        process.try_wait().unwrap().is_none()
    };
    timeout(Duration::from_secs(30), up).await.unwrap()
}

fn walk(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => walk(&entry.path(), files),
            _ => files.push(entry.path()),
        }
    }
}
