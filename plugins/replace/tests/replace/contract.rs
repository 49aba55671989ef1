//! Tests that the manifest, the grant and the registration of the plugin fit each other.

use oarlock_sdk::kit::manifest;
use oarlock_sdk::{Action, Registration, Relation};
use replace::Replace;

#[test]
fn manifest_is_that_of_the_replace_action() {
    let manifest = manifest::<Replace>().unwrap();
    let version = manifest.version.to_string();
    assert_eq!((manifest.name.as_str(), version.as_str()), ("replace", env!("CARGO_PKG_VERSION")));
    assert_eq!(manifest.action, "Replace");
    let parameters = manifest.parameters.unwrap();
    assert_eq!(parameters["additionalProperties"], false);
    for (name, parameter) in parameters["properties"].as_object().unwrap() {
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
