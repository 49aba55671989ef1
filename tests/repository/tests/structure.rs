//! Checks the structure that ARCHITECTURE.md promises: one meaning for each type name, imports in one direction, and small
//! circles of imports.

#![cfg(test)]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use oarlock_repository::root;
use regex::Regex;

/// The folders of `host/core/src`, in the order in which they may import each other.
const CORE: [&str; 13] = [
    "object",
    "cache",
    "requests",
    "status",
    "plugin",
    "kind",
    "action_plugin",
    "operation_job",
    "attempts",
    "job_template",
    "job_flow",
    "daemon_job",
    "ops_job",
];

/// The folders of `host/kube/src`, in the order in which they may be imported. `cluster` holds what they share.
const KUBE: [&str; 11] =
    ["error_chain", "transport", "watch", "lease", "read", "send", "persist", "tasks", "kinds", "flows", "ops"];

/// The imports against the order of [`KUBE`], each with its reason. The list may only become shorter.
const AGAINST_THE_ORDER: [&str; 2] = [
    // One watch of OperationJobs feeds the caches of flows and OpsJobs.
    "host/kube/src/watch/operation_jobs.rs imports flows",
    // A plan sends writes as dry runs.
    "host/kube/src/read/snapshot.rs imports send",
];

/// The crates of the product. No circle of imports in them is large.
const IN_SMALL_CIRCLES: [&str; 12] = [
    "host/artefacts/src",
    "host/contract/src",
    "host/core/src",
    "host/kube/src",
    "host/page/src",
    "host/registry/src",
    "host/rest/src",
    "host/signature/src",
    "host/src",
    "host/view/src",
    "host/wasm/src",
    "host/web/src",
];

/// Most files of a circle of imports.
const MOST_IN_A_CIRCLE: usize = 5;

/// The parts of a source that import nothing, although they may have a path: comments and visibilities.
static NO_IMPORT: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"(?m)//.*$|pub\(in [^)]*\)").unwrap());
static USE: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"\buse ((?:crate|super|self)::[^;]+);").unwrap());
static TEST_MODULE: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"(?s)#\[cfg\(test\)\]\s*(?:#\[[^\]]*\]\s*)*mod \w+ \{.*").unwrap());
static PUBLIC_TYPE: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"(?m)^\s*pub(?:\(crate\))? (?:struct|enum|trait|type) (\w+)").unwrap());
/// An indented `type` belongs to a trait, so it is no type of its own.
static ANY_TYPE: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"(?m)^(?:\s*(?:pub(?:\([^)]*\))? )?(?:struct|enum|union|trait)|(?:pub(?:\([^)]*\))? )?type) (\w+)")
        .unwrap()
});
static PATH: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"\b(?:crate|super)(?:::\w+)+").unwrap());

/// Returns the product sources below a folder, with their paths from the root.
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

/// Returns the names of types that `defines` finds outside tests, each with the files that define it.
fn types<'a>(
    sources: impl IntoIterator<Item = &'a (String, String)>,
    defines: &Regex,
) -> BTreeMap<String, BTreeSet<String>> {
    let mut found: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (path, text) in sources.into_iter().filter(|(path, _)| !path.ends_with("tests.rs")) {
        for name in defines.captures_iter(&TEST_MODULE.replace(text, "")) {
            found.entry(name[1].to_owned()).or_default().insert(path.clone());
        }
    }
    found
}

fn twice(types: BTreeMap<String, BTreeSet<String>>) -> Vec<String> {
    types.into_iter().filter(|(_, files)| files.len() > 1).map(|(name, files)| format!("{name}: {files:?}")).collect()
}

/// Returns the module of a source file, as the path from the root of its crate.
fn module(path: &str) -> Vec<String> {
    let (_, inside) = path.split_once("/src/").unwrap();
    let names = inside.trim_end_matches(".rs").split('/').filter(|name| !["lib", "mod"].contains(name));
    names.map(str::to_owned).collect()
}

/// Returns the paths of a `use`, with its groups spelled out.
fn spelled_out(tree: &str) -> Vec<String> {
    let Some((stem, group)) = tree.trim().split_once('{') else { return vec![tree.trim().to_owned()] };
    let (mut depth, mut branches) = (0, vec![String::new()]);
    for letter in group.trim_end().strip_suffix('}').unwrap_or(group).chars() {
        depth += i32::from(letter == '{') - i32::from(letter == '}');
        match letter {
            ',' if depth == 0 => branches.push(String::new()),
            _ => branches.last_mut().unwrap().push(letter),
        }
    }
    let branches = branches.iter().map(|branch| branch.trim()).filter(|branch| !branch.is_empty());
    branches.flat_map(|branch| spelled_out(&format!("{stem}{branch}"))).collect()
}

