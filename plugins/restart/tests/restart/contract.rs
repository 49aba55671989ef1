//! Tests that the manifest, the grant and the registration of the plugin fit each other.

use oarlock_sdk::kit::manifest;
use oarlock_sdk::{Action, Registration, Relation};
use restart::Restart;

#[test]
fn manifest_is_that_of_the_restart_action() {
    let manifest = manifest::<Restart>().unwrap();
    let version = manifest.version.to_string();
    assert_eq!((manifest.name.as_str(), version.as_str()), ("restart", env!("CARGO_PKG_VERSION")));
    assert_eq!((manifest.action.as_str(), format!("{:?}", manifest.lifecycle).as_str()), ("Restart", "Controlled"));
    let parameters = manifest.parameters.unwrap();
    assert_eq!(parameters["additionalProperties"], false);
    for (name, parameter) in parameters["properties"].as_object().unwrap() {
        assert!(parameter["description"].is_string(), "{name} is not described");
    }
}

#[test]
fn only_the_requests_of_openkruise_may_be_unserved() {
    let manifest = manifest::<Restart>().unwrap();
    let optional: Vec<&str> =
        manifest.reads.iter().filter(|rule| rule.optional).map(|rule| rule.kind.as_str()).collect();
    assert_eq!(optional, ["ContainerRecreateRequest"]);
}

#[test]
fn new_pod_is_exclusive_and_every_relation_is_declared() {
    let (api, kind) = ("apps.kruise.io/v1alpha1", "ContainerRecreateRequest");
    let expected = Registration::new()
        .relation(Relation::objects("requests", api, kind).by_field("/spec/podName"))
        .relation(Relation::pods("new-pod").by_extra("NewPod"))
        .relation(Relation::pods("successors").same_controller())
        .exclusive("NewPod");
    assert_eq!(Restart::setup().unwrap(), expected);
}
