//! Each crate depends on what its list says, and on nothing else.
//!
//! Takes what cargo resolves for a crate alone, without dev and build dependencies; compares the whole tree with
//! `dependencies/<crate>.txt`. A pure core gathers clients slowly, one harmless dependency at a time. `UPDATE_DEPENDENCIES=1`
//! writes the lists anew; the change is then reviewed like code.

#![cfg(test)]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

fn list(package: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("dependencies").join(format!("{package}.txt"))
}

/// The packages that cargo names for `package` on Linux, itself first. Versions are the lock file's business.
fn tree(package: &str, further: &[&str]) -> Vec<String> {
    let output = Command::new(env!("CARGO"))
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")))
        .args(["tree", "--locked", "--package", package, "--edges", "normal", "--target", "x86_64-unknown-linux-gnu"])
        .args(["--prefix", "none", "--format", "{p}"])
        .args(further)
        .output()
        .unwrap();
    assert!(output.status.success(), "cargo tree failed: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().filter_map(|line| line.split(' ').next()).filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

fn resolved(package: &str) -> BTreeSet<String> {
    tree(package, &[]).into_iter().filter(|name| name != package).collect()
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
         UPDATE_DEPENDENCIES=1 cargo test -p oarlock-bed --test dependencies"
    );
}

/// What a boundary of the architecture forbids, whatever the lists say.
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
fn sdk_is_for_authors_and_brings_little() {
    holds_its_list("oarlock-sdk");
    keeps_out("oarlock-sdk", &["kube-client", "tokio", "wasmtime", "oarlock-core", "oarlock-api"]);
}

#[test]
fn plugin_depends_on_the_sdk_alone() {
    holds_its_list("replace");
    assert_eq!(tree("replace", &["--depth", "1"]), ["replace", "oarlock-sdk"]);
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
    let tested =
        ["oarlock-api", "oarlock-core", "oarlock-kube", "oarlock-sdk", "oarlock-sim", "oarlock-wasm", "replace"];
    assert_eq!(lists, tested.map(|package| format!("{package}.txt")));
}
