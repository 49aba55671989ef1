//! `oarlock plugin roles`: prints the roles that the host needs for the grant of one plugin.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use clap::Args;
use kube::api::{Api, ApiResource, DynamicObject};
use kube::core::GroupVersionKind;
use oarlock_api::HostAccount;
use oarlock_core::plugin::grant::{Grant, KIND};
use oarlock_kube::transport::client::connect;

use crate::commands::host::ClusterArgs;
use crate::commands::manifests::{DocumentFormat, learn, print_documents};
use crate::commands::text_file::read_grants;
use crate::manifests::{GrantedAccess, HOST_NAMESPACE, Impersonation, KnownKinds, plugin_roles};

pub(super) const EXAMPLES: &str = "\
Examples:
  oarlock plugin roles replace | kubectl apply -f -              for the grant in the ActionPlugin replace of the cluster
  oarlock plugin roles replace --grants grants.yaml | kubectl apply -f -
  oarlock plugin roles mine --crds <(kubectl get crds -o json)   if the grant names kinds that are not Kubernetes' own

The condition HostMayNot of an ActionPlugin lists the rights that the host lacks. These roles add them.";

/// Arguments of `oarlock plugin roles`.
#[derive(Debug, Args)]
pub(crate) struct RolesArgs {
    /// Name of the plugin
    name: String,
    /// File with the grant [default: the ActionPlugin of the cluster]
    #[arg(long, value_name = "FILE")]
    grants: Option<PathBuf>,
    /// Definitions of further kinds that the grant names; can be repeated
    #[arg(long, value_name = "FILE")]
    crds: Vec<PathBuf>,
    /// A namespace that a pattern of the grant means; can be repeated
    #[arg(long, value_name = "NAMESPACE")]
    bind: Vec<String>,
    /// Namespace of the host
    #[arg(long, value_name = "NAMESPACE", default_value = HOST_NAMESPACE)]
    namespace: String,
    /// Service account of the host
    #[arg(long, value_name = "NAME", default_value = "oarlock")]
    account: String,
    /// Namespace of the accounts of plugins
    #[arg(long, value_name = "NAMESPACE", default_value_t = HostAccount::default().plugin_accounts)]
    plugin_accounts_namespace: String,
    /// How the host acts as the account of a plugin
    #[arg(long, value_name = "WAY", default_value = "constrained")]
    impersonation: Impersonation,
    /// Output format; json is one list
    #[arg(short, long, value_enum, default_value = "yaml")]
    output: DocumentFormat,
    #[command(flatten)]
    cluster: ClusterArgs,
}

/// Prints the roles.
pub(super) async fn run(args: RolesArgs) -> anyhow::Result<ExitCode> {
    let RolesArgs { name, grants, crds, bind, output, cluster, .. } = args;
    let (impersonation, plugin_accounts) = (args.impersonation, args.plugin_accounts_namespace);
    let grant = match grants {
        Some(path) => {
            let found = read_grants(&path)?.1.into_iter().find(|grant| grant.name == name);
            found.with_context(|| format!("{} has no grant for {name}", path.display()))?
        }
        None => stored(&name, cluster).await?,
    };
    if grant.namespaces.is_empty() {
        bail!("the grant of {name} names no namespaces, so the host needs no right for it: set `spec.namespaces`");
    }
    let mut kinds = KnownKinds::built_in();
    crds.iter().try_for_each(|path| learn(&mut kinds, path))?;
    let host = HostAccount { namespace: args.namespace, name: args.account, plugin_accounts };
    let access = GrantedAccess { grants: vec![grant], kinds, bind, host, tasks_egress: Vec::new(), impersonation };
    print_documents(&plugin_roles(&access)?, output)
}

/// Returns the grant in the ActionPlugin of the cluster with this name.
async fn stored(name: &str, cluster: ClusterArgs) -> anyhow::Result<Grant> {
    let (client, _server) = connect(&cluster.source()?).await?;
    let kind = GroupVersionKind::gvk(oarlock_api::OARLOCK_GROUP, oarlock_api::VERSION, KIND);
    let all: Api<DynamicObject> = Api::all_with(client, &ApiResource::from_gvk_with_plural(&kind, "actionplugins"));
    let found = all.get_opt(name).await.with_context(|| format!("cannot read the ActionPlugin {name}"))?;
    let found = found.with_context(|| {
        format!("the cluster has no ActionPlugin {name}: `kubectl get actionplugins` lists them, and --grants FILE takes a file")
    })?;
    Ok(Grant::of_spec(name, found.data.get("spec"))?)
}
