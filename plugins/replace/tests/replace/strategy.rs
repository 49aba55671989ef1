//! Tests which of the two modes a target gets.

use oarlock_sdk::kit::{Sample, Visit, pod};
use oarlock_sdk::{Mutation, Proposal, Result};
use replace::Replace;
use serde_json::json;

const C: &str = "collaset.kusionstack.io";

fn marks(proposal: &Result<Proposal>) -> bool {
    proposal.as_ref().is_ok_and(|proposal| matches!(proposal.mutations(), [Mutation::Metadata(_)]))
}

fn evicts(proposal: &Result<Proposal>) -> bool {
    proposal.as_ref().is_ok_and(|proposal| matches!(proposal.mutations(), [Mutation::Evict(_)]))
}

fn operate(pod: &Sample, strategy: &str) -> Result<Proposal> {
    Visit::to(pod).parameters(json!({"strategy": strategy})).operate::<Replace>()
}

#[test]
fn pod_of_a_collaset_is_marked() {
    let web = pod("web").controller("apps.kusionstack.io/v1alpha1", "CollaSet", "foo");
    assert!(marks(&Visit::to(&web).operate::<Replace>()));
    assert!(marks(&operate(&web, "Auto")));
}

#[test]
fn pod_with_a_label_of_a_collaset_is_not_evicted() {
    let web = pod("web").controller("apps/v1", "ReplicaSet", "foo");
    for (key, value) in [
        ("kusionstack.io/control", "true"),
        (&format!("{C}/to-replace"), "true"),
        (&format!("{C}/replaced-by-replace-update"), "rev"),
        (&format!("{C}/replace-pair-new-id"), "7"),
        (&format!("{C}/replace-pair-origin-name"), "old"),
    ] {
        assert!(!evicts(&operate(&web.clone().label(key, value), "Auto")), "{key}");
    }
    assert!(evicts(&operate(&web.label("kusionstack.io/control", "false"), "Auto")));
}

#[test]
fn pod_of_another_controller_is_evicted() {
    let web = pod("web").controller("apps/v1", "ReplicaSet", "foo");
    assert!(evicts(&operate(&web, "Auto")));
    assert!(evicts(&operate(&web, "Evict")));
}

#[test]
fn bare_pod_is_left_alone_unless_the_strategy_marks_it() {
    let bare = pod("bare");
    assert_eq!(operate(&bare, "Auto").unwrap_err().reason(), "NoController");
    assert!(marks(&operate(&bare, "CollaSet")));
}

#[test]
fn way_stays_as_it_was_chosen() {
    let web = pod("web").controller("apps/v1", "ReplicaSet", "foo").label("kusionstack.io/control", "true");
    assert!(evicts(&Visit::to(&web).extra("Mode", "Evict").operate::<Replace>()));
    // Somebody removed the label that decided the mode. The hold shows that the mode was chosen.
    let marked = pod("web").controller("apps/v1", "ReplicaSet", "foo");
    let held = marked.clone().hold("uid-of-job", &[&format!("label:{C}/to-replace")]);
    assert!(marks(&Visit::to(&held).operate::<Replace>()));
    // A hold that only the host uses does not decide the mode.
    let barred = marked.hold("uid-of-job", &["barred"]);
    assert!(evicts(&Visit::to(&barred).operate::<Replace>()));
}

#[test]
fn vanished_pod_goes_the_way_of_its_remembered_controller() {
    let mode = Proposal::new().extra("Mode", "Evict");
    let gone = |owner: &str| Visit::to_gone("web").extra("Owner", owner).operate::<Replace>().unwrap();
    assert_eq!(gone("ReplicaSet/foo/u"), mode);
    assert_eq!(gone("CollaSet/foo/u"), Proposal::new());
    assert_eq!(Visit::to_gone("web").operate::<Replace>().unwrap(), Proposal::new());
}

#[test]
fn progress_knows_the_way_before_it_is_stored() {
    let web = pod("web").controller("apps/v1", "ReplicaSet", "foo");
    let report = Visit::to(&web).progress::<Replace>().unwrap();
    assert_eq!(report, oarlock_sdk::Report::processing());
}
