//! Checks that the files in `deploy/` are those that `cargo xtask chart` writes, and that changed definitions have a new
//! level.

#![cfg(test)]

use std::collections::BTreeSet;
use std::path::PathBuf;

use oarlock_api::{CRD_LEVEL, CRDS, FLOW_CRDS, OPS_CRDS};
use serde_json::Value;

/// The definitions, with level and digest, of the last commit.
const LEVELS: &str = "tests/chart/tests/levels.txt";

#[test]
fn deploy_is_what_cargo_xtask_chart_writes() {
    let root = oarlock_chart::root();
    let files = oarlock_chart::files().unwrap();
    for (path, text) in &files {
        let found = std::fs::read_to_string(root.join(path)).unwrap_or_default();
        assert!(found == *text, "{} is not up to date: run `cargo xtask chart`", path.display());
    }
    let folder = root.join(oarlock_chart::GENERATED);
    let there = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
    let made = files.keys().filter(|path| path.starts_with(oarlock_chart::GENERATED));
    let made: BTreeSet<_> = made.map(|path| path.file_name().unwrap().to_owned()).collect();
    assert_eq!(there.collect::<BTreeSet<_>>(), made, "remove what is no longer generated: run `cargo xtask chart`");
}

/// Returns name, level and digest of each definition. Comments do not count.
fn levels() -> Vec<(String, u32, String)> {
    let texts = CRDS.into_iter().chain(FLOW_CRDS).chain(OPS_CRDS);
    let read = |text: &str| {
        let crd: Value = serde_saphyr::from_str(text).unwrap();
        let level = crd["metadata"]["annotations"][CRD_LEVEL].as_str().unwrap().parse().unwrap();
        let name = crd["metadata"]["name"].as_str().unwrap().to_owned();
        (name, level, oarlock_wasm::digest(crd["spec"].to_string().as_bytes()))
    };
    texts.map(read).collect()
}

#[test]
fn a_definition_that_changes_has_a_higher_level() {
    let path: PathBuf = oarlock_chart::root().join(LEVELS);
    let stored = std::fs::read_to_string(&path).unwrap_or_default();
    let mut lines = String::new();
    for (name, level, digest) in levels() {
        let before = stored.lines().find(|line| line.starts_with(&format!("{name} ")));
        if let Some([_, was, of]) = before.map(|line| line.split(' ').collect::<Vec<_>>()).as_deref() {
            let was: u32 = was.parse().unwrap();
            let is_raised = if *of == digest { level >= was } else { level > was };
            assert!(is_raised, "{name} has changed: raise its {CRD_LEVEL} above {was}");
        }
        lines += &format!("{name} {level} {digest}\n");
    }
    if std::env::var_os("UPDATE_LEVELS").is_some() {
        std::fs::write(&path, lines).unwrap();
    } else {
        assert_eq!(stored, lines, "run this test with UPDATE_LEVELS=1, and commit {LEVELS}");
    }
}
