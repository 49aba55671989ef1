//! The handlers that put the items of lists and watches into the flow cache.

use std::sync::Arc;

use oarlock_core::attempts::node::{self, NodeView};
use oarlock_core::attempts::parent::{Parent, ParentKind};
use oarlock_core::attempts::view::{ChildKind, ChildView, FIELDS};
use oarlock_core::cache::object_cache::fitting;
use oarlock_core::job_template::template::StoredTemplate;
use oarlock_core::object::memory::NamespaceShares;
use serde_json::Value;

use crate::flows::cache::FlowCache;
use crate::transport::projection::Projection;
use crate::watch::handler::EventHandler;

fn of_fields(fields: &[&str]) -> Arc<Projection> {
    let fields: Vec<String> = fields.iter().map(|field| (*field).to_owned()).collect();
    Arc::new(Projection::of_parts(&fields))
}

/// The handler of JobFlows or DaemonJobs.
pub(crate) struct ParentHandler(pub(crate) Arc<FlowCache>, pub(crate) ParentKind);

impl EventHandler for ParentHandler {
    type Item = Parent;

    fn projection(&self) -> Arc<Projection> {
        of_fields(&["/spec", "/status", "/metadata/generation"])
    }

    fn pick(&self, document: Value) -> Option<Parent> {
        Parent::read(self.1, document)
    }

    fn fitting(&self, item: Parent, listed: &mut NamespaceShares) -> Parent {
        fitting(item, listed)
    }

    fn listed(&self, items: Vec<Parent>, version: u64) {
        self.0.reset_parents(self.1, items, version);
    }

    fn changed(&self, item: Parent) {
        self.0.put_parent(item);
    }

    fn deleted(&self, item: Parent) {
        self.0.drop_parent(&item);
    }
}

/// The handler of JobTemplates.
pub(crate) struct TemplateHandler(pub(crate) Arc<FlowCache>);

impl EventHandler for TemplateHandler {
    type Item = StoredTemplate;

    fn projection(&self) -> Arc<Projection> {
        of_fields(&["/spec", "/status", "/metadata/generation"])
    }

    fn pick(&self, document: Value) -> Option<StoredTemplate> {
        StoredTemplate::read(document)
    }

    fn fitting(&self, item: StoredTemplate, listed: &mut NamespaceShares) -> StoredTemplate {
        fitting(item, listed)
    }

    fn listed(&self, items: Vec<StoredTemplate>, version: u64) {
        self.0.reset_templates(items, version);
    }

    fn changed(&self, item: StoredTemplate) {
        self.0.put_template(item);
    }

    fn deleted(&self, item: StoredTemplate) {
        self.0.drop_template(&item);
    }
}

/// The handler of Jobs.
pub(crate) struct BatchJobHandler(pub(crate) Arc<FlowCache>);

impl EventHandler for BatchJobHandler {
    type Item = ChildView;

    fn projection(&self) -> Arc<Projection> {
        of_fields(&FIELDS)
    }

    fn pick(&self, document: Value) -> Option<ChildView> {
        ChildView::read(ChildKind::Job, &document)
    }

    fn listed(&self, items: Vec<ChildView>, version: u64) {
        self.0.reset_children(ChildKind::Job, items, version);
    }

    fn changed(&self, item: ChildView) {
        self.0.put_child(item);
    }

    fn deleted(&self, item: ChildView) {
        self.0.drop_child(item);
    }
}

/// The handler of nodes.
pub(crate) struct NodeHandler(pub(crate) Arc<FlowCache>);

impl EventHandler for NodeHandler {
    type Item = NodeView;

    fn projection(&self) -> Arc<Projection> {
        Arc::new(Projection::of_object(&node::FIELDS.map(str::to_owned)))
    }

    fn pick(&self, document: Value) -> Option<NodeView> {
        NodeView::read(&document)
    }

    fn listed(&self, items: Vec<NodeView>, _version: u64) {
        self.0.reset_nodes(items);
    }

    fn changed(&self, item: NodeView) {
        self.0.put_node(item);
    }

    fn deleted(&self, item: NodeView) {
        self.0.drop_node(&item.name);
    }
}
