//! Tests each row of the table for the CollaSet mode. Source: docs/operationjob.md 6.1.

use oarlock_sdk::kit::{Sample, Visit, pod};
use oarlock_sdk::{Change, Proposal, Report, Result, State};
use replace::Replace;

const ORIGIN: &str = "collaset.kusionstack.io/replace-pair-origin-name";
const TO_REPLACE: &str = "collaset.kusionstack.io/to-replace";
const BY_UPDATE: &str = "collaset.kusionstack.io/replaced-by-replace-update";
const NEW_ID: &str = "collaset.kusionstack.io/replace-pair-new-id";
const ID: &str = "collaset.kusionstack.io/instance-id";
const TO_DELETE: &str = "collaset.kusionstack.io/to-delete";
const AVAILABLE: &str = "podopslifecycle.kusionstack.io/service-available";
const F: &str = "finalizer.operationjob.kusionstack.io/replace-protected";
const MARKS: [&str; 2] =
    ["finalizer:finalizer.operationjob.kusionstack.io/replace-protected", "label:collaset.kusionstack.io/to-replace"];
const ME: &str = "uid-of-job";
const LATER: &str = "2026-01-31T12:00:00Z";

/// Returns a pod of a CollaSet.
fn plain() -> Sample {
    pod("old").controller("apps.kusionstack.io/v1alpha1", "CollaSet", "foo").label(ID, "1")
}

/// Returns a pod of a CollaSet that this job has marked and holds.
fn marked() -> Sample {
    plain().label(TO_REPLACE, "true").finalizer(F).hold(ME, &MARKS)
}

/// Returns a marked pod whose pair is known.
fn paired() -> Sample {
    marked().label(NEW_ID, "2")
}

/// Returns the pod that replaces the old pod.
fn new() -> Sample {
    pod("new").label(ORIGIN, "old").label(ID, "2")
}

fn operate(visit: Visit) -> Proposal {
    visit.operate::<Replace>().unwrap()
}

fn progress(visit: Visit) -> Result<Report> {
    visit.progress::<Replace>()
}

/// Returns the state and the changes of a report, without events.
fn found(visit: Visit) -> (State, Proposal) {
    let report = progress(visit).unwrap();
    (report.state().clone(), report.proposal().without_events())
}

fn recorded(name: &str) -> Proposal {
    Proposal::new().extra("NewPod", name)
}

fn reasons(proposal: &Proposal) -> Vec<&str> {
    proposal.events().iter().map(|event| event.reason.as_str()).collect()
}

#[test]
fn pod_is_marked_and_protected_in_one_patch() {
    let old = plain();
    let proposal = operate(Visit::to(&old));
    assert_eq!(reasons(&proposal), ["ReplaceOriginPod"]);
    let change = Change::of(&old).set_label(TO_REPLACE, "true").add_finalizer(F);
    assert_eq!(proposal.without_events(), Proposal::new().change(change));
}

#[test]
fn marked_pod_needs_nothing_more() {
    assert_eq!(operate(Visit::to(&marked())), Proposal::new());
    assert_eq!(operate(Visit::to(&paired())), Proposal::new());
}

#[test]
fn terminating_pod_is_not_marked() {
    assert_eq!(operate(Visit::to(&plain().deleted(LATER))), Proposal::new());
    assert_eq!(operate(Visit::to(&plain().label(TO_REPLACE, "true").deleted(LATER))), Proposal::new());
}

#[test]
fn running_replacement_is_adopted_with_the_finalizer_alone() {
    for label in [TO_REPLACE, BY_UPDATE, NEW_ID] {
        let old = plain().label(label, "set-by-somebody");
        let adopted = Proposal::new().change(Change::of(&old).add_finalizer(F));
        assert_eq!(operate(Visit::to(&old)), adopted, "{label}");
    }
}

#[test]
fn mark_that_another_job_holds_is_held_too() {
    let old = plain().label(TO_REPLACE, "123").finalizer(F).hold("uid-of-other", &MARKS);
    let both = Change::of(&old).set_label(TO_REPLACE, "123").add_finalizer(F);
    assert_eq!(operate(Visit::to(&old)), Proposal::new().change(both));
    let shared = old.hold(ME, &MARKS);
    assert_eq!(operate(Visit::to(&shared)), Proposal::new());
}

#[test]
fn mark_that_a_user_set_is_left_to_the_user() {
    let old = plain().label(TO_REPLACE, "true").finalizer(F).hold(ME, &[MARKS[0]]);
    assert_eq!(operate(Visit::to(&old)), Proposal::new());
    let foreign = plain().label(TO_REPLACE, "true").finalizer(F);
    assert_eq!(operate(Visit::to(&foreign)), Proposal::new());
}

#[test]
fn mark_of_ours_that_somebody_removed_is_put_back() {
    let old = plain().label(NEW_ID, "2").finalizer(F).hold(ME, &MARKS);
    let again = Change::of(&old).set_label(TO_REPLACE, "true");
    assert_eq!(operate(Visit::to(&old)), Proposal::new().change(again));
}

