//! Runs the cluster's built-in controllers on the log entries since the last request. They finish within the request, so
//! their writes are in the store before the response.

use std::{collections::BTreeSet, sync::Arc};

use serde_json::json;

use crate::{
    access::default_roles,
    controllers::{
        budgets, crds,
        garbage::{self, Graph},
        namespaces, roles,
    },
    server::cluster::State,
    storage::{Key, LogEntry},
};

/// Position of the controllers in the log, and the garbage collector's graph.
#[derive(Debug, Default)]
pub(crate) struct Controllers {
    rv: u64,
    pub(crate) graph: Graph,
}

/// The namespaces of a new cluster.
const NAMESPACES: [&str; 4] = ["default", "kube-node-lease", "kube-public", "kube-system"];

/// Creates the namespaces and the default roles of a new cluster.
pub(crate) fn bootstrap(state: &mut State) {
    // Controllers react to the log from here on. There are no earlier entries.
    state.controllers.rv = state.store.rv();
    let time = state.time();
    let Some(table) = state.kinds.by_path("", "v1", "namespaces").map(|kind| kind.table) else { return };
    for name in NAMESPACES {
        let uid = state.random.uid();
        let namespace = json!({
            "kind": "Namespace", "apiVersion": "v1",
            "metadata": {
                "name": name, "uid": uid, "creationTimestamp": time,
                "labels": {"kubernetes.io/metadata.name": name},
            },
            "spec": {"finalizers": ["kubernetes"]}, "status": {"phase": "Active"},
        });
        state.store.put(table, Key::new("", name), namespace);
    }
    default_roles::create(state);
    run_controllers(state);
}

/// Runs every controller until no controller writes any more.
pub(crate) fn run_controllers(state: &mut State) {
    while state.controllers.rv < state.store.rv() {
        let entries = state.store.since(state.controllers.rv).map(|all| all.cloned().collect::<Vec<Arc<LogEntry>>>());
        state.controllers.rv = state.store.rv();
        let mut budgets = BTreeSet::new();
        for entry in entries.unwrap_or_default() {
            crds::observe(state, &entry);
            garbage::observe(state, &entry);
            namespaces::observe(state, &entry);
            roles::observe(state, &entry);
            budgets::observe(state, &entry, &mut budgets);
        }
        for namespace in budgets {
            budgets::update(state, &namespace);
        }
    }
    state.store.trim();
}
