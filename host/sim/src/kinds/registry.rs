//! The registry of served kinds, built in or defined by CustomResourceDefinitions: their names, paths and
//! traits.

use std::{collections::BTreeMap, sync::Arc};

use crate::kinds::crd_kinds::CustomVersion;

/// Index of the table that stores the objects of a kind. All versions of a kind share one table, and so do the two APIs of
/// Event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TableId(pub(crate) usize);

/// Differences of a kind from the generic behaviour.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Traits {
    /// The kind has a status subresource.
    pub(crate) status: bool,
    /// The kind has a scale subresource.
    pub(crate) scale: bool,
    /// The server sets metadata.generation and raises it when the spec changes.
    pub(crate) generation: bool,
    /// A deletion returns the last object instead of a Status.
    pub(crate) returns_deleted: bool,
    /// An update of an absent object creates it.
    pub(crate) create_on_update: bool,
    /// An update must contain the resourceVersion that it replaces.
    pub(crate) conditional: bool,
    /// The kind is a review: the server answers it on creation and does not store it.
    pub(crate) create_only: bool,
}

/// One served version of a kind.
#[derive(Debug, Clone)]
pub(crate) struct Kind {
    /// API group, empty for the core group.
    pub(crate) group: String,
    /// Version, such as `v1`.
    pub(crate) version: String,
    /// Kind, such as `Pod`.
    pub(crate) kind: String,
    /// Kind of the list, such as `PodList`.
    pub(crate) list_kind: String,
    /// Path segment, such as `pods`.
    pub(crate) plural: String,
    /// Singular name, such as `pod`.
    pub(crate) singular: String,
    /// Short names for kubectl.
    pub(crate) short_names: Vec<String>,
    /// Categories for kubectl, such as `all`.
    pub(crate) categories: Vec<String>,
    /// Whether the objects belong to namespaces.
    pub(crate) namespaced: bool,
    pub(crate) traits: Traits,
    pub(crate) table: TableId,
    pub(crate) custom: Option<Arc<CustomVersion>>,
}

impl Kind {
    /// Returns the qualified plural name, such as `pods` or `deployments.apps`.
    pub(crate) fn resource(&self) -> String {
        qualified(&self.plural, &self.group)
    }

    /// Returns the qualified kind, such as `Pod` or `Deployment.apps`.
    pub(crate) fn group_kind(&self) -> String {
        qualified(&self.kind, &self.group)
    }

    /// Returns the apiVersion, such as `v1` or `apps/v1`.
    pub(crate) fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.clone() } else { format!("{}/{}", self.group, self.version) }
    }

    /// Returns true if this is the kind `name` of `group`, in any version.
    pub(crate) fn is(&self, group: &str, name: &str) -> bool {
        self.group == group && self.kind == name
    }

    /// Returns the verbs that discovery lists.
    pub(crate) fn verbs(&self) -> &'static [&'static str] {
        if self.traits.create_only {
            return &["create"];
        }
        if self.custom.is_some() {
            return &["delete", "deletecollection", "get", "list", "patch", "create", "update", "watch"];
        }
        &["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]
    }
}

/// Joins a name and a group, such as `pods` or `deployments.apps`.
pub(crate) fn qualified(name: &str, group: &str) -> String {
    if group.is_empty() { name.to_owned() } else { format!("{name}.{group}") }
}

/// All served kinds.
#[derive(Debug, Default)]
pub(crate) struct Kinds {
    /// Kinds by plural name. Several groups may use the same name.
    by_plural: BTreeMap<String, Vec<Arc<Kind>>>,
    tables: BTreeMap<(String, String), TableId>,
}

impl Kinds {
    /// Returns the built-in kinds.
    pub(crate) fn built_in() -> Self {
        let mut kinds = Self::default();
        for row in BUILT_IN {
            let kind = row.kind(&mut kinds);
            kinds.insert(kind);
        }
        kinds
    }

    /// Returns the table of a kind, and creates it for a new kind. A table outlives its deleted CRD, so that watches on it
    /// can end.
    pub(crate) fn table(&mut self, group: &str, plural: &str) -> TableId {
        // core/v1 and events.k8s.io/v1 serve the same objects.
        let group = if plural == "events" && group == "events.k8s.io" { "" } else { group };
        let next = TableId(self.tables.len());
        *self.tables.entry((group.to_owned(), plural.to_owned())).or_insert(next)
    }

    pub(crate) fn insert(&mut self, kind: Kind) {
        self.by_plural.entry(kind.plural.clone()).or_default().push(Arc::new(kind));
    }

    /// Stops serving every version of a custom kind.
    pub(crate) fn remove(&mut self, group: &str, plural: &str) {
        if let Some(kinds) = self.by_plural.get_mut(plural) {
            kinds.retain(|kind| kind.group != group);
        }
    }

    pub(crate) fn by_path(&self, group: &str, version: &str, plural: &str) -> Option<&Arc<Kind>> {
        self.by_plural.get(plural)?.iter().find(|kind| kind.group == group && kind.version == version)
    }

    /// Returns the kind with this `apiVersion` and `kind`.
    pub(crate) fn by_name(&self, api_version: &str, kind: &str) -> Option<&Arc<Kind>> {
        let (group, version) = split_api_version(api_version);
        self.all().find(|one| one.group == group && one.version == version && one.kind == kind)
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &Arc<Kind>> {
        self.by_plural.values().flatten()
    }
}

/// Splits an apiVersion such as `apps/v1` into group and version. The core group is empty.
pub(crate) fn split_api_version(api_version: &str) -> (&str, &str) {
    api_version.split_once('/').unwrap_or(("", api_version))
}

/// One row of the table of built-in kinds.
struct Row {
    group: &'static str,
    version: &'static str,
    kind: &'static str,
    plural: &'static str,
    short: &'static [&'static str],
    /// Flag letters: `n`amespaced, `s`tatus, s`c`ale, `g`eneration, `r`eturns deleted, `u`pdate creates, category `a`ll,
    /// update needs a `v`ersion, `x` for create only.
    flags: &'static str,
}