#[test]
fn new_pod_of_a_replacement_is_not_replaced_until_that_ends() {
    let target = plain().label(ORIGIN, "older");
    let noted = Proposal::new().extra("NotAllowedToReplaceNewPod", "older");
    assert_eq!(operate(Visit::to(&target)), noted);
    assert_eq!(operate(Visit::to(&target).extra("NotAllowedToReplaceNewPod", "older")), Proposal::new());
    assert_eq!(progress(Visit::to(&target)).unwrap(), Report::processing());
    let free = plain();
    let proposal = operate(Visit::to(&free).extra("NotAllowedToReplaceNewPod", "older")).without_events();
    let change = Change::of(&free).set_label(TO_REPLACE, "true").add_finalizer(F);
    assert_eq!(proposal, Proposal::new().remove_extra("NotAllowedToReplaceNewPod").change(change));
}

#[test]
fn partner_is_recorded() {
    let report = progress(Visit::to(&paired()).object(&new())).unwrap();
    assert_eq!(report.state(), &State::Processing);
    assert_eq!(reasons(&report.proposal()), ["ReplaceNewPod"]);
    assert_eq!(report.proposal().without_events(), recorded("new"));
    let known = Visit::to(&paired()).object(&new()).extra("NewPod", "new");
    assert_eq!(progress(known).unwrap(), Report::processing());
}

#[test]
fn pod_that_only_looks_like_the_partner_is_not_recorded() {
    for other in
        [new().label(ID, "3"), new().label(ORIGIN, "another"), new().label(TO_DELETE, "1"), new().deleted(LATER)]
    {
        assert_eq!(progress(Visit::to(&paired()).object(&other)).unwrap(), Report::processing(), "{other:?}");
    }
    let unpaired = Visit::to(&marked()).object(&new());
    assert_eq!(progress(unpaired).unwrap(), Report::processing());
    let taken = Visit::to(&paired()).object(&new()).claimed("new");
    assert_eq!(progress(taken).unwrap(), Report::processing());
}

#[test]
fn later_partner_takes_the_place_of_the_recorded_one() {
    let later = pod("later").label(ORIGIN, "old").label(ID, "2");
    let visit = Visit::to(&paired()).object(&new().deleted(LATER)).object(&later).extra("NewPod", "new");
    assert_eq!(found(visit), (State::Processing, recorded("later")));
}

#[test]
fn finalizer_goes_only_once_the_partner_is_durable() {
    let old = paired().deleted(LATER);
    let visit = Visit::to(&old).object(&new());
    assert_eq!(found(visit.clone()), (State::Processing, recorded("new")));
    let let_go = Proposal::new().change(Change::of(&old).remove_finalizer(F));
    assert_eq!(found(visit.extra("NewPod", "new")), (State::Processing, let_go));
}

#[test]
fn finalizer_stays_while_the_pod_is_not_terminating() {
    let visit = Visit::to(&paired()).object(&new().label(AVAILABLE, "true")).extra("NewPod", "new");
    assert_eq!(progress(visit).unwrap(), Report::processing());
}

#[test]
fn finalizer_stays_while_the_new_pod_is_lost() {
    let old = paired().deleted(LATER);
    let recorded = Visit::to(&old).extra("NewPod", "new");
    assert_eq!(progress(recorded.clone()).unwrap(), Report::processing());
    assert_eq!(progress(recorded.object(&new().deleted(LATER))).unwrap(), Report::processing());
}

#[test]
fn finalizer_goes_though_the_labels_of_the_recorded_partner_are_cleaned_up() {
    let old = paired().deleted(LATER);
    let visit = Visit::to(&old).object(&pod("new").label(ID, "2")).extra("NewPod", "new");
    assert_eq!(found(visit), (State::Processing, Proposal::new().change(Change::of(&old).remove_finalizer(F))));
}

#[test]
fn finalizer_of_somebody_else_stays() {
    let old = plain().label(TO_REPLACE, "true").label(NEW_ID, "2").finalizer(F).deleted(LATER);
    let visit = Visit::to(&old).object(&new()).extra("NewPod", "new");
    assert_eq!(progress(visit).unwrap(), Report::processing());
}

#[test]
fn available_new_pod_is_success_once_the_old_one_is_gone() {
    let gone = Visit::to_gone("old").extra("NewPod", "new");
    let available = progress(gone.clone().object(&new().label(AVAILABLE, "1"))).unwrap();
    assert_eq!(available.state(), &State::Succeeded);
    assert_eq!(reasons(&available.proposal()), ["ReplaceNewPod"]);
    // Only the presence of the label counts, not its value. A terminating pod is not available.
    assert_eq!(found(gone.clone().object(&new().label(AVAILABLE, ""))).0, State::Succeeded);
    assert_eq!(found(gone.clone().object(&new())), (State::Processing, Proposal::new()));
    let leaving = new().label(AVAILABLE, "1").deleted(LATER);
    assert_eq!(found(gone.object(&leaving)), (State::Processing, Proposal::new()));
}

