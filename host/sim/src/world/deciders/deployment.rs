//! Decides for a Deployment: one ReplicaSet per template, and only the current one has pods. There is no rolling update: a
//! changed template switches at once.

use serde_json::json;

use super::replicas::push_status;
use crate::world::action::Action;
use crate::world::random::text_hash;
use crate::world::sets::SetView;

/// Returns the actions that the Deployment needs now.
pub(crate) fn deployment(set: &SetView, replica_sets: &[SetView]) -> Vec<Action> {
    let hash = text_hash(&serde_json::to_string(&set.template).unwrap_or_default());
    let name = format!("{}-{hash}", set.key.name);
    let mut actions = Vec::new();
    let others = replica_sets.iter().filter(|child| child.key.name != name);
    let revision = others.map(|child| child.revision).max().unwrap_or(0).saturating_add(1);
    match replica_sets.iter().find(|child| child.key.name == name) {
        _ if set.is_terminating => {}
        None => actions.push(Action::CreateReplicaSet { name: name.clone(), hash, replicas: set.replicas, revision }),
        Some(child) if child.revision < revision => {
            actions.push(Action::SetRevision { set: child.key.clone(), uid: child.uid.clone(), revision });
        }
        Some(_) => {}
    }
    for child in replica_sets {
        let replicas = if child.key.name == name { set.replicas } else { 0 };
        if child.replicas != replicas && !set.is_terminating {
            actions.push(Action::Resize { set: child.key.clone(), uid: child.uid.clone(), replicas });
        }
    }
    push_status(&mut actions, set, status(set, replica_sets, &name));
    actions
}

fn status(set: &SetView, replica_sets: &[SetView], present: &str) -> serde_json::Value {
    let count = |child: &SetView, field: &str| child.status.get(field).and_then(|n| n.as_u64()).unwrap_or(0);
    let sum = |field: &str| replica_sets.iter().map(|child| count(child, field)).sum::<u64>();
    let updated = replica_sets.iter().find(|child| child.key.name == present);
    let available = sum("availableReplicas");
    json!({
        "observedGeneration": set.generation,
        "replicas": sum("replicas"),
        "updatedReplicas": updated.map_or(0, |child| count(child, "replicas")),
        "readyReplicas": sum("readyReplicas"),
        "availableReplicas": available,
        "unavailableReplicas": (set.replicas as u64).saturating_sub(available),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::world::samples::set_of;
    use crate::world::sets::SetKind;

    #[test]
    fn a_deployment_makes_one_replica_set_and_keeps_its_size() {
        let web = set_of(SetKind::Deployment, "web", 3);
        let actions = deployment(&web, &[]);
        let [Action::CreateReplicaSet { name, replicas: 3, .. }, Action::WriteStatus(_)] = actions.as_slice() else {
            panic!("{actions:?}")
        };
        let mut present = set_of(SetKind::ReplicaSet, name, 1);
        present.revision = 1;
        let old = set_of(SetKind::ReplicaSet, "web-old", 2);
        let resized = |set: &SetView, replicas| Action::Resize { set: set.key.clone(), uid: set.uid.clone(), replicas };
        let actions = deployment(&web, &[present.clone(), old.clone()]);
        assert_eq!(actions[..2], [resized(&present, 3), resized(&old, 0)]);
    }

    #[test]
    fn a_deployment_that_goes_back_numbers_the_old_template_as_its_newest() {
        let web = set_of(SetKind::Deployment, "web", 3);
        let actions = deployment(&web, &[]);
        let Some(Action::CreateReplicaSet { name, revision: 1, .. }) = actions.first() else { panic!("{actions:?}") };
        let mut first = set_of(SetKind::ReplicaSet, name, 3);
        first.revision = 1;
        let mut second = set_of(SetKind::ReplicaSet, "web-second", 0);
        second.revision = 2;
        let numbered = Action::SetRevision { set: first.key.clone(), uid: first.uid.clone(), revision: 3 };
        assert_eq!(deployment(&web, &[first.clone(), second.clone()]).first(), Some(&numbered));
        first.revision = 3;
        assert!(!deployment(&web, &[first, second]).iter().any(|one| matches!(one, Action::SetRevision { .. })));
    }
}
