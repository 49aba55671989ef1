//! The plugin that the cluster would run, according to its host's lease, and its comparison with the plan's plugin.

use k8s_openapi::api::coordination::v1::Lease;
use kube::api::Api;
use oarlock_core::plugin::lookup::PluginInfo;
use oarlock_kube::lease::config::NOTE;
use oarlock_view::{ClusterPlugin, Comparison, PlanPlugin};

use crate::commands::jobs::JobClient;
use crate::host::LEASE;
use crate::served_actions::{ServedActions, ServedPlugin};

/// The actions that the cluster serves, or the reason why they are unknown.
pub(super) struct Served(Result<ServedActions, String>);

/// Reads the lease. If it cannot be read, the plan is still made and states the reason.
pub(super) async fn served(client: &JobClient, namespace: &str) -> Served {
    let leases: Api<Lease> = Api::namespaced(client.raw().clone(), namespace);
    let place = format!("{namespace}/{LEASE}");
    Served(match leases.get_opt(LEASE).await {
        Ok(Some(lease)) => said(&lease, &place),
        Ok(None) => Err(format!("there is no lease {place}, so no host runs there; --host-namespace names another")),
        Err(kube::Error::Api(status)) if status.is_forbidden() => Err(format!(
            "you may not read the lease {place}: ask for `kubectl create rolebinding USER -n {namespace} --role=oarlock-reader --user=USER`"
        )),
        Err(error) => Err(format!("the lease {place} was not read: {error}")),
    })
}

fn said(lease: &Lease, place: &str) -> Result<ServedActions, String> {
    let holder = lease.spec.as_ref().and_then(|spec| spec.holder_identity.as_deref()).unwrap_or_default();
    let note = lease.metadata.annotations.as_ref().and_then(|all| all.get(NOTE));
    match note {
        _ if holder.is_empty() => Err(format!("no host holds the lease {place} now")),
        None => Err(format!(
            "the host that holds the lease {place} does not say what it serves: it begins, or is of an older version"
        )),
        Some(text) => ServedActions::read(text)
            .ok_or_else(|| format!("what the lease {place} says in its annotation {NOTE} cannot be read")),
    }
}

impl Served {
    /// Compares the cluster's plugin with `plugin`.
    pub(super) fn compared(&self, action: &str, plugin: &PluginInfo) -> ClusterPlugin {
        let own = format!("{} {}", plugin.manifest.name, plugin.manifest.version);
        let (comparison, message) = match (&self.0, self.plugin(action)) {
            (_, Some(served)) if served.digest == plugin.digest => {
                (Comparison::Same, format!("serves {action} with the same plugin"))
            }
            (_, Some(served)) => (
                Comparison::Differs,
                format!(
                    "serves {action} with {} {}, {}; this plan is of {own}, {}",
                    served.name, served.version, served.digest, plugin.digest
                ),
            ),
            (Ok(all), None) if !all.incomplete => {
                (Comparison::NotServed, format!("does not serve {action}; this plan is of {own}"))
            }
            _ => (Comparison::Unknown, self.describe(action)),
        };
        let plugin = self.plugin(action).map(|served| PlanPlugin {
            name: served.name.clone(),
            version: served.version.clone(),
            digest: served.digest.clone(),
            file: String::new(),
        });
        ClusterPlugin { comparison, plugin, message }
    }

    fn plugin(&self, action: &str) -> Option<&ServedPlugin> {
        self.0.as_ref().ok()?.actions.get(action)
    }

    /// Returns a sentence about the cluster's plugin for an action.
    pub(super) fn describe(&self, action: &str) -> String {
        match (&self.0, self.plugin(action)) {
            (_, Some(served)) => {
                format!("The cluster serves {action} with {} {}, {}", served.name, served.version, served.digest)
            }
            (Err(why), _) => format!("what the cluster serves is unknown: {why}"),
            (Ok(all), None) if all.incomplete => {
                "what the cluster serves is unknown: its lease has no room for all of its plugins".to_owned()
            }
            (Ok(_), None) => format!("The cluster does not serve {action}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn lease(holder: &str, note: Option<&str>) -> Lease {
        let annotations = note.map(|note| json!({NOTE: note}));
        serde_json::from_value(json!({"metadata": {"annotations": annotations}, "spec": {"holderIdentity": holder}}))
            .unwrap()
    }

    fn plugin(digest: &str) -> PluginInfo {
        let manifest = br#"{"schema": 1, "name": "x", "version": "1.3.0", "action": "X", "target": ["Pod"]}"#;
        let manifest = oarlock_core::plugin::manifest::Manifest::parse(manifest).unwrap();
        let grant = oarlock_core::plugin::grant::Grant::of_all(&manifest);
        let registration = oarlock_core::plugin::proposal::Registration::default();
        PluginInfo { manifest, grant, registration, digest: digest.to_owned() }
    }

    #[test]
    fn the_lease_says_if_the_cluster_runs_the_same_plugin() {
        let note = r#"{"actions": {"X": {"name": "x", "version": "1.2.0", "digest": "sha256:a"}}}"#;
        let compared = |holder: &str, note: Option<&str>, action: &str, digest: &str| {
            Served(said(&lease(holder, note), "n/oarlock")).compared(action, &plugin(digest))
        };
        assert_eq!(compared("h", Some(note), "X", "sha256:a").comparison, Comparison::Same);
        let other = compared("h", Some(note), "X", "sha256:b");
        assert_eq!(other.comparison, Comparison::Differs);
        assert_eq!(other.message, "serves X with x 1.2.0, sha256:a; this plan is of x 1.3.0, sha256:b");
        assert_eq!(compared("h", Some(note), "Y", "sha256:a").comparison, Comparison::NotServed);
        for (holder, note, why) in [
            ("", Some(note), "no host holds"),
            ("h", None, "older version"),
            ("h", Some("{"), "cannot be read"),
            ("h", Some(r#"{"actions": {}, "incomplete": true}"#), "no room"),
        ] {
            let unknown = compared(holder, note, "X", "sha256:a");
            assert!(unknown.comparison == Comparison::Unknown && unknown.message.contains(why), "{unknown:?}");
        }
    }
}
