//! The limits of what a hostile file or a page of another site can reach: the helper that compiles, and the API of `oarlock dev`.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::process::{Command, Stdio};

use super::{component, empty_folder, oarlock_command, text};

/// Returns the value of a line in `/proc/PID/status`.
fn status_of(process: u32, line: &str) -> Option<String> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let found = status.lines().find_map(|text| text.strip_prefix(line)?.strip_prefix(':'));
    found.map(|value| value.trim().to_owned())
}

#[test]
fn the_helper_that_compiles_is_confined_before_it_reads_and_still_compiles() {
    let bytes = std::fs::read(component("replace.wasm")).unwrap();
    let mut command = oarlock_command(&["plugin", "compile-worker", "compile"]);
    let mut helper = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut input = helper.stdin.take().unwrap();
    // A pipe holds 64 KiB. Once all bytes are written, the helper reads, and it is confined before it reads.
    assert!(bytes.len() > 128 << 10, "too small to show anything: {}", bytes.len());
    input.write_all(&bytes).unwrap();
    let before = (status_of(std::process::id(), "Seccomp"), status_of(std::process::id(), "NoNewPrivs"));
    let confined = (status_of(helper.id(), "Seccomp"), status_of(helper.id(), "NoNewPrivs"));
    drop(input);
    let ended = helper.wait_with_output().unwrap();
    assert!(ended.status.success() && ended.stdout.starts_with(b"+"), "{}", text(&ended.stderr));
    if before.0.is_some() {
        // 2 means a filter.
        assert_eq!(confined, (Some("2".to_owned()), Some("1".to_owned())), "{before:?}");
        assert_eq!(text(&ended.stderr), "");
    } else {
        assert!(text(&ended.stderr).contains("no filter of system calls"), "{}", text(&ended.stderr));
    }
}

#[test]
fn dev_answers_its_own_machine_and_no_page_of_another_site() {
    let folder = empty_folder("dev-pages");
    let plugins = folder.join("plugins").display().to_string();
    let mut dev = oarlock_command(&["dev", "--plugins", &plugins]).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(dev.stdout.take().unwrap()).lines();
    let served = lines.by_ref().map_while(Result::ok).find_map(|line| {
        let (_, rest) = line.split_once("served at http://")?;
        rest.split_once(',').map(|(address, _)| address.to_owned())
    });
    let address = served.unwrap();
    let asked = |headers: &str| {
        let mut stream = std::net::TcpStream::connect(&address).unwrap();
        write!(stream, "GET /api/v1/pods HTTP/1.1\r\n{headers}connection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    let own = asked(&format!("host: {address}\r\n"));
    let rebound = asked("host: rebound.example\r\n");
    let page = asked(&format!("host: {address}\r\norigin: https://site.example\r\n"));
    let told = Command::new("kill").args(["-TERM", &dev.id().to_string()]).status().unwrap();
    assert!(told.success() && dev.wait().unwrap().success());
    assert!(own.starts_with("HTTP/1.1 200") && own.contains("PodList"), "{own}");
    for answer in [rebound, page] {
        assert!(answer.starts_with("HTTP/1.1 403") && answer.contains(&format!("use http://{address}")), "{answer}");
    }
    std::fs::remove_dir_all(&folder).unwrap();
}
