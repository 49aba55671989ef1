//! The graph of steps: its order or its cycles. It uses no recursion, because chains of 500 steps are allowed.

#![expect(clippy::indexing_slicing, reason = "every index is that of a step: FlowSpec::read has checked them")]

use std::collections::BTreeSet;

/// The most cycles in a message.
const CYCLES: usize = 3;
/// The most steps of a cycle in a message.
const STEPS: usize = 20;

/// Returns the indexes in an order that puts each step after its dependencies. Returns `None` if the graph has a cycle.
pub(crate) fn order(dependencies: &[Vec<usize>]) -> Option<Vec<usize>> {
    let mut open: Vec<usize> = dependencies.iter().map(Vec::len).collect();
    let mut dependants: Vec<Vec<usize>> = vec![Vec::new(); dependencies.len()];
    for (step, needed) in dependencies.iter().enumerate() {
        needed.iter().for_each(|needed| dependants[*needed].push(step));
    }
    let mut order: Vec<usize> = (0..dependencies.len()).filter(|step| open[*step] == 0).collect();
    let mut next = 0;
    while let Some(step) = order.get(next).copied() {
        next += 1;
        for dependant in &dependants[step] {
            open[*dependant] -= 1;
            if open[*dependant] == 0 {
                order.push(*dependant);
            }
        }
    }
    (order.len() == dependencies.len()).then_some(order)
}

/// Returns the first cycles, each from its smallest name on. `a -> c -> b -> a` means that a depends on c.
pub(crate) fn cycles(dependencies: &[Vec<usize>], names: &[&str]) -> Vec<String> {
    let mut left: BTreeSet<usize> = (0..dependencies.len()).collect();
    let mut told = Vec::new();
    while told.len() < CYCLES {
        prune(dependencies, &mut left);
        let Some(first) = left.iter().copied().min_by_key(|step| names[*step]) else { break };
        let cycle = walk(dependencies, names, &left, first);
        left.retain(|step| !cycle.contains(step));
        told.push(spell(&cycle, names));
    }
    told
}

/// Removes the steps that depend on no remaining step, until none is left.
fn prune(dependencies: &[Vec<usize>], left: &mut BTreeSet<usize>) {
    loop {
        let ends: Vec<usize> =
            left.iter().copied().filter(|step| !dependencies[*step].iter().any(|on| left.contains(on))).collect();
        if ends.is_empty() {
            return;
        }
        left.retain(|step| !ends.contains(step));
    }
}

/// Follows dependencies until a step repeats, and returns the cycle. Each remaining step depends on a remaining step.
fn walk(dependencies: &[Vec<usize>], names: &[&str], left: &BTreeSet<usize>, first: usize) -> Vec<usize> {
    let mut path = vec![first];
    let mut step = first;
    loop {
        let next = dependencies[step].iter().copied().filter(|on| left.contains(on)).min_by_key(|on| names[*on]);
        let Some(next) = next else { return path };
        if let Some(begin) = path.iter().position(|before| *before == next) {
            return path.split_off(begin);
        }
        path.push(next);
        step = next;
    }
}

fn spell(cycle: &[usize], names: &[&str]) -> String {
    let smallest = (0..cycle.len()).min_by_key(|at| names[cycle[*at]]).unwrap_or(0);
    let turned = (0..=cycle.len()).map(|at| names[cycle[(smallest + at) % cycle.len()]]);
    let mut spelled: Vec<&str> = turned.take(STEPS).collect();
    if cycle.len() >= STEPS {
        spelled.push("...");
    }
    spelled.join(" -> ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_puts_each_step_after_those_it_depends_on() {
        assert_eq!(order(&[vec![2], vec![0, 2], vec![]]), Some(vec![2, 0, 1]));
        let chain: Vec<Vec<usize>> = (0..500_usize).map(|step| step.checked_sub(1).into_iter().collect()).collect();
        assert_eq!(order(&chain).unwrap().len(), 500);
    }

    #[test]
    fn a_cycle_is_spelled_from_its_smallest_name() {
        let edges = [vec![1], vec![2], vec![0], vec![0]];
        assert_eq!(order(&edges), None);
        assert_eq!(cycles(&edges, &["b", "a", "c", "d"]), ["a -> c -> b -> a"]);
        assert_eq!(cycles(&[vec![0]], &["x"]), ["x -> x"]);
    }

    #[test]
    fn at_most_three_cycles_of_twenty_steps_are_told() {
        let ring: Vec<Vec<usize>> = (0..100).map(|step| vec![(step + 1) % 100]).collect();
        let names: Vec<String> = (0..100).map(|step| format!("s{step:03}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let told = cycles(&ring, &names);
        assert!(told[0].ends_with("s019 -> ...") && told.len() == 1, "{told:?}");
        let loops: Vec<Vec<usize>> = (0..10).map(|step| vec![step]).collect();
        assert_eq!(cycles(&loops, &names[..10]).len(), 3);
    }
}
