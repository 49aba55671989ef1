//! The loads that the host and the bare client carry: the objects that a user creates for the host, and the creates that a bare
//! client makes instead.

use oarlock_core::attempts::parent::ParentKind;
use serde_json::{Value, json};

use crate::flows::bare::Wanted;
use crate::flows::planned::{Planned, all_creates};

/// Objects of one kind, and the nodes of the cluster.
pub(crate) struct Load {
    /// The label of the load in the table.
    pub(crate) label: String,
    pub(crate) kind: ParentKind,
    /// Names and specs of the objects.
    pub(crate) objects: Vec<(String, Value)>,
    /// Pairs of a dependent and one of its dependencies, by the names of their Jobs. The bench measures the wait between them.
    pub(crate) edges: Vec<(String, String)>,
    /// The number of nodes in the cluster.
    pub(crate) nodes: usize,
    /// The total number of Jobs.
    pub(crate) jobs: usize,
}

/// Returns a Job that ends at once.
fn job() -> Value {
    let container = json!({"name": "main", "image": "busybox:1", "command": ["true"]});
    json!({"template": {"spec": {"containers": [container], "restartPolicy": "Never"}}})
}

/// Returns the spec of a DaemonJob.
pub(crate) fn daemon_spec() -> Value {
    job()
}

/// Returns the spec of a flow in which all steps but the last are roots. The last step depends on as many roots as allowed.
pub(crate) fn wide_spec(steps: usize) -> Value {
    let names: Vec<String> = (0..steps).map(|index| format!("s{index:03}")).collect();
    let roots = steps.saturating_sub(1);
    let waits_for = |index: usize| names.get(..if index == roots { roots.min(100) } else { 0 }).unwrap_or_default();
    let step =
        |(index, name): (usize, &String)| json!({"name": name, "dependencies": waits_for(index), "jobTemplate": job()});
    json!({"flows": names.iter().enumerate().map(step).collect::<Vec<_>>()})
}

/// Returns the spec of a flow whose steps form a chain.
fn chain_spec(steps: usize) -> Value {
    let step = |index: usize| {
        let before: Vec<String> = index.checked_sub(1).map(|before| format!("s{before:03}")).into_iter().collect();
        json!({"name": format!("s{index:03}"), "dependencies": before, "jobTemplate": job()})
    };
    json!({"flows": (0..steps).map(step).collect::<Vec<_>>()})
}

/// Returns a load of one DaemonJob on this many nodes.
pub(crate) fn daemon(nodes: usize) -> Load {
    let objects = vec![("bench".to_owned(), daemon_spec())];
    Load { label: "DaemonJob".to_owned(), kind: ParentKind::Daemon, objects, edges: Vec::new(), nodes, jobs: nodes }
}

/// Returns a load of one flow of roots and one dependent step.
pub(crate) fn wide(steps: usize) -> Load {
    let objects = vec![("bench".to_owned(), wide_spec(steps))];
    let label = format!("flow with {} roots", steps.saturating_sub(1));
    Load { label, kind: ParentKind::Flow, objects, edges: Vec::new(), nodes: 3, jobs: steps }
}

/// Returns a load of this many flows, whose steps form a chain.
pub(crate) fn chains(flows: usize, steps: usize) -> Load {
    let objects: Vec<_> = (0..flows).map(|index| (format!("flow-{index:03}"), chain_spec(steps))).collect();
    let edges_of = |flow: &str| {
        let job = |index: usize| format!("{flow}-s{index:03}");
        (1..steps).map(|index| (job(index), job(index - 1))).collect::<Vec<_>>()
    };
    let edges = objects.iter().flat_map(|(name, _)| edges_of(name)).collect();
    let label = format!("{flows} flows of {steps} steps");
    Load { label, kind: ParentKind::Flow, objects, edges, nodes: 3, jobs: flows * steps }
}

impl Load {
    /// Returns the names of the nodes for a namespace.
    pub(crate) fn node_names(&self, namespace: &str) -> Vec<String> {
        (0..self.nodes).map(|index| format!("{namespace}-{index:04}")).collect()
    }

    /// Returns the objects as a user creates them.
    pub(crate) fn manifests(&self, namespace: &str) -> Vec<Value> {
        let manifest = |(name, spec): &(String, Value)| {
            json!({"apiVersion": oarlock_core::attempts::parent::API_VERSION, "kind": self.kind.name(),
                "metadata": {"name": name, "namespace": namespace}, "spec": spec})
        };
        self.objects.iter().map(manifest).collect()
    }

    /// Returns the creates of the host, for a bare client. `owner` owns these Jobs, so that the garbage collector keeps them.
    pub(crate) fn wanted(&self, namespace: &str, owner: &Value) -> Vec<Wanted> {
        let nodes = if self.kind == ParentKind::Daemon { self.node_names(namespace) } else { Vec::new() };
        let planned = |(name, spec): &(String, Value)| Planned::new(self.kind, (namespace, name), spec, &nodes);
        let creates = self.objects.iter().filter_map(planned).flat_map(all_creates);
        creates.map(|object| self.one(object, owner)).collect()
    }

    fn one(&self, mut object: Value, owner: &Value) -> Wanted {
        let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
        let (name, step) = (text("/metadata/name"), text("/metadata/annotations/oarlock.dev~1step"));
        let flow = name.strip_suffix(&format!("-{step}")).unwrap_or_default().to_owned();
        let spec = self.objects.iter().find(|(other, _)| *other == flow).map(|(_, spec)| spec);
        let steps = spec.and_then(|spec| spec.get("flows")?.as_array()).into_iter().flatten();
        let found = steps.filter(|one| one.get("name").is_some_and(|found| *found == step));
        let after = found.filter_map(|one| one.get("dependencies")?.as_array()).flatten().filter_map(Value::as_str);
        let after = after.map(|dependency| format!("{flow}-{dependency}")).collect();
        if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.insert("ownerReferences".to_owned(), json!([owner]));
        }
        Wanted { name, after, object }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bare_client_makes_the_creates_of_the_host() {
        for (load, waiting) in [(daemon(7), 0), (wide(5), 1), (chains(2, 3), 4)] {
            let wanted = load.wanted("shop", &json!({}));
            assert_eq!(wanted.len(), load.jobs, "{}", load.label);
            assert_eq!(wanted.iter().filter(|one| !one.after.is_empty()).count(), waiting, "{}", load.label);
            let names: Vec<&str> = wanted.iter().map(|one| one.name.as_str()).collect();
            assert!(wanted.iter().flat_map(|one| &one.after).all(|after| names.contains(&after.as_str())));
        }
    }
}
