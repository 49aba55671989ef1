//! Tests of each transition of the PodOpsLifecycle, as the webhook and the controller of KusionStack make it.

use super::*;
use crate::world::samples::{SamplePod, pod};

const NOW: &str = "1700000000000000000";

/// Returns a controlled pod with labels `<word>.podopslifecycle.kusionstack.io/<id>` and `service-available`.
fn with(words: &[(&str, &str, &str)]) -> SamplePod {
    let serving = pod("a").label(labels::CONTROL, "true").label(labels::SERVICE_AVAILABLE, "1");
    words.iter().fold(serving, |pod, (word, id, value)| pod.label(&label(word, id), value))
}

fn begun(more: &[(&str, &str, &str)]) -> SamplePod {
    with(&[&[(OPERATING, "job", "1"), (OPERATION_TYPE, "job", "Restart")], more].concat())
}

fn ready(pod: SamplePod, status: &str) -> SamplePod {
    pod.condition(labels::SERVICE_READY, status, None)
}

fn prot(mut pod: SamplePod) -> SamplePod {
    let names = ["example.com/guard", "prot.podopslifecycle.kusionstack.io/lb"].map(str::to_owned);
    pod.0.metadata.finalizers = Some(names.into());
    pod
}

fn put(words: &[&str]) -> LabelChanges {
    words.iter().map(|word| (label(word, "job"), Some(NOW.to_owned()))).collect()
}

fn take(words: &[&str]) -> LabelChanges {
    words.iter().map(|word| (label(word, "job"), None)).collect()
}

fn both(mut one: LabelChanges, other: LabelChanges) -> LabelChanges {
    one.extend(other);
    one
}

fn set(kind: StepKind, labels: &[&str]) -> LifecycleStep {
    let labels = labels.iter().map(|key| ((*key).to_owned(), Some(NOW.to_owned()))).collect();
    LifecycleStep { kind, change: StepChange::Labels(labels) }
}

fn service_ready_is(value: bool) -> LifecycleStep {
    LifecycleStep { kind: StepKind::Readiness, change: StepChange::ServiceReady(value) }
}

#[test]
fn a_pod_that_is_not_controlled_or_terminates_or_is_not_operated_on_is_left_alone() {
    let mut foreign = begun(&[]);
    foreign.0.metadata.labels.as_mut().unwrap().remove(labels::CONTROL);
    for pod in [foreign, begun(&[]).label(labels::CONTROL, "false"), begun(&[]).terminating(), with(&[])] {
        assert_eq!((webhook(&pod.0, NOW), controller(&pod.0, NOW)), (LabelChanges::new(), vec![]));
    }
}

#[test]
fn webhook_puts_pre_check_on_a_pod_that_is_begun() {
    assert_eq!(webhook(&begun(&[]).0, NOW), put(&[PRE_CHECK]));
    assert_eq!(webhook(&begun(&[(PRE_CHECK, "job", "1")]).0, NOW), LabelChanges::new());
    assert_eq!(webhook(&with(&[(OPERATING, "job", "1")]).0, NOW), LabelChanges::new(), "it has no type");
}

#[test]
fn controller_permits_the_type_and_says_that_the_rules_passed() {
    let checked = begun(&[(PRE_CHECK, "job", "1")]);
    let steps = [set(StepKind::PreCheck, &[&label(PRE_CHECKED, "job"), &label(PERMISSION, "Restart")])];
    assert_eq!(controller(&checked.clone().0, NOW), steps);
    // Another ID already has permission for the type.
    let permitted = checked.label(&label(PERMISSION, "Restart"), "1");
    assert_eq!(controller(&permitted.0, NOW), [set(StepKind::PreCheck, &[&label(PRE_CHECKED, "job")])]);
}

#[test]
fn webhook_takes_the_pod_out_of_service_once_the_rules_passed() {
    let pod = begun(&[(PRE_CHECK, "job", "1"), (PRE_CHECKED, "job", "1")]);
    let mut expected = both(put(&[PREPARING]), take(&[PRE_CHECK]));
    expected.insert(labels::SERVICE_AVAILABLE.to_owned(), None);
    assert_eq!(webhook(&pod.0, NOW), expected);
}

#[test]
fn controller_clears_the_condition_of_a_pod_in_preparation_and_then_drains_it() {
    let pod = prot(begun(&[(PRE_CHECKED, "job", "1"), (PREPARING, "job", "1")]));
    assert_eq!(controller(&pod.clone().0, NOW), [service_ready_is(false)]);
    assert_eq!(controller(&ready(pod.clone(), "True").0, NOW), [service_ready_is(false)]);
    let drain = StepChange::Finalizers(vec!["example.com/guard".to_owned()]);
    let drain = LifecycleStep { kind: StepKind::Drain, change: drain };
    assert_eq!(controller(&ready(pod, "False").0, NOW), [drain]);
}

#[test]
fn webhook_permits_to_operate_once_the_pod_is_drained_and_gets_no_traffic() {
    let pod = begun(&[(PRE_CHECKED, "job", "1"), (PREPARING, "job", "1")]);
    let waits = [pod.clone(), ready(pod.clone(), "True"), ready(prot(pod.clone()), "False")];
    for pod in waits {
        assert_eq!(webhook(&pod.0, NOW), LabelChanges::new());
    }
    assert_eq!(webhook(&ready(pod, "False").0, NOW), both(put(&[OPERATE]), take(&[PREPARING])));
    let operating = begun(&[(PRE_CHECKED, "job", "1"), (OPERATE, "job", "1")]);
    assert_eq!(webhook(&ready(operating, "False").0, NOW), LabelChanges::new());
}

