//! A JobFlow or DaemonJob that is planned in memory, with no cluster: for the CPU of its plans, and for the creates that a
//! bare client has to make, which are the very ones of the host.
//!
//! Takes a spec and the names of nodes; yields plans, and the creates with the Jobs that each waits for. Pure but for the time.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;
use oarlock_core::child::node::NodeView;
use oarlock_core::child::parent::{API_VERSION, Parent, ParentKind};
use oarlock_core::child::plan::{Create, Memory, Observation, ParentPlan};
use oarlock_core::child::view::ChildView;
use serde_json::{Value, json};

/// Rounds after which everything has been created, at most: as many as a flow can have steps, and one.
const ROUNDS: usize = 501;

/// An object and what was done of it.
pub(crate) struct Planned {
    pub(crate) parent: Parent,
    pub(crate) children: Vec<Arc<ChildView>>,
    memory: Memory,
    nodes: BTreeMap<String, Arc<NodeView>>,
    now: Timestamp,
    /// The Jobs as a server would store them, in the order of `children`.
    stored: Vec<(Create, Value)>,
}

impl Planned {
    /// An object that nothing was done of.
    pub(crate) fn new(
        kind: ParentKind,
        (namespace, name): (&str, &str),
        spec: &Value,
        nodes: &[String],
    ) -> Option<Self> {
        let metadata = json!({"namespace": namespace, "name": name, "generation": 1, "resourceVersion": "1",
            "uid": "5f1c3a52-0000-4000-8000-000000000000"});
        let stored = json!({"apiVersion": API_VERSION, "kind": kind.name(), "metadata": metadata, "spec": spec});
        let node = |name: &String| {
            let labels = [("kubernetes.io/hostname".to_owned(), name.clone())].into();
            let view = NodeView { name: name.clone(), uid: format!("uid-{name}"), labels, ..NodeView::default() };
            (name.clone(), Arc::new(view))
        };
        Some(Self {
            parent: Parent::read(kind, stored)?,
            children: Vec::new(),
            memory: Memory::default(),
            nodes: nodes.iter().map(node).collect(),
            now: Timestamp::now(),
            stored: Vec::new(),
        })
    }

    /// The next plan.
    pub(crate) fn plan(&self) -> ParentPlan {
        let templates = HashMap::new();
        let observed = Observation {
            parent: &self.parent,
            memory: &self.memory,
            children: &self.children,
            templates: &templates,
            nodes: &self.nodes,
        };
        match self.parent.kind {
            ParentKind::Flow => oarlock_core::flow::plan::plan(observed, self.now),
            ParentKind::Daemon => oarlock_core::daemon::plan::plan(observed, self.now),
        }
    }

    /// Carries a plan out: it is remembered, and its Jobs are there.
    pub(crate) fn take(&mut self, plan: ParentPlan) {
        self.memory.header = plan.header;
        self.memory.header.state = plan.verdict.state;
        self.memory.header.conditions = plan.verdict.conditions;
        self.memory.header.observed_generation = Some(self.parent.generation);
        self.memory.units = plan.units;
        for create in plan.creates {
            let mut object = create.object.clone();
            if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
                metadata.insert("uid".to_owned(), format!("uid-of-{}", create.name).into());
                metadata.insert("resourceVersion".to_owned(), "2".into());
                metadata.insert("creationTimestamp".to_owned(), self.now.to_string().into());
            }
            self.stored.push((create, object));
        }
        self.see(|_| false);
    }

    /// Lets those Jobs succeed of which `is_ended` says so, by their index; the others run.
    pub(crate) fn see(&mut self, is_ended: impl Fn(usize) -> bool) {
        let time = self.now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        let condition = |name: &str| json!({"type": name, "status": "True", "reason": "CompletionsReached", "lastTransitionTime": time});
        let ended = json!({"startTime": time, "completionTime": time, "succeeded": 1, "terminating": 0, "ready": 0,
            "uncountedTerminatedPods": {}, "conditions": [condition("SuccessCriteriaMet"), condition("Complete")]});
        let running =
            json!({"startTime": time, "active": 1, "ready": 1, "terminating": 0, "uncountedTerminatedPods": {}});
        let view = |(index, (create, object)): (usize, &(Create, Value))| {
            let mut object = object.clone();
            if let Some(fields) = object.as_object_mut() {
                fields.insert("status".to_owned(), if is_ended(index) { ended.clone() } else { running.clone() });
            }
            ChildView::read(create.kind, &object).map(Arc::new)
        };
        self.children = self.stored.iter().enumerate().filter_map(view).collect();
    }
}

/// The creates that an object calls for in all, if every Job succeeds.
pub(crate) fn all_creates(mut planned: Planned) -> Vec<Value> {
    for _ in 0..ROUNDS {
        let plan = planned.plan();
        let (is_last, before) = (plan.creates.is_empty(), planned.stored.len());
        planned.take(plan);
        if is_last && before > 0 {
            break;
        }
        planned.see(|_| true);
    }
    planned.stored.into_iter().map(|(create, _)| create.object).collect()
}
