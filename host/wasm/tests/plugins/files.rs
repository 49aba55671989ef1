//! Plugin files that are dropped, replaced and removed, and grants that change.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::Duration;

use oarlock_core::plugin::grant::Grant;
use oarlock_wasm::{CompileWith, FirstScan, MAX_BYTES, Options, PluginState, PluginStatus, Plugins, PluginsError};

use crate::compiling::scratch;
use crate::components::{all_of, component, found, options, with_manifest};

/// A plugin directory and the grants file beside it.
pub(crate) struct Place {
    pub(crate) dir: PathBuf,
    pub(crate) grants: PathBuf,
}

impl Place {
    pub(crate) fn new(name: &str) -> Self {
        let root = scratch(name);
        let place = Self { dir: root.join("plugins"), grants: root.join("grants.yaml") };
        fs::create_dir(&place.dir).unwrap();
        place
    }

    pub(crate) fn granted(name: &str) -> Self {
        let place = Self::new(name);
        place.grant();
        place
    }

    pub(crate) fn grant(&self) {
        fs::write(&self.grants, grants(&["replace"])).unwrap();
    }

    fn options(&self) -> Options {
        Options { dir: Some(self.dir.clone()), grants: Some(self.grants.clone()), ..options() }
    }

    /// Starts a host and waits until it has scanned the directory once.
    pub(crate) async fn host(&self) -> Plugins {
        let plugins = Plugins::start(self.options()).await.unwrap();
        scanned(&plugins, FirstScan::Done).await;
        plugins
    }

    /// Writes a file as `mv` does, by rename.
    pub(crate) fn put(&self, name: &str, bytes: &[u8]) {
        let partial = self.dir.join(".partial");
        fs::write(&partial, bytes).unwrap();
        fs::rename(partial, self.dir.join(name)).unwrap();
    }
}

/// Returns the text of a file that grants these components everything.
fn grants(names: &[&str]) -> String {
    names.iter().map(|name| document(all_of(&component(name), None))).collect()
}

fn document(grant: Grant) -> String {
    let (name, spec) = (grant.name.clone(), serde_json::to_value(grant).unwrap());
    let document = serde_json::json!({"apiVersion": "oarlock.dev/v1alpha1", "kind": "ActionPlugin",
        "metadata": {"name": name}, "spec": spec});
    // JSON is valid YAML.
    format!("---\n{document}\n")
}

/// Waits until the first scan has progressed this far.
async fn scanned(plugins: &Plugins, wanted: FirstScan) {
    let mut progress = plugins.first_scan();
    let reached = tokio::time::timeout(Duration::from_secs(60), progress.wait_for(|progress| *progress >= wanted));
    reached.await.unwrap().unwrap();
}

/// Waits until the statuses of the plugins are as wanted.
pub(crate) async fn until(plugins: &Plugins, wanted: impl Fn(&[PluginStatus]) -> bool) -> Vec<PluginStatus> {
    let mut changes = plugins.changes();
    let waiting = async {
        loop {
            let list = plugins.list();
            if wanted(&list) {
                return list;
            }
            changes.changed().await.unwrap();
        }
    };
    match tokio::time::timeout(Duration::from_secs(60), waiting).await {
        Ok(list) => list,
        Err(_) => panic!("not within a minute; there is {:#?}", plugins.list()),
    }
}

/// A compiler that waits until the test ends it, and a cache that another compiler filled before.
struct Slow {
    cache: PathBuf,
    began: PathBuf,
    end: PathBuf,
}

impl Slow {
    /// Compiles the present files and vets `hostile`.
    async fn beside(place: &Place) -> Self {
        let beside = |name| place.dir.with_file_name(name);
        let slow = Self { cache: beside("cache"), began: beside("began"), end: beside("end") };
        let plugins = Plugins::start(Options { cache_dir: Some(slow.cache.clone()), ..place.options() }).await.unwrap();
        until(&plugins, |list| !list.is_empty() && list.iter().all(|status| status.state == PluginState::Serving))
            .await;
        plugins.set_grants(Vec::new()).await;
        plugins.publish("hostile", component("hostile")).await;
        slow
    }

