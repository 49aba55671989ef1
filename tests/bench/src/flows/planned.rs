//! A JobFlow or DaemonJob that is planned in memory, without a cluster. The bench measures the CPU time of its plans, and a bare
//! client makes the creates of its plans, which are exactly the host's creates.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;
use oarlock_core::attempts::node::NodeView;
use oarlock_core::attempts::parent::{API_VERSION, Parent, ParentKind};
use oarlock_core::attempts::plan::{Create, Observation, ParentPlan, PlanMemory};
use oarlock_core::attempts::view::ChildView;
use serde_json::{Value, json};

/// The maximum number of rounds until everything has been created: the maximum number of steps of a flow, and one.
const ROUNDS: usize = 501;

/// An object and its state so far.
pub(crate) struct Planned {
    pub(crate) parent: Parent,
    pub(crate) children: Vec<Arc<ChildView>>,
    memory: PlanMemory,
    nodes: BTreeMap<String, Arc<NodeView>>,
    now: Timestamp,
    /// The Jobs as a server would store them, in the order of `children`.
    stored: Vec<(Create, Value)>,
}

impl Planned {
    /// Returns an object for which nothing was done yet.
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
            memory: PlanMemory::default(),
            nodes: nodes.iter().map(node).collect(),
            now: Timestamp::now(),
            stored: Vec::new(),
        })
    }

    /// Returns the next plan.
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
            ParentKind::Flow => oarlock_core::job_flow::plan::plan(observed, self.now),
            ParentKind::Daemon => oarlock_core::daemon_job::plan::plan(observed, self.now),
        }
    }

    /// Carries out a plan: its state is remembered, and its Jobs exist.
    pub(crate) fn take(&mut self, plan: ParentPlan) {
        self.memory.header = plan.header;
        self.memory.header.state = plan.summary.state;
        self.memory.header.conditions = plan.summary.conditions;
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

    /// Lets the Jobs succeed for whose index `is_ended` returns true. The other Jobs run.
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

/// Returns all creates of an object, if every Job succeeds.
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
