//! What the cluster of a stage does: creates, changes, and what happens to Jobs and nodes by themselves.

use std::sync::Arc;

use oarlock_core::child::build::{JOB_TTL, OPERATION_TTL};
use oarlock_core::child::node::NodeView;
use oarlock_core::child::plan::{ChildChange, Create, TemplateView};
use oarlock_core::child::pods::PodReport;
use oarlock_core::child::view::{ChildKind, ChildView};
use oarlock_core::job::time::write_time;
use serde_json::{Value, json};

use crate::stage::Stage;

fn ttl_field(kind: ChildKind) -> &'static str {
    match kind {
        ChildKind::Job => JOB_TTL,
        ChildKind::Operation => OPERATION_TTL,
    }
}

impl Stage {
    /// Creates a child; panics if its attempt ever had one, or its name is taken.
    pub(crate) fn create(&mut self, create: &Create) {
        let mut object = create.object.clone();
        let attempt: u32 = object["metadata"]["labels"]["oarlock.dev/attempt"].as_str().unwrap().parse().unwrap();
        assert!(self.attempts.insert((create.unit.clone(), attempt)), "{} {attempt} is created again", create.unit);
        assert!(!self.objects.contains_key(&create.name), "{} is there already", create.name);
        assert_eq!(object["metadata"]["name"], create.name.as_str());
        object["metadata"]["uid"] = format!("uid-{}", self.created.len()).into();
        object["metadata"]["creationTimestamp"] = write_time(self.now).into();
        object["metadata"]["resourceVersion"] = "1".into();
        if create.kind == ChildKind::Operation {
            // As the CustomResourceDefinition says.
            object["spec"].as_object_mut().unwrap().entry(OPERATION_TTL).or_insert(1_800.into());
        }
        self.created.push((create.unit.clone(), create.name.clone()));
        self.objects.insert(create.name.clone(), object);
        self.show(&create.name);
    }

    /// The driver sees an object as it is now.
    pub(crate) fn show(&mut self, name: &str) {
        let object = &self.objects[name];
        let kind = if object["kind"] == "Job" { ChildKind::Job } else { ChildKind::Operation };
        let view = Arc::new(ChildView::read(kind, object).unwrap());
        match self.children.iter_mut().find(|child| child.uid == view.uid) {
            Some(child) => *child = view,
            None => self.children.push(view),
        }
    }

    pub(super) fn change(&mut self, change: &ChildChange) {
        let (word, child) = match change {
            ChildChange::Adopt(child) => ("adopt", child),
            ChildChange::Stop(child) => ("stop", child),
            ChildChange::Delete(child) => ("delete", child),
            ChildChange::SetTtl(child, _) => ("ttl", child),
            ChildChange::DeleteSelf => {
                self.is_gone = true;
                return self.changed.push(("delete", self.parent.name.clone()));
            }
        };
        let name = child.name.clone();
        self.changed.push((word, name.clone()));
        if self.objects.get(&name).is_none_or(|object| object["metadata"]["uid"] != child.uid.as_str()) {
            return;
        }
        let object = self.objects.get_mut(&name).unwrap();
        match change {
            ChildChange::Delete(_) | ChildChange::SetTtl(_, 0) => return self.vanish(&name),
            ChildChange::SetTtl(child, ttl) => object["spec"][ttl_field(child.kind)] = (*ttl).into(),
            ChildChange::Stop(child) => {
                object["spec"]["activeDeadlineSeconds"] = 1.into();
                if child.suspended {
                    object["spec"]["suspend"] = false.into();
                    object["spec"]["parallelism"] = 0.into();
                }
            }
            _ => object["metadata"]["ownerReferences"][0]["controller"] = true.into(),
        }
        self.show(&name);
    }

    /// A child is deleted, by whomever.
    pub(crate) fn vanish(&mut self, name: &str) {
        let object = self.objects.remove(name).unwrap();
        let uid = object["metadata"]["uid"].as_str().unwrap();
        for child in self.children.iter_mut().filter(|child| child.uid == uid) {
            *child = Arc::new(ChildView { gone: true, ..(**child).clone() });
        }
    }

    /// The name of a unit's newest child that exists.
    pub(crate) fn child_of(&self, unit: &str) -> String {
        let mut all = self.created.iter().rev().filter(|(of, name)| of == unit && self.objects.contains_key(name));
        all.next().unwrap_or_else(|| panic!("{unit} has no child: {:?}", self.states())).1.clone()
    }

    /// The object of a unit's newest child.
    pub(crate) fn object_of(&self, unit: &str) -> &Value {
        &self.objects[&self.child_of(unit)]
    }

    /// Gives a child a status.
    pub(crate) fn set_status(&mut self, name: &str, status: Value) {
        self.objects.get_mut(name).unwrap()["status"] = status;
        self.show(name);
    }