    async fn host(&self, place: &Place) -> Plugins {
        let (began, end) = (self.began.display(), self.end.display());
        let script = format!("cat > /dev/null; touch {began}; until [ -e {end} ]; do sleep 0.1; done");
        let arguments = vec!["-c".into(), script.into()];
        let compile_with = CompileWith::Helper { program: "/bin/sh".into(), arguments };
        let options = Options { compile_with, cache_dir: Some(self.cache.clone()), ..place.options() };
        Plugins::start(options).await.unwrap()
    }

    async fn began(&self) {
        while !self.began.exists() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    fn end(&self) {
        fs::write(&self.end, "").unwrap();
    }
}

pub(crate) fn one(state: PluginState) -> impl Fn(&[PluginStatus]) -> bool {
    move |list| matches!(list, [status] if status.state == state)
}

pub(crate) fn reason(word: &str) -> impl Fn(&[PluginStatus]) -> bool {
    move |list| list.iter().any(|status| status.reason == word)
}

#[tokio::test]
async fn a_dropped_file_serves_and_a_removed_one_retires() {
    let place = Place::granted("drop");
    let plugins = place.host().await;
    assert!(plugins.list().is_empty());
    fs::write(place.dir.join("replace.wasm"), component("replace")).unwrap();
    until(&plugins, one(PluginState::Serving)).await;
    fs::remove_file(place.dir.join("replace.wasm")).unwrap();
    let list = until(&plugins, one(PluginState::Draining)).await;
    assert_eq!((list[0].reason.as_str(), list[0].source.as_str()), ("Removed", ""));
    assert!(found(&plugins, "Replace", None).is_err());
}

#[tokio::test]
async fn a_file_that_is_there_at_the_start_serves_from_the_start() {
    let place = Place::granted("start");
    place.put("replace.wasm", &component("replace"));
    let old = std::time::UNIX_EPOCH + Duration::from_secs(1_700_000_000);
    fs::File::open(place.dir.join("replace.wasm")).unwrap().set_modified(old).unwrap();
    assert!(found(&place.host().await, "Replace", None).is_ok());
}

#[tokio::test]
async fn a_file_with_a_time_of_change_in_the_future_serves_too() {
    let place = Place::granted("future");
    place.put("replace.wasm", &component("replace"));
    let future = std::time::UNIX_EPOCH + Duration::from_secs(4_000_000_000);
    fs::File::open(place.dir.join("replace.wasm")).unwrap().set_modified(future).unwrap();
    let plugins = place.host().await;
    until(&plugins, one(PluginState::Serving)).await;
}

#[tokio::test]
async fn a_half_written_file_is_listed_and_serves_once_it_is_whole() {
    let place = Place::granted("half");
    let plugins = place.host().await;
    let whole = component("replace");
    fs::write(place.dir.join("replace.wasm"), &whole[..whole.len() / 2]).unwrap();
    until(&plugins, reason("Truncated")).await;
    fs::write(place.dir.join("replace.wasm"), &whole).unwrap();
    until(&plugins, one(PluginState::Serving)).await;
}

#[tokio::test]
async fn a_file_that_is_replaced_many_times_ends_as_the_last_one() {
    let place = Place::granted("replaced");
    let plugins = place.host().await;
    for patch in 1..20 {
        let version = format!("0.1.{patch}");
        place.put(
            "replace.wasm",
            &with_manifest(&component("replace"), |manifest| manifest["version"] = version.into()),
        );
        tokio::task::yield_now().await;
    }
    until(&plugins, |list| {
        list.iter().any(|status| status.state == PluginState::Serving && status.version.as_deref() == Some("0.1.19"))
    })
    .await;
}

#[tokio::test]
async fn links_inside_the_directory_are_followed_and_links_out_of_it_are_not() {
    let place = Place::granted("links");
    let outside = place.dir.parent().unwrap().join("outside.wasm");
    fs::write(&outside, component("replace")).unwrap();
    symlink(&outside, place.dir.join("out.wasm")).unwrap();
    let plugins = place.host().await;
    until(&plugins, reason("OutsideDirectory")).await;
    assert!(found(&plugins, "Replace", None).is_err());
    // The kubelet mounts a ConfigMap with these links.
    let versions = place.dir.join("..2026");
    fs::create_dir(&versions).unwrap();
    fs::write(versions.join("replace.wasm"), component("replace")).unwrap();
    symlink("..2026", place.dir.join("..data")).unwrap();
    symlink("..data/replace.wasm", place.dir.join("replace.wasm")).unwrap();
    until(&plugins, |list| list.iter().any(|status| status.state == PluginState::Serving)).await;
}

/// Returns a directory that serves one plugin through links, as the kubelet mounts a ConfigMap.
async fn mounted(name: &str) -> (Place, Plugins) {
    let place = Place::granted(name);
    let versions = place.dir.join("..2026");
    fs::create_dir(&versions).unwrap();
    fs::write(versions.join("replace.wasm"), component("replace")).unwrap();
    symlink("..2026", place.dir.join("..data")).unwrap();
    symlink("..data/replace.wasm", place.dir.join("replace.wasm")).unwrap();
    let plugins = place.host().await;
    until(&plugins, one(PluginState::Serving)).await;
    (place, plugins)
}

/// Replaces a link as a kubelet does.
fn relink(place: &Place, target: &str, name: &str) {
    let next = place.dir.join("..next");
    symlink(target, &next).unwrap();
    fs::rename(next, place.dir.join(name)).unwrap();
}

#[tokio::test]
async fn a_link_whose_target_goes_away_serves_no_longer() {
    let (place, plugins) = mounted("link-target-gone").await;
    fs::create_dir(place.dir.join("..2027")).unwrap();
    relink(&place, "..2027", "..data");
    let list = until(&plugins, reason("BrokenLink")).await;
    assert!(found(&plugins, "Replace", None).is_err(), "{list:#?}");
    assert!(list.iter().all(|status| status.state != PluginState::Serving), "{list:#?}");
    relink(&place, "..2026", "..data");
    until(&plugins, one(PluginState::Serving)).await;
}

#[tokio::test]
async fn a_link_that_cannot_be_followed_for_another_reason_serves_on() {
    let (place, plugins) = mounted("link-loop").await;
    relink(&place, "replace.wasm", "replace.wasm");
    until(&plugins, reason("BrokenLink")).await;
    let list = until(&plugins, reason("LastGood")).await;
    assert!(found(&plugins, "Replace", None).is_ok(), "{list:#?}");
}

/// Returns two contents of equal length.
fn twins() -> [Vec<u8>; 2] {
    let of = |version: &str| with_manifest(&component("replace"), |manifest| manifest["version"] = version.into());
    let twins = [of("0.1.1"), of("0.1.2")];
    assert_eq!(twins[0].len(), twins[1].len());
    twins
}

async fn serves(plugins: &Plugins, version: &str) {
    until(plugins, |list| {
        list.iter().any(|status| status.state == PluginState::Serving && status.version.as_deref() == Some(version))
    })
    .await;
}

#[tokio::test]
async fn every_way_to_change_a_file_is_noticed_although_its_length_and_its_time_stay() {
    let place = Place::granted("ways");
    let (file, [one, two]) = (place.dir.join("replace.wasm"), twins());
    let old = std::time::UNIX_EPOCH + Duration::from_secs(1_700_000_000);
    let dated = |path: &Path| fs::File::options().write(true).open(path).unwrap().set_modified(old).unwrap();
    place.put("replace.wasm", &one);
    dated(&file);
    let plugins = place.host().await;
    serves(&plugins, "0.1.1").await;
    // A write in place keeps the inode too.
    fs::write(&file, &two).unwrap();
    dated(&file);
    serves(&plugins, "0.1.2").await;
    // Replace the file by rename.
    let partial = place.dir.join(".partial");
    fs::write(&partial, &one).unwrap();
    dated(&partial);
    fs::rename(&partial, &file).unwrap();
    serves(&plugins, "0.1.1").await;
    // A file that is removed and made again may get the same inode.
    fs::remove_file(&file).unwrap();
    fs::write(&file, &two).unwrap();
    dated(&file);
    serves(&plugins, "0.1.2").await;
    // Replace a link to another folder, as the kubelet mounts a ConfigMap.
    for (folder, content) in [("..1", &one), ("..2", &two)] {
        fs::create_dir(place.dir.join(folder)).unwrap();
        fs::write(place.dir.join(folder).join("replace.wasm"), content).unwrap();
        dated(&place.dir.join(folder).join("replace.wasm"));
    }
    relink(&place, "..1", "..data");
    relink(&place, "..data/replace.wasm", "replace.wasm");
    serves(&plugins, "0.1.1").await;
    relink(&place, "..2", "..data");
    serves(&plugins, "0.1.2").await;
}

#[tokio::test]
async fn a_start_takes_the_first_of_two_files_of_one_version_whichever_was_compiled_before() {
    let other = with_manifest(&component("replace"), |manifest| manifest["description"] = "another".into());
    let place = Place::granted("start-of-two");
    let cache = place.dir.with_file_name("cache");
    let options = || Options { cache_dir: Some(cache.clone()), ..place.options() };
    place.put("b.wasm", &other);
    let before = Plugins::start(options()).await.unwrap();
    until(&before, one(PluginState::Serving)).await;
    drop(before);
    place.put("a.wasm", &component("replace"));
    let plugins = Plugins::start(options()).await.unwrap();
    scanned(&plugins, FirstScan::Done).await;
    until(&plugins, reason("SameVersion")).await;
    let served = found(&plugins, "Replace", None).unwrap().digest.clone();
    assert_eq!(served, oarlock_wasm::digest(&component("replace")));
}

#[tokio::test]
async fn a_file_of_200_megabytes_is_refused_unread() {
    let place = Place::granted("large");
    // The file is sparse: it takes no disk, but reading it would take memory.
    fs::File::create(place.dir.join("large.wasm")).unwrap().set_len(200 << 20).unwrap();
    let plugins = place.host().await;
    let list = until(&plugins, reason("TooLarge")).await;
    assert!(list[0].digest.is_none() && (200 << 20) > MAX_BYTES);
}

#[tokio::test]
async fn a_directory_and_a_file_of_another_kind_are_left_alone() {
    let place = Place::granted("others");
    fs::create_dir(place.dir.join("folder.wasm")).unwrap();
    fs::write(place.dir.join("README.md"), "hello").unwrap();
    fs::write(place.dir.join("empty.wasm"), "").unwrap();
    let plugins = place.host().await;
    let list = until(&plugins, |list| reason("EmptyFile")(list) && reason("NotAFile")(list)).await;
    assert_eq!(list.len(), 2);
}

fn is_serving(plugins: &Plugins, action: &str) -> bool {
    found(plugins, action, None).is_ok()
}

#[allow(clippy::disallowed_methods, reason = "a writer that pauses is what is tested")]
#[tokio::test]
async fn grants_that_are_written_in_two_steps_revoke_nothing_in_between() {
    let place = Place::granted("two-steps");
    place.put("replace.wasm", &component("replace"));
    place.put("hostile.wasm", &component("hostile"));
    let plugins = place.host().await;
    until(&plugins, |list| is_serving(&plugins, "Replace") && reason("GrantMissing")(list)).await;
    let watched = plugins.clone();
    let revoked = tokio::spawn(async move {
        let mut changes = watched.changes();
        while is_serving(&watched, "Replace") {
            changes.changed().await.unwrap();
        }
    });
    let both = grants(&["replace", "hostile"]);
    let path = place.grants.clone();
    // An editor writes a file in these steps, and so does a copy over a network.
    let writing = tokio::task::spawn_blocking(move || {
        let pause = || std::thread::sleep(Duration::from_millis(50));
        fs::remove_file(&path).unwrap();
        pause();
        fs::File::create(&path).unwrap();
        pause();
        fs::write(&path, "---\n").unwrap();
        pause();
        fs::write(&path, both).unwrap();
    });
    writing.await.unwrap();
    until(&plugins, |list| list.iter().filter(|status| status.state == PluginState::Serving).count() == 2).await;
    assert!(!revoked.is_finished(), "the grant of `replace` was lost for a moment");
    revoked.abort();
}

#[tokio::test]
async fn a_grant_is_revoked_while_a_file_is_being_compiled() {
    let place = Place::granted("behind-compiles");
    place.put("replace.wasm", &component("replace"));
    let slow = Slow::beside(&place).await;
    let plugins = slow.host(&place).await;
    until(&plugins, one(PluginState::Serving)).await;
    fs::write(&place.grants, grants(&["replace", "hostile"])).unwrap();
    place.put("hostile.wasm", &component("hostile"));
    slow.began().await;
    fs::write(&place.grants, grants(&["hostile"])).unwrap();
    until(&plugins, |list| list.iter().any(|status| status.state == PluginState::AwaitingGrant)).await;
    assert!(!is_serving(&plugins, "Replace"));
    slow.end();
}

#[tokio::test]
async fn a_setup_that_is_tried_again_is_not_compiled_again() {
    let place = Place::new("setup-retry");
    fs::write(&place.grants, grants(&["hostile"])).unwrap();
    place.put("hostile.wasm", &component("hostile"));
    let slow = Slow::beside(&place).await;
    let retry = all_of(&component("hostile"), Some(serde_json::json!({"setup": "retry"})));
    fs::write(&place.grants, document(retry)).unwrap();
    let plugins = slow.host(&place).await;
    until(&plugins, reason("SetupFailed")).await;
    fs::remove_dir_all(&slow.cache).unwrap();
    // The host makes the first two attempts after two and after six seconds.
    let compiled = tokio::time::timeout(Duration::from_secs(8), slow.began()).await;
    assert!(compiled.is_err(), "it was compiled again");
    slow.end();
}

#[tokio::test]
async fn a_file_is_compiled_once_it_is_granted() {
    let place = Place::new("granted-later");
    place.put("replace.wasm", &component("replace"));
    let plugins = place.host().await;
    until(&plugins, reason("GrantMissing")).await;
    place.grant();
    until(&plugins, one(PluginState::Serving)).await;
    fs::write(&place.grants, grants(&["hostile"])).unwrap();
    until(&plugins, one(PluginState::AwaitingGrant)).await;
    place.grant();
    until(&plugins, one(PluginState::Serving)).await;
}

#[tokio::test]
async fn grants_that_are_a_pipe_are_refused_and_not_waited_for() {
    let place = Place::new("pipe");
    place.put("replace.wasm", &component("replace"));
    assert!(std::process::Command::new("mkfifo").arg(&place.grants).status().unwrap().success());
    let plugins = place.host().await;
    until(&plugins, reason("GrantMissing")).await;
    let granted = place.dir.with_file_name("granted.yaml");
    fs::write(&granted, grants(&["replace"])).unwrap();
    fs::rename(granted, &place.grants).unwrap();
    until(&plugins, one(PluginState::Serving)).await;
}

#[tokio::test]
async fn a_start_waits_for_no_compiler_and_what_was_compiled_before_serves_first() {
    let place = Place::new("first-scan");
    fs::write(&place.grants, grants(&["replace", "hostile"])).unwrap();
    place.put("replace.wasm", &component("replace"));
    let slow = Slow::beside(&place).await;
    place.put("a.wasm", &component("hostile"));
    let plugins = slow.host(&place).await;
    assert_eq!(*plugins.first_scan().borrow(), FirstScan::Pending);
    scanned(&plugins, FirstScan::Cached).await;
    slow.began().await;
    assert!(is_serving(&plugins, "Replace"));
    assert_eq!(*plugins.first_scan().borrow(), FirstScan::Cached);
    slow.end();
    scanned(&plugins, FirstScan::Done).await;
    assert!(reason("CompileFailed")(&plugins.list()));
}

#[tokio::test]
async fn wrong_places_are_refused_with_the_fix() {
    let place = Place::new("wrong");
    let here = Options { dir: Some(".".into()), grants: Some("grants.yaml".into()), ..place.options() };
    assert!(matches!(Plugins::start(here).await, Err(PluginsError::Grants { .. })));
    fs::write(place.dir.join("linked.yaml"), "").unwrap();
    symlink(place.dir.join("linked.yaml"), &place.grants).unwrap();
    assert!(matches!(Plugins::start(place.options()).await, Err(PluginsError::Grants { .. })));
    let inside = Options { grants: Some(place.dir.join("grants.yaml")), ..place.options() };
    assert!(matches!(Plugins::start(inside).await, Err(PluginsError::Grants { .. })));
    let nowhere = Options { dir: Some(Path::new("/nonexistent").to_owned()), ..place.options() };
    let Err(error) = Plugins::start(nowhere).await else { panic!() };
    assert!(error.to_string().contains("create it"), "{error}");
}
