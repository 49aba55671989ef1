//! Bad plugins and the manners in which they answer.

use oarlock_core::object::api_object::{Kind, ObjectKey};
use oarlock_core::plugin::proposal::{
    CallFailure, Mutation, ObjectRef, PluginError, PluginEvent, Proposal, Report, State,
};
use oarlock_core::plugin::visit::{Answer, Call, Trap, Visit};
use proptest::prelude::*;
use proptest::sample::select;

use crate::answers::{change, evict, itself, proposing};
use crate::bad_input::storm::Dice;

/// The manner in which a plugin answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Manner {
    /// Evicts the pod, and succeeds once the pod is gone.
    Good,
    /// Reports processing, and asks for the next call at once.
    ChecksNow,
    /// Asks for the next call at once, and emits another event each time.
    ChattersNow,
    /// Fails with a request to retry after this many milliseconds.
    FailsRetryably(Option<u32>),
    /// Proposes the same patch each time.
    PatchesAlike,
    /// Proposes another patch each time.
    PatchesAnew,
    /// Stores another extra each time, and asks for the next call at once.
    StoresAnew,
    /// Evicts the pod each time.
    Evicts,
    /// Traps in each call.
    Traps,
    /// Asks for one more live read each time.
    Looks,
    /// Proposes a mutation that is not granted.
    Oversteps,
    /// Reports a failure at once.
    GivesUp,
    /// Claims the pod `b`.
    Claims,
}

/// Returns a strategy of plugins: each call picks one of the returned manners.
pub(super) fn manners() -> BoxedStrategy<Vec<Manner>> {
    let manner = select(vec![
        Manner::Good,
        Manner::ChecksNow,
        Manner::ChattersNow,
        Manner::FailsRetryably(None),
        Manner::FailsRetryably(Some(0)),
        Manner::FailsRetryably(Some(u32::MAX)),
        Manner::PatchesAlike,
        Manner::PatchesAnew,
        Manner::StoresAnew,
        Manner::Evicts,
        Manner::Traps,
        Manner::Looks,
        Manner::Oversteps,
        Manner::GivesUp,
        Manner::Claims,
    ]);
    prop_oneof![
        3 => manner.clone().prop_map(|manner| vec![manner]),
        1 => proptest::collection::vec(manner, 2..5),
    ]
    .boxed()
}

fn reporting(
    state: State,
    set_extra: Vec<(String, String)>,
    events: Vec<PluginEvent>,
    check_after_ms: Option<u32>,
) -> Answer {
    let proposal = Proposal { set_extra, events, ..Proposal::default() };
    Answer::Reported { operate: Proposal::default(), report: Report { state, proposal, check_after_ms } }
}

/// Returns the answer of a plugin of this manner.
pub(super) fn answer(manner: Manner, dice: &Dice, visit: &Visit) -> Answer {
    let fail = |retry_after_ms| {
        Answer::Failed(CallFailure { retryable: true, reason: "Busy".into(), message: "m".into(), retry_after_ms })
    };
    let any = || dice.roll(1_000_000).to_string();
    let operates = visit.call == Call::OperateThenProgress;
    let marking = |value: &str| proposing(vec![change(visit, Some(("mark", value)), Some("f.io/f"))]);
    match manner {
        Manner::FailsRetryably(after) => fail(after),
        Manner::Traps => Answer::Trapped(Trap { reason: "PluginTrapped", message: "it trapped".into() }),
        Manner::Looks => {
            let read = visit.reads.get(&ObjectKey::pod("d", format!("x{}", any())), true);
            if read.is_err() { fail(None) } else { reporting(State::Processing, vec![], vec![], None) }
        }
        Manner::Oversteps => {
            let object =
                ObjectRef { key: ObjectKey { kind: Kind::new("v1", "Secret"), ..itself(visit).key }, uid: None };
            proposing(vec![Mutation::Delete { object, grace_seconds: None, propagation: None }])
        }
        _ if visit.call == Call::Release => Answer::Proposed(Proposal::default()),
        Manner::Good => match &visit.target.object {
            Some(object) if operates && !object.terminating() => evict(visit),
            Some(_) => reporting(State::Processing, vec![], vec![], None),
            None => reporting(State::Succeeded, vec![], vec![], None),
        },
        Manner::ChecksNow => reporting(State::Processing, vec![], vec![], Some(0)),
        Manner::ChattersNow => {
            let event = PluginEvent { warning: true, reason: format!("R{}", any()), message: "m".into() };
            reporting(State::Processing, vec![], vec![event], Some(0))
        }
        Manner::StoresAnew => reporting(State::Processing, vec![("Mode".into(), any())], vec![], Some(0)),
        Manner::Claims => reporting(State::Processing, vec![("NewPod".into(), "b".into())], vec![], Some(0)),
        Manner::GivesUp => {
            let error = PluginError { reason: "Broken".into(), message: "it is".into() };
            reporting(State::Failed(error), vec![], vec![], None)
        }
        Manner::PatchesAlike if operates => marking("true"),
        Manner::PatchesAnew if operates => marking(&any()),
        Manner::Evicts if operates => evict(visit),
        Manner::PatchesAlike | Manner::PatchesAnew | Manner::Evicts => {
            reporting(State::Processing, vec![], vec![], Some(0))
        }
    }
}
