//! The layers and cycles of a graph of steps. Nothing in this module recurses, because a chain may have 500 steps.

use std::collections::VecDeque;

/// The most cycles in a message, and the most steps of one of them.
const MOST_CYCLES: usize = 3;
const MOST_STEPS: usize = 20;

/// The layers of a graph.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Layers {
    /// The nodes by layer, in their own order. A node is one layer below the lowest node that it depends on.
    pub(crate) layers: Vec<Vec<usize>>,
    /// The layer of each node.
    pub(crate) layer_of: Vec<usize>,
    /// The cycles. Each has its nodes along their dependencies, and begins with the node with the smallest name.
    pub(crate) cycles: Vec<Vec<usize>>,
}

impl Layers {
    /// Returns the layers of the nodes `0..names.len()`. `dependencies[n]` are the nodes that node n depends on. In a cycle, the dependency
    /// that closes the cycle does not count.
    pub(crate) fn new(names: &[&str], dependencies: &[Vec<usize>]) -> Self {
        let count = names.len();
        let mut dependants = vec![Vec::new(); count];
        let mut open = vec![0_usize; count];
        for (node, on) in dependencies.iter().enumerate().take(count) {
            for dependency in on {
                if let (Some(dependants), Some(open)) = (dependants.get_mut(*dependency), open.get_mut(node)) {
                    dependants.push(node);
                    *open += 1;
                }
            }
        }
        let cycles = cycles(names, dependencies);
        let mut layer_of = vec![0_usize; count];
        let mut is_placed = vec![false; count];
        let mut ready: VecDeque<usize> = (0..count).filter(|node| open.get(*node) == Some(&0)).collect();
        // If no node is ready, the loop enters a cycle at its first node. It enters each cycle at most once.
        let mut entries = cycles.iter().filter_map(|cycle| cycle.first().copied()).chain(0..count);
        loop {
            let next = ready.pop_front().or_else(|| entries.by_ref().find(|node| is_placed.get(*node) == Some(&false)));
            let Some(node) = next else { break };
            if is_placed.get(node) == Some(&true) {
                continue;
            }
            if let Some(placed) = is_placed.get_mut(node) {
                *placed = true;
            }
            let layer = layer_of.get(node).copied().unwrap_or_default();
            for dependant in dependants.get(node).into_iter().flatten() {
                let is_open = is_placed.get(*dependant) == Some(&false);
                if let (true, Some(below), Some(open)) =
                    (is_open, layer_of.get_mut(*dependant), open.get_mut(*dependant))
                {
                    *below = (*below).max(layer + 1);
                    *open = open.saturating_sub(1);
                    if *open == 0 {
                        ready.push_back(*dependant);
                    }
                }
            }
        }
        let mut layers = vec![Vec::new(); layer_of.iter().max().map_or(0, |last| last + 1)];
        for (node, layer) in layer_of.iter().enumerate() {
            if let Some(nodes) = layers.get_mut(*layer) {
                nodes.push(node);
            }
        }
        layers.retain(|nodes| !nodes.is_empty());
        for (layer, nodes) in layers.iter().enumerate() {
            for node in nodes {
                if let Some(of_node) = layer_of.get_mut(*node) {
                    *of_node = layer;
                }
            }
        }
        Self { layers, layer_of, cycles }
    }

    /// Returns the first cycles in words, such as `a -> c -> b -> a`. An arrow leads from a step to a step that it depends on.
    pub(crate) fn spelled(&self, names: &[&str]) -> Vec<String> {
        let name = |node: &usize| names.get(*node).copied().unwrap_or_default();
        let spell = |cycle: &Vec<usize>| {
            let mut words: Vec<&str> = cycle.iter().take(MOST_STEPS).map(name).collect();
            if cycle.len() > MOST_STEPS {
                words.push("...");
            }
            words.extend(cycle.first().map(name));
            words.join(" -> ")
        };
        self.cycles.iter().take(MOST_CYCLES).map(spell).collect()
    }
}

