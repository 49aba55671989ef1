//! The kinds of the engine that a host serves. The host keeps one list of them.
//!
//! Watches, rounds, probes, metrics and roles follow from the list. A kind that lacks what one of them needs does not compile.

use oarlock_core::kind::plan_kind::PlanKind;
use oarlock_core::object::api_object::Kind;
use oarlock_kube::kinds::KindPort;
use oarlock_kube::lease::fence::Fence;
use oarlock_kube::watch::health::KindHealth;
use tokio::task::JoinHandle;

use crate::engine::{Engine, HostSide};
use crate::manifests::NamedKind;
use crate::ports::Ports;
use crate::reconcilers;

/// A kind that a host serves. A [`KindPort`] is one without answers of the host.
pub trait ServedKind: Send + Sync + 'static {
    /// Returns the CustomResourceDefinition of the kind, as YAML.
    fn definition(&self) -> &'static str;

    /// Returns the kind of the objects that an object of the kind owns, if the host watches them.
    fn children(&self) -> Option<Kind>;

    /// Returns the state of each watch.
    fn health(&self) -> Vec<KindHealth>;

    /// Reconciles the objects until the task is aborted. `fence` guards the term.
    fn lead(&self, fence: Fence, ports: &Ports) -> JoinHandle<()>;
}

/// Returns the plural name of a kind, such as `opsjobs`.
pub(crate) fn plural(kind: &dyn ServedKind) -> String {
    NamedKind::read(kind.definition()).map(|named| named.plural).unwrap_or_default()
}

impl<K: PlanKind> HostSide<K> for () {}

impl<K: PlanKind> ServedKind for KindPort<K> {
    fn definition(&self) -> &'static str {
        self.kind().definition()
    }

    fn children(&self) -> Option<Kind> {
        self.kind().children().map(|children| children.kind)
    }

    fn health(&self) -> Vec<KindHealth> {
        Self::health(self)
    }

    fn lead(&self, fence: Fence, ports: &Ports) -> JoinHandle<()> {
        lead(self, (), fence, ports)
    }
}

/// Begins the rounds of a kind. They run until the task is aborted.
pub(crate) fn lead<K: PlanKind>(
    port: &KindPort<K>,
    host: impl HostSide<K>,
    fence: Fence,
    ports: &Ports,
) -> JoinHandle<()> {
    tokio::spawn(reconcilers::lead(Engine::begin(port.clone(), host, fence, ports.metrics.clone())))
}
