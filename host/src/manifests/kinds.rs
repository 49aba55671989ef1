//! The resource names of kinds, which roles need.
//!
//! No name is guessed. The names of Kubernetes' kinds come from its own definitions, and all others from
//! CustomResourceDefinitions.

use k8s_openapi::api;
use k8s_openapi::{ClusterResourceScope, NamespaceResourceScope, Resource};
use serde_json::Value;

/// A kind as roles name it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NamedKind {
    /// The group of the kind; empty for the core group.
    pub(crate) group: String,
    kind: String,
    /// The plural in paths, such as `pods`.
    pub(crate) plural: String,
    /// The singular and the short names, as far as a CustomResourceDefinition gives them.
    other_words: Vec<String>,
    /// True if the objects live in namespaces.
    pub(crate) namespaced: bool,
}

impl NamedKind {
    /// Reads the names of the kind that a CustomResourceDefinition defines. Returns `None` for another text.
    pub(crate) fn read(definition: &str) -> Option<Self> {
        Self::of(&serde_saphyr::from_str(definition).ok()?)
    }

    /// Returns the names of the kind that a CustomResourceDefinition defines. Returns `None` for another document.
    fn of(document: &Value) -> Option<Self> {
        let text = |pointer| document.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
        let (group, kind, plural) = (text("/spec/group"), text("/spec/names/kind"), text("/spec/names/plural"));
        let namespaced = text("/spec/scope") == "Namespaced";
        let short = document.pointer("/spec/names/shortNames").and_then(Value::as_array).into_iter().flatten();
        let short = short.filter_map(Value::as_str).map(str::to_owned);
        let other_words = short.chain([text("/spec/names/singular")]).collect();
        let named = Self { group, kind, plural, other_words, namespaced };
        (text("/kind") == "CustomResourceDefinition").then_some(named)
    }

    /// Returns true if kubectl accepts this word for the kind: its plural, singular or short name, in any case, alone or with the group.
    pub(crate) fn is_called(&self, word: &str) -> bool {
        let word = word.to_lowercase();
        let (word, group) = word.split_once('.').map_or((&*word, None), |(word, group)| (word, Some(group)));
        let is_own = self.plural == word || self.other_words.iter().any(|other| other == word);
        is_own && !word.is_empty() && group.is_none_or(|group| group == self.group)
    }
}

/// The kinds whose resource names are known.
#[derive(Clone, Debug)]
pub struct KnownKinds {
    all: Vec<NamedKind>,
}

impl KnownKinds {
    /// Returns the kinds of Kubernetes and of Oarlock.
    pub fn built_in() -> Self {
        let mut known = Self { all: kubernetes() };
        // A kind of OpenKruise that the shipped Restart asks for. A cluster without OpenKruise does not serve it.
        known.all.push(NamedKind {
            group: "apps.kruise.io".to_owned(),
            kind: "ContainerRecreateRequest".to_owned(),
            plural: "containerrecreaterequests".to_owned(),
            other_words: Vec::new(),
            namespaced: true,
        });
        oarlock_api::CRDS.iter().filter_map(|text| serde_saphyr::from_str(text).ok()).for_each(|crd| known.add(&crd));
        known
    }

    /// Adds the kind of a CustomResourceDefinition, or the kinds of a list of them. Ignores other documents.
    pub fn add(&mut self, document: &Value) {
        if let Some(items) = document.get("items").and_then(Value::as_array) {
            return items.iter().for_each(|item| self.add(item));
        }
        self.all.extend(NamedKind::of(document));
    }

    /// Returns the kind of this group. The core group is empty.
    pub(crate) fn find(&self, group: &str, kind: &str) -> Option<&NamedKind> {
        self.all.iter().find(|known| known.group == group && known.kind == kind)
    }
}

fn namespaced<K: Resource<Scope = NamespaceResourceScope>>() -> NamedKind {
    NamedKind { namespaced: true, ..named::<K>() }
}

