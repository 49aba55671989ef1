//! The binary as a user meets it: exit codes, what goes where, and the demo from end to end.
//!
//! Takes the built binary and built components (`cargo xtask plugins`); runs real processes in real time. May not look
//! inside: what it knows is what is printed.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails loudly")]

use std::io::{BufRead as _, BufReader, Lines, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Output, Stdio};

/// Where `cargo xtask plugins` leaves components.
fn components() -> PathBuf {
    let target = || {
        let named = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
        named.unwrap_or_else(|| PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../target")))
    };
    let folder = std::env::var_os("OARLOCK_COMPONENTS").map(PathBuf::from);
    let folder = folder.unwrap_or_else(|| target().join("wasm32-wasip2").join("release"));
    assert!(folder.join("replace.wasm").is_file(), "no components in {}: run `cargo xtask plugins`", folder.display());
    folder
}

fn component(name: &str) -> String {
    components().join(name).display().to_string()
}

fn oarlock(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_oarlock"));
    command.args(arguments).env_remove("OARLOCK_LOG").env_remove("KUBECONFIG").output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn the_demo_replaces_every_target_once_shows_the_gate_and_ends_by_itself() {
    let folder = components().display().to_string();
    let ended = oarlock(&["demo", "--fast", "--plugins-from", &folder]);
    let (shown, errors) = (text(&ended.stdout), text(&ended.stderr));
    assert!(ended.status.success(), "{shown}\n{errors}");
    for words in ["kind: Secret", "MutationDenied", "6 of 6 targets went once and were replaced once"] {
        assert!(shown.contains(words), "{words:?} is missing in\n{shown}\n{errors}");
    }
    assert!(!shown.contains('\x1b'), "control characters in what is no terminal:\n{shown}");
}

#[test]
fn a_demo_without_plugins_names_the_command_that_builds_them() {
    let ended = oarlock(&["demo", "--plugins-from", env!("CARGO_MANIFEST_DIR")]);
    assert_eq!(ended.status.code(), Some(1));
    assert!(text(&ended.stderr).contains("replace.wasm") && text(&ended.stderr).contains("cargo xtask demo"));
}

#[test]
fn vet_exits_by_what_the_host_would_say() {
    let replace = component("replace.wasm");
    let grants = concat!(env!("CARGO_MANIFEST_DIR"), "/../plugins/replace/grant.yaml");
    let granted = oarlock(&["plugin", "vet", &replace, "--grants", grants]);
    assert!(granted.status.success(), "{}{}", text(&granted.stdout), text(&granted.stderr));

    let bare = oarlock(&["plugin", "vet", &replace, "-o", "json"]);
    assert_eq!(bare.status.code(), Some(1));
    let verdict: serde_json::Value = serde_json::from_slice(&bare.stdout).unwrap();
    assert_eq!(verdict["status"]["state"], "AwaitingGrant");
    assert!(verdict["status"]["missing"].as_array().is_some_and(|lines| !lines.is_empty()), "{verdict}");
}

#[test]
fn a_file_that_is_no_plugin_is_refused_with_the_reason() {
    for (file, reason) in [("Cargo.toml", "NotWebAssembly"), ("there-is-none.wasm", "there-is-none.wasm")] {
        let path = format!("{}/{file}", env!("CARGO_MANIFEST_DIR"));
        for command in ["inspect", "vet"] {
            let ended = oarlock(&["plugin", command, &path]);
            let said = text(&ended.stdout) + &text(&ended.stderr);
            assert_eq!(ended.status.code(), Some(1), "{command} {file}: {said}");
            assert!(said.contains(reason), "{command} {file}: {said}");
        }
    }
}

#[test]
fn arguments_that_cannot_be_read_exit_with_2_and_a_filter_with_1() {
    assert_eq!(oarlock(&["host"]).status.code(), Some(2));
    assert_eq!(oarlock(&["no-such-command"]).status.code(), Some(2));
    let refused = oarlock(&["--log", "=,=", "crds"]);
    assert_eq!((refused.status.code(), refused.stdout.len()), (Some(1), 0));
    let no_level = oarlock(&["--log", "warning", "crds"]);
    assert_eq!((no_level.status.code(), no_level.stdout.len()), (Some(1), 0));
    assert!(text(&no_level.stderr).contains("\"warning\" is no level"), "{}", text(&no_level.stderr));
}

#[test]
fn a_reader_that_has_seen_enough_is_no_error() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_oarlock"))
        .arg("manifests")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut first = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut first).unwrap();
    let mut errors = String::new();
    child.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
    assert!(child.wait().unwrap().success(), "{errors}");
}

/// A host on a cluster that nobody answers for, with its folder.
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
        // Port 1 is nobody's.
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
        // It has ended already unless the test failed.
        let _ = self.child.kill();
    }
}

