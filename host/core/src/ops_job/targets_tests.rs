//! Tests of `targets`.

use proptest::prelude::*;

use super::*;

fn node(name: &str) -> NodeFacts {
    let (uid, host, workspace) = (format!("uid-{name}"), format!("host-{name}"), Some("w".to_owned()));
    NodeFacts { name: name.to_owned(), uid, host, workspace, is_ready: true, ..NodeFacts::default() }
}

const HERE: Here<'_> = Here { cluster: "local", node: None };

/// Returns the filters of a reboot.
fn reboot() -> Filters {
    Filters {
        control_plane: Extent::Unnamed,
        not_ready: Extent::Unnamed,
        unschedulable: Extent::Unnamed,
        ..Filters::default()
    }
}

fn names(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

fn targets(resolved: &Resolved) -> Vec<&str> {
    resolved.targets.iter().map(|(name, _)| name.as_str()).collect()
}

fn skipped(resolved: &Resolved) -> Vec<(&str, SkipReason)> {
    resolved.skipped.iter().map(|skipped| (skipped.node.as_str(), skipped.reason)).collect()
}

fn of_cluster() -> Selectors {
    Selectors { cluster: Some("local".to_owned()), ..Selectors::default() }
}

#[test]
fn every_reason_is_told_and_the_first_one_that_holds_is() {
    let nodes = [
        node("a"),
        NodeFacts { is_control_plane: true, is_ready: false, ..node("b") },
        NodeFacts { is_ready: false, is_cordoned: true, ..node("c") },
        NodeFacts { is_cordoned: true, is_tainted: true, ..node("d") },
        NodeFacts { is_tainted: true, is_busy: true, ..node("e") },
        NodeFacts { is_busy: true, ..node("f") },
        NodeFacts { is_deleting: true, is_ready: false, ..node("g") },
        NodeFacts { is_deleting: true, ..node("h") },
        node("i"),
    ];
    let excluded = ["host-h".to_owned()].into();
    let filters = Filters { excluded, spares_busy: true, replica: 1, ..reboot() };
    let resolved = resolve(&of_cluster(), &filters, &nodes, HERE).unwrap();
    assert_eq!(targets(&resolved), ["a"]);
    use SkipReason::{Busy, ControlPlane, Cordoned, Deleting, Excluded, NotReady, OverReplica, Tainted};
    let told = [("b", ControlPlane), ("c", NotReady), ("d", Cordoned), ("e", Tainted), ("f", Busy), ("g", Deleting)];
    assert_eq!(skipped(&resolved), [told.as_slice(), &[("h", Excluded), ("i", OverReplica)]].concat());
}

#[test]
fn a_node_that_is_named_is_rebooted_though_it_is_cordoned_or_not_ready_and_is_not_checked() {
    let nodes = [NodeFacts { is_cordoned: true, is_ready: false, ..node("a") }, node("b")];
    let named = Selectors { nodes: names(&["a", "b", "a"]), ..Selectors::default() };
    assert_eq!(targets(&resolve(&named, &reboot(), &nodes, HERE).unwrap()), ["a", "b"]);
    let check = Filters { not_ready: Extent::Always, unschedulable: Extent::Always, ..Filters::default() };
    assert_eq!(skipped(&resolve(&named, &check, &nodes, HERE).unwrap()), [("a", SkipReason::NotReady)]);
}

#[test]
fn the_narrowest_selector_yields_the_targets_and_a_wider_one_only_bounds_them() {
    let nodes = [node("a"), node("b"), NodeFacts { workspace: None, ..node("c") }];
    let named =
        |node: &str| Selectors { nodes: names(&[node]), workspace: Some("w".to_owned()), ..Selectors::default() };
    assert_eq!(targets(&resolve(&named("a"), &reboot(), &nodes, HERE).unwrap()), ["a"]);
    assert_eq!(resolve(&named("c"), &reboot(), &nodes, HERE), Err(Unresolved::Outside("c".to_owned(), "workspace")));
    let by_host = Selectors { hosts: names(&["host-a"]), ..named("b") };
    assert_eq!(resolve(&by_host, &reboot(), &nodes, HERE), Err(Unresolved::Outside("b".to_owned(), "node.host")));
    let of_workload = Some(["b".to_owned()].into());
    let by_workload = Selectors { of_workload, workspace: Some("w".to_owned()), ..Selectors::default() };
    assert_eq!(targets(&resolve(&by_workload, &reboot(), &nodes, HERE).unwrap()), ["b"]);
}

#[test]
fn what_is_not_there_or_another_is_named() {
    let twins = [node("a"), NodeFacts { host: "host-a".to_owned(), ..node("b") }];
    let refused = |selectors: Selectors| resolve(&selectors, &reboot(), &twins, HERE).unwrap_err();
    let none = Selectors::default;
    assert_eq!(refused(Selectors { nodes: names(&["z"]), ..none() }), Unresolved::NodeNotFound("z".into()));
    assert_eq!(
        refused(Selectors { hosts: names(&["host-a"]), ..none() }),
        Unresolved::HostOfTwo("host-a".into(), ["a".into(), "b".into()])
    );
    assert_eq!(refused(Selectors { workspace: Some("v".into()), ..none() }), Unresolved::WorkspaceNotFound("v".into()));
    assert_eq!(refused(Selectors { cluster: Some("x".into()), ..none() }), Unresolved::ClusterUnknown("x".into()));
    let typo = Filters { excluded: ["nobody".to_owned()].into(), ..reboot() };
    assert_eq!(resolve(&of_cluster(), &typo, &twins, HERE), Err(Unresolved::ExcludedNotFound("nobody".into(), None)));
    let far = [NodeFacts { workspace: Some("x".into()), ..node("gpu-node-7") }, node("gpu-node-22")];
    let near = |workspace: Option<&str>| {
        let typo = Filters { excluded: ["gpu-node-2".to_owned()].into(), ..reboot() };
        let of_workspace = Selectors { workspace: workspace.map(str::to_owned), ..of_cluster() };
        match resolve(&of_workspace, &typo, &far, HERE) {
            Err(Unresolved::ExcludedNotFound(_, near)) => near,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(near(None).as_deref(), Some("gpu-node-22"));
    assert_eq!(near(Some("x")).as_deref(), Some("gpu-node-7"), "nodes of other workspaces are not told of");
    let typo = Filters { may_exclude_nobody: true, ..typo };
    assert_eq!(targets(&resolve(&of_cluster(), &typo, &twins, HERE).unwrap()), ["a", "b"]);
    let all = Filters { excluded: ["a".to_owned(), "b".to_owned()].into(), ..reboot() };
    assert_eq!(
        resolve(&of_cluster(), &all, &twins, HERE),
        Err(Unresolved::NoTargets([(SkipReason::Excluded, 2)].into()))
    );
}

#[test]
fn a_reboot_by_workload_leaves_out_what_one_by_cluster_does_and_takes_it_where_it_is_named() {
    let nodes = [
        node("a"),
        NodeFacts { is_control_plane: true, ..node("b") },
        NodeFacts { is_cordoned: true, ..node("c") },
        NodeFacts { is_tainted: true, ..node("d") },
        node("e"),
    ];
    let all = ["a", "b", "c", "d"];
    let of_workload = Some(all.map(str::to_owned).into());
    let by_workload = Selectors { of_workload, ..Selectors::default() };
    let resolved = resolve(&by_workload, &reboot(), &nodes, HERE).unwrap();
    assert_eq!(targets(&resolved), ["a"]);
    use SkipReason::{ControlPlane, Cordoned, Tainted};
    assert_eq!(skipped(&resolved), [("b", ControlPlane), ("c", Cordoned), ("d", Tainted)]);
    let named = Selectors { nodes: names(&all), ..by_workload };
    assert_eq!(targets(&resolve(&named, &reboot(), &nodes, HERE).unwrap()), ["a", "c", "d", "b"]);
}

#[test]
fn a_node_that_takes_the_name_of_another_as_its_host_is_not_taken_for_it() {
    let evil = NodeFacts { host: "a".to_owned(), ..node("evil") };
    let nodes = [node("a"), evil, NodeFacts { host: "c".to_owned(), ..node("c") }];
    let by_host = |host: &str| Selectors { hosts: names(&[host]), ..Selectors::default() };
    for (host, name) in [("a", "a"), ("host-a", "a"), ("c", "c")] {
        assert_eq!(targets(&resolve(&by_host(host), &reboot(), &nodes, HERE).unwrap()), [name], "{host}");
    }
    let without = Filters { excluded: ["a".to_owned()].into(), ..reboot() };
    let resolved = resolve(&of_cluster(), &without, &nodes, HERE).unwrap();
    assert_eq!((targets(&resolved), skipped(&resolved)), (vec!["c", "evil"], vec![("a", SkipReason::Excluded)]));
}

#[test]
fn a_security_upgrade_leaves_out_nodes_by_name_alone() {
    let nodes = [node("a"), node("b"), NodeFacts { host: "host-a".to_owned(), ..node("evil") }];
    let without = |name: &str| {
        let excluded = [name.to_owned()].into();
        let filters = Filters { excluded, excludes_names_alone: true, ..reboot() };
        resolve(&of_cluster(), &filters, &nodes, HERE)
    };
    assert_eq!(targets(&without("a").unwrap()), ["b", "evil"]);
    assert_eq!(without("host-a"), Err(Unresolved::ExcludedNameNotFound("host-a".to_owned())));
}

#[test]
fn control_plane_nodes_come_late_and_the_one_of_the_host_last() {
    let nodes = [NodeFacts { is_control_plane: true, ..node("a") }, node("b"), node("c")];
    let named = Selectors { nodes: names(&["a", "b", "c"]), ..Selectors::default() };
    let here = Here { node: Some("b"), ..HERE };
    assert_eq!(targets(&resolve(&named, &reboot(), &nodes, here).unwrap()), ["c", "a", "b"]);
}

#[test]
fn five_thousand_are_as_many_as_there_may_be() {
    let nodes: Vec<NodeFacts> = (0..=MOST).map(|number| node(&format!("n{number:05}"))).collect();
    assert_eq!(resolve(&of_cluster(), &reboot(), &nodes, HERE), Err(Unresolved::TooMany(MOST + 1)));
    assert_eq!(resolve(&of_cluster(), &reboot(), &nodes[1..], HERE).unwrap().targets.len(), MOST);
}

fn any_node(name: usize) -> impl Strategy<Value = NodeFacts> {
    (any::<[bool; 6]>(), 0usize..3).prop_map(move |(is, workspace)| NodeFacts {
        workspace: (workspace > 0).then(|| format!("w{workspace}")),
        is_control_plane: is[0],
        is_ready: is[1],
        is_cordoned: is[2],
        is_tainted: is[3],
        is_deleting: is[4],
        is_busy: is[5],
        ..node(&format!("n{name}"))
    })
}

proptest! {
    /// Every selected node is either a target or skipped, exactly once. The order of the list makes no difference.
    #[test]
    fn nothing_is_lost_or_doubled(
        nodes in (0usize..12).prop_flat_map(|count| (0..count).map(any_node).collect::<Vec<_>>()),
        spares_busy: bool,
        replica in 0usize..4,
    ) {
        let filters = Filters { spares_busy, replica, ..reboot() };
        let resolved = resolve(&of_cluster(), &filters, &nodes, HERE);
        let reversed: Vec<NodeFacts> = nodes.iter().rev().cloned().collect();
        prop_assert_eq!(&resolved, &resolve(&of_cluster(), &filters, &reversed, HERE));
        if let Ok(resolved) = resolved {
            let mut all: Vec<&str> = targets(&resolved);
            all.extend(resolved.skipped.iter().map(|skipped| skipped.node.as_str()));
            all.sort_unstable();
            let mut wanted: Vec<&str> = nodes.iter().map(|node| node.name.as_str()).collect();
            wanted.sort_unstable();
            prop_assert_eq!(all, wanted);
            prop_assert!(replica == 0 || resolved.targets.len() <= replica);
        }
    }
}

#[test]
fn what_is_skipped_is_named_as_far_as_there_is_room_and_targets_need_room_for_all() {
    let skipped = |number: usize| Skipped { node: format!("{number:060}"), reason: SkipReason::NotReady };
    let targets = vec![("a".repeat(60), "u".repeat(36))];
    let resolved = Resolved { targets, skipped: (0..10_000).map(skipped).collect(), namespace: None };
    assert_eq!(resolved.clone().within(usize::MAX).unwrap().skipped.len(), MOST);
    let few = resolved.clone().within(120 + 3 * 100).unwrap();
    assert_eq!((few.targets.len(), few.skipped.len()), (1, 3));
    assert_eq!(resolved.within(119), Err(Unresolved::TooLarge(1, 120)));
}
