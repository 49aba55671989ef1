//! What the plugin declares: its manifest, its grant and its registration fit each other.

use oarlock_sdk::kit::Manifest;
use oarlock_sdk::{Action, Plugin, Registration, Relation};
use replace::Replace;

#[test]
fn manifest_is_that_of_the_replace_action() {
    let manifest = Manifest::parse(Replace::MANIFEST).unwrap();
    assert_eq!((manifest.name.as_str(), manifest.version.as_str()), ("replace", env!("CARGO_PKG_VERSION")));
    assert_eq!(manifest.action, "Replace");
    assert_eq!(manifest.parameters["additionalProperties"], false);
    for (name, parameter) in manifest.parameters["properties"].as_object().unwrap() {
        assert!(parameter["description"].is_string(), "{name} is not described");
    }
}

#[test]
fn new_pod_is_exclusive_and_every_relation_is_declared() {
    let expected = Registration::new()
        .relation(Relation::pods("partners").by_label("collaset.kusionstack.io/replace-pair-origin-name"))
        .relation(Relation::pods("new-pod").by_extra("NewPod"))
        .relation(Relation::pods("successors").same_controller())
        .exclusive("NewPod");
    assert_eq!(Replace::setup().unwrap(), expected);
}
