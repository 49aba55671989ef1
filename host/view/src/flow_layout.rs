//! Places of steps and of the lines between them, for a drawing with layers from left to right.
//!
//! A line that passes layers has a bend in each of them, which is placed as a box is: so no line goes through a box. Lines from
//! one step share their bends, and part where they have to. All lengths are pixels.

use crate::flow_graph::FlowGraph;

/// Size of a box, the room between two layers, and between what is in one layer.
pub(crate) const BOX: (i64, i64) = (212, 46);
const LAYER_GAP: i64 = 74;
const GAP: i64 = 22;
/// Room for a bend.
const BEND: i64 = 8;
/// Bends of all lines; beyond them lines are straight and may go behind boxes.
const MOST_BENDS: usize = 20_000;
/// Passes over the layers, for their order and for their places.
const PASSES: usize = 12;

/// Something in a layer: a step, or a bend of a line.
#[derive(Clone, Debug, Default)]
struct Item {
    step: Option<usize>,
    layer: usize,
    /// Items of the layer before and of the next one that it is tied to.
    before: Vec<usize>,
    next: Vec<usize>,
    /// Its middle.
    y: i64,
}

/// A line from a step to one that depends on it.
#[derive(Clone, Debug)]
pub(crate) struct Connector {
    /// The step that is depended on.
    pub(crate) from: usize,
    /// The step that depends on it.
    pub(crate) to: usize,
    /// Left ends of its bends and their height: each bend is as long as a box.
    pub(crate) bends: Vec<(i64, i64)>,
}

/// A drawing.
#[derive(Clone, Debug, Default)]
pub(crate) struct Layout {
    /// Left upper corner of the box of each step.
    pub(crate) boxes: Vec<(i64, i64)>,
    /// The lines.
    pub(crate) lines: Vec<Connector>,
    /// Size of all.
    pub(crate) width: i64,
    /// Size of all.
    pub(crate) height: i64,
}

/// The layout of the steps of `flows`.
pub(crate) fn layout(graph: &FlowGraph<'_>) -> Layout {
    let layer_of = |step: usize| graph.layers.layer_of.get(step).copied().unwrap_or_default();
    let edges = || graph.dependencies.iter().enumerate().flat_map(|(to, on)| on.iter().map(move |from| (*from, to)));
    let bends: usize = edges().map(|(from, to)| layer_of(to).saturating_sub(layer_of(from) + 1)).sum();
    let mut items: Vec<Item> = (0..graph.steps.len())
        .map(|step| Item { step: Some(step), layer: layer_of(step), ..Item::default() })
        .collect();
    // The bends of each step, layer by layer.
    let mut trunks: Vec<Vec<usize>> = vec![Vec::new(); graph.steps.len()];
    let mut chains: Vec<(usize, usize, Vec<usize>)> = Vec::new();
    for (from, to) in edges() {
        let passed = layer_of(to).saturating_sub(layer_of(from) + 1);
        let Some(trunk) = trunks.get_mut(from).filter(|_| bends <= MOST_BENDS) else { continue };
        while trunk.len() < passed {
            items.push(Item { layer: layer_of(from) + 1 + trunk.len(), ..Item::default() });
            let newest = items.len() - 1;
            tie(&mut items, trunk.last().copied().unwrap_or(from), newest);
            trunk.push(newest);
        }
        // A dependency that closes a cycle leads back, and has no bends.
        if layer_of(from) < layer_of(to) {
            let end = passed.checked_sub(1).and_then(|last| trunk.get(last)).copied().unwrap_or(from);
            tie(&mut items, end, to);
        }
        chains.push((from, to, trunk.iter().take(passed).copied().collect()));
    }
    if bends > MOST_BENDS {
        chains = edges().map(|(from, to)| (from, to, Vec::new())).collect();
    }
    let mut layers = vec![Vec::new(); graph.layers.layers.len()];
    for (at, item) in items.iter().enumerate() {
        if let Some(layer) = layers.get_mut(item.layer) {
            layer.push(at);
        }
    }
    order(&mut layers, &items);
    place(&layers, &mut items);
    let x = |layer: usize| i64::try_from(layer).unwrap_or_default().saturating_mul(BOX.0 + LAYER_GAP);
    let top = items.iter().map(|item| item.y - half(item)).min().unwrap_or_default();
    let bottom = items.iter().map(|item| item.y + half(item)).max().unwrap_or_default();
    let y = |at: usize| items.get(at).map_or(0, |item| item.y - top);
    let boxes = (0..graph.steps.len()).map(|step| (x(layer_of(step)), y(step) - BOX.1 / 2)).collect();
    let bend = |at: &usize| (x(items.get(*at).map_or(0, |item| item.layer)), y(*at));
    let lines =
        chains.into_iter().map(|(from, to, chain)| Connector { from, to, bends: chain.iter().map(bend).collect() });
    let width = (x(layers.len()) - LAYER_GAP).max(0);
    Layout { boxes, lines: lines.collect(), width, height: bottom - top }
}