impl Row {
    fn kind(&self, kinds: &mut Kinds) -> Kind {
        let has = |flag: char| self.flags.contains(flag);
        Kind {
            group: self.group.into(),
            version: self.version.into(),
            kind: self.kind.into(),
            list_kind: format!("{}List", self.kind),
            plural: self.plural.into(),
            singular: self.kind.to_lowercase(),
            short_names: self.short.iter().map(|&one| one.into()).collect(),
            categories: if has('a') { vec!["all".into()] } else { Vec::new() },
            namespaced: has('n'),
            traits: Traits {
                status: has('s'),
                scale: has('c'),
                generation: has('g'),
                returns_deleted: has('r'),
                create_on_update: has('u'),
                conditional: has('v'),
                create_only: has('x'),
            },
            table: kinds.table(self.group, self.plural),
            custom: None,
        }
    }
}

const fn row(
    path: (&'static str, &'static str),
    names: (&'static str, &'static str),
    short: &'static [&'static str],
    flags: &'static str,
) -> Row {
    Row { group: path.0, version: path.1, kind: names.0, plural: names.1, short, flags }
}

const CORE: (&str, &str) = ("", "v1");
const APPS: (&str, &str) = ("apps", "v1");
const RBAC: (&str, &str) = ("rbac.authorization.k8s.io", "v1");
const ADMISSION: (&str, &str) = ("admissionregistration.k8s.io", "v1");
const AUTHENTICATION: (&str, &str) = ("authentication.k8s.io", "v1");
const AUTHORIZATION: (&str, &str) = ("authorization.k8s.io", "v1");

const BUILT_IN: &[Row] = &[
    row(CORE, ("Pod", "pods"), &["po"], "nsgra"),
    row(CORE, ("Node", "nodes"), &["no"], "s"),
    row(CORE, ("Namespace", "namespaces"), &["ns"], "s"),
    row(CORE, ("ConfigMap", "configmaps"), &["cm"], "n"),
    row(CORE, ("Secret", "secrets"), &[], "n"),
    row(CORE, ("ServiceAccount", "serviceaccounts"), &["sa"], "nr"),
    row(CORE, ("Service", "services"), &["svc"], "nsrua"),
    row(CORE, ("Event", "events"), &["ev"], "nu"),
    row(CORE, ("LimitRange", "limitranges"), &["limits"], "n"),
    row(CORE, ("ResourceQuota", "resourcequotas"), &["quota"], "ns"),
    row(APPS, ("Deployment", "deployments"), &["deploy"], "nscga"),
    row(APPS, ("ReplicaSet", "replicasets"), &["rs"], "nscga"),
    row(APPS, ("StatefulSet", "statefulsets"), &["sts"], "nscga"),
    row(APPS, ("DaemonSet", "daemonsets"), &["ds"], "nsga"),
    row(APPS, ("ControllerRevision", "controllerrevisions"), &[], "n"),
    row(("batch", "v1"), ("Job", "jobs"), &[], "nsga"),
    row(("batch", "v1"), ("CronJob", "cronjobs"), &["cj"], "nsga"),
    row(("policy", "v1"), ("PodDisruptionBudget", "poddisruptionbudgets"), &["pdb"], "nsgv"),
    row(("networking.k8s.io", "v1"), ("NetworkPolicy", "networkpolicies"), &["netpol"], "ng"),
    row(("coordination.k8s.io", "v1"), ("Lease", "leases"), &[], "nuv"),
    row(("events.k8s.io", "v1"), ("Event", "events"), &["ev"], "nu"),
    row(RBAC, ("Role", "roles"), &[], "nu"),
    row(RBAC, ("RoleBinding", "rolebindings"), &[], "nu"),
    row(RBAC, ("ClusterRole", "clusterroles"), &[], "u"),
    row(RBAC, ("ClusterRoleBinding", "clusterrolebindings"), &[], "u"),
    row(AUTHORIZATION, ("LocalSubjectAccessReview", "localsubjectaccessreviews"), &[], "nx"),
    row(AUTHORIZATION, ("SelfSubjectAccessReview", "selfsubjectaccessreviews"), &[], "x"),
    row(AUTHORIZATION, ("SelfSubjectRulesReview", "selfsubjectrulesreviews"), &[], "x"),
    row(AUTHORIZATION, ("SubjectAccessReview", "subjectaccessreviews"), &[], "x"),
    row(AUTHENTICATION, ("SelfSubjectReview", "selfsubjectreviews"), &[], "x"),
    row(AUTHENTICATION, ("TokenReview", "tokenreviews"), &[], "x"),
    row(
        ("apiextensions.k8s.io", "v1"),
        ("CustomResourceDefinition", "customresourcedefinitions"),
        &["crd", "crds"],
        "sgv",
    ),
    row(ADMISSION, ("ValidatingAdmissionPolicy", "validatingadmissionpolicies"), &[], "sgv"),
    row(ADMISSION, ("ValidatingAdmissionPolicyBinding", "validatingadmissionpolicybindings"), &[], "gv"),
];
