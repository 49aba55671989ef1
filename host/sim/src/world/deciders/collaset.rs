//! Decides for a CollaSet as KusionStack's controller does. A pod with the label `to-replace` gets a partner first, and is
//! deleted once the partner serves.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::json;

use crate::world::action::{Action, Member, NewPod, PodName, SetContext};
use crate::world::labels;
use crate::world::ledger::Cause;
use crate::world::pod_facts::PodFacts;
use crate::world::random::text_hash;
use crate::world::sets::SetView;

/// Returns the actions that the set needs now.
pub(crate) fn collaset(set: &SetView, members: &[Member], context: SetContext) -> Vec<Action> {
    let pairs = Pairs::of(members);
    let mut next_id = context.next_id;
    let mut actions = replacements(members, &pairs, context, &mut next_id);
    actions.extend(members.iter().filter_map(|member| relabel(member, &pairs)));
    actions.extend(
        members
            .iter()
            .filter(|m| m.pod.bears(labels::TO_DELETE) && !m.is_leaving)
            .map(|member| Action::DeletePod { pod: PodName::of(&member.pod), cause: Cause::MarkedToDelete }),
    );
    actions.extend(scale(set, members, &pairs, SetContext { next_id, ..context }));
    let status = status(set, members);
    if !set.status_says(&status) {
        actions.push(Action::WriteStatus(status));
    }
    actions
}

/// Returns the name of the set's current revision, such as `foo-7bdb974bc7`.
pub(crate) fn revision(set: &SetView) -> String {
    let template = serde_json::to_string(&set.template).unwrap_or_default();
    format!("{}-{}", set.key.name, text_hash(&template))
}

/// Returns the labels of a new pod of the set besides the template's.
pub(crate) fn pod_labels(set: &SetView, id: u64) -> BTreeMap<String, String> {
    BTreeMap::from([
        (labels::CONTROL.to_owned(), "true".to_owned()),
        (labels::INSTANCE_ID.to_owned(), id.to_string()),
        (labels::REVISION.to_owned(), revision(set)),
    ])
}

/// Returns the lowest instance id above all ids that pods of the set have or name.
pub(crate) fn next_id(members: &[Member]) -> u64 {
    let named = |key: &'static str| members.iter().filter_map(move |m| m.pod.label(key)?.parse::<u64>().ok());
    named(labels::INSTANCE_ID).chain(named(labels::PAIR_NEW_ID)).max().map_or(0, |id| id + 1)
}

/// Origins and their partners, by name and by instance id.
struct Pairs<'a> {
    by_name: BTreeMap<&'a str, &'a Member>,
    by_id: BTreeMap<&'a str, &'a Member>,
    by_origin: BTreeMap<&'a str, &'a Member>,
}

impl<'a> Pairs<'a> {
    fn of(members: &'a [Member]) -> Self {
        let keyed = |key: &'static str| members.iter().filter_map(move |m| Some((m.pod.label(key)?, m)));
        Self {
            by_name: members.iter().map(|m| (m.pod.pod_name(), m)).collect(),
            by_id: keyed(labels::INSTANCE_ID).collect(),
            by_origin: keyed(labels::PAIR_ORIGIN_NAME).filter(|(_, m)| !m.is_leaving).collect(),
        }
    }

    fn origin_of(&self, member: &Member) -> Option<&'a Member> {
        self.by_name.get(member.pod.label(labels::PAIR_ORIGIN_NAME)?).copied()
    }

    fn partner_of(&self, member: &Member) -> Option<&'a Member> {
        self.by_id.get(member.pod.label(labels::PAIR_NEW_ID)?).copied()
    }
}

/// Returns the actions for marked pods without a partner. If a partner exists although its origin does not name it, an
/// earlier action was interrupted, and only the label on the origin is missing.
fn replacements(members: &[Member], pairs: &Pairs<'_>, context: SetContext, next_id: &mut u64) -> Vec<Action> {
    let mut actions = Vec::new();
    for member in members {
        let pod = &member.pod;
        if !pod.bears(labels::TO_REPLACE) || pairs.origin_of(member).is_some() || pairs.partner_of(member).is_some() {
            continue;
        }
        if let Some(id) = pairs.by_origin.get(pod.pod_name()).and_then(|new| new.pod.label(labels::INSTANCE_ID)) {
            actions.push(label(member, labels::PAIR_NEW_ID, Some(id)));
        } else if !context.creation_held {
            actions.push(Action::ReplaceOrigin { origin: PodName::of(pod), id: *next_id });
            *next_id += 1;
        }
    }
    actions
}

