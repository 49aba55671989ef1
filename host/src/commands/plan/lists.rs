//! The lists that a plan is made on: of each kind that the plugin reads, once.

use anyhow::{anyhow, bail};
use oarlock_core::cluster::live_reads::{LiveRead, LiveReads};
use oarlock_core::cluster::object::Kind;
use oarlock_kube::Cluster;
use oarlock_kube::snapshot::UnlistedKind;

use super::local_plugin::LocalPlugin;
use crate::ports::declared;

/// Lists them into the store of `cluster`. Yields the answers to further reads that were made on the way.
///
/// # Errors
///
/// If one cannot be had that the plugin needs: all that are forbidden at once, with what to ask an admin for.
pub(super) async fn read(cluster: &Cluster, plugin: &LocalPlugin, namespace: &str) -> anyhow::Result<LiveReads> {
    let mut kinds = declared(&plugin.plugins);
    // That of the job alone is read, by name.
    kinds.kinds.remove(&Kind::namespace());
    let name = &plugin.info.manifest.name;
    let mut forbidden = Vec::new();
    for (kind, listed) in cluster.list_once(kinds, namespace).await {
        match listed {
            Ok(_) => {}
            Err(UnlistedKind::NotServed { .. }) if plugin.info.manifest.can_lack(&kind) => {}
            Err(UnlistedKind::Forbidden { resource, namespaced, message }) => {
                forbidden.push(Forbidden { resource, namespaced, message });
            }
            Err(error @ (UnlistedKind::NotServed { .. } | UnlistedKind::Failed { .. })) => {
                bail!("cannot list {} of {}, which plugin {name} reads: {error}", kind.kind, kind.api_version)
            }
        }
    }
    // The host learns from them to which Deployment a pod belongs.
    let controllers = LiveRead::Controllers { namespace: namespace.to_owned() };
    let needed = plugin.info.registration.same_controller().map(|_| controllers);
    let known = cluster.read_once(needed.as_slice()).await;
    forbidden.extend(known.failed.values().map(|failure| Forbidden {
        resource: "replicasets.apps".to_owned(),
        namespaced: true,
        message: failure.message.clone(),
    }));
    if forbidden.is_empty() { Ok(known) } else { Err(anyhow!(explained(&forbidden, name, namespace))) }
}

/// A list that the user may not make.
struct Forbidden {
    /// Such as `pods` or `deployments.apps`.
    resource: String,
    namespaced: bool,
    message: String,
}

/// What is lacking, and the commands by which an admin gives it.
fn explained(forbidden: &[Forbidden], plugin: &str, namespace: &str) -> String {
    let of = |namespaced: bool| -> Vec<&str> {
        forbidden.iter().filter(|one| one.namespaced == namespaced).map(|one| one.resource.as_str()).collect()
    };
    let all: Vec<&str> = forbidden.iter().map(|one| one.resource.as_str()).collect();
    let why = forbidden.first().map(|one| one.message.as_str()).unwrap_or_default();
    let (own, of_cluster) = (of(true).join(","), of(false).join(","));
    let mut text = format!(
        "you may not list {} in namespace {namespace}, which plugin {plugin} reads ({why}); an admin gives you that with",
        all.join(", ")
    );
    if !own.is_empty() {
        text += &format!(
            "\n  kubectl -n {namespace} create role oarlock-plan --verb=list --resource={own}\
             \n  kubectl -n {namespace} create rolebinding oarlock-plan --role=oarlock-plan --user=YOU"
        );
    }
    if !of_cluster.is_empty() {
        text += &format!(
            "\n  kubectl create clusterrole oarlock-plan --verb=list --resource={of_cluster}\
             \n  kubectl create clusterrolebinding oarlock-plan --clusterrole=oarlock-plan --user=YOU"
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_is_forbidden_is_told_at_once_with_the_roles_that_allow_it() {
        let one =
            |resource: &str, namespaced| Forbidden { resource: resource.into(), namespaced, message: "403".into() };
        let text = explained(
            &[one("pods", true), one("collasets.apps.kusionstack.io", true), one("nodes", false)],
            "x",
            "shop",
        );
        assert!(
            text.starts_with("you may not list pods, collasets.apps.kusionstack.io, nodes in namespace shop"),
            "{text}"
        );
        let own =
            "kubectl -n shop create role oarlock-plan --verb=list --resource=pods,collasets.apps.kusionstack.io\n";
        assert!(
            text.contains(own) && text.contains("create clusterrole oarlock-plan --verb=list --resource=nodes\n"),
            "{text}"
        );
    }
}
