//! A host process whose cluster does not answer: its log, its endpoints, and its reaction to a stop.

use std::io::{BufRead as _, BufReader, Lines, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::time::Duration;

use crate::component;

/// A host of a cluster that does not answer, and the host's folder.
struct Lonely {
    folder: PathBuf,
    child: Child,
}

impl Lonely {
    fn start(name: &str, prepare: impl FnOnce(&Path)) -> Self {
        let folder = std::env::temp_dir().join(format!("oarlock-{name}-{}", std::process::id()));
        std::fs::create_dir_all(folder.join("plugins")).unwrap();
        prepare(&folder);
        let kubeconfig = folder.join("kubeconfig");
        // No process listens on port 1.
        let config = "apiVersion: v1\nkind: Config\ncurrent-context: c\n\
                      clusters: [{name: c, cluster: {server: 'http://127.0.0.1:1'}}]\n\
                      contexts: [{name: c, context: {cluster: c, user: u}}]\nusers: [{name: u, user: {}}]\n";
        if !kubeconfig.exists() {
            std::fs::write(&kubeconfig, config).unwrap();
        }
        let child = Command::new(env!("CARGO_BIN_EXE_oarlock"))
            .args(["host", "--listen", "127.0.0.1:0", "--identity", "test", "--plugins"])
            .arg(folder.join("plugins"))
            .arg("--kubeconfig")
            .arg(&kubeconfig)
            .env("XDG_CACHE_HOME", folder.join("cache"))
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        Self { folder, child }
    }

    fn stops_when_told(mut self, lines: Lines<BufReader<ChildStderr>>) {
        let told = Command::new("kill").args(["-TERM", &self.child.id().to_string()]).status().unwrap();
        assert!(told.success());
        let rest: Vec<String> = lines.map_while(Result::ok).collect();
        assert!(self.child.wait().unwrap().success(), "{rest:?}");
        std::fs::remove_dir_all(&self.folder).unwrap();
    }
}

impl Drop for Lonely {
    fn drop(&mut self) {
        // The host has already ended unless the test failed.
        let _ = self.child.kill();
    }
}

#[test]
fn a_host_without_its_cluster_says_what_it_runs_with_waits_and_stops_when_told() {
    let mut host = Lonely::start("start-up", |_| {});
    let mut lines = BufReader::new(host.child.stderr.take().unwrap()).lines();
    let mut said = String::new();
    let waits = "failed to read the lease";
    for line in lines.by_ref().map_while(Result::ok) {
        said += &line;
        if line.contains(waits) {
            break;
        }
    }
    let version = env!("CARGO_PKG_VERSION");
    let identity = "identity=\"test\"";
    for words in [version, "http://127.0.0.1:1", identity, "grants file is missing", "--grants", waits] {
        assert!(said.contains(words), "{words:?} is missing in\n{said}");
    }
    host.stops_when_told(lines);
}

#[test]
fn a_host_whose_kubeconfig_names_something_else_than_an_api_server_says_so() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            std::thread::spawn(move || {
                let mut reader = BufReader::new(stream.try_clone().unwrap());
                let mut line = String::new();
                while reader.read_line(&mut line).is_ok_and(|read| read > 2) {
                    line.clear();
                }
                let answer = "HTTP/1.1 404 Not Found\r\ncontent-length: 5\r\nconnection: close\r\n\r\nhello";
                let _gone = (&stream).write_all(answer.as_bytes()).is_err();
            });
        }
    });
    let mut host = Lonely::start("no-server", |folder| {
        let config = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters: [{{name: c, cluster: {{server: 'http://{address}'}}}}]\n\
             contexts: [{{name: c, context: {{cluster: c, user: u}}}}]\nusers: [{{name: u, user: {{}}}}]\n"
        );
        std::fs::write(folder.join("kubeconfig"), config).unwrap();
    });
    let mut lines = BufReader::new(host.child.stderr.take().unwrap()).lines();
    // The host may log other lines before: it cannot take the lease either, and it reports that once or each time.
    let wanted = |line: &String| line.contains("is no Kubernetes API server");
    let said = lines.by_ref().map_while(Result::ok).take(200).find(wanted);
    assert!(said.is_some_and(|line| line.contains("kubeconfig")));
    host.stops_when_told(lines);
}

fn ask(address: &str, path: &str) -> String {
    let mut stream = std::net::TcpStream::connect(address).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nhost: oarlock\r\nconnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn health_is_served_while_plugins_are_being_compiled() {
    let mut host = Lonely::start("health", |folder| {
        let grant = concat!(env!("CARGO_MANIFEST_DIR"), "/../plugins/replace/grant.yaml");
        std::fs::copy(grant, folder.join("grants.yaml")).unwrap();
        let component = std::fs::read(component("replace.wasm")).unwrap();
        for edition in 0..40_u8 {
            // A custom section makes each file a different component.
            let bytes = [component.as_slice(), &[0, 2, 1, edition]].concat();
            std::fs::write(folder.join(format!("plugins/replace-{edition}.wasm")), bytes).unwrap();
        }
    });
    let mut lines = BufReader::new(host.child.stderr.take().unwrap()).lines();
    let said = lines.by_ref().map_while(Result::ok).find_map(|line| {
        let (_, address) = line.split_once("serving /livez, /readyz and /metrics address=")?;
        Some(address.trim().to_owned())
    });
    let address = said.unwrap();
    let live = ask(&address, "/livez");
    assert!(live.starts_with("HTTP/1.1 200"), "{live}");
    let ready = ask(&address, "/readyz");
    for part in ["plugins", "lease", "cache", "opsjobs"] {
        assert!(ready.contains(&format!("[-] {part}: ")), "{part}: {ready}");
    }
    host.stops_when_told(lines);
}

#[test]
fn a_host_whose_log_nobody_reads_any_more_stops_when_told() {
    let mut host = Lonely::start("closed-log", |_| {});
    let mut first = String::new();
    // The only reader closes the pipe, as a log collector that dies does.
    BufReader::new(host.child.stderr.take().unwrap()).read_line(&mut first).unwrap();
    assert!(!first.is_empty());
    let told = Command::new("kill").args(["-TERM", &host.child.id().to_string()]).status().unwrap();
    assert!(told.success());
    let (id, (tell, ended)) = (host.child.id(), std::sync::mpsc::channel());
    std::thread::scope(|scope| {
        scope.spawn(|| tell.send(host.child.wait()));
        let status = ended.recv_timeout(Duration::from_secs(60));
        if status.is_err() {
            // Lets the other thread end.
            let _sent = Command::new("kill").args(["-KILL", &id.to_string()]).status();
        }
        assert!(status.expect("it still runs a minute after it was told to stop").unwrap().success());
    });
    std::fs::remove_dir_all(&host.folder).unwrap();
}