/// Returns the label change that ends, finishes or cancels a replacement. At most one per pod, because the next round makes the rest.
fn relabel(member: &Member, pairs: &Pairs<'_>) -> Option<Action> {
    let pod = &member.pod;
    if pod.bears(labels::PAIR_ORIGIN_NAME) && pairs.origin_of(member).is_none() {
        return Some(label(member, labels::PAIR_ORIGIN_NAME, None));
    }
    let is_origin_no_more = pod.bears(labels::PAIR_NEW_ID) && pairs.partner_of(member).is_none();
    if is_origin_no_more && !pod.bears(labels::TO_REPLACE) {
        return Some(label(member, labels::PAIR_NEW_ID, None));
    }
    if pod.bears(labels::TO_DELETE) || member.is_leaving {
        return None;
    }
    let is_cancelled = pairs.origin_of(member).is_some_and(|origin| !is_marked(origin));
    let is_replaced = pairs
        .by_origin
        .get(pod.pod_name())
        .is_some_and(|new| is_marked(member) && new.pod.bears(labels::SERVICE_AVAILABLE));
    let gives_up = is_cancelled && !pod.bears(labels::SERVICE_AVAILABLE);
    (gives_up || is_replaced).then(|| label(member, labels::TO_DELETE, Some("true")))
}

fn is_marked(member: &Member) -> bool {
    member.pod.label(labels::TO_REPLACE).is_some_and(|value| !value.is_empty())
}

fn label(member: &Member, key: &str, value: Option<&str>) -> Action {
    let labels = BTreeMap::from([(key.to_owned(), value.map(str::to_owned))]);
    Action::LabelPod { pod: PodName::of(&member.pod), labels }
}

/// Returns the actions for missing or surplus pods. A pair counts once. A leaving pod that is marked for replacement still
/// counts, because its partner replaces it.
fn scale(set: &SetView, members: &[Member], pairs: &Pairs<'_>, context: SetContext) -> Vec<Action> {
    let counted: Vec<&Member> = members.iter().filter(|m| !m.is_leaving || m.pod.bears(labels::TO_REPLACE)).collect();
    let names: BTreeSet<&str> = counted.iter().map(|m| m.pod.pod_name()).collect();
    let is_second = |m: &&Member| {
        let origin = pairs.origin_of(m).filter(|origin| names.contains(origin.pod.pod_name()));
        origin.is_some_and(|origin| {
            let named = origin.pod.label(labels::PAIR_NEW_ID);
            named.is_none() || named == m.pod.label(labels::INSTANCE_ID)
        })
    };
    let mut places: Vec<&Member> = counted.into_iter().filter(|m| !is_second(m)).collect();
    if let Some(missing) = set.replicas.checked_sub(places.len()) {
        let missing = if context.creation_held || set.is_terminating { 0 } else { missing };
        let ids = (context.next_id..).take(missing);
        return ids.map(|id| Action::CreatePod(NewPod { name: None, labels: pod_labels(set, id) })).collect();
    }
    // The youngest pods go first, and pods outside a replacement go before pods in a pair.
    places.sort_by_key(|m| {
        let age = m.pod.meta().creation_timestamp.as_ref().map(|time| time.0);
        (!m.pod.bears(labels::PAIR_NEW_ID), age, m.pod.pod_name().to_owned())
    });
    let surplus = places.len() - set.replicas;
    let leaving = places.into_iter().rev().take(surplus);
    let pairs_too = leaving.flat_map(|m| [Some(m), pairs.partner_of(m)]).flatten();
    let going = pairs_too.filter(|m| !m.is_leaving && !m.pod.bears(labels::TO_DELETE));
    going.map(|m| Action::DeletePod { pod: PodName::of(&m.pod), cause: Cause::ScaledDown }).collect()
}

