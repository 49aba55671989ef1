//! The binary as a user runs it: exit codes, and the use of standard output and standard error.
//!
//! The tests need the built binary and built components (`cargo xtask plugins`), and run real processes in real time. A test knows only what the
//! binary prints.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails loudly")]

mod advice;
mod confined;
mod lonely;
mod new_plugin;
mod plans;

use std::io::{BufRead as _, BufReader, Read as _};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

/// Returns the folder into which `cargo xtask plugins` writes components.
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

fn oarlock_command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_oarlock"));
    command.args(arguments).env_remove("OARLOCK_LOG").env_remove("KUBECONFIG");
    command
}

fn oarlock(arguments: &[&str]) -> Output {
    oarlock_command(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn the_policy_of_pods_can_be_left_out_and_the_one_of_holds_be_added() {
    let printed = |flags: &[&str]| {
        let text = text(&oarlock(&[&["manifests"], flags].concat()).stdout);
        ["pod-metadata.oarlock.dev", "pod-holds.oarlock.dev}"].map(|name| text.contains(&format!("name: {name}")))
    };
    assert_eq!(printed(&[]), [true, false]);
    assert_eq!(printed(&["--no-guard-pod-writes"]), [false, false]);
    assert_eq!(printed(&["--no-pod-policies"]), [false, false], "its name of an earlier version");
    assert_eq!(printed(&["--guard-holds"]), [true, true]);
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
    // A user who may write files can drop a plugin with this name and a higher version.
    let mut manifest: serde_json::Value =
        serde_json::from_str(include_str!("../../../plugins/replace/manifest.json")).unwrap();
    manifest["version"] = "99.0.0".into();
    let taker = oarlock_wasm::annotate(&std::fs::read(&replace).unwrap(), manifest.to_string().as_bytes()).unwrap();
    let file = folder.join("replace.wasm").display().to_string();
    std::fs::write(&file, taker).unwrap();
    let refused = vetted(&file);
    let verdict: serde_json::Value = serde_json::from_slice(&refused.stdout).unwrap();
    assert_eq!(verdict["status"]["state"], "AwaitingGrant", "{verdict}");
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_deployment_of_an_image_by_tag_is_printed_with_a_warning_and_one_by_digest_without() {
    let replace = component("replace.wasm");
    let said = |image: &str| {
        let ended = oarlock(&["manifests", "--deployment", image, "--pin", &replace, "-o", "json"]);
        assert!(ended.status.success(), "{}", text(&ended.stderr));
        let list: serde_json::Value = serde_json::from_slice(&ended.stdout).unwrap();
        assert!(list.to_string().contains(image), "{image} is not deployed");
        text(&ended.stderr)
    };
    let digest = "0123456789abcdef".repeat(4);
    for by_tag in
        ["oarlock", "registry.example:5000/oarlock:0.1.0", "oarlock@sha256:0123", &format!("oarlock:{digest}")]
    {
        let warned = said(by_tag);
        assert!(warned.starts_with("warning: ") && warned.contains(by_tag) && warned.contains("@sha256:"), "{warned}");
    }
    for by_digest in ["oarlock@sha256:", "registry.example:5000/oarlock:0.1.0@sha256:"] {
        assert_eq!(said(&format!("{by_digest}{digest}")), "");
    }
}

#[test]
fn two_pins_of_one_plugin_are_refused_with_both_files() {
    let folder = empty_folder("two-pins");
    let (replace, copy) = (component("replace.wasm"), folder.join("other.wasm").display().to_string());
    std::fs::copy(&replace, &copy).unwrap();
    let ended = oarlock(&["manifests", "--deployment", "x", "--pin", &replace, "--pin", &copy]);
    let said = text(&ended.stderr);
    assert!(!ended.status.success() && ended.stdout.is_empty(), "{said}");
    for words in [replace.as_str(), &copy, "plugin `replace`", "leave one `--pin` out"] {
        assert!(said.contains(words), "{words:?} is missing in {said}");
    }
}

/// Returns an empty folder for one test.
fn empty_folder(name: &str) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _absent = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

#[test]
fn a_job_is_printed_without_uids_and_with_a_warning_where_no_cluster_answers() {
    let folder = empty_folder("no-cluster");
    let kubeconfig = folder.join("kubeconfig").display().to_string();
    // No process listens on port 1.
    let config = "apiVersion: v1\nkind: Config\ncurrent-context: c\n\
                  clusters: [{name: c, cluster: {server: 'http://127.0.0.1:1'}}]\n\
                  contexts: [{name: c, context: {cluster: c, user: u}}]\nusers: [{name: u, user: {}}]\n";
    std::fs::write(&kubeconfig, config).unwrap();
    let printed = |chosen: &[&str]| {
        let line = [&["run", "Replace", "--kubeconfig", &kubeconfig, "--print", "-o", "json"], chosen].concat();
        let ended = oarlock(&line);
        let job: serde_json::Value = serde_json::from_slice(&ended.stdout).unwrap();
        (job["spec"].clone(), text(&ended.stderr))
    };
    let (spec, told) = printed(&["--target", "a"]);
    assert_eq!(spec["targets"], serde_json::json!([{"name": "a"}]));
    assert!(
        told.starts_with("warning: cannot get pod a: ") && told.ends_with("whatever has its name as it starts\n"),
        "{told}"
    );
    // The host resolves a selector and freezes the targets with their UIDs.
    assert_eq!(printed(&["--selector", "app=web"]).1, "");
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
fn what_the_host_would_not_look_at_is_said_and_a_pipe_is_not_waited_for() {
    let folder = empty_folder("odd-files");
    let (upper, pipe) = (folder.join("REPLACE.WASM"), folder.join("pipe.wasm"));
    std::fs::copy(component("replace.wasm"), &upper).unwrap();
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let grants = concat!(env!("CARGO_MANIFEST_DIR"), "/../plugins/replace/grant.yaml");
    let upper = oarlock(&["plugin", "vet", &upper.display().to_string(), "--grants", grants]);
    assert_eq!(upper.status.code(), Some(1));
    assert!(text(&upper.stderr).contains("rename it to <name>.wasm"), "{}", text(&upper.stderr));
    for command in ["inspect", "vet", "grant"] {
        let ended = oarlock(&["plugin", command, &pipe.display().to_string()]);
        assert!(text(&ended.stderr).contains("is not a file"), "{command}: {}", text(&ended.stderr));
    }
}

#[test]
fn a_manifest_is_written_into_a_component_and_a_wrong_one_is_refused() {
    let folder = empty_folder("annotate");
    let path = |name: &str| folder.join(name).display().to_string();
    let manifest = r#"{"schema": 1, "name": "other", "version": "3.2.1", "action": "Other", "target": ["Pod"]}"#;
    std::fs::write(path("manifest.json"), manifest).unwrap();
    let made =
        oarlock(&["plugin", "annotate", &component("no_manifest.wasm"), &path("manifest.json"), &path("o.wasm")]);
    assert!(made.status.success(), "{}", text(&made.stderr));
    let seen = text(&oarlock(&["plugin", "inspect", &path("o.wasm")]).stdout);
    assert!(seen.contains("other 3.2.1"), "{seen}");
    std::fs::write(path("manifest.json"), "{").unwrap();
    let refused = oarlock(&["plugin", "annotate", &path("o.wasm"), &path("manifest.json"), &path("o.wasm")]);
    assert!(text(&refused.stderr).contains("manifest.json: ManifestInvalid"), "{}", text(&refused.stderr));
}

#[test]
fn arguments_that_cannot_be_read_exit_with_2_and_a_filter_with_1() {
    assert_eq!(oarlock(&["host"]).status.code(), Some(2));
    assert_eq!(oarlock(&["no-such-command"]).status.code(), Some(2));
    assert_eq!(oarlock(&["host", "--plugins", "p", "--identity", ""]).status.code(), Some(2));
    assert_eq!(oarlock(&["host", "--plugins", "p", "--listen", "8080"]).status.code(), Some(2));
    let refused = oarlock(&["--log", "=,=", "crds"]);
    assert_eq!((refused.status.code(), refused.stdout.len()), (Some(1), 0));
    let no_level = oarlock(&["--log", "warning", "crds"]);
    assert_eq!((no_level.status.code(), no_level.stdout.len()), (Some(1), 0));
    assert!(text(&no_level.stderr).contains("\"warning\" is no level"), "{}", text(&no_level.stderr));
}

#[test]
fn a_kubeconfig_that_is_not_there_is_said_once() {
    let ended = oarlock(&["host", "--plugins", ".", "--listen", "127.0.0.1:0", "--kubeconfig", "/there/is/none"]);
    assert_eq!(text(&ended.stderr).matches("No such file").count(), 1, "{}", text(&ended.stderr));
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
fn what_grants_add_is_printed_alone_for_the_chart() {
    let grants = concat!(env!("CARGO_MANIFEST_DIR"), "/../plugins/reboot/grant.yaml");
    let pin = component("reboot.wasm");
    let printed = oarlock(&["manifests", "--grants", grants, "--only-grants", "--pin", &pin, "-o", "json"]);
    let list: serde_json::Value = serde_json::from_slice(&printed.stdout).unwrap();
    let documents = list["items"].as_array().unwrap();
    let named = |kind: &str| {
        let all = documents.iter().filter(|document| document["kind"] == kind);
        all.map(|document| document["metadata"]["name"].as_str().unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(named("CustomResourceDefinition"), Vec::<&str>::new());
    assert_eq!(named("Namespace"), ["oarlock-tasks"], "the namespace of the host is not in it");
    assert_eq!(named("ClusterRole"), ["oarlock-plugin-reboot-reads", "oarlock-plugin-reboot-cluster-writes"]);
    assert!(documents[0]["data"]["grants.yaml"].as_str().unwrap().contains("digest: sha256:"), "{}", documents[0]);
    let alone = oarlock(&["manifests", "--only-grants"]);
    assert!(text(&alone.stderr).contains("--grants"), "{}", text(&alone.stderr));
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
fn a_whole_grant_is_printed_that_the_host_takes_as_it_is() {
    let greedy = component("greedy.wasm");
    let printed = oarlock(&["plugin", "grant", &greedy, "--any-version"]);
    assert!(printed.status.success(), "{}", text(&printed.stderr));
    let shown = text(&printed.stdout);
    for words in ["kind: ActionPlugin", "name: greedy", "anyVersion: true", "reason:"] {
        assert!(shown.contains(words), "{words:?} is missing in\n{shown}");
    }
}
