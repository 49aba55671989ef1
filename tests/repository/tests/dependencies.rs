//! Checks that each crate depends only on the crates in its list.
//!
//! Each test compares cargo's whole tree for one crate, without dev and build dependencies, with `dependencies/<crate>.txt`.
//! Without a list, a pure core collects clients slowly, one harmless dependency at a time. `UPDATE_DEPENDENCIES=1` rewrites the
//! lists; the change is then reviewed like code.

#![cfg(test)]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use oarlock_repository::root;

fn list(package: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("dependencies").join(format!("{package}.txt"))
}

/// The target of components. The list of a crate in components has only what gets into a component.
const COMPONENT: &str = "wasm32-wasip2";
/// The target of everything else.
const NATIVE: &str = "x86_64-unknown-linux-gnu";

/// Returns the packages that cargo names for `package` on `target`, the package itself first. The lock file handles versions.
fn tree(package: &str, target: &str, further: &[&str]) -> Vec<String> {
    let output = Command::new(env!("CARGO"))
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")))
        .args(["tree", "--locked", "--package", package, "--edges", "normal", "--target", target])
        .args(["--prefix", "none", "--format", "{p}"])
        .args(further)
        .output()
        .unwrap();
    assert!(output.status.success(), "cargo tree failed: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().filter_map(|line| line.split(' ').next()).filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

fn resolved(package: &str) -> BTreeSet<String> {
    let in_components =
        ["oarlock-sdk", "addon", "dumplog", "eviction", "exportimage", "preflight", "reboot", "replace", "restart"];
    let target = if in_components.contains(&package) { COMPONENT } else { NATIVE };
    tree(package, target, &[]).into_iter().filter(|name| name != package).collect()
}

fn updating() -> bool {
    std::env::var_os("UPDATE_DEPENDENCIES").is_some()
}

fn holds_its_list(package: &str) {
    let found = resolved(package);
    let path = list(package);
    if updating() {
        let lines: String = found.iter().map(|name| format!("{name}\n")).collect();
        std::fs::write(&path, lines).unwrap();
        return;
    }
    let text = std::fs::read_to_string(&path).unwrap_or_else(|cause| panic!("cannot read {}: {cause}", path.display()));
    let allowed: BTreeSet<String> = text.lines().map(str::to_owned).collect();
    let added: Vec<_> = found.difference(&allowed).collect();
    let gone: Vec<_> = allowed.difference(&found).collect();
    assert!(
        added.is_empty() && gone.is_empty(),
        "the dependencies of {package} changed\n  not in its list: {added:?}\n  in its list only: {gone:?}\n\
         `cargo tree -p {package} -e normal -i NAME` shows who brings one in. If each is meant:\n  \
         UPDATE_DEPENDENCIES=1 cargo test -p oarlock-repository --test dependencies"
    );
}

/// Checks the crates that a boundary of the architecture forbids, whatever the lists say.
fn keeps_out(package: &str, forbidden: &[&str]) {
    let found = resolved(package);
    let inside: Vec<_> = forbidden.iter().filter(|name| found.contains(**name)).collect();
    assert!(inside.is_empty(), "{package} must not depend on {inside:?}");
}

#[test]
fn api_is_data_only() {
    holds_its_list("oarlock-api");
    keeps_out("oarlock-api", &["kube-client", "tokio", "hyper", "wasmtime"]);
}

#[test]
fn contract_is_checks_only() {
    holds_its_list("oarlock-contract");
    keeps_out("oarlock-contract", &["k8s-openapi", "kube-client", "tokio", "wasmtime", "oarlock-api", "oarlock-core"]);
}

#[test]
fn core_has_neither_client_nor_runtime_nor_engine() {
    holds_its_list("oarlock-core");
    keeps_out(
        "oarlock-core",
        &["kube-client", "tokio", "hyper", "wasmtime", "futures", "oarlock-kube", "oarlock-wasm"],
    );
}

#[test]
fn adapter_for_kubernetes_knows_no_engine() {
    holds_its_list("oarlock-kube");
    keeps_out("oarlock-kube", &["wasmtime", "oarlock-wasm"]);
}

#[test]
fn adapter_for_plugins_knows_no_client() {
    holds_its_list("oarlock-wasm");
    keeps_out("oarlock-wasm", &["kube", "kube-client", "hyper", "oarlock-kube"]);
}

#[test]
fn in_memory_api_knows_neither_core_nor_adapters() {
    holds_its_list("oarlock-sim");
    keeps_out("oarlock-sim", &["wasmtime", "oarlock-core", "oarlock-kube", "oarlock-wasm"]);
}

#[test]
fn view_knows_neither_cluster_nor_terminal_nor_decisions() {
    holds_its_list("oarlock-view");
    keeps_out(
        "oarlock-view",
        &["kube-client", "tokio", "hyper", "wasmtime", "crossterm", "oarlock-core", "oarlock-kube"],
    );
}

#[test]
fn page_knows_neither_cluster_nor_server_nor_decisions() {
    holds_its_list("oarlock-page");
    keeps_out(
        "oarlock-page",
        &["kube-client", "tokio", "hyper", "axum-core", "http", "wasmtime", "oarlock-core", "oarlock-kube"],
    );
}

#[test]
fn signatures_are_judged_without_a_network() {
    holds_its_list("oarlock-signature");
    keeps_out("oarlock-signature", &["tokio", "hyper", "reqwest", "wasmtime", "kube-client"]);
}

#[test]
fn sdk_is_for_authors_and_brings_little() {
    holds_its_list("oarlock-sdk");
    keeps_out("oarlock-sdk", &["jsonschema", "oarlock-contract"]);
}

#[test]
fn test_kit_brings_the_checks_of_the_host_and_nothing_else_of_it() {
    let kit = tree("oarlock-sdk", NATIVE, &["--depth", "1"]);
    let host: Vec<_> = kit.iter().filter(|name| name.starts_with("oarlock-")).collect();
    assert_eq!(host, ["oarlock-sdk", "oarlock-contract"]);
}

#[test]
fn plugins_depend_on_the_sdk_and_on_what_they_share_alone() {
    for plugin in ["replace", "restart"] {
        holds_its_list(plugin);
        assert_eq!(tree(plugin, NATIVE, &["--depth", "1"]), [plugin, "eviction", "oarlock-sdk"]);
    }
    for plugin in ["addon", "dumplog", "exportimage", "preflight", "reboot"] {
        holds_its_list(plugin);
        assert_eq!(tree(plugin, NATIVE, &["--depth", "1"]), [plugin, "oarlock-sdk"]);
    }
    holds_its_list("eviction");
    assert_eq!(tree("eviction", NATIVE, &["--depth", "1"]), ["eviction", "oarlock-sdk"]);
}

/// Checks the features that the Dockerfile builds with. The in-memory API is a feature, so the image does not ship it.
#[test]
fn image_is_built_without_the_in_memory_api() {
    let docker = root().join("Dockerfile");
    let text = std::fs::read_to_string(docker).unwrap();
    let build = text.lines().find(|line| line.contains("cargo build") && line.contains("-p oarlock ")).unwrap();
    let mut words = build.split_whitespace();
    let features: Vec<&str> =
        words.by_ref().skip_while(|word| *word != "oarlock").skip(1).take_while(|word| *word != "\\").collect();
    let image = tree("oarlock", NATIVE, &features);
    let usual = tree("oarlock", NATIVE, &[]);
    for only_for_dev in ["oarlock-sim", "cel"] {
        assert!(usual.iter().any(|name| name == only_for_dev), "{only_for_dev} is in no build at all");
        assert!(image.iter().all(|name| name != only_for_dev), "the image has {only_for_dev}: {features:?}");
    }
    assert!(image.iter().any(|name| name == "wasmtime"));
}

#[test]
fn image_is_built_with_the_pinned_compiler_and_grants_its_own_plugins_alone() {
    let read = |name: &str| std::fs::read_to_string(root().join(name)).unwrap();
    let (docker, pinned) = (read("Dockerfile"), read("rust-toolchain.toml"));
    let version = pinned.lines().find_map(|line| line.strip_prefix("channel = ")).unwrap().trim_matches('"').to_owned();
    assert!(docker.contains(&format!("\nARG RUST_IMAGE=rust:{version}-alpine\n")), "{version} in\n{docker}");
    let bases: Vec<&str> = docker.lines().filter_map(|line| line.strip_prefix("FROM ")).collect();
    assert_eq!(bases, ["${RUST_IMAGE} AS build", "scratch"], "each image is the one of that argument or empty");
    let copied = docker.lines().filter_map(|line| line.trim().strip_prefix("&& cp "));
    let elsewhere: Vec<&str> = copied.filter(|line| !line.starts_with("target/")).collect();
    assert!(elsewhere.is_empty(), "what is not built there may not be there: {elsewhere:?}");
    let granted = "for plugin in replace restart; do /image/oarlock plugin grant /image/plugins/$plugin.wasm; done > /image/grants.yaml";
    assert!(docker.contains(granted), "{docker}");
}

#[test]
fn every_list_belongs_to_a_test() {
    if updating() {
        return;
    }
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("dependencies");
    let mut lists: Vec<String> =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    lists.sort();
    let tested = [
        "addon",
        "dumplog",
        "eviction",
        "exportimage",
        "oarlock-api",
        "oarlock-contract",
        "oarlock-core",
        "oarlock-kube",
        "oarlock-page",
        "oarlock-sdk",
        "oarlock-signature",
        "oarlock-sim",
        "oarlock-view",
        "oarlock-wasm",
        "preflight",
        "reboot",
        "replace",
        "restart",
    ];
    assert_eq!(lists, tested.map(|package| format!("{package}.txt")));
}
