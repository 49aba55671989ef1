//! A real S3 server on the loopback interface, over a folder of its own.
//!
//! Takes how it is to run; yields one that answers. It ends, and its folder goes, with the value.

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

/// How it runs.
#[derive(Default)]
pub(crate) struct Runs {
    /// With TLS, by a certificate and its key, in PEM.
    pub(crate) tls: Option<(String, String)>,
    /// On a disk of so many MiB.
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
        // A port that was free may be taken by the time it is used.
        for _ in 0..5 {
            let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port();
            let mut process = spawn(&folder, &runs, port);
            if is_up(&mut process, port).await {
                return Self { process, folder, runs, port };
            }
        }
        panic!("{}", fs::read_to_string(folder.join("log")).unwrap());
    }

    /// The folder of what the bucket has.
    pub(crate) fn bucket(&self) -> PathBuf {
        self.folder.join("root").join(BUCKET)
    }

    /// The files that it has, those that are not finished not among them.
    pub(crate) fn files(&self) -> Vec<String> {
        let mut files = Vec::new();
        walk(&self.bucket(), &mut files);
        let mut names: Vec<String> =
            files.iter().map(|path| path.strip_prefix(self.bucket()).unwrap().to_str().unwrap().to_owned()).collect();
        names.retain(|name| !name.starts_with(".sgwtmp"));
        names.sort();
        names
    }

    /// How many pieces it has of uploads that are not finished.
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

    /// Its bucket, as a store.
    pub(crate) async fn artefacts(&self) -> Artefacts {
        let place = S3Place::read(&format!("s3://{BUCKET}"), &self.options()).unwrap();
        Artefacts::in_bucket(place).await.unwrap()
    }

    /// The same, which waits for little.
    pub(crate) async fn hasty(&self) -> Artefacts {
        let place = S3Place::read(&format!("s3://{BUCKET}"), &self.options()).unwrap();
        Artefacts::in_bucket(place.with_patience(Duration::from_secs(1))).await.unwrap()
    }

    /// Stops it in the middle of whatever it does.
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

    /// Starts it again where it was.
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
        // The disk is seen by the server alone, and goes with it.
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
    // What it knows about files is beside them: not every file system takes that as attributes.
    command.arg("posix").arg("--sidecar").arg(folder.join("about")).arg(root);
    let log = File::options().create(true).append(true).open(folder.join("log")).unwrap();
    command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap()
}

/// Waits until it takes connections. False if it has ended.
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
