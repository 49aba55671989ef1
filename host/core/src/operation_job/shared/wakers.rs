//! The reasons that wake one target: the objects whose changes concern the target.
//!
//! Takes the state of a target and the declarations of its plugin; yields names, nodes and a controller. [`WakeIndex`]
//! finds the targets by them. Source: docs/operationjob.md 3.1.
//!
//! [`WakeIndex`]: crate::operation_job::shared::wake_index::WakeIndex

use std::collections::BTreeSet;

use k8s_openapi::jiff::Timestamp;

use crate::cache::store::NODE_NAME;
use crate::object::api_object::{Kind, Object, Owner};
use crate::operation_job::shared::successors::RootController;
use crate::operation_job::state::{Progress, TargetState, extras};
use crate::operation_job::tasks::stored::StoredTask;
use crate::plugin::manifest::TargetKind;
use crate::plugin::proposal::{Registration, RelationKey};

/// The properties of a target that decide what it waits for, apart from its state.
#[derive(Clone, Copy, Debug)]
pub struct Waits<'a> {
    /// Kind of the target.
    pub kind: TargetKind,
    /// Name of the target.
    pub name: &'a str,
    /// Declarations of the target's plugin, if one serves.
    pub registration: Option<&'a Registration>,
    /// The names that the job's parameters give to objects of relations.
    pub parameters: &'a [String],
    /// True if the target's object counts although the target is not in flight. The object must change before the
    /// target may start, or shows whether other targets may start.
    pub watched: bool,
    /// True if the target's own object is gone.
    pub gone: bool,
    /// True if the target has ended, and something of the job is left on its object.
    pub releasing: bool,
}

/// The stages of a target on the way to another object of its own, nearest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum ReplacementStage {
    /// The target's own object is gone.
    Gone,
    /// The target's own object was asked to terminate.
    Asked,
    /// The target's own object stays, as far as the host knows.
    There,
}

/// The reasons that wake one target.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Wakers {
    /// Names of objects in the job's namespace.
    pub(crate) names: BTreeSet<String>,
    /// Names of nodes, which are in no namespace.
    pub(crate) nodes: BTreeSet<String>,
    pub(crate) owner: Option<(String, ReplacementStage, Option<Timestamp>)>,
    pub(crate) owned_by_job: bool,
    /// Name of the node that is drained.
    pub(crate) drains: Option<String>,
    /// True if the target has tasks, whose pods wake it.
    pub(crate) tasks: bool,
}

/// Returns the index key of the controller that a target waits for; for a DaemonSet, with the node.
pub(crate) fn owner_key(controller: &RootController) -> String {
    waiting_at(&controller.namespace, &controller.uid, controller.node.as_deref())
}

/// Returns the index key of the targets that wait for an object under this root controller.
pub(crate) fn owner_key_of(object: &Object, root: &Owner) -> String {
    let node = (root.kind.kind == "DaemonSet").then(|| object.text(NODE_NAME)).flatten();
    waiting_at(object.key.namespace.as_deref().unwrap_or_default(), &root.uid, node.as_deref())
}

fn waiting_at(namespace: &str, owner: &str, node: Option<&str>) -> String {
    node.map_or_else(|| format!("{namespace}/{owner}"), |node| format!("{namespace}/{owner}/{node}"))
}

/// Returns the reasons by the target's own name.
fn own(target: Waits<'_>) -> Wakers {
    let name = [target.name.to_owned()].into();
    match target.kind {
        TargetKind::Pod => Wakers { names: name, ..Wakers::default() },
        TargetKind::Node => Wakers { nodes: name, ..Wakers::default() },
    }
}

impl Wakers {
    /// Returns the reasons that wake a target of a namespace in this state. A target that is not in flight has none,
    /// unless its object counts all the same. The host reads the objects that such a target needs when it starts.
    pub(crate) fn of(namespace: &str, state: &TargetState, target: Waits<'_>) -> Option<Self> {
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

    /// Returns the names, each with its namespace.
    pub(crate) fn namespaced_names<'a>(&'a self, namespace: &'a str) -> impl Iterator<Item = (&'a str, &'a String)> {
        let named = self.names.iter().map(move |name| (namespace, name));
        named.chain(self.nodes.iter().map(|name| ("", name)))
    }

    /// Adds the names that these extras hold.
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
        // Objects that point to the node by a relation are in the job's namespace.
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
        let owner = RootController::of(namespace, state).map(|controller| owner_key(&controller));
        let stage = match (target.gone, asked) {
            (true, _) => ReplacementStage::Gone,
            (false, Some(_)) => ReplacementStage::Asked,
            (false, None) => ReplacementStage::There,
        };
        wakers.owner = owner.map(|owner| (owner, stage, asked.or(state.start)));
    }
    wakers
}