/// Returns the paths inside its own crate that a file imports, apart from its tests, each from the root of the crate.
fn imports(path: &str, text: &str) -> BTreeSet<Vec<String>> {
    let product = text.split("#[cfg(test)]").next().unwrap_or_default();
    let code = NO_IMPORT.replace_all(product, "");
    let mut written: Vec<String> = USE.captures_iter(&code).flat_map(|tree| spelled_out(&tree[1])).collect();
    written.extend(PATH.find_iter(&USE.replace_all(&code, "")).map(|found| found.as_str().to_owned()));
    let from_root = |path_in_code: &String| {
        let mut names = path_in_code.split("::").map(|name| name.split(' ').next().unwrap_or_default()).peekable();
        let mut at = module(path);
        if names.next_if_eq(&"crate").is_some() {
            at.clear();
        }
        names.next_if_eq(&"self");
        while names.next_if_eq(&"super").is_some() {
            at.pop();
        }
        at.into_iter().chain(names.map(str::to_owned)).collect()
    };
    written.iter().map(from_root).collect()
}

/// Returns the imports of a folder that comes later in `order`.
fn upward(sources: &[(String, String)], order: &[&str]) -> Vec<String> {
    let place = |folder: &str| order.iter().position(|known| *known == folder);
    let mut found = BTreeSet::new();
    for (path, text) in sources {
        let Some(own) = module(path).first().and_then(|folder| place(folder)) else { continue };
        let imported = imports(path, text).into_iter().filter_map(|import| import.into_iter().next());
        found.extend(
            imported.filter(|folder| place(folder) > Some(own)).map(|folder| format!("{path} imports {folder}")),
        );
    }
    found.into_iter().collect()
}

/// Returns the files that a file imports, directly or through other files.
fn reached<'a>(direct: &BTreeMap<&str, BTreeSet<&'a str>>, file: &'a str) -> BTreeSet<&'a str> {
    let (mut seen, mut next) = (BTreeSet::new(), vec![file]);
    while let Some(file) = next.pop() {
        next.extend(direct[file].iter().filter(|imported| seen.insert(**imported)));
    }
    seen
}

/// Returns the circles of imports of one crate: sets of files, each of which imports all others, some of them through
/// other files.
fn circles(sources: &[(String, String)]) -> BTreeSet<BTreeSet<&str>> {
    let files: BTreeMap<Vec<String>, &str> = sources.iter().map(|(path, _)| (module(path), path.as_str())).collect();
    // A path ends with names inside the file.
    let file_of = |import: &Vec<String>| (0..=import.len()).rev().find_map(|end| files.get(&import[..end]).copied());
    let direct: BTreeMap<&str, BTreeSet<&str>> = sources
        .iter()
        .map(|(path, text)| (path.as_str(), imports(path, text).iter().filter_map(file_of).collect()))
        .collect();
    let all: BTreeMap<&str, BTreeSet<&str>> = direct.keys().map(|file| (*file, reached(&direct, file))).collect();
    let circles = all.iter().map(|(file, imported)| {
        let back = imported.iter().filter(|other| all[**other].contains(file));
        back.copied().collect::<BTreeSet<&str>>()
    });
    circles.filter(|circle| circle.len() > 1).collect()
}

#[test]
fn no_two_types_of_the_host_share_a_name() {
    let all = sources("host");
    let host = all.iter().filter(|(path, _)| !path.starts_with("host/sim/"));
    assert_eq!(twice(types(host, &PUBLIC_TYPE)), Vec::<String>::new(), "one meaning for each name: rename one of them");
}

#[test]
fn no_two_types_of_a_crate_share_a_name_even_if_they_are_private() {
    let mut crates: BTreeMap<String, Vec<(String, String)>> = BTreeMap::new();
    for source in sources("host") {
        let (name, _) = source.0.split_once("/src/").unwrap();
        crates.entry(name.to_owned()).or_default().push(source);
    }
    assert!(crates.len() > 10 && crates.contains_key("host/sim"), "{:?}", crates.keys());
    let wrong: Vec<String> = crates.values().flat_map(|sources| twice(types(sources, &ANY_TYPE))).collect();
    assert!(wrong.is_empty(), "one meaning for each name: rename one of them\n{}", wrong.join("\n"));
}

