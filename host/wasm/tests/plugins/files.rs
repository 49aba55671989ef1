//! Files that are dropped, replaced and removed, and grants that change.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::Duration;

use oarlock_wasm::{MAX_BYTES, Options, PluginState, PluginStatus, Plugins, PluginsError};

use crate::compiling::scratch;
use crate::components::{all_of, component, found, options, with_manifest};

/// A plugin directory and the grants beside it.
struct Place {
    dir: PathBuf,
    grants: PathBuf,
}

impl Place {
    fn new(name: &str) -> Self {
        let root = scratch(name);
        let place = Self { dir: root.join("plugins"), grants: root.join("grants.yaml") };
        fs::create_dir(&place.dir).unwrap();
        place
    }

    fn granted(name: &str) -> Self {
        let place = Self::new(name);
        place.grant();
        place
    }

    fn grant(&self) {
        let spec = serde_json::to_value(all_of(&component("replace"), None)).unwrap();
        let document = serde_json::json!({"apiVersion": "oarlock.dev/v1alpha1", "kind": "ActionPlugin",
            "metadata": {"name": "replace"}, "spec": spec});
        // JSON is YAML.
        fs::write(&self.grants, document.to_string()).unwrap();
    }

    fn options(&self) -> Options {
        Options { dir: Some(self.dir.clone()), grants: Some(self.grants.clone()), ..options() }
    }

    async fn host(&self) -> Plugins {
        Plugins::start(self.options()).await.unwrap()
    }

    /// As `mv` does it.
    fn put(&self, name: &str, bytes: &[u8]) {
        let partial = self.dir.join(".partial");
        fs::write(&partial, bytes).unwrap();
        fs::rename(partial, self.dir.join(name)).unwrap();
    }
}

/// Waits until the statuses of the plugins are as wanted.
async fn until(plugins: &Plugins, wanted: impl Fn(&[PluginStatus]) -> bool) -> Vec<PluginStatus> {
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

fn one(state: PluginState) -> impl Fn(&[PluginStatus]) -> bool {
    move |list| matches!(list, [status] if status.state == state)
}

fn reason(word: &str) -> impl Fn(&[PluginStatus]) -> bool {
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
    until(&plugins, one(PluginState::Draining)).await;
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
    // As a ConfigMap is mounted.
    let versions = place.dir.join("..2026");
    fs::create_dir(&versions).unwrap();
    fs::write(versions.join("replace.wasm"), component("replace")).unwrap();
    symlink("..2026", place.dir.join("..data")).unwrap();
    symlink("..data/replace.wasm", place.dir.join("replace.wasm")).unwrap();
    until(&plugins, |list| list.iter().any(|status| status.state == PluginState::Serving)).await;
}

#[tokio::test]
async fn a_file_of_200_megabytes_is_refused_unread() {
    let place = Place::granted("large");
    // Sparse: it costs no disk, and reading it would cost memory.
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

#[tokio::test]
async fn grants_are_read_again_when_they_change() {
    let place = Place::new("grants");
    place.put("replace.wasm", &component("replace"));
    let plugins = place.host().await;
    until(&plugins, one(PluginState::AwaitingGrant)).await;
    place.grant();
    until(&plugins, one(PluginState::Serving)).await;
    // The previous grants stay in force while the file is invalid; the next change shows that it was read.
    fs::write(&place.grants, "kind: [").unwrap();
    place.put("empty.wasm", b"");
    until(&plugins, reason("EmptyFile")).await;
    assert!(found(&plugins, "Replace", None).is_ok());
    fs::remove_file(&place.grants).unwrap();
    until(&plugins, |list| list.iter().any(|status| status.state == PluginState::AwaitingGrant)).await;
}

#[tokio::test]
async fn wrong_places_are_refused_with_the_fix() {
    let place = Place::new("wrong");
    let inside = Options { grants: Some(place.dir.join("grants.yaml")), ..place.options() };
    assert!(matches!(Plugins::start(inside).await, Err(PluginsError::Grants { .. })));
    let nowhere = Options { dir: Some(Path::new("/nonexistent").to_owned()), ..place.options() };
    let Err(error) = Plugins::start(nowhere).await else { panic!() };
    assert!(error.to_string().contains("create it"), "{error}");
}