#[test]
fn new_pod_that_is_replaced_itself_is_followed() {
    let gone = Visit::to_gone("old").extra("NewPod", "new").object(&new().label(NEW_ID, "3"));
    let next = pod("next").label(ORIGIN, "new").label(ID, "3");
    assert_eq!(found(gone.clone().object(&next)), (State::Processing, recorded("next")));
    let available = next.label(AVAILABLE, "1");
    assert_eq!(found(gone.clone().object(&available)), (State::Succeeded, recorded("next")));
    assert_eq!(found(gone), (State::Processing, Proposal::new()));
}

#[test]
fn lost_new_pod_is_waited_for_or_followed() {
    let gone = Visit::to_gone("old").extra("NewPod", "new");
    let failure = progress(gone.clone()).unwrap_err();
    assert!(failure.is_retryable());
    assert_eq!(failure.reason(), "GetObjectFailed");
    let next = pod("next").label(ORIGIN, "new").label(ID, "3");
    assert_eq!(found(gone.object(&next)), (State::Processing, recorded("next")));
}

#[test]
fn absence_of_the_new_pod_is_believed_only_from_the_api_server() {
    let gone = Visit::to_gone("old").extra("NewPod", "new");
    assert_eq!(progress(gone.clone().before_look()).unwrap_err().reason(), "Unavailable");
    let visit = gone.unseen(&new().label(AVAILABLE, "1"));
    assert_eq!(found(visit).0, State::Succeeded);
}

#[test]
fn unrecorded_new_pod_is_found_by_its_label_after_a_look() {
    let gone = Visit::to_gone("old").extra("Owner", "CollaSet/foo/u");
    assert_eq!(progress(gone.clone().before_look()).unwrap_err().reason(), "Unavailable");
    assert_eq!(found(gone.clone().unseen(&new())), (State::Processing, recorded("new")));
    let leaving = pod("first").label(ORIGIN, "old").deleted(LATER);
    let visit = gone.clone().object(&leaving).object(&new().label(AVAILABLE, "1"));
    assert_eq!(found(visit), (State::Succeeded, recorded("new")));
    assert_eq!(found(gone.object(&leaving)), (State::Processing, recorded("first")));
}

#[test]
fn pod_that_is_gone_without_a_new_one_was_not_replaced() {
    let gone = Visit::to_gone("old").object(&pod("another").label(ORIGIN, "other"));
    let (state, proposal) = found(gone);
    assert!(matches!(state, State::Failed(error) if error.reason == "PodNotFound"));
    assert_eq!(proposal, Proposal::new());
}

#[test]
fn release_lets_go_of_what_the_job_holds_alone() {
    for old in [marked(), marked().deleted(LATER)] {
        let both = Change::of(&old).remove_label(TO_REPLACE).remove_finalizer(F);
        assert_eq!(Visit::to(&old).release::<Replace>().unwrap(), Proposal::new().change(both));
    }
    let partly = plain().label(TO_REPLACE, "true").finalizer(F).hold(ME, &[MARKS[0]]);
    let finalizer = Proposal::new().change(Change::of(&partly).remove_finalizer(F));
    assert_eq!(Visit::to(&partly).release::<Replace>().unwrap(), finalizer);
    for nothing in [Visit::to(&plain()), Visit::to(&plain().finalizer(F).label(TO_REPLACE, "1")), Visit::to_gone("old")]
    {
        assert_eq!(nothing.release::<Replace>().unwrap(), Proposal::new());
    }
}

#[test]
fn release_says_that_a_pod_marked_for_deletion_may_still_go() {
    let old = marked().label(TO_DELETE, "1");
    let proposal = Visit::to(&old).release::<Replace>().unwrap();
    assert_eq!(reasons(&proposal), ["ReplaceReleased"]);
    assert!(proposal.events()[0].message.contains("may still be replaced"));
}

#[test]
fn release_says_that_a_collaset_keeps_a_new_pod_that_serves() {
    let said = |new: &Sample| Visit::to(&paired()).object(new).release::<Replace>().unwrap();
    assert_eq!(reasons(&said(&new())), Vec::<&str>::new());
    let proposal = said(&new().label(AVAILABLE, "1"));
    assert_eq!(reasons(&proposal), ["ReplaceReleased"]);
    assert!(proposal.events()[0].message.contains("new pod new serves already"));
    let shared = paired().hold("uid-of-another-job", &MARKS);
    let goes_on = Visit::to(&shared).object(&new().label(AVAILABLE, "1")).release::<Replace>().unwrap();
    assert_eq!(reasons(&goes_on), Vec::<&str>::new(), "the other job's replacement goes on");
}