    /// A Job gets a condition, now.
    pub(crate) fn set_condition(&mut self, name: &str, kind: &str, reason: &str) {
        let condition = json!({"type": kind, "status": "True", "reason": reason, "message": "",
            "lastTransitionTime": write_time(self.now)});
        let well = matches!(kind, "Complete" | "SuccessCriteriaMet");
        self.set_status(
            name,
            json!({"conditions": [condition], "succeeded": i32::from(well), "failed": i32::from(!well),
            "startTime": write_time(self.now)}),
        );
    }

    /// The newest child of a unit ends, and rounds follow.
    pub(crate) fn succeed(&mut self, unit: &str) {
        self.end(unit, true);
        self.settle();
    }

    /// The newest child of a unit fails, and rounds follow.
    pub(crate) fn fail(&mut self, unit: &str) {
        self.end(unit, false);
        self.settle();
    }

    /// The newest child of a unit fails through the infrastructure, and rounds follow.
    pub(crate) fn evict(&mut self, unit: &str) {
        let report = PodReport { message: "pod p on n (Evicted)".to_owned(), is_infrastructure: true };
        self.pods.insert(self.child_of(unit), report);
        self.fail(unit);
    }

    /// The newest child of a unit announces that its pod is evicted, and rounds follow; then the pod is gone.
    pub(crate) fn announce_eviction(&mut self, unit: &str) {
        let report = PodReport { message: "pod p on n (Evicted)".to_owned(), is_infrastructure: true };
        let name = self.child_of(unit);
        self.pods.insert(name.clone(), report);
        self.set_condition(&name, "FailureTarget", "BackoffLimitExceeded");
        self.settle();
        self.pods.remove(&name);
    }

    /// The newest child of a unit ends; no round follows.
    pub(crate) fn end(&mut self, unit: &str, well: bool) {
        let name = self.child_of(unit);
        self.end_child(&name, well);
    }

    /// A child ends; no round follows.
    pub(crate) fn end_child(&mut self, name: &str, well: bool) {
        if self.objects[name]["kind"] == "Job" {
            let (kind, reason) =
                if well { ("Complete", "CompletionsReached") } else { ("Failed", "BackoffLimitExceeded") };
            return self.set_condition(name, kind, reason);
        }
        let targets = self.objects[name]["spec"]["targets"].as_array().cloned().unwrap_or_default();
        let progress = if well { "Succeeded" } else { "Failed" };
        let details: Vec<Value> =
            targets.iter().map(|target| json!({"name": target["name"], "progress": progress})).collect();
        let (succeeded, failed) = if well { (targets.len(), 0) } else { (0, targets.len()) };
        self.set_status(
            name,
            json!({"progress": progress, "endTime": write_time(self.now), "totalPodCount": targets.len(),
            "succeededPodCount": succeeded, "failedPodCount": failed, "targetDetails": details}),
        );
    }

    /// A Job has active pods.
    pub(crate) fn run(&mut self, unit: &str) {
        let name = self.child_of(unit);
        self.set_status(&name, json!({"active": 1, "ready": 1}));
        self.settle();
    }

    /// A Job that the driver did not create is there.
    pub(crate) fn plant(&mut self, object: Value) {
        let name = object["metadata"]["name"].as_str().unwrap().to_owned();
        self.objects.insert(name.clone(), object);
        self.show(&name);
    }

    /// A JobTemplate of this JobSpec is there.
    pub(crate) fn add_template(&mut self, name: &str, version: &str, job: Value) {
        self.templates
            .insert(name.to_owned(), Arc::new(TemplateView { version: version.to_owned(), unread: None, job }));
    }

    /// A Ready node is there, with a new UID.
    pub(crate) fn add_node(&mut self, name: &str) {
        self.set_node(json!({"metadata": {"name": name, "uid": format!("{name}-uid")}}));
    }

    /// A node is there as it is given.
    pub(crate) fn set_node(&mut self, node: Value) {
        let view = NodeView::read(&node).unwrap();
        self.nodes.insert(view.name.clone(), Arc::new(view));
    }

    /// A node that is there gets Ready or not.
    pub(crate) fn set_ready(&mut self, name: &str, ready: bool) {
        let node = (*self.nodes[name]).clone();
        self.nodes.insert(name.to_owned(), Arc::new(NodeView { not_ready: !ready, ..node }));
    }
}

impl Stage {
    /// Goes on to the next try of what was refused, which the server accepts now.
    pub(crate) fn wake_refused(&mut self) {
        self.now = self.plan().due.expect("nothing is due");
        assert!(!self.plan().creates.is_empty(), "it is not tried again");
        self.round();
        self.memory.refused.clear();
        self.settle();
    }
}
