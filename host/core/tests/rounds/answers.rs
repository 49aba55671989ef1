//! Answers of a plugin for tests of rounds.

use oarlock_core::object::api_object::ObjectKey;
use oarlock_core::plugin::proposal::{CallFailure, MetadataChange, Mutation, ObjectRef, Proposal, Report, State};
use oarlock_core::plugin::visit::{Answer, Call, Visit};

/// Returns the reference by which a proposal names the target itself.
pub(crate) fn itself(visit: &Visit) -> ObjectRef {
    ObjectRef { key: ObjectKey::pod("d", visit.target.name.clone()), uid: None }
}

/// Returns a proposal of these mutations.
pub(crate) fn proposing(mutations: Vec<Mutation>) -> Answer {
    Answer::Proposed(Proposal { mutations, ..Proposal::default() })
}

/// Returns a report without a proposal.
pub(crate) fn report(state: State) -> Answer {
    let report = Report { state, proposal: Proposal::default(), check_after_ms: None };
    Answer::Reported { operate: Proposal::default(), report }
}

/// Evicts the target.
pub(crate) fn evict(visit: &Visit) -> Answer {
    proposing(vec![Mutation::Evict { pod: itself(visit), grace_seconds: None }])
}

/// Returns a change of the target's metadata that sets this label and adds this finalizer, if given.
pub(crate) fn change(visit: &Visit, label: Option<(&str, &str)>, finalizer: Option<&str>) -> Mutation {
    Mutation::Metadata(MetadataChange {
        object: itself(visit),
        set_labels: label.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect(),
        remove_labels: vec![],
        set_annotations: vec![],
        remove_annotations: vec![],
        add_finalizers: finalizer.iter().map(|name| (*name).to_owned()).collect(),
        remove_finalizers: vec![],
        keep: false,
    })
}

/// Proposes a label and a finalizer on the target.
pub(crate) fn marking(visit: &Visit) -> Answer {
    proposing(vec![change(visit, Some(("mark", "true")), Some("f.io/f"))])
}

/// Evicts the pod, waits, and succeeds once the pod is gone.
pub(crate) fn evict_and_wait(visit: &Visit) -> Answer {
    match (visit.call, &visit.target.object) {
        (Call::Release, _) => Answer::Proposed(Proposal::default()),
        (Call::OperateThenProgress, Some(object)) if !object.terminating() => evict(visit),
        (_, Some(_)) => report(State::Processing),
        (_, None) => report(State::Succeeded),
    }
}

/// Returns a failed call that needs a live read.
pub(crate) fn unavailable() -> Answer {
    Answer::Failed(CallFailure {
        retryable: true,
        reason: "Unavailable".into(),
        message: "m".into(),
        retry_after_ms: None,
    })
}

/// Answers as a plugin that only waits.
pub(crate) fn waiting(visit: &Visit) -> Answer {
    match visit.call {
        Call::Release => Answer::Proposed(Proposal::default()),
        _ => report(State::Processing),
    }
}