/// Returns cycles that share no node. Each node that belongs to any cycle is in one of the returned cycles or behind one.
fn cycles(names: &[&str], dependencies: &[Vec<usize>]) -> Vec<Vec<usize>> {
    let mut left = vec![true; names.len()];
    let mut by_name: Vec<usize> = (0..names.len()).collect();
    by_name.sort_by_key(|node| names.get(*node));
    let mut found = Vec::new();
    loop {
        drop_loose_ends(&mut left, dependencies);
        // Each remaining node depends on another remaining node.
        let Some(start) = by_name.iter().find(|node| left.get(**node) == Some(&true)) else { return found };
        let mut place = vec![None; names.len()];
        let mut path: Vec<usize> = Vec::new();
        let mut node = *start;
        let first = loop {
            match place.get_mut(node) {
                Some(Some(at)) => break *at,
                Some(free) => *free = Some(path.len()),
                None => break path.len(),
            }
            path.push(node);
            let on = dependencies.get(node).into_iter().flatten().copied();
            let Some(next) = on.filter(|on| left.get(*on) == Some(&true)).min_by_key(|on| names.get(*on)) else {
                break path.len();
            };
            node = next;
        };
        let mut cycle = path.split_off(first.min(path.len()));
        let smallest = (0..cycle.len()).min_by_key(|at| cycle.get(*at).and_then(|node| names.get(*node)));
        cycle.rotate_left(smallest.unwrap_or_default());
        for node in cycle.iter().chain(cycle.is_empty().then_some(start)) {
            if let Some(left) = left.get_mut(*node) {
                *left = false;
            }
        }
        found.extend(Some(cycle).filter(|cycle| !cycle.is_empty()));
    }
}

/// Removes from `left`, one after the other, the nodes that depend on no remaining node.
fn drop_loose_ends(left: &mut [bool], dependencies: &[Vec<usize>]) {
    let mut dependants = vec![Vec::new(); left.len()];
    let mut open = vec![0_usize; left.len()];
    for (node, on) in dependencies.iter().enumerate().filter(|(node, _)| left.get(*node) == Some(&true)) {
        for dependency in on.iter().filter(|on| left.get(**on) == Some(&true)) {
            if let (Some(dependants), Some(open)) = (dependants.get_mut(*dependency), open.get_mut(node)) {
                dependants.push(node);
                *open += 1;
            }
        }
    }
    let is_loose = |node: &usize| left.get(*node) == Some(&true) && open.get(*node) == Some(&0);
    let mut loose: Vec<usize> = (0..left.len()).filter(is_loose).collect();
    while let Some(node) = loose.pop() {
        if let Some(left) = left.get_mut(node) {
            *left = false;
        }
        for dependant in dependants.get(node).into_iter().flatten() {
            if let Some(open) = open.get_mut(*dependant) {
                *open = open.saturating_sub(1);
                if *open == 0 {
                    loose.push(*dependant);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layers(names: &[&str], dependencies: &[&[usize]]) -> Layers {
        let dependencies: Vec<Vec<usize>> = dependencies.iter().map(|on| on.to_vec()).collect();
        Layers::new(names, &dependencies)
    }

    #[test]
    fn a_step_is_one_layer_below_the_lowest_one_it_depends_on() {
        let found = layers(&["1", "2", "3", "4", "5"], &[&[], &[0], &[0, 1], &[], &[3, 1]]);
        assert_eq!(found.layers, [vec![0, 3], vec![1], vec![2, 4]]);
        assert!(found.cycles.is_empty());
    }

    #[test]
    fn a_chain_of_many_steps_has_as_many_layers_in_whichever_order_it_is_written() {
        let names: Vec<String> = (0..5_000).map(|at| format!("s{at:04}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let forward: Vec<Vec<usize>> = (0..5_000_usize).map(|at| at.checked_sub(1).into_iter().collect()).collect();
        let backward: Vec<Vec<usize>> =
            (0..5_000_usize).map(|at| (at + 1 < 5_000).then_some(at + 1).into_iter().collect()).collect();
        assert_eq!(Layers::new(&names, &forward).layers.len(), 5_000);
        assert_eq!(Layers::new(&names, &backward).layers.len(), 5_000);
    }

    #[test]
    fn a_cycle_is_spelled_along_its_dependencies_from_the_smallest_name() {
        let names = ["c", "b", "a", "before", "after"];
        let found = layers(&names, &[&[1], &[2, 3], &[0], &[], &[0]]);
        assert_eq!(found.spelled(&names), ["a -> c -> b -> a"]);
        assert_eq!(found.layers.iter().map(Vec::len).sum::<usize>(), 5, "each step is somewhere");
        assert_eq!(layers(&["x"], &[&[0]]).spelled(&["x"]), ["x -> x"]);
    }

    #[test]
    fn three_cycles_are_spelled_and_a_long_one_is_cut() {
        let names: Vec<String> = (0..60).map(|at| format!("s{at:02}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let ring: Vec<Vec<usize>> = (0..60).map(|at| vec![(at + 1) % 60]).collect();
        let found = Layers::new(&names, &ring).spelled(&names);
        assert!(found[0].starts_with("s00 -> s01 -> ") && found[0].ends_with("s19 -> ... -> s00"), "{found:?}");
        let loops: Vec<Vec<usize>> = (0..60).map(|at| vec![at]).collect();
        let found = Layers::new(&names, &loops);
        assert_eq!((found.cycles.len(), found.spelled(&names).len()), (60, 3));
    }
}
