//! The kinds of the engine that a host serves. `Controller` keeps one list of them, which `host.rs` fills.
//!
//! Watches, rounds, probes, metrics and roles follow from the list. A kind that lacks what one of them needs does not compile.

use oarlock_core::kind::plan_kind::PlanKind;
use oarlock_core::object::api_object::Kind;
use oarlock_kube::kinds::KindPort;
use oarlock_kube::lease::fence::Fence;
use oarlock_kube::watch::health::KindHealth;
use tokio::task::JoinHandle;

use crate::engine::{HostSide, KindEngine};
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
    tokio::spawn(reconcilers::lead(KindEngine::begin(port.clone(), host, fence, ports.metrics.clone())))
}

#[cfg(test)]
pub(crate) mod tests {
    use std::collections::BTreeSet;
    use std::sync::Arc;

    use k8s_openapi::jiff::Timestamp;
    use oarlock_api::HostAccount;
    use oarlock_core::ops_job::spec::Defaults;
    use oarlock_kube::ops::Ops;
    use oarlock_kube::{Cluster, Setup};
    use oarlock_wasm::Plugins;
    use serde_json::Value;

    use super::*;
    use crate::controller::Controller;
    use crate::host_place::HostLocation;
    use crate::manifests::{kind_rules, ops_manifests};
    use crate::metrics::Metrics;

    /// Returns a controller with the kinds that Oarlock ships, on an empty cluster.
    pub(crate) async fn controller() -> Controller {
        let sim = oarlock_sim::Cluster::new(oarlock_sim::Options::default());
        let client = kube::Client::new(sim.service(), "default");
        let setup = Setup { client, clock: Arc::new(Timestamp::now), identity: "host".to_owned() };
        let (cluster, events) = Cluster::open(setup);
        let plugins = Plugins::start(oarlock_wasm::Options::in_memory()).await.unwrap();
        let metrics = Arc::new(Metrics::new(cluster.requests()));
        let ports = Arc::new(Ports::new(cluster.clone(), plugins, metrics));
        let ops = Ops::watch(cluster, Defaults::default(), Arc::new(()));
        Controller::new(ports, events).with_ops(ops, HostLocation::default())
    }

    /// Returns each right that the manifests give the host's account: group, resource and verb.
    fn rights(host: &HostAccount) -> BTreeSet<[String; 3]> {
        let documents: Vec<Value> = serde_saphyr::from_multiple(&ops_manifests(host)).unwrap();
        let is_of_host = |one: &&Value| {
            one["subjects"].as_array().is_some_and(|all| all.iter().any(|subject| subject["name"] == host.name))
        };
        let is_role = |binding: &Value, one: &Value| {
            one["kind"] == binding["roleRef"]["kind"]
                && one["metadata"]["name"] == binding["roleRef"]["name"]
                && one["metadata"]["namespace"] == binding["metadata"]["namespace"]
        };
        let bindings = documents.iter().filter(is_of_host);
        let roles = bindings.flat_map(|binding| documents.iter().filter(move |one| is_role(binding, one)));
        let rules = roles.flat_map(|role| role["rules"].as_array().unwrap());
        let texts = |rule: &Value, field: &str| -> Vec<String> {
            rule[field].as_array().unwrap().iter().map(|text| text.as_str().unwrap().to_owned()).collect()
        };
        let mut rights = BTreeSet::new();
        for rule in rules.filter(|rule| rule.get("resourceNames").is_none()) {
            for group in texts(rule, "apiGroups") {
                for resource in texts(rule, "resources") {
                    rights.extend(texts(rule, "verbs").into_iter().map(|verb| [group.clone(), resource.clone(), verb]));
                }
            }
        }
        rights
    }

    #[tokio::test]
    async fn the_manifests_give_the_host_every_right_that_its_kinds_need() {
        let controller = controller().await;
        let rights = rights(&HostAccount::default());
        let mut plurals = Vec::new();
        for kind in controller.kinds() {
            plurals.push(plural(&**kind));
            for ((group, resource), verbs) in kind_rules(kind.definition(), kind.children().as_ref()).unwrap() {
                for verb in verbs {
                    let right = [group.clone(), resource.clone(), verb.to_owned()];
                    assert!(rights.contains(&right), "no role has {right:?}: {rights:?}");
                }
            }
        }
        assert_eq!(plurals, ["opsjobs"]);
    }
}
