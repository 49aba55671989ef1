//! The reasons for which one target is woken: what a change must be of to concern it.
//!
//! Takes the state of a target and what its plugin declares; yields names, nodes, a controller. [`WakeIndex`] finds the
//! targets by them. Source: docs/operationjob.md 3.1.
//!
//! [`WakeIndex`]: crate::shared::wake_index::WakeIndex

use std::collections::BTreeSet;

use k8s_openapi::jiff::Timestamp;

use crate::cluster::object::{Kind, Object, Owner};
use crate::cluster::store::NODE_NAME;
use crate::job::state::{Progress, TargetState, extras};
use crate::job::task::StoredTask;
use crate::plugin::manifest::TargetKind;
use crate::plugin::proposal::{Registration, RelationKey};
use crate::shared::successors::RootController;

/// The objects that a target waits for, beside its state.
#[derive(Clone, Copy, Debug)]
pub struct Waits<'a> {
    /// Its kind.
    pub kind: TargetKind,
    /// Its name.
    pub name: &'a str,
    /// Its plugin's declarations, if one serves.
    pub registration: Option<&'a Registration>,
    /// The names that the job's parameters give to objects of relations.
    pub parameters: &'a [String],
    /// Its object counts although it is not in flight: it must change before the target may start, or says whether others
    /// may.
    pub watched: bool,
    /// Its own object is gone.
    pub gone: bool,
    /// It has ended, and something of the job is left on its object.
    pub releasing: bool,
}

/// How near a target is to taking another object for its own, nearest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Stage {
    /// Its own object is gone.
    Gone,
    /// Its own object was asked to go.
    Asked,
    /// Its own object stays, as far as is known.
    There,
}

/// The reasons for which one target is woken.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Wakers {
    /// In the job's namespace.
    pub(super) names: BTreeSet<String>,
    /// Of nodes, which are in no namespace.
    pub(super) nodes: BTreeSet<String>,
    pub(super) owner: Option<(String, Stage, Option<Timestamp>)>,
    pub(super) owned_by_job: bool,
    /// The node that is drained.
    pub(super) drains: Option<String>,
    /// It has tasks: their pods wake it.
    pub(super) tasks: bool,
}

/// The controller that a target waits for, as the index names it; of a DaemonSet, with the node.
pub(crate) fn place(controller: &RootController) -> String {
    waiting_at(&controller.namespace, &controller.uid, controller.node.as_deref())
}

/// The same for those that wait for an object under this root controller.
pub(super) fn place_of(object: &Object, root: &Owner) -> String {
    let node = (root.kind.kind == "DaemonSet").then(|| object.text(NODE_NAME)).flatten();
    waiting_at(object.key.namespace.as_deref().unwrap_or_default(), &root.uid, node.as_deref())
}

fn waiting_at(namespace: &str, owner: &str, node: Option<&str>) -> String {
    node.map_or_else(|| format!("{namespace}/{owner}"), |node| format!("{namespace}/{owner}/{node}"))
}

/// What has the target's own name.
fn own(target: Waits<'_>) -> Wakers {
    let name = [target.name.to_owned()].into();
    match target.kind {
        TargetKind::Pod => Wakers { names: name, ..Wakers::default() },
        TargetKind::Node => Wakers { nodes: name, ..Wakers::default() },
    }
}

impl Wakers {
    /// The reasons that wake a target of a namespace in this state. One that is not in flight has none, unless its object counts all the
    /// same: the objects it needs are read when it starts.
    pub(super) fn of(namespace: &str, state: &TargetState, target: Waits<'_>) -> Option<Self> {
        let wakers = match state.progress {
            Progress::Processing => in_flight(namespace, state, target),
            Progress::Failed if state.owes_release() => own(target),
            Progress::Pending if target.watched => own(target),
            Progress::Failed if target.watched => {
                let mut wakers = own(target);
                let registration = target.registration.into_iter();
                registration.for_each(|registration| {
                    wakers.named_by_extras(&registration.exclusive_extras, registration, state)
                });
                wakers
            }
            Progress::Succeeded | Progress::Failed if target.releasing => own(target),
            _ => return None,
        };
        Some(Self { tasks: StoredTask::any(&state.extra), ..wakers })
    }

    /// The names, each with its namespace.
    pub(super) fn places<'a>(&'a self, namespace: &'a str) -> impl Iterator<Item = (&'a str, &'a String)> {
        let named = self.names.iter().map(move |name| (namespace, name));
        named.chain(self.nodes.iter().map(|name| ("", name)))
    }

    /// Adds what these extras name.
    fn named_by_extras<'a>(
        &mut self,
        keys: impl IntoIterator<Item = &'a String>,
        registration: &Registration,
        state: &TargetState,
    ) {
        for (key, name) in keys.into_iter().filter_map(|key| Some((key, state.extra.get(key)?))) {
            let of_node = registration.kind_of_extra(key) == Kind::node();
            let names = if of_node { &mut self.nodes } else { &mut self.names };
            names.insert(name.clone());
        }
    }
}

fn in_flight(namespace: &str, state: &TargetState, target: Waits<'_>) -> Wakers {
    let mut wakers = own(target);
    let draining =
        target.kind == TargetKind::Node && state.extra(extras::DRAIN).is_some_and(|drain| drain != extras::DRAINED);
    wakers.drains = draining.then(|| target.name.to_owned());
    let Some(registration) = target.registration else { return wakers };
    if target.kind == TargetKind::Node {
        // What a relation points to it with is in the job's namespace.
        wakers.names.insert(target.name.to_owned());
    }
    let by_extra = registration.relations.iter().filter_map(|relation| match &relation.by {
        RelationKey::Extra(key) => Some(key),
        _ => None,
    });
    wakers.named_by_extras(by_extra.chain(&registration.exclusive_extras), registration, state);
    wakers.names.extend(target.parameters.iter().cloned());
    wakers.owned_by_job = registration.relations.iter().any(|relation| relation.by == RelationKey::OwnerIsJob);
    let chosen = registration.exclusive_extras.iter().any(|key| state.extra.contains_key(key));
    if !chosen && registration.same_controller().is_some() {
        let asked: Option<Timestamp> = state.extra(extras::EVICTED_AT).and_then(|text| text.parse().ok());
        let owner = RootController::of(namespace, state).map(|controller| place(&controller));
        let stage = match (target.gone, asked) {
            (true, _) => Stage::Gone,
            (false, Some(_)) => Stage::Asked,
            (false, None) => Stage::There,
        };
        wakers.owner = owner.map(|owner| (owner, stage, asked.or(state.start)));
    }
    wakers
}