fn status(set: &SetView, members: &[Member]) -> serde_json::Value {
    let alive: Vec<&Member> = members.iter().filter(|m| !m.is_leaving && !m.pod.is_finished()).collect();
    let ready = alive.iter().filter(|m| m.pod.is_ready()).count();
    let serving = alive.iter().filter(|m| m.pod.bears(labels::SERVICE_AVAILABLE)).count();
    let revision = revision(set);
    let updated: Vec<&&Member> =
        alive.iter().filter(|m| m.pod.label(labels::REVISION) == Some(revision.as_str())).collect();
    json!({
        "observedGeneration": set.generation,
        "replicas": alive.len(),
        "readyReplicas": ready,
        "availableReplicas": serving,
        "updatedReplicas": updated.len(),
        "updatedReadyReplicas": updated.iter().filter(|m| m.pod.is_ready()).count(),
        "updatedAvailableReplicas": updated.iter().filter(|m| m.pod.bears(labels::SERVICE_AVAILABLE)).count(),
        "currentRevision": revision,
        "updatedRevision": revision,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::world::samples::{pod, set_of};
    use crate::world::sets::SetKind;

    const FREE: SetContext = SetContext { next_id: 10, creation_held: false };

    fn decide(replicas: usize, members: &[Member], context: SetContext) -> Vec<Action> {
        let actions = collaset(&set_of(SetKind::CollaSet, "foo", replicas), members, context);
        actions.into_iter().filter(|action| !matches!(action, Action::WriteStatus(_))).collect()
    }

    fn label_action(name: &str, key: &str, value: Option<&str>) -> Action {
        label(&pod(name).member(), key, value)
    }

    fn delete(name: &str, cause: Cause) -> Action {
        Action::DeletePod { pod: PodName::of(&pod(name).member().pod), cause }
    }

    #[test]
    fn a_marked_pod_gets_one_partner_and_no_more() {
        let origin = pod("a").label(labels::INSTANCE_ID, "0").label(labels::TO_REPLACE, "true");
        let actions = decide(1, &[origin.clone().member()], FREE);
        assert_eq!(actions, [Action::ReplaceOrigin { origin: PodName::of(&origin.clone().member().pod), id: 10 }]);

        let held = decide(1, &[origin.clone().member()], SetContext { creation_held: true, ..FREE });
        assert_eq!(held, []);

        let partner = pod("b").label(labels::INSTANCE_ID, "10").label(labels::PAIR_ORIGIN_NAME, "a");
        let named = decide(1, &[origin.clone().member(), partner.clone().member()], FREE);
        assert_eq!(named, [label_action("a", labels::PAIR_NEW_ID, Some("10"))]);

        let paired = decide(1, &[origin.label(labels::PAIR_NEW_ID, "10").member(), partner.member()], FREE);
        assert_eq!(paired, []);
    }

    #[test]
    fn an_origin_goes_once_its_partner_serves() {
        let origin = pod("a").label(labels::TO_REPLACE, "true").label(labels::PAIR_NEW_ID, "1");
        let partner = pod("b")
            .label(labels::INSTANCE_ID, "1")
            .label(labels::PAIR_ORIGIN_NAME, "a")
            .label(labels::SERVICE_AVAILABLE, "true");
        let actions = decide(1, &[origin.clone().member(), partner.clone().member()], FREE);
        assert_eq!(actions, [label_action("a", labels::TO_DELETE, Some("true"))]);

        let marked = origin.label(labels::TO_DELETE, "true");
        let actions = decide(1, &[marked.clone().member(), partner.clone().member()], FREE);
        assert_eq!(actions, [delete("a", Cause::MarkedToDelete)]);

        assert_eq!(decide(1, &[marked.terminating().member(), partner.clone().member()], FREE), []);
        let alone = decide(1, &[partner.member()], FREE);
        assert_eq!(alone, [label_action("b", labels::PAIR_ORIGIN_NAME, None)]);
    }

    #[test]
    fn a_replacement_is_cancelled_by_taking_the_mark_away() {
        let origin = pod("a").label(labels::PAIR_NEW_ID, "1");
        let partner = pod("b").label(labels::INSTANCE_ID, "1").label(labels::PAIR_ORIGIN_NAME, "a");
        let actions = decide(1, &[origin.clone().member(), partner.clone().member()], FREE);
        assert_eq!(actions, [label_action("b", labels::TO_DELETE, Some("true"))]);

        let alone = decide(1, &[origin.clone().member()], FREE);
        assert_eq!(alone, [label_action("a", labels::PAIR_NEW_ID, None)]);

        let serving = partner.label(labels::SERVICE_AVAILABLE, "true").member();
        assert_eq!(decide(1, &[origin.member(), serving], FREE), []);
    }

    #[test]
    fn a_terminating_marked_pod_is_replaced_by_its_partner_alone() {
        let origin = pod("a").label(labels::TO_REPLACE, "true").terminating();
        let actions = decide(1, &[origin.clone().member()], FREE);
        assert_eq!(actions, [Action::ReplaceOrigin { origin: PodName::of(&origin.member().pod), id: 10 }]);
    }

    #[test]
    fn an_unmarked_pod_that_leaves_is_made_anew() {
        let actions = decide(2, &[pod("a").terminating().member(), pod("b").member()], FREE);
        let labels = pod_labels(&set_of(SetKind::CollaSet, "foo", 2), 10);
        assert_eq!(actions, [Action::CreatePod(NewPod { name: None, labels })]);
    }

    #[test]
    fn a_new_pod_is_replaced_only_after_its_origin_is_gone() {
        let partner = pod("b")
            .label(labels::INSTANCE_ID, "1")
            .label(labels::PAIR_ORIGIN_NAME, "a")
            .label(labels::TO_REPLACE, "true");
        let origin = pod("a").label(labels::TO_REPLACE, "true").label(labels::PAIR_NEW_ID, "1").terminating();
        assert_eq!(decide(1, &[origin.member(), partner.clone().member()], FREE), []);
        let actions = decide(1, &[partner.clone().member()], FREE);
        assert!(
            actions.contains(&Action::ReplaceOrigin { origin: PodName::of(&partner.member().pod), id: 10 }),
            "{actions:?}"
        );
    }

    #[test]
    fn a_surplus_pod_goes_with_its_partner_and_unpaired_ones_go_first() {
        let origin = pod("a").label(labels::TO_REPLACE, "true").label(labels::PAIR_NEW_ID, "1").member();
        let partner = pod("b").label(labels::INSTANCE_ID, "1").label(labels::PAIR_ORIGIN_NAME, "a").member();
        let actions = decide(1, &[origin.clone(), partner.clone(), pod("c").member()], FREE);
        assert_eq!(actions, [delete("c", Cause::ScaledDown)]);
        let actions = decide(0, &[origin, partner], FREE);
        assert_eq!(actions, [delete("a", Cause::ScaledDown), delete("b", Cause::ScaledDown)]);
    }
}