#[test]
fn imports_between_the_folders_of_core_run_one_way() {
    let core = sources("host/core/src");
    let folders: BTreeSet<&str> = core.iter().filter_map(|(path, _)| path.split('/').nth(3)).collect();
    let unplaced: Vec<_> = folders.iter().filter(|name| **name != "lib.rs" && !CORE.contains(name)).collect();
    assert!(unplaced.is_empty(), "{unplaced:?} have no place in the order {CORE:?}");
    assert_eq!(upward(&core, &CORE), Vec::<String>::new(), "the order is {CORE:?}");
}

#[test]
fn imports_between_the_folders_of_kube_run_one_way_but_for_a_list() {
    let kube = sources("host/kube/src");
    let against: BTreeSet<String> = upward(&kube, &KUBE).into_iter().collect();
    assert_eq!(against, AGAINST_THE_ORDER.map(str::to_owned).into(), "the order is {KUBE:?}");
}

#[test]
fn no_import_circle_has_more_than_five_files() {
    let mut large = Vec::new();
    for folder in IN_SMALL_CIRCLES {
        let sources = sources(folder);
        let found = circles(&sources).into_iter().filter(|circle| circle.len() > MOST_IN_A_CIRCLE);
        large.extend(found.map(|circle| format!("{} files:\n  {}", circle.len(), Vec::from_iter(circle).join("\n  "))));
    }
    assert!(
        large.is_empty(),
        "no circle of imports may have more than {MOST_IN_A_CIRCLE} files: move a type that they share into a file \
         below them, or a function into the file that calls it:\n{}",
        large.join("\n")
    );
}

#[test]
fn a_circle_of_imports_is_found_however_the_imports_are_written() {
    let file = |name: &str, text: &str| (format!("host/core/src/{name}.rs"), text.to_owned());
    let files = [
        file("lib", "pub mod a { pub mod b; pub mod c; } pub mod d; pub mod e; pub mod f;"),
        file("a/b", "use std::mem;\nuse super::c::{Inner, Outer as Other};"),
        file("a/c", "use crate::{\n    a::{d, e::{F}},\n    d::{self, G},\n};"),
        file("d", "fn go() { self::inside(); crate::e::run() }"),
        file("e", "use crate::f::Last; // crate::a::c::Outer is no import.\npub(crate) use super::a::b::First;"),
        file("f", "/// See [`crate::d`].\npub struct Last;\n#[cfg(test)]\nmod tests { use crate::a::b::First; }"),
    ];
    let circle = ["a/b", "a/c", "d", "e"].map(|name| format!("host/core/src/{name}.rs"));
    let found = circles(&files);
    assert_eq!(found.into_iter().map(Vec::from_iter).collect::<Vec<_>>(), [circle]);
}

#[test]
fn a_name_with_two_meanings_and_an_import_against_the_order_are_found() {
    let file = |path: &str, text: &str| (path.to_owned(), text.to_owned());
    let files = [
        file(
            "host/core/src/object/key.rs",
            "use crate::operation_job::round::plan::Plan;\npub struct Plan;\nstruct Own;",
        ),
        file(
            "host/core/src/operation_job/round/plan.rs",
            "use crate::object::key::JobKey;\n    pub(crate) enum Plan {}\nenum Own {\n}\nstruct First;",
        ),
        file(
            "host/core/src/operation_job/round/judge.rs",
            "impl A for B {\n    type First = u8;\n}\n#[cfg(test)]\nmod tests {\n    struct First;\n}",
        ),
        file("host/core/src/operation_job/round/judge_tests.rs", "struct First;"),
    ];
    let names = |defines: &Regex| -> Vec<String> {
        let twice = types(&files, defines).into_iter().filter(|(_, files)| files.len() > 1);
        twice.map(|(name, _)| name).collect()
    };
    assert_eq!((names(&PUBLIC_TYPE), names(&ANY_TYPE)), (vec!["Plan".to_owned()], vec!["Own".into(), "Plan".into()]));
    assert_eq!(twice(types(&files, &PUBLIC_TYPE)).len(), 1);
    assert_eq!(upward(&files, &CORE), ["host/core/src/object/key.rs imports operation_job"]);
}
