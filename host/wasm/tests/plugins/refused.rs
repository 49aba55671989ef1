//! Files and grants that are refused: the host reports each with its reason, and each takes nothing away.

use std::fs;
use std::os::unix::fs::symlink;

use oarlock_wasm::{GrantsState, PluginState};

use crate::components::component;
use crate::files::{Place, one, reason, until};

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

#[tokio::test]
async fn grants_that_are_refused_from_the_start_grant_nothing_and_those_refused_later_take_nothing() {
    let place = Place::new("refused-grants");
    fs::write(&place.grants, "kind: Pod\n").unwrap();
    place.put("replace.wasm", &component("replace"));
    let plugins = place.host().await;
    until(&plugins, reason("GrantMissing")).await;
    let state = plugins.grants_state();
    assert!(matches!(&state, GrantsState::Unusable(why) if why.contains("document 1")), "{state:?}");
    place.grant();
    until(&plugins, one(PluginState::Serving)).await;
    assert_eq!(plugins.grants_state(), GrantsState::InForce);
    fs::write(&place.grants, "a: [1").unwrap();
    until(&plugins, |_| matches!(plugins.grants_state(), GrantsState::Refused(_))).await;
    assert_eq!(plugins.list()[0].state, PluginState::Serving);
    place.grant();
    until(&plugins, |_| plugins.grants_state() == GrantsState::InForce).await;
    fs::remove_file(&place.grants).unwrap();
    until(&plugins, one(PluginState::AwaitingGrant)).await;
}
