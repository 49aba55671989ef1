//! The structure that ARCHITECTURE.md promises: one meaning for each type name, and imports that run one way.

#![cfg(test)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use regex::Regex;

/// The folders of `host/core/src`, in the order in which they may be imported.
const CORE: [&str; 9] = ["job", "cluster", "plugin", "shared", "round", "child", "flow", "daemon", "ops_job"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap().to_owned()
}

/// Product sources below a folder, with their paths from the root.
fn sources(folder: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut folders = vec![root().join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if path.is_dir() && !["tests", "examples", "target"].contains(&name.as_str()) {
                folders.push(path);
            } else if name.ends_with(".rs") {
                let shown = path.strip_prefix(root()).unwrap().to_string_lossy().into_owned();
                found.push((shown, std::fs::read_to_string(&path).unwrap()));
            }
        }
    }
    assert!(!found.is_empty(), "there are no sources in {folder}");
    found.sort();
    found
}

/// Names of types that are visible outside their file, each with the files that define it.
fn types<'a>(sources: impl IntoIterator<Item = &'a (String, String)>) -> BTreeMap<String, BTreeSet<String>> {
    let defines = Regex::new(r"(?m)^\s*pub(?:\(crate\))? (?:struct|enum|trait|type) (\w+)").unwrap();
    let mut found: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (path, text) in sources {
        for name in defines.captures_iter(text) {
            found.entry(name[1].to_owned()).or_default().insert(path.clone());
        }
    }
    found
}

fn twice(types: BTreeMap<String, BTreeSet<String>>) -> Vec<String> {
    types.into_iter().filter(|(_, files)| files.len() > 1).map(|(name, files)| format!("{name}: {files:?}")).collect()
}

/// Imports of a folder of core that comes later in the order.
fn upward(sources: &[(String, String)]) -> Vec<String> {
    let imports = Regex::new(&format!("crate::({})::", CORE.join("|"))).unwrap();
    let place = |folder: &str| CORE.iter().position(|known| *known == folder);
    let mut found = Vec::new();
    for (path, text) in sources {
        let Some(own) = path.split('/').nth(3).and_then(place) else { continue };
        let product = text.split("#[cfg(test)]").next().unwrap_or_default();
        let imported = imports.captures_iter(product).map(|import| import[1].to_owned());
        found.extend(
            imported.filter(|folder| place(folder) > Some(own)).map(|folder| format!("{path} imports {folder}")),
        );
    }
    found
}

#[test]
fn no_two_types_of_the_host_share_a_name() {
    let all = sources("host");
    let host = all.iter().filter(|(path, _)| !path.starts_with("host/sim/"));
    assert_eq!(twice(types(host)), Vec::<String>::new(), "one meaning for each name: rename one of them");
}

#[test]
fn no_two_types_of_the_in_memory_api_share_a_name() {
    assert_eq!(twice(types(&sources("host/sim/src"))), Vec::<String>::new());
}

#[test]
fn imports_between_the_folders_of_core_run_one_way() {
    let core = sources("host/core/src");
    let folders: BTreeSet<&str> = core.iter().filter_map(|(path, _)| path.split('/').nth(3)).collect();
    let unplaced: Vec<_> = folders.iter().filter(|name| **name != "lib.rs" && !CORE.contains(name)).collect();
    assert!(unplaced.is_empty(), "{unplaced:?} have no place in the order {CORE:?}");
    assert_eq!(upward(&core), Vec::<String>::new(), "the order is {CORE:?}");
}

#[test]
fn a_name_with_two_meanings_and_an_import_against_the_order_are_found() {
    let file = |path: &str, text: &str| (path.to_owned(), text.to_owned());
    let files = [
        file("host/core/src/job/key.rs", "use crate::round::plan::Plan;\npub struct Plan;"),
        file("host/core/src/round/plan.rs", "use crate::job::key::JobKey;\n    pub(crate) enum Plan {}"),
    ];
    assert_eq!(twice(types(&files)).len(), 1);
    assert_eq!(upward(&files), ["host/core/src/job/key.rs imports round"]);
}
