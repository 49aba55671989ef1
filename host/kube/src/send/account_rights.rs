//! The question whether the host may act as the account of a plugin.

use serde_json::{Value, json};

use crate::cluster::Cluster;
use crate::error_chain::error_chain;
use crate::send::plugin_accounts::{IMPERSONATING_KUBECONFIG, PluginAccountSettings};
use crate::transport::call::ApiCall;

impl Cluster {
    /// Returns whether the host may act as this account of a plugin, with the reason if it may not. The rights for single requests are not
    /// checked.
    ///
    /// # Errors
    /// If the API server does not answer, with its message.
    pub async fn may_act_as(&self, plugin: &str, account: &str) -> Result<Result<(), String>, String> {
        let PluginAccountSettings { namespace, kubeconfig_impersonates } = self.link.accounts.read().settings.clone();
        if kubeconfig_impersonates {
            return Ok(Err(IMPERSONATING_KUBECONFIG.to_owned()));
        }
        for (group, verb) in [("authentication.k8s.io", "impersonate:serviceaccount"), ("", "impersonate")] {
            let resource = json!({"group": group, "verb": verb, "resource": "serviceaccounts", "namespace": namespace, "name": account});
            let review = json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
                "spec": {"resourceAttributes": resource}});
            let request = http::Request::post("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews")
                .header(http::header::CONTENT_TYPE, "application/json")
                .body(review.to_string().into_bytes())
                .map_err(kube::core::request::Error::BuildRequest);
            let call = ApiCall { verb: "create", resource: "selfsubjectaccessreviews", request };
            let answer: Value = self.link.transport.fetch(call).await.map_err(|error| error_chain(&error))?;
            if answer.pointer("/status/allowed") == Some(&Value::Bool(true)) {
                return Ok(Ok(()));
            }
        }
        Ok(Err(format!("apply Role {namespace}/oarlock-plugin-{plugin}-impersonate (`oarlock manifests --grants`)")))
    }
}
