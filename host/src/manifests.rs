//! The documents that prepare a cluster for the host, as YAML for `kubectl apply -f -`. The tests install exactly these
//! texts.

use serde_json::json;

/// The namespace that the manifests make, and the default of `oarlock host --namespace`.
pub const HOST_NAMESPACE: &str = "oarlock-system";

const NAMESPACE: &str = include_str!("../manifests/namespace.yaml");
const ROLES: &str = include_str!("../manifests/roles.yaml");
const DEPLOYMENT: &str = include_str!("../manifests/deployment.yaml");

/// The grants of the shipped plugins, as a grants file.
pub const SHIPPED_GRANTS: &str = include_str!("../../plugins/replace/grant.yaml");

/// The CustomResourceDefinitions, as YAML documents.
pub fn crds() -> String {
    join(&oarlock_api::CRDS)
}

/// All documents that a cluster needs before the host runs there, in the order in which to apply them: namespace, CRDs,
/// admission policy with its binding, account and roles.
pub fn manifests() -> String {
    let [job, record] = oarlock_api::CRDS;
    join(&[NAMESPACE, job, record, oarlock_api::ADMISSION, ROLES])
}

/// The host as a Deployment of `image`, with the grants of the plugins in it.
pub fn deployment(image: &str) -> String {
    let grants = json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "oarlock-grants", "namespace": HOST_NAMESPACE, "labels": {"app.kubernetes.io/name": "oarlock"}},
        "data": {"grants.yaml": SHIPPED_GRANTS},
    });
    // A JSON string is a YAML scalar too, whatever characters the name of the image has.
    let image = json!(image).to_string();
    join(&[&format!("{grants:#}\n"), &DEPLOYMENT.replace("image: IMAGE", &format!("image: {image}"))])
}

fn join(documents: &[&str]) -> String {
    let trimmed: Vec<&str> = documents.iter().map(|text| text.trim_start_matches("---\n").trim_end()).collect();
    trimmed.join("\n---\n") + "\n"
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn parsed(text: &str) -> Vec<Value> {
        serde_saphyr::from_multiple(text).unwrap()
    }

    fn rules(kind: &str) -> Vec<Value> {
        let role = parsed(&manifests()).into_iter().find(|document| document["kind"] == kind).unwrap();
        role["rules"].as_array().unwrap().clone()
    }

    #[test]
    fn every_document_has_a_kind_and_a_name_and_comes_after_what_it_needs() {
        let documents = parsed(&manifests());
        let kinds: Vec<_> = documents.iter().map(|document| document["kind"].as_str().unwrap()).collect();
        assert_eq!(
            kinds,
            [
                "Namespace",
                "CustomResourceDefinition",
                "CustomResourceDefinition",
                "ValidatingAdmissionPolicy",
                "ValidatingAdmissionPolicyBinding",
                "ServiceAccount",
                "ClusterRole",
                "ClusterRoleBinding",
                "Role",
                "RoleBinding"
            ]
        );
        assert!(documents.iter().all(|document| document["metadata"]["name"].is_string()));
    }

    #[test]
    fn no_role_writes_pods_reads_secrets_or_uses_a_wildcard() {
        for rule in rules("ClusterRole").into_iter().chain(rules("Role")) {
            let text = rule.to_string();
            assert!(!text.contains('*') && !text.contains("secrets"), "{text}");
            let on_pods = rule["resources"].as_array().unwrap().contains(&"pods".into());
            let verbs = rule["verbs"].as_array().unwrap();
            assert!(
                !on_pods || !["create", "update", "delete"].iter().any(|verb| verbs.contains(&(*verb).into())),
                "{text}"
            );
        }
    }

    #[test]
    fn the_deployment_takes_any_image_name_and_mounts_the_shipped_grants() {
        let documents = parsed(&deployment("registry.example:5000/a b:\"1\""));
        let [grants, deployment] = documents.as_slice() else { panic!("two documents") };
        assert_eq!(deployment["spec"]["template"]["spec"]["containers"][0]["image"], "registry.example:5000/a b:\"1\"");
        assert_eq!(grants["data"]["grants.yaml"], SHIPPED_GRANTS);
        assert_eq!(grants["metadata"]["namespace"], HOST_NAMESPACE);
        assert_eq!(parsed(SHIPPED_GRANTS)[0]["metadata"]["name"], "replace");
    }
}