fn cluster<K: Resource<Scope = ClusterResourceScope>>() -> NamedKind {
    named::<K>()
}

fn named<K: Resource>() -> NamedKind {
    let (group, kind, plural) = (K::GROUP.to_owned(), K::KIND.to_owned(), K::URL_PATH_SEGMENT.to_owned());
    NamedKind { group, kind, plural, other_words: Vec::new(), namespaced: false }
}

fn kubernetes() -> Vec<NamedKind> {
    vec![
        namespaced::<api::core::v1::Pod>(),
        namespaced::<api::core::v1::ConfigMap>(),
        namespaced::<api::core::v1::Secret>(),
        namespaced::<api::core::v1::Service>(),
        namespaced::<api::core::v1::ServiceAccount>(),
        namespaced::<api::core::v1::PersistentVolumeClaim>(),
        namespaced::<api::core::v1::ReplicationController>(),
        namespaced::<api::core::v1::Endpoints>(),
        namespaced::<api::core::v1::LimitRange>(),
        namespaced::<api::core::v1::ResourceQuota>(),
        namespaced::<api::core::v1::PodTemplate>(),
        cluster::<api::core::v1::Node>(),
        cluster::<api::core::v1::Namespace>(),
        cluster::<api::core::v1::PersistentVolume>(),
        namespaced::<api::apps::v1::Deployment>(),
        namespaced::<api::apps::v1::ReplicaSet>(),
        namespaced::<api::apps::v1::StatefulSet>(),
        namespaced::<api::apps::v1::DaemonSet>(),
        namespaced::<api::apps::v1::ControllerRevision>(),
        namespaced::<api::batch::v1::Job>(),
        namespaced::<api::batch::v1::CronJob>(),
        namespaced::<api::autoscaling::v2::HorizontalPodAutoscaler>(),
        namespaced::<api::policy::v1::PodDisruptionBudget>(),
        namespaced::<api::coordination::v1::Lease>(),
        namespaced::<api::events::v1::Event>(),
        namespaced::<api::discovery::v1::EndpointSlice>(),
        namespaced::<api::networking::v1::Ingress>(),
        namespaced::<api::networking::v1::NetworkPolicy>(),
        namespaced::<api::rbac::v1::Role>(),
        namespaced::<api::rbac::v1::RoleBinding>(),
        cluster::<api::rbac::v1::ClusterRole>(),
        cluster::<api::rbac::v1::ClusterRoleBinding>(),
        cluster::<api::storage::v1::StorageClass>(),
        cluster::<api::storage::v1::VolumeAttachment>(),
        cluster::<api::scheduling::v1::PriorityClass>(),
    ]
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_kinds_of_kubernetes_and_of_oarlock_are_known_and_no_name_is_guessed() {
        let known = KnownKinds::built_in();
        let plural = |group, kind| known.find(group, kind).map(|found| (found.plural.as_str(), found.namespaced));
        assert_eq!(plural("", "Pod"), Some(("pods", true)));
        assert_eq!(plural("", "Node"), Some(("nodes", false)));
        assert_eq!(plural("networking.k8s.io", "NetworkPolicy"), Some(("networkpolicies", true)));
        assert_eq!(plural("oarlock.dev", "OperationRecord"), Some(("operationrecords", true)));
        assert_eq!(plural("example.com", "Widget"), None);
    }

    #[test]
    fn a_kind_is_learned_from_its_definition_alone_or_in_a_list() {
        let widget = json!({"kind": "CustomResourceDefinition", "spec": {"group": "example.com", "scope": "Cluster",
            "names": {"kind": "Widget", "plural": "widgetry"}}});
        for document in [widget.clone(), json!({"kind": "List", "items": [{"kind": "Pod"}, widget]})] {
            let mut known = KnownKinds::built_in();
            known.add(&document);
            let found = known.find("example.com", "Widget").unwrap();
            assert_eq!((found.plural.as_str(), found.namespaced), ("widgetry", false));
        }
    }
}
