//! Checks `deny.toml`: every crate in a build comes from an allowed source, has an allowed licence, and is used only by allowed
//! crates.
//!
//! Names and edges are those that cargo resolves for the built targets. Licences come from the packages' manifests, and sources
//! from the lock file. A crate that no build contains does not count. Advisories need a download; CONTRIBUTING.md says how to check
//! them.

#![cfg(test)]

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use oarlock_repository::root;
use serde::Deserialize;
use serde_json::Value;
use spdx::{Expression, Licensee, ParseMode};

/// The source of every crate from outside the repository.
const CRATES_IO: &str = "registry+https://github.com/rust-lang/crates.io-index";
/// The targets of the whole workspace, the image included. `COMPONENT` is the target of components.
const NATIVE: [&str; 3] = ["x86_64-unknown-linux-gnu", "x86_64-unknown-linux-musl", "aarch64-unknown-linux-musl"];
const COMPONENT: &str = "wasm32-wasip2";
const COMPONENTS: [&str; 8] =
    ["oarlock-sdk", "addon", "dumplog", "exportimage", "replace", "restart", "reboot", "preflight"];

/// The content of `deny.toml`. An unknown key is an error, so that no rule is written and then ignored.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Rules {
    licenses: Licenses,
    bans: Bans,
    sources: Sources,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Licenses {
    allow: Vec<String>,
    private: Private,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Private {
    ignore: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Bans {
    multiple_versions: String,
    wildcards: String,
    allow_wildcard_paths: bool,
    deny: Vec<Ban>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Ban {
    #[serde(rename = "crate")]
    name: String,
    #[serde(default)]
    wrappers: BTreeSet<String>,
    reason: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Sources {
    unknown_registry: String,
    unknown_git: String,
}

/// A package as its own manifest describes it.
#[derive(Deserialize)]
struct Package {
    name: String,
    version: String,
    license: Option<String>,
    source: Option<String>,
    publish: Option<Vec<String>>,
    dependencies: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Dependency {
    name: String,
    req: String,
    path: Option<String>,
}

#[derive(Deserialize)]
struct Lock {
    package: Vec<Locked>,
}

#[derive(Deserialize)]
struct Locked {
    name: String,
    version: String,
    source: Option<String>,
    checksum: Option<String>,
}

/// The name and version of a crate.
type Crate = (String, String);

/// The crates of the builds and the dependencies between them.
#[derive(Default)]
struct Tree {
    crates: BTreeSet<Crate>,
    edges: BTreeSet<(Crate, Crate)>,
}

fn cargo(arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO")).current_dir(root()).args(arguments).output().unwrap();
    assert!(output.status.success(), "cargo {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn toml<T: serde::de::DeserializeOwned>(text: &str) -> T {
    toml_edit::de::from_str(text).unwrap()
}

fn file<T: serde::de::DeserializeOwned>(name: &str) -> T {
    toml(&std::fs::read_to_string(root().join(name)).unwrap())
}

impl Tree {
    /// Returns the tree of everything that is built here.
    fn built() -> Self {
        let mut tree = Self::default();
        for target in NATIVE {
            tree.add(&printed(target, &["--workspace"]));
        }
        let components = COMPONENTS.iter().flat_map(|name| ["--package", name]);
        tree.add(&printed(COMPONENT, &components.collect::<Vec<_>>()));
        tree
    }

    /// Adds lines of a depth and a package. Cargo prints a repeated package without its dependencies, which are on an earlier line.
    fn add(&mut self, text: &str) {
        let mut above: Vec<Crate> = Vec::new();
        for line in text.lines().filter(|line| !line.is_empty()) {
            let mut words = line.split(' ');
            let depth: usize = words.next().unwrap().parse().unwrap();
            let (name, version) = (words.next().unwrap(), words.next().unwrap());
            let found = (name.to_owned(), version.trim_start_matches('v').to_owned());
            above.truncate(depth);
            if let Some(parent) = above.last() {
                self.edges.insert((parent.clone(), found.clone()));
            }
            self.crates.insert(found.clone());
            above.push(found);
        }
    }

    /// Returns the versions of a crate on which another crate depends.
    fn versions(&self, parent: &str, child: &str) -> BTreeSet<&str> {
        let edges = self.edges.iter().filter(|(above, below)| above.0 == parent && below.0 == child);
        edges.map(|(_, below)| below.1.as_str()).collect()
    }
}

/// Returns cargo's tree of these packages, build scripts and tests included.
fn printed(target: &str, packages: &[&str]) -> String {
    let tree = ["tree", "--locked", "--target", target, "--edges", "normal,build,dev", "--prefix", "depth"];
    cargo(&[&tree[..], &["--format", " {p}"], packages].concat())
}

/// Returns the packages of all built targets, by name and version.
fn packages() -> BTreeMap<Crate, Package> {
    let targets = NATIVE.iter().chain([&COMPONENT]).flat_map(|target| ["--filter-platform", target]);
    let arguments = ["metadata", "--locked", "--format-version", "1"].into_iter().chain(targets);
    let mut metadata: Value = serde_json::from_str(&cargo(&arguments.collect::<Vec<_>>())).unwrap();
    let found: Vec<Package> = serde_json::from_value(metadata["packages"].take()).unwrap();
    found.into_iter().map(|package| ((package.name.clone(), package.version.clone()), package)).collect()
}

/// Returns why a licence is not allowed. Returns `None` if it is allowed.
fn unlicensed(stated: Option<&str>, allowed: &[Licensee]) -> Option<String> {
    let Some(stated) = stated else { return Some("states no licence".to_owned()) };
    match Expression::parse_mode(stated, ParseMode::LAX) {
        Err(error) => Some(format!("states the licence {stated:?}, which is none: {}", error.reason)),
        Ok(expression) => {
            let fits = expression.evaluate(|asked| allowed.iter().any(|licence| licence.satisfies(asked)));
            (!fits).then(|| format!("is under {stated:?}, which deny.toml does not allow"))
        }
    }
}

fn allowed(rules: &Rules) -> Vec<Licensee> {
    rules.licenses.allow.iter().map(|licence| Licensee::parse(licence).unwrap()).collect()
}

/// Returns the crates that depend on a banned crate and are not its wrappers.
fn banned(bans: &[Ban], edges: &BTreeSet<(Crate, Crate)>) -> Vec<String> {
    let uses = |ban: &Ban| {
        let parents = edges.iter().filter(|(_, below)| below.0 == ban.name).map(|(above, _)| above.0.as_str());
        let others: BTreeSet<&str> = parents.filter(|above| !ban.wrappers.contains(*above)).collect();
        others.into_iter().map(|above| format!("{above} depends on {}: {}", ban.name, ban.reason)).collect::<Vec<_>>()
    };
    bans.iter().flat_map(uses).collect()
}

/// Returns the packages from outside crates.io, without a checksum, or wrongly marked as ours.
fn unknown(lock: &[Locked], ours: &BTreeSet<&str>) -> Vec<String> {
    let is_known = |package: &&Locked| match package.source.as_deref() {
        None => ours.contains(package.name.as_str()),
        Some(source) => source == CRATES_IO && package.checksum.is_some(),
    };
    let strange = lock.iter().filter(|package| !is_known(package));
    strange.map(|package| format!("{} {} comes from {:?}", package.name, package.version, package.source)).collect()
}

fn none(wrong: &[String]) {
    assert!(wrong.is_empty(), "deny.toml:\n{}", wrong.join("\n"));
}

#[test]
fn every_crate_in_a_build_is_under_an_allowed_licence() {
    let (rules, packages): (Rules, _) = (file("deny.toml"), packages());
    let allowed = allowed(&rules);
    let tree = Tree::built();
    assert!(tree.crates.len() > 300, "{}", tree.crates.len());
    let wrong = tree.crates.iter().filter_map(|found| {
        let package = packages.get(found).unwrap_or_else(|| panic!("no manifest of {found:?}"));
        let is_private = package.source.is_none() && package.publish.as_ref().is_some_and(Vec::is_empty);
        if is_private && rules.licenses.private.ignore {
            return None;
        }
        unlicensed(package.license.as_deref(), &allowed).map(|why| format!("{} {} {why}", found.0, found.1))
    });
    none(&wrong.collect::<Vec<_>>());
}

#[test]
fn what_has_a_wrapper_is_used_through_it_and_what_is_banned_is_in_no_build() {
    let (rules, tree): (Rules, _) = (file("deny.toml"), Tree::built());
    none(&banned(&rules.bans.deny, &tree.edges));
    // A wrapper that no longer depends on the crate is gone or misspelt.
    for ban in rules.bans.deny.iter().filter(|ban| !ban.wrappers.is_empty()) {
        let used = |wrapper: &String| !tree.versions(wrapper, &ban.name).is_empty();
        let idle: Vec<&String> = ban.wrappers.iter().filter(|wrapper| !used(wrapper)).collect();
        assert!(idle.is_empty(), "{idle:?} do not depend on {}: take them off its wrappers", ban.name);
    }
    assert_eq!(rules.bans.multiple_versions, "allow", "write the check");
}

#[test]
fn every_package_is_of_this_repository_or_of_crates_io_with_a_checksum_and_a_bounded_version() {
    let (rules, lock): (Rules, Lock) = (file("deny.toml"), file("Cargo.lock"));
    let packages = packages();
    let ours: BTreeSet<&str> =
        packages.values().filter(|package| package.source.is_none()).map(|package| package.name.as_str()).collect();
    none(&unknown(&lock.package, &ours));
    let asked = packages.values().flat_map(|package| package.dependencies.iter().map(move |on| (package, on)));
    let any = asked.filter(|(_, on)| on.req == "*" && !(rules.bans.allow_wildcard_paths && on.path.is_some()));
    none(&any.map(|(package, on)| format!("{} takes any version of {}", package.name, on.name)).collect::<Vec<_>>());
    let Sources { unknown_registry, unknown_git } = rules.sources;
    assert_eq!([rules.bans.wildcards, unknown_registry, unknown_git], ["deny"; 3], "write the check");
}

/// A component that passes another parser may mean something else to the parser of the engine.
#[test]
fn a_component_is_vetted_by_the_parser_that_the_engine_compiles_with() {
    let tree = Tree::built();
    let (ours, engine) = (tree.versions("oarlock-wasm", "wasmparser"), tree.versions("wasmtime-environ", "wasmparser"));
    assert!(ours.len() == 1 && ours == engine, "{ours:?} {engine:?}");
}

#[test]
fn a_foreign_licence_a_way_round_a_wrapper_and_an_unknown_source_are_found() {
    let rules: Rules = file("deny.toml");
    let allowed = allowed(&rules);
    let refused = |stated| unlicensed(stated, &allowed).is_some();
    for stated in ["GPL-3.0-only", "MIT AND GPL-3.0-only", "Apache-2.0 WITH Classpath-exception-2.0", "as I like", ""] {
        assert!(refused(Some(stated)), "{stated}");
    }
    assert!(refused(None));
    for stated in ["MIT", "MIT/Apache-2.0", "GPL-3.0-only OR MIT", "Apache-2.0 WITH LLVM-exception"] {
        assert!(!refused(Some(stated)), "{stated}");
    }

    let mut tree = Tree::default();
    tree.add("0 oarlock-core v0.1.0 (/r/host/core)\n1 kube v5.0.0\n2 ring v0.17.0\n1 oarlock-kube v0.1.0\n2 kube v5.0.0 (*)\n");
    assert_eq!(banned(&rules.bans.deny, &tree.edges).len(), 1, "{:?}", tree.edges);
    tree.add("0 oarlock v0.1.0 (/r/host)\n1 rustls v0.23.0\n2 aws-lc-rs v1.0.0\n");
    assert_eq!(banned(&rules.bans.deny, &tree.edges).len(), 2, "{:?}", tree.edges);

    let locked = |source: Option<&str>, checksum: Option<&str>| Locked {
        name: "a".to_owned(),
        version: "1.0.0".to_owned(),
        source: source.map(str::to_owned),
        checksum: checksum.map(str::to_owned),
    };
    let lock = [
        locked(Some(CRATES_IO), Some("0")),
        locked(Some(CRATES_IO), None),
        locked(Some("git+https://site.example/a"), None),
        locked(Some("registry+https://site.example/index"), Some("0")),
        locked(None, None),
    ];
    assert_eq!(unknown(&lock, &BTreeSet::new()).len(), 4);
    assert_eq!(unknown(&lock, &BTreeSet::from(["a"])).len(), 3);
}
