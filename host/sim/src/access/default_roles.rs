//! The default roles of a new cluster: `cluster-admin` for masters, the roles for discovery and self reviews for everybody, and
//! `view`, `edit` and `admin` for people.

use serde_json::{Value, json};

use crate::{access::user::MASTERS, object, random::Random, server::cluster::State, storage::Key};

const GROUP: &str = "rbac.authorization.k8s.io";
const EVERYBODY: &[&str] = &["system:authenticated"];

/// Stores the default roles. Their UIDs come from another seed than the cluster's, so that they do not change the names of later objects.
pub(crate) fn create(state: &mut State) {
    let mut random = Random::seeded(u64::MAX);
    for (name, subjects, rules) in roles() {
        let role = json!({"kind": "ClusterRole", "metadata": {"name": name}, "rules": rules});
        let subject = |group: &&str| json!({"kind": "Group", "apiGroup": GROUP, "name": group});
        let binding = json!({
            "kind": "ClusterRoleBinding", "metadata": {"name": name},
            "subjects": subjects.iter().map(subject).collect::<Vec<_>>(),
            "roleRef": {"apiGroup": GROUP, "kind": "ClusterRole", "name": name},
        });
        for (plural, object) in [("clusterroles", role), ("clusterrolebindings", binding)] {
            store(state, &mut random, plural, object);
        }
    }
    for (name, within, rules) in user_roles() {
        let label = |role: &str| format!("{GROUP}/aggregate-to-{role}");
        let selector = json!({"matchLabels": {label(name): "true"}});
        let labels = within.map_or_else(|| json!({}), |role| json!({label(role): "true"}));
        let whole = json!({
            "kind": "ClusterRole", "metadata": {"name": name, "labels": labels},
            "aggregationRule": {"clusterRoleSelectors": [selector]}, "rules": [],
        });
        let own = format!("system:aggregate-to-{name}");
        let own =
            json!({"kind": "ClusterRole", "metadata": {"name": own, "labels": {label(name): "true"}}, "rules": rules});
        store(state, &mut random, "clusterroles", whole);
        store(state, &mut random, "clusterroles", own);
    }
}

/// Returns the roles for people: name, the role that includes it, and its rules for the kinds served here.
fn user_roles() -> [(&'static str, Option<&'static str>, Value); 3] {
    let (see, change) = (["get", "list", "watch"], ["create", "delete", "deletecollection", "patch", "update"]);
    let all = [&see[..], &change[..]].concat();
    let workloads = [
        "daemonsets",
        "deployments",
        "deployments/scale",
        "replicasets",
        "replicasets/scale",
        "statefulsets",
        "statefulsets/scale",
    ];
    let core = ["configmaps", "serviceaccounts", "services"];
    let inside = ["pods/attach", "pods/exec", "pods/portforward"];
    let rule = |group: &str, resources: &[&str], verbs: &[&str]| json!({"verbs": verbs, "apiGroups": [group], "resources": resources});
    let view = json!([
        rule("", &[&core[..], &["events", "namespaces", "pods", "pods/log", "pods/status"]].concat(), &see),
        rule("apps", &[&workloads[..], &["controllerrevisions"]].concat(), &see),
        rule("batch", &["cronjobs", "jobs"], &see),
        rule("policy", &["poddisruptionbudgets"], &see),
    ]);
    let edit = json!([
        rule("", &[&inside[..], &["secrets"]].concat(), &see),
        rule("", &[&core[..], &inside[..], &["pods", "secrets"]].concat(), &change),
        rule("", &["pods/eviction", "serviceaccounts/token"], &["create"]),
        rule("", &["serviceaccounts"], &["impersonate"]),
        rule("apps", &workloads, &change),
        rule("batch", &["cronjobs", "jobs"], &change),
        rule("policy", &["poddisruptionbudgets"], &change),
        rule("coordination.k8s.io", &["leases"], &all),
    ]);
    let admin = json!([
        rule("authorization.k8s.io", &["localsubjectaccessreviews"], &["create"]),
        rule(GROUP, &["rolebindings", "roles"], &all),
    ]);
    [("view", Some("edit"), view), ("edit", Some("admin"), edit), ("admin", None, admin)]
}

fn store(state: &mut State, random: &mut Random, plural: &str, mut object: Value) {
    let Some(table) = state.kinds.by_path(GROUP, "v1", plural).map(|kind| kind.table) else { return };
    let key = Key::new("", object::name(&object));
    object::as_map(&mut object).shift_insert(1, "apiVersion".into(), json!(format!("{GROUP}/v1")));
    object::set_meta(&mut object, "uid", json!(random.uid()));
    object::set_meta(&mut object, "creationTimestamp", json!(state.time()));
    object::set_meta(&mut object, "annotations", json!({"rbac.authorization.kubernetes.io/autoupdate": "true"}));
    object::map_at_metadata(&mut object, "labels").insert("kubernetes.io/bootstrapping".into(), json!("rbac-defaults"));
    state.store.put(table, key, object);
}

/// Name of a role, the groups bound to it, and its rules.
type DefaultRole = (&'static str, &'static [&'static str], Value);

fn roles() -> [DefaultRole; 4] {
    let health = ["/healthz", "/livez", "/readyz", "/version", "/version/"];
    let documents = [
        "/api",
        "/api/*",
        "/apis",
        "/apis/*",
        "/healthz",
        "/livez",
        "/openapi",
        "/openapi/*",
        "/readyz",
        "/version",
        "/version/",
    ];
    [
        (
            "cluster-admin",
            &[MASTERS],
            json!([
                {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]},
                {"verbs": ["*"], "nonResourceURLs": ["*"]},
            ]),
        ),
        (
            "system:basic-user",
            EVERYBODY,
            json!([
                {
                    "verbs": ["create"], "apiGroups": ["authorization.k8s.io"],
                    "resources": ["selfsubjectaccessreviews", "selfsubjectrulesreviews"],
                },
                {"verbs": ["create"], "apiGroups": ["authentication.k8s.io"], "resources": ["selfsubjectreviews"]},
            ]),
        ),
        ("system:discovery", EVERYBODY, json!([{"verbs": ["get"], "nonResourceURLs": documents}])),
        (
            "system:public-info-viewer",
            &["system:authenticated", "system:unauthenticated"],
            json!([{"verbs": ["get"], "nonResourceURLs": health}]),
        ),
    ]
}
