//! The crate that `oarlock plugin new` creates, from an empty folder.

use std::path::PathBuf;
use std::process::Command;

use crate::{empty_folder, oarlock, text};

/// Runs cargo in a crate outside this workspace, with the versions of the workspace and without a network.
fn cargo(folder: &std::path::Path, arguments: &[&str]) {
    // This folder speeds up the next run.
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
    // The grant that is printed for this file works too, and names its digest.
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
