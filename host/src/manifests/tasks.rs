//! The namespace of the pods of tasks, and the documents that restrict them.
//!
//! These are the namespace, the host's role in it, the policy that restricts who may create pods in it, and the limits
//! of network and resources.

use std::net::IpAddr;
use std::str::FromStr;

use oarlock_core::object::own::TASKS_NAMESPACE;
use serde_json::{Value, json};

use super::ManifestsError;
use super::roles::{RoleDocument, binding};
use super::yaml;

/// The name of all documents here.
const NAME: &str = "oarlock-tasks";

/// The addresses that checks may connect to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Egress {
    /// All addresses.
    All,
    /// These addresses.
    Cidr(String),
}

impl FromStr for Egress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "all" {
            return Ok(Self::All);
        }
        let is_range = |(address, length): (&str, &str)| {
            let bits = address.parse().ok().map(|address: IpAddr| if address.is_ipv4() { 32 } else { 128 });
            bits.zip(length.parse::<u8>().ok()).is_some_and(|(bits, length)| length <= bits)
        };
        let known = text.split_once('/').is_some_and(is_range);
        known.then(|| Self::Cidr(text.to_owned())).ok_or_else(|| "give all, or a range such as 10.0.0.0/8".to_owned())
    }
}

/// Returns each document as text.
pub(super) fn documents(egress: &[Egress]) -> Result<Vec<String>, ManifestsError> {
    let mut texts: Vec<String> = in_namespace(egress).iter().map(yaml).collect::<Result<_, _>>()?;
    texts.push(oarlock_api::TASK_ADMISSION.to_owned());
    Ok(texts)
}

pub(super) fn in_namespace(egress: &[Egress]) -> [RoleDocument; 5] {
    let labels = json!({"app.kubernetes.io/name": "oarlock"});
    let metadata = json!({"name": NAME, "namespace": TASKS_NAMESPACE, "labels": labels});
    let mut of_namespace = labels.clone();
    if let Some(fields) = of_namespace.as_object_mut() {
        fields.insert("pod-security.kubernetes.io/enforce".to_owned(), json!("privileged"));
    }
    let namespace =
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": TASKS_NAMESPACE, "labels": of_namespace}});
    let role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": metadata, "rules": [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch", "create", "delete"]},
        {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "list", "create", "delete"]},
        {"apiGroups": [oarlock_api::OARLOCK_GROUP], "resources": ["taskpods"], "verbs": ["create"]},
    ]});
    let mut bound = binding(NAME, json!({"name": NAME, "labels": labels}), Some(TASKS_NAMESPACE));
    if let Some(role) = bound.pointer_mut("/roleRef/kind") {
        *role = json!("Role");
    }
    let commented = |comment: &str, content| RoleDocument { comment: comment.to_owned(), content };
    [
        commented(
            "The namespace of task pods, which are privileged. A user who creates pods here is root on nodes.",
            namespace,
        ),
        commented("", role),
        commented("", bound),
        commented(
            "Applies to checks, but not to pods of `run-on-node`, which use the network of their node. Nothing connects to a check.\n\
             A check connects only to the destinations that `oarlock manifests --tasks-egress` names.",
            network(egress, &metadata),
        ),
        commented(
            "The limits of containers without their own. The request is 0, so that a task displaces no pod of a full node.",
            limits(&metadata),
        ),
    ]
}

fn network(egress: &[Egress], metadata: &Value) -> Value {
    let rule = |to: &Egress| match to {
        Egress::All => json!({}),
        Egress::Cidr(range) => json!({"to": [{"ipBlock": {"cidr": range}}]}),
    };
    let rules: Vec<Value> = egress.iter().map(rule).collect();
    json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": metadata,
        "spec": {"podSelector": {}, "policyTypes": ["Ingress", "Egress"], "egress": rules}})
}

fn limits(metadata: &Value) -> Value {
    let none = json!({"cpu": "0", "memory": "0", "ephemeral-storage": "0"});
    json!({"apiVersion": "v1", "kind": "LimitRange", "metadata": metadata, "spec": {"limits": [{"type": "Container",
        "default": {"memory": "2Gi", "ephemeral-storage": "2Gi"}, "defaultRequest": none}]}})
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network_of(egress: &[&str]) -> Value {
        let egress: Vec<Egress> = egress.iter().map(|text| text.parse().unwrap()).collect();
        let [.., network, _] = in_namespace(&egress);
        network.content["spec"].clone()
    }

    #[test]
    fn nothing_connects_to_a_check_and_a_check_connects_to_what_is_named() {
        let closed = network_of(&[]);
        assert_eq!(closed["podSelector"], json!({}), "all pods");
        assert_eq!(closed["policyTypes"], json!(["Ingress", "Egress"]));
        assert_eq!((closed.get("ingress"), &closed["egress"]), (None, &json!([])));
        assert_eq!(network_of(&["all"])["egress"], json!([{}]));
        let ranges = network_of(&["10.0.0.0/8", "fd00::/8"]);
        let to = |range: &str| json!({"to": [{"ipBlock": {"cidr": range}}]});
        assert_eq!(ranges["egress"], json!([to("10.0.0.0/8"), to("fd00::/8")]));
        for wrong in ["", "none", "10.0.0.1", "10.0.0.0/33", "fd00::/129", "10.0.0.0/-1"] {
            assert!(wrong.parse::<Egress>().unwrap_err().contains("all, or a range"), "{wrong}");
        }
    }

    #[test]
    fn a_pod_that_names_no_limits_has_some_and_reserves_nothing() {
        let [.., limits] = in_namespace(&[]);
        let item = &limits.content["spec"]["limits"][0];
        assert_eq!((&item["type"], &item["default"]["memory"]), (&json!("Container"), &json!("2Gi")));
        let reserved = item["defaultRequest"].as_object().unwrap();
        // A limited resource without a default request would be reserved up to its limit.
        assert!(item["default"].as_object().unwrap().keys().all(|name| reserved.contains_key(name)), "{item}");
        assert!(reserved.values().all(|amount| amount == "0"), "{item}");
    }
}
