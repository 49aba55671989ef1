//! The lists that a plan is made on: one list of each kind that the plugin reads for the job.

use anyhow::{anyhow, bail};
use oarlock_core::object::api_object::Kind;
use oarlock_core::plugin::lookup::PluginInfo;
use oarlock_core::plugin::manifest::TargetKind;
use oarlock_core::requests::live_reads::{LiveRead, LiveReads};
use oarlock_kube::Cluster;
use oarlock_kube::read::snapshot::UnlistedKind;
use oarlock_wasm::Declared;

use super::job_file::PlannedJob;
use super::local_plugin::LocalPlugin;
use super::rights::Lacking;
use crate::declared_kinds::watched_kinds;

/// Lists the objects into the store of `cluster`. Returns the answers to the live reads that the plan needs.
///
/// # Errors
///
/// If the plugin needs a list that cannot be read. The error names all forbidden lists, and the rights to ask an admin
/// for.
pub(super) async fn read(cluster: &Cluster, plugin: &LocalPlugin, job: &PlannedJob) -> anyhow::Result<LiveReads> {
    let (kind, namespace) = (job.kind(), job.namespace());
    let declared = needed(plugin.plugins.declared_by(&plugin.info.digest), &plugin.info, kind);
    // The host always watches pods and namespaces. This job only needs its targets. It reads its own namespace by name.
    let kinds = watched_kinds([kind.kind()], declared);
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
    // The ReplicaSets tell to which Deployment a pod belongs.
    let controllers = LiveRead::Controllers { namespace: namespace.to_owned() };
    let follows = plugin.info.registration.same_controller().filter(|_| kind == TargetKind::Pod);
    let needed = follows.map(|_| controllers);
    let known = cluster.read_once(needed.as_slice()).await;
    forbidden.extend(known.failed.values().map(|failure| Forbidden {
        resource: "replicasets.apps".to_owned(),
        namespaced: true,
        message: failure.message.clone(),
    }));
    if forbidden.is_empty() { Ok(known) } else { Err(anyhow!(explained(&forbidden, name, namespace))) }
}

/// Returns the declared kinds, without the target kinds of other jobs that the plugin does not read in this job.
fn needed(mut declared: Declared, plugin: &PluginInfo, target: TargetKind) -> Declared {
    let reads = |kind: &Kind| {
        plugin.registration.relations.iter().any(|relation| relation.kind == *kind)
            || plugin.manifest.reads.iter().any(|rule| Kind::new(&rule.api_version, &rule.kind) == *kind)
    };
    declared.retain(|kind, _| *kind == target.kind() || reads(kind));
    declared
}

/// A list that the user may not read.
struct Forbidden {
    /// The resource, such as `pods` or `deployments.apps`.
    resource: String,
    namespaced: bool,
    message: String,
}

/// Names the missing rights, and the commands with which an admin grants them.
fn explained(forbidden: &[Forbidden], plugin: &str, namespace: &str) -> String {
    let of = |namespaced: bool| -> Vec<&str> {
        forbidden.iter().filter(|one| one.namespaced == namespaced).map(|one| one.resource.as_str()).collect()
    };
    let why = forbidden.first().map(|one| one.message.as_str()).unwrap_or_default();
    let (own, of_cluster) = (of(true), of(false));
    let places = [(&own, format!(" in namespace {namespace}")), (&of_cluster, String::new())];
    let places = places.iter().filter(|(resources, _)| !resources.is_empty());
    let what: Vec<String> = places.map(|(resources, place)| format!("{}{place}", resources.join(", "))).collect();
    let mut text = format!(
        "you may not list {}, which plugin {plugin} reads ({why}); an admin gives you that with",
        what.join(", and ")
    );
    for (resources, namespace) in [(own, Some(namespace)), (of_cluster, None)] {
        let lacking = Lacking { role: "oarlock-plan", verb: "list", resources: &resources.join(","), namespace };
        if !resources.is_empty() {
            text.extend(lacking.commands().map(|command| format!("\n  {command}")));
        }
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
            text.starts_with(
                "you may not list pods, collasets.apps.kusionstack.io in namespace shop, and nodes, which plugin x"
            ),
            "{text}"
        );
        let own =
            "kubectl -n shop create role oarlock-plan --verb=list --resource=pods,collasets.apps.kusionstack.io\n";
        assert!(
            text.contains(own) && text.contains("create clusterrole oarlock-plan --verb=list --resource=nodes\n"),
            "{text}"
        );
    }

    #[test]
    fn who_may_list_only_the_targets_is_told_of_them_alone() {
        let text =
            explained(&[Forbidden { resource: "nodes".into(), namespaced: false, message: "403".into() }], "x", "shop");
        assert!(text.starts_with("you may not list nodes, which plugin x reads (403)"), "{text}");
        assert!(!text.contains("-n shop"), "{text}");
    }

    #[test]
    fn a_job_needs_its_targets_and_what_its_plugin_reads_and_no_other_kind_of_target() {
        let plugin = |reads: &str| -> PluginInfo {
            let text = format!(
                r#"{{"schema": 1, "name": "x", "version": "1.0.0", "action": "X", "target": ["Pod", "Node"], "reads": [{reads}]}}"#
            );
            let manifest = oarlock_core::plugin::manifest::Manifest::parse(text.as_bytes()).unwrap();
            let grant = oarlock_core::plugin::grant::Grant::of_all(&manifest);
            PluginInfo { manifest, grant, registration: Default::default(), digest: "sha256:a".into() }
        };
        let declared = || Declared::from([Kind::pod(), Kind::node()].map(|kind| (kind, Default::default())));
        let kinds = |reads: &str, target| {
            let kinds = needed(declared(), &plugin(reads), target);
            kinds.into_keys().map(|kind| kind.kind).collect::<Vec<_>>()
        };
        let nodes = r#"{"apiVersion": "v1", "kind": "Node", "fields": ["/spec/taints"], "reason": "r"}"#;
        let pods = nodes.replace("Node", "Pod");
        assert_eq!(kinds(nodes, TargetKind::Node), ["Node"]);
        assert_eq!(kinds(nodes, TargetKind::Pod), ["Node", "Pod"]);
        assert_eq!(kinds(&format!("{nodes}, {pods}"), TargetKind::Node), ["Node", "Pod"]);
    }
}