#[test]
fn a_host_without_its_cluster_waits_says_so_and_stops_when_told() {
    let mut host = Lonely::start("without-cluster", |_| {});
    let mut lines = BufReader::new(host.child.stderr.take().unwrap()).lines();
    let said = lines.by_ref().map_while(Result::ok).find(|line| line.contains("failed to read the lease"));
    assert!(said.is_some(), "the host ended instead of waiting");
    host.stops_when_told(lines);
}

#[test]
fn a_host_says_at_once_what_it_runs_with_and_that_there_are_no_grants() {
    let mut host = Lonely::start("start-up", |_| {});
    let mut lines = BufReader::new(host.child.stderr.take().unwrap()).lines();
    let mut said = String::new();
    for line in lines.by_ref().map_while(Result::ok) {
        said += &line;
        if line.contains("failed to read the lease") {
            break;
        }
    }
    for words in [env!("CARGO_PKG_VERSION"), "http://127.0.0.1:1", "identity=\"test\"", "no file of grants", "--grants"]
    {
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
    // Whatever else it says: the lease cannot be had either, and that is said every time or once.
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
            // A custom section makes each another component.
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
    assert!(ready.contains("[-] plugins: "), "{ready}");
    host.stops_when_told(lines);
}

#[test]
fn completions_know_every_command_in_every_shell() {
    for shell in ["bash", "zsh", "fish"] {
        let ended = oarlock(&["completions", shell]);
        let script = text(&ended.stdout);
        assert!(
            ended.status.success() && script.contains("manifests") && script.contains("inspect"),
            "{shell}: {script}"
        );
    }
}

#[test]
fn what_prints_documents_prints_them_as_one_json_list_too() {
    let replace = component("replace.wasm");
    let deployed = ["manifests", "--deployment", "x", "--pin", &replace, "-o", "json"];
    for arguments in [&["crds", "-o", "json"][..], &deployed] {
        let ended = oarlock(arguments);
        let list: serde_json::Value = serde_json::from_slice(&ended.stdout).unwrap();
        assert_eq!(list["kind"], "List");
        assert!(list["items"].as_array().is_some_and(|items| items.len() >= 2), "{list}");
    }
}

#[test]
fn manifests_that_cannot_be_written_say_what_to_do() {
    let folder = std::env::temp_dir().join(format!("oarlock-grants-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let file = folder.join("grants.yaml");
    let header = "apiVersion: oarlock.dev/v1alpha1\nkind: ActionPlugin\nmetadata: {name: x}\n";
    std::fs::write(&file, format!("{header}spec: {{namespaces: [team-*]}}\n")).unwrap();
    let path = file.display().to_string();
    for (arguments, words) in [
        (vec!["manifests", "--grants", &path], "--bind NAMESPACE"),
        (vec!["manifests", "--grants", "there-is-none.yaml"], "there-is-none.yaml"),
        (vec!["manifests", "--plugins-from", "configmap/p"], "--deployment"),
        (vec!["manifests", "--deployment", "x", "--plugins-from", "p"], "configmap/NAME"),
        (vec!["manifests", "--deployment", ""], "--deployment"),
        (vec!["manifests", "--deployment", "x"], "--pin FILE"),
        (vec!["manifests", "--deployment", "x", "--pin", &path], "cannot pin the grants to"),
    ] {
        let ended = oarlock(&arguments);
        assert!(
            !ended.status.success() && text(&ended.stderr).contains(words),
            "{arguments:?}: {}",
            text(&ended.stderr)
        );
    }
    let bound = oarlock(&["manifests", "--grants", &path, "--bind", "team-a"]);
    assert!(text(&bound.stdout).contains("namespace: team-a"), "{}", text(&bound.stderr));
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn the_policies_of_pods_can_be_left_out() {
    let printed = |arguments: &[&str]| text(&oarlock(arguments).stdout).matches("-holds.oarlock.dev").count();
    assert!(printed(&["manifests"]) > 1);
    assert_eq!(printed(&["manifests", "--no-pod-policies"]), 0);
}

#[test]
fn a_deployment_is_granted_its_own_replace_alone() {
    let replace = component("replace.wasm");
    let printed = oarlock(&["manifests", "--deployment", "x", "--pin", &replace, "-o", "json"]);
    let list: serde_json::Value = serde_json::from_slice(&printed.stdout).unwrap();
    let grants =
        list["items"].as_array().unwrap().iter().find_map(|item| item["data"]["grants.yaml"].as_str()).unwrap();
    assert!(!grants.contains("anyVersion:") && grants.contains("digest: sha256:"), "{grants}");
    let folder = empty_folder("pinned");
    let path = folder.join("grants.yaml").display().to_string();
    std::fs::write(&path, grants).unwrap();
    let vetted = |file: &str| oarlock(&["plugin", "vet", file, "--grants", &path, "-o", "json"]);
    assert!(vetted(&replace).status.success(), "{}", text(&vetted(&replace).stdout));
    // Whoever may drop a file names it so, in a higher version.
    let mut manifest: serde_json::Value =
        serde_json::from_str(include_str!("../../plugins/replace/manifest.json")).unwrap();
    manifest["version"] = "99.0.0".into();
    let taker = oarlock_wasm::annotate(&std::fs::read(&replace).unwrap(), manifest.to_string().as_bytes()).unwrap();
    let file = folder.join("replace.wasm").display().to_string();
    std::fs::write(&file, taker).unwrap();
    let refused = vetted(&file);
    let verdict: serde_json::Value = serde_json::from_slice(&refused.stdout).unwrap();
    assert_eq!(verdict["status"]["state"], "AwaitingGrant", "{verdict}");
    std::fs::remove_dir_all(&folder).unwrap();
}

/// An empty folder for one test.
fn empty_folder(name: &str) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _absent = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

/// Cargo in a crate outside of this workspace, with the versions of the workspace and without a network.
fn cargo(folder: &std::path::Path, arguments: &[&str]) {
    // Kept for the next run.
    let built = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("built");
    let mut command = Command::new(env!("CARGO"));
    let ended = command.current_dir(folder).args(arguments).args(["--offline"]).env("CARGO_TARGET_DIR", built);
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("CARGO_PKG_")) {
        ended.env_remove(name);
    }
    let ended = ended.output().unwrap();
    assert!(ended.status.success(), "cargo {arguments:?}\n{}\n{}", text(&ended.stdout), text(&ended.stderr));
}

#[test]
fn a_new_plugin_builds_and_tests_and_would_serve_from_an_empty_folder() {
    let folder = empty_folder("new-plugin");
    let made = Command::new(env!("CARGO_BIN_EXE_oarlock"))
        .args(["plugin", "new", "tag-it"])
        .current_dir(&folder)
        .output()
        .unwrap();
    assert!(made.status.success(), "{}", text(&made.stderr));
    let own = folder.join("tag-it");
    std::fs::copy(concat!(env!("CARGO_MANIFEST_DIR"), "/../Cargo.lock"), own.join("Cargo.lock")).unwrap();
    cargo(&own, &["test"]);
    cargo(&own, &["build", "--release", "--target", "wasm32-wasip2"]);
    let file = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("built/wasm32-wasip2/release/tag_it.wasm");
    let file = file.display().to_string();
    let grants = own.join("grants.yaml").display().to_string();
    let vetted = oarlock(&["plugin", "vet", &file, "--grants", &grants]);
    assert!(vetted.status.success(), "{}{}", text(&vetted.stdout), text(&vetted.stderr));
    // The grant that is printed for the very file serves too, and names its digest.
    let printed = oarlock(&["plugin", "grant", &file, "--namespace", "shop"]);
    let printed_file = folder.join("printed.yaml");
    std::fs::write(&printed_file, &printed.stdout).unwrap();
    assert!(text(&printed.stdout).contains("digest: \"sha256:") || text(&printed.stdout).contains("digest: sha256:"));
    let vetted = oarlock(&["plugin", "vet", &file, "--grants", &printed_file.display().to_string()]);
    assert!(vetted.status.success(), "{}{}", text(&vetted.stdout), text(&vetted.stderr));
}

#[test]
fn a_new_plugin_overwrites_nothing_and_takes_only_names_that_are_ones() {
    let folder = empty_folder("no-plugin");
    let refused = |name: &str, words: &str| {
        let ended = Command::new(env!("CARGO_BIN_EXE_oarlock"))
            .args(["plugin", "new", name])
            .current_dir(&folder)
            .output()
            .unwrap();
        assert_eq!(ended.status.code(), Some(1), "{name}");
        assert!(text(&ended.stderr).contains(words), "{}", text(&ended.stderr));
    };
    std::fs::create_dir(folder.join("there")).unwrap();
    refused("there", "exists already");
    refused("../up", "no name of a plugin");
    refused("1st", "begin with a letter");
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 1);
}

#[test]
fn a_whole_grant_is_printed_that_the_host_takes_as_it_is() {
    let greedy = component("greedy.wasm");
    let printed = oarlock(&["plugin", "grant", &greedy, "--any-version"]);
    assert!(printed.status.success(), "{}", text(&printed.stderr));
    let shown = text(&printed.stdout);
    for words in ["kind: ActionPlugin", "name: greedy", "anyVersion: true", "reason:"] {
        assert!(shown.contains(words), "{words:?} is missing in\n{shown}");
    }
}
