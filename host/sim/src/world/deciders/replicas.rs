//! Decides for a ReplicaSet and a StatefulSet. A StatefulSet creates all its pods at once (`podManagementPolicy:
//! Parallel`). There is no rolling update.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use crate::world::action::{Action, Member, NewPod, PodName, SetContext};
use crate::world::labels;
use crate::world::ledger::Cause;
use crate::world::pod_facts::PodFacts;
use crate::world::sets::SetView;

/// Returns the actions of a ReplicaSet. It replaces a pod as soon as the pod terminates or has ended.
pub(crate) fn replica_set(set: &SetView, members: &[Member], context: SetContext) -> Vec<Action> {
    let mut active = active(members);
    let mut actions = Vec::new();
    if let Some(missing) = set.replicas.checked_sub(active.len()) {
        let missing = if context.creation_held || set.is_terminating { 0 } else { missing };
        actions.extend(std::iter::repeat_with(|| Action::CreatePod(NewPod::default())).take(missing));
    } else {
        // Pods that are not ready go first, then the youngest.
        active.sort_by_key(|m| {
            let age = m.pod.meta().creation_timestamp.as_ref().map(|time| time.0);
            (m.pod.is_ready(), std::cmp::Reverse(age), m.pod.pod_name().to_owned())
        });
        actions.extend(active.iter().take(active.len() - set.replicas).map(|m| scaled_down(m)));
    }
    push_status(&mut actions, set, pod_counts(set, members, "fullyLabeledReplicas"));
    actions
}

/// Returns the actions of a StatefulSet. It recreates a name once the old pod of that name is gone.
pub(crate) fn stateful_set(set: &SetView, members: &[Member], context: SetContext) -> Vec<Action> {
    let present: BTreeSet<&str> = members.iter().map(|m| m.pod.pod_name()).collect();
    let wanted: BTreeMap<String, usize> =
        (0..set.replicas).map(|ordinal| (format!("{}-{ordinal}", set.key.name), ordinal)).collect();
    let mut actions = Vec::new();
    if !context.creation_held && !set.is_terminating {
        let missing = wanted.iter().filter(|(name, _)| !present.contains(name.as_str()));
        actions.extend(missing.map(|(name, ordinal)| {
            let labels = BTreeMap::from([
                (labels::STATEFUL_POD.to_owned(), name.clone()),
                (labels::POD_INDEX.to_owned(), ordinal.to_string()),
            ]);
            Action::CreatePod(NewPod { name: Some(name.clone()), labels })
        }));
    }
    let surplus = members.iter().filter(|m| !m.is_leaving && !wanted.contains_key(m.pod.pod_name()));
    actions.extend(surplus.map(scaled_down));
    push_status(&mut actions, set, pod_counts(set, members, "currentReplicas"));
    actions
}

/// Adds an action that writes the status, if the stored status differs.
pub(crate) fn push_status(actions: &mut Vec<Action>, set: &SetView, status: Value) {
    if !set.status_says(&status) {
        actions.push(Action::WriteStatus(status));
    }
}

fn active(members: &[Member]) -> Vec<&Member> {
    members.iter().filter(|m| !m.is_leaving && !m.pod.is_finished()).collect()
}

fn scaled_down(member: &Member) -> Action {
    Action::DeletePod { pod: PodName::of(&member.pod), cause: Cause::ScaledDown }
}

fn pod_counts(set: &SetView, members: &[Member], own_count: &str) -> Value {
    let active = active(members);
    let ready = active.iter().filter(|m| m.pod.is_ready()).count();
    let mut counts = json!({
        "observedGeneration": set.generation,
        "replicas": active.len(),
        "readyReplicas": ready,
        "availableReplicas": ready,
    });
    if let Some(fields) = counts.as_object_mut() {
        fields.insert(own_count.to_owned(), active.len().into());
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::world::samples::{pod, set_of};
    use crate::world::sets::SetKind;

    const FREE: SetContext = SetContext { next_id: 0, creation_held: false };
    const HELD: SetContext = SetContext { next_id: 0, creation_held: true };

    fn without_status(actions: Vec<Action>) -> Vec<Action> {
        actions.into_iter().filter(|action| !matches!(action, Action::WriteStatus(_))).collect()
    }

    #[test]
    fn a_replica_set_replaces_a_terminating_pod_at_once() {
        let set = set_of(SetKind::ReplicaSet, "web", 2);
        let members = [pod("a").member(), pod("b").terminating().member()];
        assert_eq!(without_status(replica_set(&set, &members, FREE)), [Action::CreatePod(NewPod::default())]);
        assert_eq!(without_status(replica_set(&set, &members, HELD)), []);
    }

    #[test]
    fn a_replica_set_gives_up_unready_pods_first() {
        let set = set_of(SetKind::ReplicaSet, "web", 1);
        let unready = pod("b").condition("Ready", "False", None).member();
        let actions = without_status(replica_set(&set, &[pod("a").member(), unready.clone()], FREE));
        assert_eq!(actions, [Action::DeletePod { pod: PodName::of(&unready.pod), cause: Cause::ScaledDown }]);
    }

    #[test]
    fn a_stateful_set_waits_until_the_old_name_is_free() {
        let set = set_of(SetKind::StatefulSet, "db", 2);
        let members = [pod("db-0").member(), pod("db-1").terminating().member()];
        assert_eq!(without_status(stateful_set(&set, &members, FREE)), []);
        let actions = without_status(stateful_set(&set, &members[..1], FREE));
        assert!(
            matches!(actions.as_slice(), [Action::CreatePod(s)] if s.name.as_deref() == Some("db-1")),
            "{actions:?}"
        );
    }

    #[test]
    fn a_status_that_says_the_same_is_not_written_again() {
        let mut set = set_of(SetKind::ReplicaSet, "web", 1);
        let actions = replica_set(&set, &[pod("a").member()], FREE);
        let [Action::WriteStatus(status)] = actions.as_slice() else { panic!("{actions:?}") };
        set.status = status.clone();
        assert_eq!(replica_set(&set, &[pod("a").member()], FREE), []);
    }
}
