//! The graph of a JobFlow: the dependencies of its steps, in layers, and its faults.
//!
//! The graph takes a view and has the data for every drawing. The drawings are in `flow_text` and `flow_mermaid`.

use std::collections::{HashMap, HashSet};

use k8s_openapi::jiff::Timestamp;

use crate::flow_layers::Layers;
use crate::flow_view::FlowView;
use crate::shown_text::escaped;
use crate::span_text::between;
use crate::unit_view::UnitView;

/// A graph of steps.
#[derive(Clone, Debug)]
pub struct FlowGraph<'a> {
    /// The JobFlow or DaemonJob.
    pub(crate) view: &'a FlowView,
    /// The steps of `flows`, in the order of the spec. An index of a step is an index of this list.
    pub(crate) steps: Vec<&'a UnitView>,
    /// The steps of `finally`.
    pub(crate) finally: Vec<&'a UnitView>,
    /// The dependencies of each step.
    pub(crate) dependencies: Vec<Vec<usize>>,
    /// The layers and the cycles of the graph.
    pub(crate) layers: Layers,
    /// Sentences about the faults of the graph.
    pub(crate) faults: Vec<String>,
    /// The dependencies that are part of a cycle: a step, and the step that it depends on.
    in_cycles: HashSet<(usize, usize)>,
}

impl<'a> FlowGraph<'a> {
    /// Returns the graph of a JobFlow. The nodes of a DaemonJob become steps without dependencies.
    pub fn new(view: &'a FlowView) -> Self {
        let (finally, steps): (Vec<&UnitView>, Vec<&UnitView>) = view.units().iter().partition(|unit| unit.is_finally);
        let mut places: HashMap<&str, usize> = HashMap::new();
        let mut faults = Vec::new();
        for (at, step) in steps.iter().enumerate() {
            if *places.entry(&step.name).or_insert(at) != at {
                faults.push(format!("two steps are named {}", step.name));
            }
        }
        let mut dependencies = Vec::with_capacity(steps.len());
        for step in &steps {
            let on = step.dependencies.iter().filter_map(|name| {
                let place = places.get(name.as_str()).copied();
                if place.is_none() {
                    faults.push(format!("step {} depends on {name}, which is no step of flows", step.name));
                }
                place
            });
            dependencies.push(on.collect::<Vec<usize>>());
        }
        let names: Vec<&str> = steps.iter().map(|step| step.name.as_str()).collect();
        let layers = Layers::new(&names, &dependencies);
        let spelled = layers.spelled(&names).into_iter().map(|cycle| format!("cycle: {cycle}"));
        let faults = spelled.chain(faults).map(|fault| escaped(&fault).into_owned()).collect();
        let mut in_cycles = HashSet::new();
        for cycle in &layers.cycles {
            in_cycles.extend(cycle.iter().copied().zip(cycle.iter().copied().cycle().skip(1)));
        }
        Self { view, steps, finally, dependencies, layers, faults, in_cycles }
    }

    /// Returns true if steps wait for each other, so that none of them ever starts.
    pub fn has_cycle(&self) -> bool {
        !self.layers.cycles.is_empty()
    }

    /// Returns sentences about the faults of the graph: cycles, unknown dependencies, duplicate names.
    pub fn faults(&self) -> &[String] {
        &self.faults
    }

    /// Returns the steps of `flows`, in the order of the spec. An index of a step is an index of this list.
    pub fn steps(&self) -> &[&'a UnitView] {
        &self.steps
    }

    /// Returns the steps of `finally`.
    pub fn finally(&self) -> &[&'a UnitView] {
        &self.finally
    }

    /// Returns the indexes of the steps that a step depends on.
    pub fn dependencies(&self, step: usize) -> &[usize] {
        self.dependencies.get(step).map(Vec::as_slice).unwrap_or_default()
    }

    /// Returns the indexes of the steps by layer. Each step is one layer below the lowest step that it depends on.
    pub fn layers(&self) -> &[Vec<usize>] {
        &self.layers.layers
    }

    /// Returns true if the dependency of `step` on `on` is part of a cycle.
    pub fn is_in_cycle(&self, step: usize, on: usize) -> bool {
        self.in_cycles.contains(&(step, on))
    }

    /// Returns `JobFlow team-a/web`, its state, its progress and its duration, as far as they are known.
    pub(crate) fn heading(&self, now: Timestamp) -> Vec<String> {
        let view = self.view;
        let place = if view.namespace.is_empty() { String::new() } else { format!("{}/", view.namespace) };
        let mut parts = vec![format!("{} {place}{}", view.kind.word(), view.name)];
        // An object from a file has no state.
        if !view.uid.is_empty() {
            parts.push(view.state.clone());
            parts.push(view.progress.clone());
            parts.extend(between(view.started, Some(view.ended.unwrap_or(now))));
        }
        parts.retain(|part| !part.is_empty());
        parts.into_iter().map(|part| escaped(&part).into_owned()).collect()
    }
}

/// Returns the state, retries and duration of a step, such as `Running, retry 1, 2m5s`.
pub(crate) fn account(step: &UnitView, now: Timestamp) -> Vec<String> {
    let mut parts = vec![step.state.word().to_owned()];
    parts.extend((step.attempt > 0).then(|| format!("retry {}", step.attempt)));
    parts.extend(step.span(now));
    parts
}