#[test]
fn webhook_ends_the_operation_when_the_job_takes_its_mark_off() {
    let pod = with(&[(OPERATION_TYPE, "job", "Restart"), (PRE_CHECKED, "job", "1"), (OPERATE, "job", "1")]);
    let pod = ready(pod.label(&label(PERMISSION, "Restart"), "1"), "False");
    let mut expected = both(put(&[OPERATED, POST_CHECK]), take(&[PRE_CHECKED, OPERATE, OPERATION_TYPE]));
    expected.insert(label(PERMISSION, "Restart"), None);
    expected.insert(label(DONE_TYPE, "job"), Some("Restart".to_owned()));
    assert_eq!(webhook(&pod.0, NOW), expected);
}

#[test]
fn pod_is_checked_again_and_completed_and_serves_before_its_labels_go() {
    let done = [(OPERATED, "job", "1"), (DONE_TYPE, "job", "Restart")];
    let checked = ready(with(&[&done[..], &[(POST_CHECK, "job", "1")]].concat()), "False");
    assert_eq!(webhook(&checked.clone().0, NOW), LabelChanges::new());
    assert_eq!(controller(&checked.0, NOW), [set(StepKind::PostCheck, &[&label(POST_CHECKED, "job")])]);

    let passed = [(POST_CHECK, "job", "1"), (POST_CHECKED, "job", "1")];
    let passed = ready(with(&[&done[..], &passed].concat()), "False");
    assert_eq!(controller(&passed.clone().0, NOW), []);
    assert_eq!(webhook(&passed.0, NOW), both(put(&[COMPLETING]), take(&[POST_CHECK])));

    let completing = with(&[&done[..], &[(POST_CHECKED, "job", "1"), (COMPLETING, "job", "1")]].concat());
    let out = ready(completing.clone(), "False");
    assert_eq!((webhook(&out.0, NOW), controller(&out.0, NOW)), (LabelChanges::new(), vec![service_ready_is(true)]));
    let all = take(&[OPERATED, DONE_TYPE, POST_CHECKED, COMPLETING]);
    assert_eq!(webhook(&ready(completing, "True").0, NOW), all);
}

#[test]
fn an_undone_id_leaves_no_label_and_no_permission_that_nobody_else_needs() {
    let mine = [(OPERATE, "job", "1"), (PRE_CHECKED, "job", "1"), (UNDO, "job", "Restart")];
    let permitted = |pod: SamplePod| pod.label(&label(PERMISSION, "Restart"), "1");
    let mut expected = take(&[OPERATING, OPERATION_TYPE, OPERATE, PRE_CHECKED, UNDO]);
    let shared = [&mine[..], &[(OPERATING, "other", "1"), (PRE_CHECK, "other", "1")]].concat();
    let other = |kind| [&shared[..], &[(OPERATION_TYPE, "other", kind)]].concat();
    assert_eq!(webhook(&permitted(begun(&other("Restart"))).0, NOW), expected);
    expected.insert(label(PERMISSION, "Restart"), None);
    assert_eq!(webhook(&permitted(begun(&other("Replace"))).0, NOW), expected);
    assert_eq!(webhook(&permitted(begun(&mine)).0, NOW), expected);
    // An undone ID leaves a pod without an ID that gets no traffic yet.
    assert_eq!(controller(&ready(with(&[]), "False").0, NOW), [service_ready_is(true)]);
}

#[test]
fn an_id_whose_job_took_its_labels_off_before_the_webhook_saw_it_is_cleared() {
    let other = [(OPERATING, "other", "1"), (OPERATION_TYPE, "other", "Replace"), (PRE_CHECK, "other", "1")];
    for left in
        [[(PRE_CHECKED, "job", "1"), (PREPARING, "job", "1")], [(PRE_CHECKED, "job", "1"), (OPERATE, "job", "1")]]
    {
        let pod = with(&[&left[..], &other].concat());
        let pod = pod.label(&label(PERMISSION, "Restart"), "1").label(&label(PERMISSION, "Replace"), "1");
        let mut expected = take(&[left[0].0, left[1].0]);
        expected.insert(label(PERMISSION, "Restart"), None);
        assert_eq!(webhook(&pod.0, NOW), expected);
    }
}

#[test]
fn a_pod_serves_again_once_its_last_operation_is_over() {
    let mine = [(OPERATED, "job", "1"), (POST_CHECKED, "job", "1"), (COMPLETING, "job", "1")];
    let other = [(OPERATING, "other", "1"), (OPERATION_TYPE, "other", "Replace"), (OPERATE, "other", "1")];
    let pod = ready(with(&[&mine[..], &other].concat()), "False");
    assert_eq!((webhook(&pod.0, NOW), controller(&pod.0, NOW)), (LabelChanges::new(), vec![]));
    assert!(is_operated_on(&pod.0) && !is_operated_on(&with(&[]).0));
}

#[test]
fn two_ids_go_their_ways_at_once() {
    let mine = [(PRE_CHECK, "job", "1")];
    let other = [(OPERATING, "other", "1"), (OPERATION_TYPE, "other", "Replace"), (PREPARING, "other", "1")];
    let pod = prot(ready(begun(&[&mine[..], &other].concat()), "False"));
    let kinds: Vec<StepKind> = controller(&pod.0, NOW).into_iter().map(|step| step.kind).collect();
    assert_eq!(kinds, [StepKind::Drain, StepKind::PreCheck]);
}
