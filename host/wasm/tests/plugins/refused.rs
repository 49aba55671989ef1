//! Files that are refused: each is told with its reason, and takes nothing away.

use std::fs;
use std::os::unix::fs::symlink;

use oarlock_wasm::PluginState;

use crate::components::component;
use crate::files::{Place, one, until};

#[tokio::test]
async fn a_link_that_leads_nowhere_is_told_and_serves_once_it_leads_somewhere() {
    let place = Place::granted("broken-link");
    symlink("nowhere", place.dir.join("replace.wasm")).unwrap();
    symlink("loop.wasm", place.dir.join("loop.wasm")).unwrap();
    let plugins = place.host().await;
    let list = until(&plugins, |list| list.len() == 2 && list.iter().all(|status| status.reason == "BrokenLink")).await;
    assert!(list[0].message.contains("leads nowhere"), "{list:?}");
    fs::remove_file(place.dir.join("loop.wasm")).unwrap();
    fs::write(place.dir.join("nowhere"), component("replace")).unwrap();
    until(&plugins, one(PluginState::Serving)).await;
}