/// Ties two items of neighbouring layers.
fn tie(items: &mut [Item], before: usize, after: usize) {
    if let Some(item) = items.get_mut(before) {
        item.next.push(after);
    }
    if let Some(item) = items.get_mut(after) {
        item.before.push(before);
    }
}

/// Half of the height that an item takes.
fn half(item: &Item) -> i64 {
    if item.step.is_some() { BOX.1 / 2 } else { BEND / 2 }
}

/// Orders each layer so that few lines cross: an item stands at the mean place of those it is tied to.
fn order(layers: &mut [Vec<usize>], items: &[Item]) {
    let mut place = vec![0_i64; items.len()];
    let count = layers.len();
    for pass in 0..PASSES {
        for at in 0..count {
            let at = if pass % 2 == 0 { at } else { count - 1 - at };
            let Some(layer) = layers.get_mut(at) else { continue };
            let mean = |item: &usize| {
                let tied = items.get(*item).map(|item| if pass % 2 == 0 { &item.before } else { &item.next });
                let tied = tied.map(Vec::as_slice).unwrap_or_default();
                let sum: i64 = tied.iter().filter_map(|other| place.get(*other)).sum();
                let own = place.get(*item).copied().unwrap_or_default();
                i64::try_from(tied.len()).ok().and_then(|count| sum.checked_div(count)).unwrap_or(own)
            };
            // The first pass takes the order of the spec where nothing else decides.
            layer.sort_by_cached_key(mean);
            let share = 1_000_000 / i64::try_from(layer.len()).unwrap_or(1).max(1);
            for (number, item) in layer.iter().enumerate() {
                if let Some(place) = place.get_mut(*item) {
                    *place = i64::try_from(number).unwrap_or_default() * share + share / 2;
                }
            }
        }
    }
}

/// Places the items of each layer in their order, as near as may be to those they are tied to.
fn place(layers: &[Vec<usize>], items: &mut [Item]) {
    let count = layers.len();
    for pass in 0..PASSES {
        for at in 0..count {
            let at = if pass % 2 == 0 { at } else { count - 1 - at };
            let Some(layer) = layers.get(at) else { continue };
            let of = |item: &usize| items.get(*item);
            let wanted = |item: &usize| {
                let Some(item) = of(item) else { return 0 };
                // The last pass lets lines lead on as they came.
                let tied = item.before.iter().chain(&item.next);
                let (sum, number) =
                    tied.filter_map(of).fold((0_i64, 0_i64), |(sum, number), other| (sum + other.y, number + 1));
                sum.checked_div(number).unwrap_or(item.y)
            };
            let mut offset = 0;
            let mut offsets = Vec::with_capacity(layer.len());
            let mut last = 0;
            for item in layer {
                let half = of(item).map(half).unwrap_or_default();
                offset += if offsets.is_empty() { 0 } else { last + GAP + half };
                last = half;
                offsets.push(offset);
            }
            let free: Vec<i64> = layer.iter().zip(&offsets).map(|(item, offset)| wanted(item) - offset).collect();
            for ((item, offset), y) in layer.iter().zip(&offsets).zip(rising(&free)) {
                if let Some(item) = items.get_mut(*item) {
                    item.y = y + offset;
                }
            }
        }
    }
}

/// The numbers that never fall and are nearest to `wanted`: neighbours that would fall share their mean.
fn rising(wanted: &[i64]) -> Vec<i64> {
    let mut blocks: Vec<(i64, i64)> = Vec::new();
    for number in wanted {
        let mut block = (*number, 1);
        while let Some((sum, count)) = blocks.last().copied()
            && sum * block.1 >= block.0 * count
        {
            blocks.pop();
            block = (block.0 + sum, block.1 + count);
        }
        blocks.push(block);
    }
    let spread = |(sum, count): (i64, i64)| {
        let mean = sum.checked_div(count).unwrap_or_default();
        std::iter::repeat_n(mean, usize::try_from(count).unwrap_or_default())
    };
    blocks.into_iter().flat_map(spread).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_that_would_overlap_share_their_mean_and_the_others_keep_theirs() {
        assert_eq!(rising(&[1, 5, 3, 9]), [1, 4, 4, 9]);
        assert_eq!(rising(&[9, 5, 1]), [5, 5, 5]);
        assert!(rising(&[]).is_empty());
    }
}
